"""Notice budgets that reach a threshold or no longer do; write it down once, with a message for each target.

Beside the ledger, never in its way: a periodic task reads what counters and tiers say (docs/adr/0016).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Any, Final
from uuid import UUID

from django.db import connection, transaction
from django.db.models import Q
from django.utils import timezone

from entitlements import rules as entitlement_rules
from entitlements.actions.accounts import with_tier_in_force
from entitlements.display import is_included
from entitlements.enums import LimitType
from entitlements.models import Account, Override, PeriodCounter, Tier
from telemetry import alert_rules
from telemetry.actions.alert_targets import targets_of
from telemetry.alert_rules import Budget, Mark, Turn
from telemetry.models import AlertDelivery, AlertDue, AlertEvent, AlertTarget
from webhost import db
from webhost.period import period_of
from webhost.queue import send_on_commit

DELIVER: Final = "telemetry.deliver_alerts"
_BATCH: Final = 500
_MOST_ROUNDS: Final = 100
_RECENT: Final = timedelta(minutes=1)
_MOST_RECENT: Final = 1000
_LOCK: Final = 0x77_68_73_16  # advisory locks of this module: "whs", 0x16
_SECOND: Final = 1000  # code execution is counted in milliseconds and limited in seconds

# Who may have changed: whose closed calls were rolled up, and whose adjustments, overrides or tier were written just
# now. All by an index, newest first. What this misses (a long transaction, a tier that ends by date, a lost answer)
# the pass over all accounts finds.
_CHANGED: Final = """
WITH due AS (
    DELETE FROM telemetry_alertdue WHERE account_id IN (
        SELECT account_id FROM telemetry_alertdue ORDER BY account_id LIMIT %(batch)s FOR UPDATE SKIP LOCKED)
    RETURNING account_id
)
SELECT account_id FROM due
UNION
SELECT account_id FROM (SELECT account_id, created_at FROM entitlements_adjustment
                         ORDER BY id DESC LIMIT %(most)s) j WHERE created_at > %(since)s
UNION
SELECT account_id FROM (SELECT account_id, pgh_created_at FROM entitlements_overrideevent
                         ORDER BY pgh_id DESC LIMIT %(most)s) o WHERE pgh_created_at > %(since)s
UNION
SELECT pgh_obj_id FROM (SELECT pgh_obj_id, pgh_created_at FROM entitlements_accountevent
                         ORDER BY pgh_id DESC LIMIT %(most)s) a WHERE pgh_created_at > %(since)s
"""
_TIER_EDITED: Final = """
SELECT 1 AS edited FROM (SELECT pgh_created_at FROM entitlements_tierevent ORDER BY pgh_id DESC LIMIT 1) t
 WHERE pgh_created_at > %(since)s
"""


@dataclass(frozen=True)
class Look:
    """One account at an instant: its budgets of the period, and the marks that have fired and not recovered."""

    period: date
    budgets: Mapping[LimitType, Budget]
    open_marks: frozenset[Mark]

    def turn(self) -> Turn:
        """Return what changes."""
        return alert_rules.turn(self.open_marks, alert_rules.reached_marks(self.budgets))


def watch_budgets(*, at: datetime | None = None) -> int:
    """Look at the accounts that changed since the last time; return how many marks fired or recovered.

    After a tier was edited: at all. Safe to run twice and at once.
    """
    since = timezone.now() - _RECENT
    if db.run(_TIER_EDITED, {"since": since}):
        AlertDue.objects.all().delete()
        return watch_all_budgets(at=at)
    total = 0
    for _ in range(_MOST_ROUNDS):  # what is left then is left for the next run
        ids = [r["account_id"] for r in db.run(_CHANGED, {"since": since, "most": _MOST_RECENT, "batch": _BATCH})]
        total += watch_accounts(ids, at=at)
        if not AlertDue.objects.exists():
            break
    return total


def watch_all_budgets(*, at: datetime | None = None) -> int:
    """Look at every account that used anything in this period; return how many marks fired or recovered."""
    total, after = 0, UUID(int=0)
    while True:
        page = Account.objects.filter(pk__gt=after).order_by("pk").values_list("pk", flat=True)[:_BATCH]
        ids = list(page)
        if not ids:
            return total
        total += watch_accounts(ids, at=at)
        after = ids[-1]


def watch_accounts(account_ids: Iterable[UUID], *, at: datetime | None = None) -> int:
    """Look at these accounts, all at once; turn those where something changed, one by one."""
    ids, total = list(account_ids), 0
    for start in range(0, len(ids), _BATCH):
        some = ids[start : start + _BATCH]
        changed = [account_id for account_id, look in _looks(some, at or timezone.now()) if look.turn()]
        total += sum(_turn(account_id, at) for account_id in changed)
    return total


def _turn(account_id: UUID, at: datetime | None) -> int:
    """Write down what changed for one account, with its messages; return how many marks moved."""
    with transaction.atomic():
        # Locked first and read then: what an earlier look saw must not recover what a later one fired.
        # An advisory lock, because a lock on the account's row would stop deployments.
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_advisory_xact_lock(%s, hashtext(%s))", [_LOCK, account_id.hex])
        now = at or timezone.now()
        for _, look in _looks([account_id], now):
            turn = look.turn()
            for mark in turn.recovered:
                _open_events([account_id], look.period).filter(
                    limit_type=mark.measure.value, threshold=mark.threshold
                ).update(recovered_at=now)
            fired = _fire(account_id, look, turn.fired, now)
            if _address(account_id, fired, now):
                send_on_commit(DELIVER)
            return len(turn.recovered) + len(fired)
    return 0


def _fire(account_id: UUID, look: Look, marks: Iterable[Mark], now: datetime) -> dict[Mark, AlertEvent]:
    events = {mark: _event(account_id, look, mark, now) for mark in marks}
    # ON CONFLICT DO NOTHING: the constraint has the last word, and only what is ours is sent.
    AlertEvent.objects.bulk_create(events.values(), ignore_conflicts=True)
    ours = set(AlertEvent.objects.filter(pk__in=[e.pk for e in events.values()]).values_list("pk", flat=True))
    return {mark: event for mark, event in events.items() if event.pk in ours}


def _event(account_id: UUID, look: Look, mark: Mark, now: datetime) -> AlertEvent:
    budget, unit = look.budgets[mark.measure], _unit(mark.measure)
    return AlertEvent(
        account_id=account_id,
        period=look.period,
        limit_type=mark.measure.value,
        threshold=mark.threshold,
        used=-(-budget.used // unit),
        limit=(budget.limit or 0) // unit,
        fired_at=now,
    )


def _address(account_id: UUID, fired: Mapping[Mark, AlertEvent], now: datetime) -> list[AlertDelivery]:
    """Write a message for each target about the highest mark of each measure that it wants to hear of."""
    targets: Collection[AlertTarget] = targets_of(account_id) if fired else ()
    return AlertDelivery.objects.bulk_create(
        AlertDelivery(event=fired[mark], target_id=target.id, kind=target.kind, address=target.address, next_try_at=now)
        for target in targets
        if target.enabled and target.confirmed_at is not None
        for mark in alert_rules.messages(fired, target.thresholds)
    )


# --- Reading -----------------------------------------------------------------------------------------


def _open_events(account_ids: Collection[UUID], period: date) -> Any:
    return AlertEvent.objects.filter(account_id__in=account_ids, period=period, recovered_at__isnull=True)


def _unit(measure: LimitType) -> int:
    return _SECOND if measure is LimitType.CODE_EXECUTION_SECONDS else 1


def _looks(account_ids: Collection[UUID], at: datetime) -> Iterator[tuple[UUID, Look]]:
    """Read active accounts that used anything in the period of an instant: five queries, however many."""
    period = period_of(at)
    counters = {c.account_id: c for c in PeriodCounter.objects.filter(account_id__in=account_ids, period=period)}
    marks: dict[UUID, set[Mark]] = {}
    for event in _open_events(list(counters), period):
        marks.setdefault(event.account_id, set()).add(Mark(LimitType(event.limit_type), event.threshold))
    overrides: dict[UUID, list[entitlement_rules.OverrideValue]] = {}
    for o in Override.objects.filter(Q(ends_at__isnull=True) | Q(ends_at__gt=at), account_id__in=list(counters)):
        value = entitlement_rules.OverrideValue(o.pk, entitlement_rules.Key(o.key), o.value, o.ends_at)
        overrides.setdefault(o.account_id, []).append(value)
    tiers = {tier.pk: tier.values() for tier in Tier.objects.all()}
    accounts = with_tier_in_force(Account.objects.filter(pk__in=list(counters), is_active=True), at)
    for account_id, tier_id in accounts.values_list("pk", "tier_in_force_id"):
        entitlements = entitlement_rules.entitlements_of(tiers[tier_id], overrides.get(account_id, ()), at)
        budgets = _budgets(entitlements, counters[account_id])
        yield account_id, Look(period, budgets, frozenset(marks.get(account_id, ())))


def _budgets(entitlements: entitlement_rules.Entitlements, counter: PeriodCounter) -> dict[LimitType, Budget]:
    used = {
        # A call is counted when it is admitted, and given back if it never reached its provider: without those
        # that still run, only a correction lowers the figure, and no outage makes it swing.
        LimitType.REQUESTS: counter.used_requests - counter.in_flight,
        LimitType.TOKENS: counter.used_tokens,
        LimitType.COMPUTE_MS: counter.used_compute_ms,
        LimitType.TOOL_CALLS: counter.used_tool_calls,
        LimitType.CODE_EXECUTION_SECONDS: counter.used_code_ms,
        LimitType.BROWSER_SESSIONS: counter.used_browser_sessions,
    }
    return {measure: Budget(used[measure], _limit(entitlements, measure)) for measure in entitlement_rules.BUDGETS}


def _limit(entitlements: entitlement_rules.Entitlements, measure: LimitType) -> int | None:
    limit = entitlements.limit(measure)
    return limit * _unit(measure) if limit is not None and is_included(entitlements, measure) else None
