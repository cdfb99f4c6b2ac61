"""Change the price list: every change has an author and a reason, and overwrites nobody else's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.db.models import ProtectedError, Q
from django.utils import timezone

from entitlements.actions.authorship import ChangeSource, changed_fields, problems_as_issues, written_by
from entitlements.models import ENTITLEMENT_FIELDS, Account, Tier
from webhost.errors import ConflictError, InvalidRequestError, NotFoundError

EDITABLE_FIELDS = ("name", "description", "rank", "is_public", "is_default", "retired_at", *ENTITLEMENT_FIELDS)


def create_tier(
    values: Mapping[str, Any], *, actor: str, reason: str, source: ChangeSource = ChangeSource.ADMIN
) -> Tier:
    """Add a tier. Raises InvalidRequestError naming what cannot be sold."""
    with written_by(actor, reason, source):
        tiers = _lock_tiers()
        tier = Tier(**values)
        _hand_over_default(tier, tiers, was_default=False)
        with problems_as_issues():
            tier.full_clean()
        tier.save()
    return tier


def change_tier(
    tier_id: int,
    values: Mapping[str, Any],
    *,
    actor: str,
    reason: str,
    expected_version: int,
    source: ChangeSource = ChangeSource.ADMIN,
) -> Tier:
    """Change a tier that nobody else changed meanwhile; in force on the next request.

    Writes nothing where nothing is different. Raises ConflictError where the tier is no longer at the
    version that the author saw: what somebody else saved is never restored by accident.
    """
    with written_by(actor, reason, source):
        tiers = _lock_tiers()
        tier = _of(tiers, tier_id)
        if tier.version != expected_version:
            raise ConflictError(
                f"{tier.name} was changed by somebody else while you were editing it "
                f"(version {tier.version}, you saw {expected_version}). Nothing was saved; please look again."
            )
        was_default = tier.is_default
        changed = changed_fields(tier, dict(values))
        if changed:
            _hand_over_default(tier, tiers, was_default=was_default)
            with problems_as_issues():
                tier.full_clean()
            tier.save(update_fields=changed)
            tier.refresh_from_db()
    return tier


def retire_tier(tier_id: int, *, actor: str, reason: str) -> bool:
    """Stop selling a tier; its accounts keep it. Returns False where it was retired already."""
    with written_by(actor, reason):
        tier = _of(_lock_tiers(), tier_id)
        if tier.retired_at is not None:
            return False
        if tier.is_default:
            raise ConflictError(f"{tier.name} is the default: make another tier the default first.")
        tier.retired_at = timezone.now()
        tier.save(update_fields=["retired_at"])
    return True


def why_not_deleted(tier: Tier) -> str:
    """Say why a tier cannot be deleted; empty when it can."""
    if tier.is_default:
        return f"{tier.name} is the default: what an account without a tier has."
    accounts = Account.objects.filter(Q(billing_tier=tier) | Q(support_tier=tier)).count()
    if accounts:
        verb = "account names" if accounts == 1 else "accounts name"
        return f"{accounts:,} {verb} {tier.name}. Retire it instead: it is no longer sold, and they keep it."
    if tier.prices.exists():
        return f"Stripe prices still buy {tier.name}."
    return ""


def delete_tier(tier_id: int, *, actor: str, reason: str) -> None:
    """Delete a tier that nobody is on. Raises ConflictError otherwise, and nothing happens."""
    with written_by(actor, reason):
        tier = _of(_lock_tiers(), tier_id)
        why_not = why_not_deleted(tier)
        if why_not:
            raise ConflictError(why_not)
        try:
            tier.delete()
        except ProtectedError as error:
            raise ConflictError(f"Somebody was put on {tier.name} just now.") from error


def _lock_tiers() -> list[Tier]:
    """Lock the whole price list, a handful of rows: rank, name and default are decided together.

    NO KEY, because FOR UPDATE would hold up every new account that names a tier.
    """
    return list(Tier.objects.select_for_update(no_key=True).order_by("pk"))


def _of(tiers: list[Tier], tier_id: int) -> Tier:
    tier = next((t for t in tiers if t.pk == tier_id), None)
    if tier is None:
        raise NotFoundError("This tier was deleted meanwhile.")
    return tier


def _hand_over_default(tier: Tier, tiers: list[Tier], *, was_default: bool) -> None:
    """Keep exactly one default: making one moves it, and it can only be given away."""
    if was_default and not tier.is_default:
        raise InvalidRequestError(
            "There must be a default tier: make another one the default instead.", path="is_default"
        )
    if tier.is_default and tier.retired_at is not None:
        raise InvalidRequestError("The default tier cannot be retired.", path="retired_at")
    if tier.is_default and not was_default:
        for other in tiers:
            if other.is_default and other.pk != tier.pk:
                other.is_default = False
                other.save(update_fields=["is_default"])
