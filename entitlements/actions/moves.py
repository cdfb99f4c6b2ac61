"""Put many accounts on a tier at once, by hand: each leaves its own entry, and nobody changed meanwhile is moved."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from django.db.models import Q, QuerySet
from django.utils import timezone

from entitlements.actions.authorship import ChangeSource, written_by
from entitlements.models import Account, Tier
from webhost.errors import ConflictError, InvalidRequestError, NotFoundError

MOST_MOVED: Final = 5_000  # in one transaction, whose rows are locked until it ends
_SEEN: Final = ("pk", "support_tier_id", "support_tier_until", "billing_tier_id", "billing_tier_until", "is_active")


def selection_digest(accounts: QuerySet[Any]) -> str:
    """Return what changes when other accounts are chosen, or the tier of one of them."""
    return _digest(accounts.order_by("pk").values_list(*_SEEN))


def _digest(rows: Iterable[tuple[Any, ...]]) -> str:
    digest = hashlib.sha256()
    for row in rows:
        digest.update(repr(row).encode())
    return digest.hexdigest()[:32]


def tiers_to_move_to() -> QuerySet[Tier]:
    """Return the tiers that accounts may be moved to: those that are not retired."""
    return Tier.objects.filter(retired_at__isnull=True).order_by("rank")


def move_accounts(
    accounts: Iterable[UUID],
    tier_id: int,
    *,
    until: datetime | None,
    actor: str,
    reason: str,
    seen: str,
    source: ChangeSource = ChangeSource.ADMIN,
) -> int:
    """Set the tier of these accounts by hand, all or none; return how many had another one before.

    `seen` is `selection_digest` of what the author looked at. Raises ConflictError where that is no longer so, where
    the tier is retired, or where there are more accounts than one transaction should hold.
    """
    if until is not None and until <= timezone.now():
        raise InvalidRequestError("The end must lie ahead.", path="until")
    with written_by(actor, reason, source):
        # Shared, so that nobody retires or deletes it while accounts are put on it.
        tier = Tier.objects.select_for_update(no_key=True).filter(pk=tier_id).first()
        if tier is None:
            raise NotFoundError("This tier was deleted meanwhile.")
        if tier.retired_at is not None:
            raise ConflictError(f"{tier.name} is retired: nobody is moved to it.")
        rows = list(
            Account.objects.select_for_update(no_key=True)
            .filter(pk__in=list(accounts))
            .order_by("pk")
            .values_list(*_SEEN)
        )
        if len(rows) > MOST_MOVED:
            raise ConflictError(f"At most {MOST_MOVED:,} accounts are moved at a time.")
        if _digest(rows) != seen:
            raise ConflictError("Some of these accounts were changed meanwhile. Nothing was moved; please look again.")
        same = Q(support_tier=tier, support_tier_until=until)
        return (
            Account.objects.filter(pk__in=[row[0] for row in rows])
            .exclude(same)
            .update(support_tier=tier, support_tier_until=until, support_tier_reason=reason.strip())
        )
