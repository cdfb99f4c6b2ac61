"""What would follow from an edit of a tier, or from moving accounts to one, before anything is saved."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from django.db.models import Q, QuerySet
from django.utils import timezone

from entitlements.actions.accounts import with_tier_in_force
from entitlements.actions.tiers import EDITABLE_FIELDS
from entitlements.enums import TierSource
from entitlements.impact import LOOKS, Draft, Impact, Loss, look_at, one_look
from entitlements.models import ENTITLEMENT_FIELDS, Account, Tier

_RETENTION: Final = ("telemetry_retention_days", "logs_retention_days")


@dataclass(frozen=True)
class Difference:
    """One field of a tier: what it is, and what the draft makes of it."""

    field: str
    before: Any
    after: Any


@dataclass(frozen=True)
class Preview:
    """All that is shown before a change is saved."""

    differences: Sequence[Difference]
    impact: Impact
    losses: Sequence[Loss]
    # Of these, what is older is deleted in the next night, and nobody brings it back.
    shortened: Sequence[Difference] = ()
    takes_default: bool = False


def differences_of(tier: Tier | None, values: Mapping[str, Any]) -> list[Difference]:
    """Return what a draft makes different, in the form's order; of a new tier everything is."""
    before = {name: getattr(tier, name) if tier else None for name in EDITABLE_FIELDS}
    return [
        Difference(name, before[name], values[name])
        for name in EDITABLE_FIELDS
        if name in values and (tier is None or before[name] != values[name])
    ]


def draft_digest(tier: Tier | None, values: Mapping[str, Any]) -> str:
    """Return what confirms that this very draft, of this very version, was looked at."""
    said = [tier.version if tier else 0, *sorted((name, str(values[name])) for name in EDITABLE_FIELDS)]
    return hashlib.sha256(repr(said).encode()).hexdigest()[:32]


def preview_tier(tier: Tier | None, values: Mapping[str, Any]) -> Preview:
    """Return what saving these values would do: to whom is on the tier, and to whom it would come by default."""
    now = timezone.now()
    takes_default = bool(values["is_default"]) and not (tier and tier.is_default)
    on_it = Q(pk__in=[]) if tier is None else Q(tier_in_force_id=tier.pk)
    by_default = Q(tier_set_by=TierSource.DEFAULT) if takes_default else Q(pk__in=[])
    accounts = with_tier_in_force(Account.objects.all(), now).filter(on_it | by_default)
    differences = differences_of(tier, values)
    shortened = [d for d in differences if tier and d.field in _RETENTION and d.after < d.before]
    # Who comes to it by default has another tier now.
    before = None if tier is None or takes_default else {name: getattr(tier, name) for name in ENTITLEMENT_FIELDS}
    return _previewed(Draft(values, accounts, now, before), differences, shortened, takes_default=takes_default)


def preview_move(accounts: QuerySet[Any], tier: Tier, at: datetime) -> Preview:
    """Return what putting these accounts on a tier would do. `accounts` know their tier in force."""
    values = {name: getattr(tier, name) for name in ENTITLEMENT_FIELDS}
    shortened = [
        Difference(name, None, values[name])
        for name in _RETENTION
        if Tier.objects.filter(pk__in=accounts.values("tier_in_force_id"), **{f"{name}__gt": values[name]}).exists()
    ]
    return _previewed(Draft(values, accounts, at), (), shortened)


def _previewed(
    draft: Draft, differences: Sequence[Difference], shortened: Sequence[Difference], *, takes_default: bool = False
) -> Preview:
    with one_look():
        impact = look_at(draft)
        losses = [loss for look in LOOKS for loss in look(draft)]
    return Preview(differences, impact, losses, shortened, takes_default=takes_default)
