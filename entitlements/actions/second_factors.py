"""What happens to second factors: set up, used, removed, replaced, reset for who lost a phone."""

from __future__ import annotations

import logging
from typing import Final
from uuid import UUID

from allauth.core.internal.cryptokit import compare_user_code
from allauth.mfa.models import Authenticator
from allauth.mfa.recovery_codes.internal.auth import RecoveryCodes
from allauth.mfa.totp.internal.auth import TOTP, format_hotp_value, hotp_value, yield_hotp_counters_from_time
from cryptography.fernet import InvalidToken
from django.db import transaction
from django.utils import timezone

from entitlements.actions.authorship import ChangeSource, written_by
from entitlements.actions.notices import tell
from entitlements.models import Account, Notice
from entitlements.sign_in.encryption import decrypt
from webhost.errors import ConflictError, ForbiddenError, NotFoundError

logger = logging.getLogger(__name__)
# In an authenticator's data: the time step of the newest code that was taken. No older one is taken after it.
_LAST: Final = "last_counter"


def step_of_code(secret: str, code: str, *, after: int = -1) -> int | None:
    """Return the time step (RFC 6238) of a code that is right now and newer than the last one; None: it is wrong."""
    fits = None
    # All are compared, whichever fits, so that the time it takes says nothing.
    for step in yield_hotp_counters_from_time():
        if compare_user_code(actual=code, expected=format_hotp_value(hotp_value(secret, step))) and step > after:
            fits = step
    return fits


def use_code(account_id: UUID, code: str) -> Authenticator | None:
    """Take a code of the phone or a recovery code, each once; return what it belonged to, None where it is wrong."""
    with transaction.atomic():
        # Locked: the same code sent twice at once is taken once.
        rows = Authenticator.objects.select_for_update().filter(user_id=account_id)
        found = {row.type: row for row in rows}
        totp, recovery = found.get(Authenticator.Type.TOTP), found.get(Authenticator.Type.RECOVERY_CODES)
        if totp is None:
            return None
        try:
            step = step_of_code(decrypt(totp.data["secret"]), code, after=totp.data.get(_LAST, -1))
            if step is None:
                if recovery is None or not RecoveryCodes(recovery).validate_code(code):
                    return None
                recovery.record_usage()
                return recovery
        except InvalidToken:
            logger.exception("The second factor of account %s was made with another SECRET_KEY.", account_id)
            return None
        totp.data[_LAST] = step
        totp.last_used_at = timezone.now()
        totp.save(update_fields=["data", "last_used_at"])
        return totp


def set_up_totp(account_id: UUID, secret: str, step: int, *, actor: str, reason: str) -> tuple[int, list[str]]:
    """Ask an account for codes from now on; return which factor that is, and recovery codes to show once.

    `step` is that of the code which proved that the phone has the secret; it is not taken again.
    Raises ConflictError where there is one already.
    """
    with written_by(actor, reason, ChangeSource.PAGE):
        account = _locked(account_id)
        if Authenticator.objects.filter(user_id=account_id, type=Authenticator.Type.TOTP).exists():
            raise ConflictError("There is an authenticator app already.")
        totp: Authenticator = TOTP.activate(account, secret).instance
        totp.data[_LAST] = step
        totp.save(update_fields=["data"])
        codes = _new_recovery_codes(account)
        tell(account, Notice.Kind.SET_UP)
    return totp.pk, codes


def renew_recovery_codes(account_id: UUID, *, actor: str, reason: str) -> list[str]:
    """Replace an account's recovery codes; return the new ones, to be shown once.

    Raises ConflictError where there is no authenticator app that they could stand in for.
    """
    with written_by(actor, reason, ChangeSource.PAGE):
        account = _locked(account_id)
        if not Authenticator.objects.filter(user_id=account_id, type=Authenticator.Type.TOTP).exists():
            raise ConflictError("There is no authenticator app.")
        codes = _new_recovery_codes(account)
        tell(account, Notice.Kind.NEW_RECOVERY_CODES)
    return codes


def remove_second_factor(account_id: UUID, *, actor: str, reason: str) -> None:
    """Ask an account for no more codes, as its owner wishes; nothing where there are none."""
    with written_by(actor, reason, ChangeSource.PAGE):
        _remove(_locked(account_id), Notice.Kind.REMOVED)


def reset_second_factor(
    account_id: UUID, *, actor: str, reason: str, source: ChangeSource = ChangeSource.ADMIN
) -> None:
    """Remove the second factor of somebody who lost a phone; sessions that proved it are let in no more.

    Raises ConflictError where there is none, ForbiddenError for one's own: that takes the password.
    """
    with written_by(actor, reason, source):
        account = _locked(account_id)
        if source is ChangeSource.ADMIN and account.get_username() == actor:
            raise ForbiddenError("Remove your own on your security page; it asks for your password.")
        if not _remove(account, Notice.Kind.RESET):
            raise ConflictError(f"{account.email} has no second factor.")


def recovery_codes_left(account_id: UUID) -> int:
    """Return how many recovery codes of an account were not used yet."""
    row = Authenticator.objects.filter(user_id=account_id, type=Authenticator.Type.RECOVERY_CODES).first()
    return len(RecoveryCodes(row).get_unused_codes()) if row else 0


def _locked(account_id: UUID) -> Account:
    account = Account.objects.select_for_update(no_key=True).filter(pk=account_id).first()
    if account is None:
        raise NotFoundError("This account was deleted meanwhile.")
    return account


def _new_recovery_codes(account: Account) -> list[str]:
    Authenticator.objects.filter(user_id=account.pk, type=Authenticator.Type.RECOVERY_CODES).delete()
    codes: list[str] = RecoveryCodes.activate(account).generate_codes()
    return codes


def _remove(account: Account, kind: Notice.Kind) -> bool:
    removed, _ = Authenticator.objects.filter(user_id=account.pk).delete()
    if removed:
        tell(account, kind)
    return bool(removed)
