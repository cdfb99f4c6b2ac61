"""What staff do to accounts: open, put on a tier by hand, disable, enable, delete what was never used."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any
from uuid import UUID

from django.contrib.admin.utils import NestedObjects
from django.db import transaction
from django.db.models import Case, Count, F, Q, QuerySet, Value, When
from django.utils import timezone

from entitlements.actions.addresses import ask_for_proof, vouch_for_address
from entitlements.actions.authorship import (
    ChangeSource,
    changed_fields,
    fingerprint,
    problems_as_issues,
    written_by,
)
from entitlements.actions.notices import tell_address
from entitlements.enums import TierSource
from entitlements.models import Account, Notice, PeriodCounter, Tier
from webhost.errors import ConflictError, ForbiddenError, InvalidRequestError, NotFoundError
from webhost.history import noted

EDITABLE_FIELDS = (
    "email", "support_tier", "support_tier_until", "is_staff", "is_superuser", "groups",
)  # fmt: skip
# What goes with an account when it is deleted. Anything of another app is a reason not to delete it.
_OWN_APPS = frozenset({"entitlements", "admin", "auth", "account", "mfa", "usersessions"})


def with_tier_in_force(accounts: QuerySet[Account], at: datetime) -> QuerySet[Any]:
    """Annotate `tier_in_force_id` and `tier_set_by`: support's while that lasts, else billing's, else the default."""

    def lasts(which: str) -> Q:
        until = Q(**{f"{which}_until__isnull": True}) | Q(**{f"{which}_until__gt": at})
        return Q(**{f"{which}__isnull": False}) & until

    return accounts.annotate(
        tier_in_force_id=Case(
            When(lasts("support_tier"), then=F("support_tier_id")),
            When(lasts("billing_tier"), then=F("billing_tier_id")),
            default=Tier.objects.filter(is_default=True).values("pk")[:1],
        ),
        tier_set_by=Case(
            When(lasts("support_tier"), then=Value(TierSource.SUPPORT)),
            When(lasts("billing_tier"), then=Value(TierSource.BILLING)),
            default=Value(TierSource.DEFAULT),
        ),
    )


def accounts_by_tier() -> dict[int, int]:
    """Return how many accounts each tier is in force for."""
    accounts = with_tier_in_force(Account.objects.order_by(), timezone.now())
    counted = accounts.values("tier_in_force_id").annotate(accounts=Count("pk"))
    return {row["tier_in_force_id"]: row["accounts"] for row in counted}


def account_fingerprint(account: Account) -> str:
    """Return a digest of what staff can edit, to notice that somebody else edited it meanwhile."""
    return fingerprint(account, EDITABLE_FIELDS)


def create_account(
    values: Mapping[str, Any],
    password: str | None,
    *,
    actor: str,
    reason: str,
    source: ChangeSource = ChangeSource.ADMIN,
) -> Account:
    """Open an account, with an address that staff vouch for. Without a password nobody can sign in to it."""
    with written_by(actor, reason, source):
        account = Account()
        _set(account, values, reason)
        account.email = account.email.strip().lower()
        account.set_password(password)
        with problems_as_issues():
            account.full_clean()
        account.save()
        vouch_for_address(account)
        _set_groups(account, values)
    return account


def change_account(
    account_id: UUID,
    values: Mapping[str, Any],
    *,
    actor: str,
    reason: str,
    seen: str,
    source: ChangeSource = ChangeSource.ADMIN,
) -> Account:
    """Change an account that nobody else changed meanwhile; in force on its next request.

    The reason is kept beside a tier set by hand and beside a disabled account, and in the history.
    Another address has to be confirmed by its owner before the next deployment; both addresses are told.
    Writes nothing where nothing is different. Raises ConflictError where `seen` is not what it is now.
    """
    with written_by(actor, reason, source):
        account = Account.objects.select_for_update(no_key=True).filter(pk=account_id).first()
        if account is None:
            raise NotFoundError("This account was deleted meanwhile.")
        if account_fingerprint(account) != seen:
            raise ConflictError(
                f"{account.email} was changed by somebody else while you were editing it. "
                "Nothing was saved; please look again."
            )
        before = account.email
        changed = _set(account, values, reason)
        if changed:
            with problems_as_issues():
                account.full_clean()
            account.save(update_fields=changed)
        if "email" in changed:
            ask_for_proof(account)
            tell_address(before, Notice.Kind.ADDRESS_CHANGED, account)
        _set_groups(account, values)
    return account


def set_active(
    account_id: UUID,
    active: bool,  # noqa: FBT001 - the state that is wanted
    *,
    by: Account,
    reason: str,
    source: ChangeSource = ChangeSource.ADMIN,
) -> Account:
    """Disable an account, or enable it again; its next call is answered 403, or served.

    The reason is kept beside a disabled account and in the history. Raises ForbiddenError for oneself and, unless a
    superuser does it, for staff; ConflictError where it is so already.
    """
    with written_by(by.get_username(), reason, source):
        account = Account.objects.select_for_update(no_key=True).filter(pk=account_id).first()
        if account is None:
            raise NotFoundError("This account was deleted meanwhile.")
        if account.pk == by.pk:
            raise ForbiddenError("You cannot disable or enable yourself.")
        if account.is_staff and not by.is_superuser:
            raise ForbiddenError("Only a superuser disables or enables staff.")
        if account.is_active == active:
            raise ConflictError(
                f"{account.email} is {'active' if active else 'disabled'} already. Nothing was changed."
            )
        account.save(update_fields=_set(account, {"is_active": active}, reason))
    return account


def _set_groups(account: Account, values: Mapping[str, Any]) -> None:
    """Put staff into groups. A membership is a row of its own, and so is its entry in the history."""
    if "groups" in values:
        account.groups.set(values["groups"])


def set_billing_tier(
    account_id: UUID, tier_id: int | None, until: datetime | None, *, actor: str, reason: str, source: str
) -> bool:
    """Set what is paid for: a tier, and until when; None is the default tier. Says whether anything was different.

    What support set by hand stays beside it, and over it while it lasts. `source` names the machine that says so,
    such as `stripe evt_...`.
    """
    with transaction.atomic(), noted(actor=actor, reason=reason, source=source):
        account = Account.objects.select_for_update(no_key=True).get(pk=account_id)
        changed = changed_fields(account, {"billing_tier_id": tier_id, "billing_tier_until": until})
        if changed:
            account.save(update_fields=changed)
    return bool(changed)


def _set(account: Account, values: Mapping[str, Any], reason: str) -> list[str]:
    """Set values, and what follows from them: why it is disabled, why it has this tier."""
    wanted = {name: value for name, value in values.items() if name != "groups"}
    if "email" in wanted:
        wanted["email"] = wanted["email"].strip().lower()
    if "support_tier" in wanted and wanted["support_tier"] is None:
        if wanted.get("support_tier_until") is not None:
            raise InvalidRequestError("An end needs a tier that ends.", path="support_tier_until")
        wanted |= {"support_tier_until": None, "support_tier_reason": ""}
    changed = changed_fields(account, wanted)
    if {"support_tier", "support_tier_until"} & set(changed) and account.support_tier is not None:
        changed += changed_fields(account, {"support_tier_reason": reason.strip()})
    if "is_active" in changed:
        changed += changed_fields(account, {"disabled_reason": "" if account.is_active else reason.strip()})
    return changed


def why_not_deleted(account: Account) -> str:
    """Say why an account cannot be deleted; empty when it can: usage is a billing record, agents run."""
    if PeriodCounter.objects.filter(account_id=account.pk).exists():
        return f"{account.email} has usage, which is a billing record. Disable the account instead."
    found = NestedObjects(using="default")
    found.collect([account])
    models = [*found.data, *(type(row) for row in found.protected)]
    apps = {model._meta.app_label for model in models} - _OWN_APPS  # noqa: SLF001 - documented
    if "billing" in apps:
        return f"{account.email} is a customer at Stripe, which is a billing record. Disable the account instead."
    if apps:
        return f"{account.email} has agents. Delete those first, or disable the account instead."
    return ""


def delete_account(account_id: UUID, *, actor: str, reason: str) -> None:
    """Delete an account that was never used; the history keeps its name. Raises ConflictError otherwise."""
    with written_by(actor, reason):
        account = Account.objects.select_for_update().filter(pk=account_id).first()
        if account is None:
            return
        why_not = why_not_deleted(account)
        if why_not:
            raise ConflictError(why_not)
        account.delete()
