"""Whom an account's alerts reach: its own address unless switched off, confirmed addresses, and webhooks."""

from __future__ import annotations

import logging
from collections.abc import Collection
from datetime import timedelta
from typing import Final
from uuid import UUID

from django.apps import apps
from django.conf import settings
from django.core.exceptions import ValidationError
from django.core.mail import EmailMessage, get_connection
from django.core.signing import BadSignature, TimestampSigner
from django.core.validators import validate_email
from django.db import IntegrityError, transaction
from django.utils import timezone

from entitlements.actions.gates import lock_account
from entitlements.errors import RateLimitedError
from entitlements.models import Account
from telemetry.addresses import endpoint_of
from telemetry.alert_rules import LONGEST_ADDRESS, MOST_TARGETS, all_thresholds
from telemetry.models import AlertKind, AlertTarget
from telemetry.webhook import INTERNET, Internet, WebhookError, public_address
from webhost import db
from webhost.errors import ConflictError, InvalidRequestError, NotFoundError
from webhost.ids import Prefix, public_id
from webhost.queue import send_on_commit
from webhost.signing import Purpose, current_root_key_id, deployment_key

logger = logging.getLogger(__name__)

ASK: Final = "telemetry.ask_addresses"
MAIL_SECONDS: Final = 10
_SALT: Final = "telemetry.alert-address"
_LINK_LASTS: Final = timedelta(days=3)
_MOST_ASKED_A_DAY: Final = 10
_DAY: Final = timedelta(days=1)
_ALREADY: Final = "Alerts go there already."
_CLAIM_ASKING: Final = """
UPDATE telemetry_alerttarget SET asked_at = now() WHERE id IN (
    SELECT id FROM telemetry_alerttarget WHERE confirmed_at IS NULL AND asked_at IS NULL
       AND created_at > now() - %(lasts)s::interval
     ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED)
RETURNING id, account_id, address
"""


def own_target(account: Account) -> AlertTarget:
    """Return the account's own address as a target, as it is where no row says otherwise."""
    return AlertTarget(
        id=account.pk,
        account_id=account.pk,
        kind=AlertKind.EMAIL,
        address=account.email,
        thresholds=all_thresholds(),
        confirmed_at=account.date_joined,
        created_at=account.date_joined,
    )


def targets_of(account_id: UUID) -> list[AlertTarget]:
    """Return all targets of an account, its own address among them, also those switched off; newest first."""
    targets = list(AlertTarget.objects.filter(account_id=account_id).order_by("-id"))
    account = Account.objects.filter(pk=account_id).first()
    if account is not None:
        for target in targets:
            if target.is_own:
                target.address = account.email
        if not any(t.is_own for t in targets):
            targets.append(own_target(account))
    return targets


def secret_of(target_id: UUID, root_key_id: str) -> str | None:
    """Return the secret that signs a webhook's messages; None when its root key is no longer one of ours."""
    key = deployment_key(root_key_id, Purpose.ALERT, public_id(Prefix.ALERT_TARGET, target_id))
    return None if key is None else f"whsec_{key.hex()}"


def create_target(
    account: Account,
    kind: AlertKind,
    address: str,
    thresholds: Collection[int],
    *,
    target_id: UUID,
    internet: Internet = INTERNET,
) -> tuple[AlertTarget, str | None]:
    """Add a target; return it, and for a webhook its secret, which is shown this once.

    An address other than the account's own is asked first, and gets nothing before it agreed. Raises
    InvalidRequestError for what may not be written to, ConflictError for one too many or one there is.
    """
    wanted = sorted(set(thresholds))
    if kind is AlertKind.WEBHOOK:
        _require_public(address, internet)
        target = AlertTarget(id=target_id, root_key_id=current_root_key_id(), confirmed_at=timezone.now())
    else:
        address = _mail_address(address)
        if address == account.email:
            return _switch_on_own(account, wanted), None
        target = AlertTarget(id=target_id)
    target.account_id, target.kind, target.address, target.thresholds = account.pk, kind, address, wanted
    try:
        with transaction.atomic():
            lock_account(account.pk)  # so that two at once cannot both be the last that fits
            _require_room(account.pk, kind)
            target.save(force_insert=True)
            if kind is AlertKind.EMAIL:
                send_on_commit(ASK)
    except IntegrityError as error:
        raise ConflictError(_ALREADY) from error
    return target, secret_of(target.id, target.root_key_id) if kind is AlertKind.WEBHOOK else None


def remove_target(account: Account, target_id: UUID) -> None:
    """Remove a target; what waits to be sent there is given up. Raises NotFoundError, also for somebody else's."""
    if target_id != account.pk:
        if not AlertTarget.objects.filter(pk=target_id, account_id=account.pk).delete()[0]:
            raise NotFoundError
        return
    with transaction.atomic():
        lock_account(account.pk)
        row = AlertTarget.objects.filter(pk=account.pk).first() or own_target(account)
        if not row.enabled:
            raise NotFoundError
        row.address, row.enabled = "", False
        row.save()


def _switch_on_own(account: Account, thresholds: list[int]) -> AlertTarget:
    with transaction.atomic():
        lock_account(account.pk)
        row = AlertTarget.objects.filter(pk=account.pk).first()
        if row is None or row.enabled:
            raise ConflictError(_ALREADY)
        row.enabled, row.thresholds = True, thresholds
        row.save()
    row.address = account.email
    return row


def _require_public(url: str, internet: Internet) -> None:
    endpoint = endpoint_of(url)
    if isinstance(endpoint, str):
        raise InvalidRequestError(endpoint, path="address")
    try:
        public_address(endpoint.host, internet)
    except WebhookError as error:
        said = (
            "This name is not known."
            if error.reason == "NameNotFound"
            else "This name does not lead to the public internet."
        )
        raise InvalidRequestError(said, path="address") from error


def _mail_address(text: str) -> str:
    address = text.strip().lower()
    try:
        validate_email(address)
    except ValidationError as error:
        raise InvalidRequestError("This is not an e-mail address.", path="address") from error
    if len(address) > LONGEST_ADDRESS or not address.isascii():
        raise InvalidRequestError("This is not an e-mail address.", path="address")
    return address


def _require_room(account_id: UUID, kind: AlertKind) -> None:
    if AlertTarget.objects.filter(account_id=account_id).exclude(pk=account_id).count() >= MOST_TARGETS:
        raise ConflictError(
            f"At most {MOST_TARGETS} targets besides your own address. Remove one that you do not need."
        )
    if kind is AlertKind.EMAIL:
        # From the history, so that removing a target does not make room: nobody's mailbox is filled through us.
        asked = (
            apps.get_model("telemetry", "AlertTargetEvent")
            .objects.filter(
                account_id=account_id, kind=kind, pgh_label="insert", pgh_created_at__gt=timezone.now() - _DAY
            )
            .exclude(pgh_obj_id=account_id)
        )
        if asked.count() >= _MOST_ASKED_A_DAY:
            raise RateLimitedError("Too many addresses in one day.", retry_after=int(_DAY.total_seconds()))


# --- Asking an address -------------------------------------------------------------------------------


def ask_addresses() -> int:
    """Write to addresses that were named and not asked yet; return how many. Each is asked once.

    A mail that cannot be sent is tried again by the next sweep, while its link would be worth something.
    """
    asked, failed = 0, []
    while rows := db.run_noted(_CLAIM_ASKING, {"lasts": _LINK_LASTS}):
        (row,) = rows
        try:
            _ask(row["id"], row["account_id"], row["address"])
            asked += 1
        except OSError:
            logger.warning("A question to an alert address could not be sent.", exc_info=True)
            failed.append(row["id"])
    AlertTarget.objects.filter(pk__in=failed).update(asked_at=None)
    return asked


def _ask(target_id: UUID, account_id: UUID, address: str) -> None:
    account = Account.objects.filter(pk=account_id).first()
    if account is None:
        return
    link = f"{settings.PUBLIC_URL}/alerts/confirm/{link_of(target_id)}/"
    text = (
        f"{account.email} would like usage alerts of their account at webhost.systems to be sent to this address.\n\n"
        f"If you want that, confirm within three days:\n\n{link}\n\n"
        "If not, do nothing: nothing more is sent.\n"
    )
    EmailMessage(
        "Confirm this address for usage alerts", text, to=[address], connection=get_connection(timeout=MAIL_SECONDS)
    ).send()


def link_of(target_id: UUID) -> str:
    """Return what a confirmation link carries: the target, signed, with the time."""
    return TimestampSigner(salt=_SALT).sign(target_id.hex)


def target_of_link(link: str) -> AlertTarget:
    """Return the target that a link was sent about. Raises NotFoundError where it is forged, old or removed."""
    try:
        target_id = UUID(TimestampSigner(salt=_SALT).unsign(link, max_age=_LINK_LASTS))
    except (BadSignature, ValueError) as error:
        raise NotFoundError("This link is not valid, or no longer.") from error
    target = AlertTarget.objects.filter(pk=target_id, kind=AlertKind.EMAIL).first()
    if target is None:
        raise NotFoundError("This link is not valid, or no longer.")
    return target


def confirm_target(link: str) -> AlertTarget:
    """Take an address's agreement; from now on alerts go there. Safe to repeat."""
    target = target_of_link(link)
    AlertTarget.objects.filter(pk=target.pk, confirmed_at__isnull=True).update(confirmed_at=timezone.now())
    return target
