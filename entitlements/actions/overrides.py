"""Exceptions for one account: what results from its tier and all of them obeys the same rules as a tier."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

from django.utils import timezone

from entitlements import rules
from entitlements.actions.accounts import with_tier_in_force
from entitlements.actions.authorship import (
    ChangeSource,
    changed_fields,
    fingerprint,
    problems_as_issues,
    written_by,
)
from entitlements.actions.gates import lock_account
from entitlements.models import Account, Override, Tier
from webhost.errors import ConflictError, InvalidRequestError, Issue, NotFoundError

EDITABLE_FIELDS = ("key", "value", "ends_at")
_NEWEST = 2**62  # stands for the id of an override that is not saved yet: the newest wins


def problem_of_value(key: rules.Key, value: int | None) -> str:
    """Say what is wrong with a value on its own; empty when nothing is."""
    if value is not None and value < 0:
        return "Empty (unlimited), or 0 and more."
    if key in rules.FLAGS and value not in (0, 1):
        return "A switch is 1 (on) or 0 (off)."
    if key in rules.QUOTAS and value is None:
        return "A tool's quota must be a number."
    if key in rules.RETENTION and not value:
        return "At least 1 day."
    return ""


def new_problems(
    tier: rules.TierValues,
    others: list[rules.OverrideValue],
    wanted: rules.OverrideValue | None,
    at: datetime,
) -> list[rules.Problem]:
    """Return the rules that an override would break, on top of its tier and the other live overrides.

    What is broken without it, say since a downgrade, is no reason to refuse: one may be the repair.
    """
    before = rules.problems_of(rules.merge(tier, others, at)[0])
    with_it = rules.merge(tier, [*others, wanted] if wanted else others, at)[0]
    return [p for p in rules.problems_of(with_it) if p not in before]


def override_fingerprint(override: Override) -> str:
    """Return a digest of what staff can edit, to notice that somebody else edited it meanwhile."""
    return fingerprint(override, EDITABLE_FIELDS)


def set_override(
    account_id: UUID,
    key: rules.Key,
    value: int | None,
    *,
    ends_at: datetime | None,
    created_by: Account | None,
    actor: str,
    reason: str,
    source: ChangeSource = ChangeSource.ADMIN,
) -> Override:
    """Set one value over an account's tier; in force on its next request. Raises InvalidRequestError."""
    with written_by(actor, reason, source):
        lock_account(account_id)
        _check(account_id, key, value, ends_at)
        override = Override(
            account_id=account_id, key=key, value=value, ends_at=ends_at, reason=reason.strip(), created_by=created_by
        )
        with problems_as_issues():
            override.full_clean()
        override.save()
    return override


def change_override(
    override_id: int,
    key: rules.Key,
    value: int | None,
    *,
    ends_at: datetime | None,
    actor: str,
    reason: str,
    seen: str,
) -> Override:
    """Change an override that nobody else changed meanwhile. Writes nothing where nothing is different."""
    with written_by(actor, reason):
        override = Override.objects.filter(pk=override_id).first()
        if override is None:
            raise NotFoundError("This override was removed meanwhile.")
        lock_account(override.account_id)
        override.refresh_from_db()
        if override_fingerprint(override) != seen:
            raise ConflictError(
                "This override was changed by somebody else while you were editing it. "
                "Nothing was saved; please look again."
            )
        changed = changed_fields(override, {"key": key, "value": value, "ends_at": ends_at})
        if changed:
            _check(override.account_id, key, value, ends_at, itself=override.pk)
            changed += changed_fields(override, {"reason": reason.strip()})
            with problems_as_issues():
                override.full_clean()
            override.save(update_fields=changed)
    return override


def end_override(override_id: int, *, actor: str, reason: str) -> Override:
    """End an override now, and keep it as what was granted; why it ended is in the history.

    The account's tier speaks again, and what then lacks its quota is off. Raises ConflictError where it ended before.
    """
    with written_by(actor, reason):
        override = Override.objects.filter(pk=override_id).first()
        if override is None:
            raise NotFoundError("This override was removed meanwhile.")
        lock_account(override.account_id)
        override.refresh_from_db()
        now = timezone.now()
        if override.ends_at is not None and override.ends_at <= now:
            raise ConflictError("This override has ended already. Nothing was changed.")
        override.ends_at = now
        override.save(update_fields=["ends_at"])
    return override


def remove_override(override_id: int, *, actor: str, reason: str) -> None:
    """Take an override away; the account's tier speaks again, and what then lacks its quota is off."""
    with written_by(actor, reason):
        override = Override.objects.filter(pk=override_id).first()
        if override is None:
            return
        lock_account(override.account_id)
        override.delete()


def issues_of_override(
    account_id: UUID, key: rules.Key, value: int | None, ends_at: datetime | None, *, itself: int | None = None
) -> list[Issue]:
    """Return what is wrong with an override, for a form: the value alone, and what would result."""
    wrong = problem_of_value(key, value)
    if wrong:
        return [{"path": "value", "message": wrong}]
    now = timezone.now()
    if ends_at is not None and ends_at <= now:
        return [{"path": "ends_at", "message": "The end must lie ahead."}]
    accounts = with_tier_in_force(Account.objects.filter(pk=account_id), now)
    tier = Tier.objects.filter(pk__in=accounts.values("tier_in_force_id")).first()
    if tier is None:
        return [{"path": "account", "message": "There is no such account."}]
    others = [
        rules.OverrideValue(o.pk, rules.Key(o.key), o.value, o.ends_at)
        for o in Override.objects.filter(account_id=account_id)
        if o.pk != itself
    ]
    wanted = rules.OverrideValue(itself or _NEWEST, key, value, ends_at)
    return [
        {"path": "__all__", "message": f"Together with {tier.name} and its other overrides: {p.message}"}
        for p in new_problems(tier.values(), others, wanted, now)
    ]


def _check(
    account_id: UUID, key: rules.Key, value: int | None, ends_at: datetime | None, *, itself: int | None = None
) -> None:
    issues = issues_of_override(account_id, key, value, ends_at, itself=itself)
    if issues:
        raise InvalidRequestError("; ".join(i["message"] for i in issues), issues=issues)
