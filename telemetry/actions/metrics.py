"""What one agent did over time, and what a list of agents did lately: the ledger's figures, in buckets.

Hours and days are what is rolled up, what is journalled and not rolled up yet, and what still runs: as usage.py
composes them, so that their sums are the usage, also where retention took the receipts. Minutes are read from receipts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

from entitlements.models import Admission
from entitlements.models.ledger import WENT_WRONG
from telemetry import rules
from telemetry.actions.usage import rate_cards
from telemetry.metric_rules import Bucket, Span, percentile
from webhost import db
from webhost.period import period_of

_MEASURES: Final = ("requests", "tokens", "compute_ms", "tool_calls", "code_ms", "browser_sessions")
_CHARGED: Final = ", ".join(f"charged_{m}" for m in _MEASURES)
_SLOTS: Final = len(rules.LATENCY_BOUNDS) + 1
_SLOT_OF_ROW: Final = ", ".join(
    f"(latency_ms > {low}{f' AND latency_ms <= {high}' if high is not None else ''})::int"
    for low, high in zip((-1, *rules.LATENCY_BOUNDS), (*rules.LATENCY_BOUNDS, None), strict=True)
)
_FITS: Final = """(%(runtime)s::text IS NULL OR runtime = %(runtime)s)
       AND (%(deployment)s::uuid IS NULL OR deployment_id = %(deployment)s)"""

# The account is named beside its agent: what still runs is found by the small index on open admissions.
_BY_HOUR: Final = f"""
WITH parts AS (
    SELECT hour, runtime, {", ".join(_MEASURES)}, errors, latency_buckets AS slots FROM telemetry_usagehour
     WHERE agent_id = %(agent)s AND hour >= %(start)s AND hour < %(end)s AND {_FITS}
    UNION ALL
    SELECT hour, runtime, {", ".join(_MEASURES)}, errors, ARRAY[{_SLOT_OF_ROW}]::bigint[] FROM entitlements_movement
     WHERE agent_id = %(agent)s AND hour >= %(start)s AND hour < %(end)s AND {_FITS}
    UNION ALL
    SELECT admitted_at, runtime, {_CHARGED}, 0, NULL FROM entitlements_admission
     WHERE outcome = 'open' AND account_id = %(account)s AND agent_id = %(agent)s
       AND admitted_at >= %(start)s AND admitted_at < %(end)s AND {_FITS}
)
SELECT date_trunc(%(bucket)s, hour, 'UTC') AS at, runtime,
       {", ".join(f"sum({m})::bigint AS {m}" for m in (*_MEASURES, "errors"))},
       ARRAY[{", ".join(f"coalesce(sum(slots[{n}]), 0)" for n in range(1, _SLOTS + 1))}]::bigint[] AS slots
  FROM parts GROUP BY 1, 2
"""  # noqa: S608 - composed of constants

_BY_MINUTE: Final = f"""
SELECT date_trunc('minute', admitted_at, 'UTC') AS at, runtime,
       {", ".join(f"sum(charged_{m})::bigint AS {m}" for m in _MEASURES)},
       count(*) FILTER (WHERE outcome IN ('failed', 'expired')) AS errors,
       array_agg(latency_ms) FILTER (WHERE latency_ms IS NOT NULL AND outcome NOT IN ('open', 'voided')) AS latencies
  FROM entitlements_admission
 WHERE account_id = %(account)s AND period = ANY(%(periods)s) AND agent_id = %(agent)s
   AND admitted_at >= %(start)s AND admitted_at < %(end)s AND {_FITS}
 GROUP BY 1, 2
"""  # noqa: S608 - composed of constants

# Hours lead, an index per agent each; the newest hour of an agent says when it was used last.
_ACTIVITY: Final = """
WITH asked AS (SELECT unnest(%(agents)s::uuid[]) AS agent_id
), fresh AS (
    SELECT agent_id, hour, requests, errors FROM entitlements_movement WHERE agent_id = ANY(%(agents)s)
    UNION ALL
    SELECT agent_id, admitted_at, charged_requests, 0 FROM entitlements_admission
     WHERE outcome = 'open' AND account_id = %(account)s AND agent_id = ANY(%(agents)s)
), lately AS (
    SELECT agent_id, sum(requests)::bigint AS requests, sum(errors)::bigint AS errors FROM (
        SELECT agent_id, requests, errors FROM telemetry_usagehour
         WHERE agent_id = ANY(%(agents)s) AND hour >= %(since)s
        UNION ALL SELECT agent_id, requests, errors FROM fresh WHERE hour >= %(since)s) l
     GROUP BY 1
)
SELECT a.agent_id, coalesce(l.requests, 0) AS requests, coalesce(l.errors, 0) AS errors,
       greatest((SELECT max(hour) FROM telemetry_usagehour h WHERE h.agent_id = a.agent_id),
                (SELECT max(date_trunc('hour', hour, 'UTC')) FROM fresh f WHERE f.agent_id = a.agent_id)) AS last_hour
  FROM asked a LEFT JOIN lately l USING (agent_id)
"""


@dataclass(frozen=True)
class Point:
    """One bucket. Latencies in milliseconds, None where nothing ended in it; the cost is an estimate in US dollars."""

    at: datetime
    quantities: rules.Quantities
    errors: int
    p50: int | None
    p95: int | None
    cost: Decimal


@dataclass(frozen=True)
class Metrics:
    """Every bucket of a time, the empty ones too. `latency_is_exact`: measured, not read from a histogram."""

    span: Span
    points: Sequence[Point]
    latency_is_exact: bool

    @property
    def totals(self) -> rules.Quantities:
        """Return the sums over all buckets."""
        return rules.Quantities(**{m: sum(getattr(p.quantities, m) for p in self.points) for m in _MEASURES})

    @property
    def errors(self) -> int:
        """How many calls failed."""
        return sum(p.errors for p in self.points)

    @property
    def cost(self) -> Decimal:
        """The exact estimated cost, in US dollars."""
        return rules.total_of(p.cost for p in self.points)


@dataclass(frozen=True)
class Activity:
    """What an agent did lately: in the last 24 hours, and the hour in which it was used last."""

    requests: int = 0
    errors: int = 0
    last_hour: datetime | None = None


def metrics_of(
    account_id: UUID, agent_id: UUID, span: Span, *, runtime: str | None = None, deployment_id: UUID | None = None
) -> Metrics:
    """Return what an agent did in each bucket; one statement. The agent must be the account's."""
    by_minute = span.bucket == Bucket.MINUTE
    parameters: dict[str, Any] = {
        "account": account_id, "agent": agent_id, "start": span.start, "end": span.end, "runtime": runtime,
        "deployment": deployment_id,
    }  # fmt: skip
    if by_minute:
        periods = sorted({period_of(span.start), period_of(span.end - timedelta(microseconds=1))})
        rows = db.run(_BY_MINUTE, parameters | {"periods": periods})
    else:
        rows = db.run(_BY_HOUR, parameters | {"bucket": span.bucket.value})
    found: dict[datetime, list[Mapping[str, Any]]] = {}
    for row in rows:
        found.setdefault(row["at"], []).append(row)
    cards = rate_cards() if rows else []
    return Metrics(span, [_point(at, found.get(at, ()), cards) for at in span.times], by_minute)


def _point(at: datetime, rows: Sequence[Mapping[str, Any]], cards: Sequence[rules.Prices]) -> Point:
    """Add up a bucket's runtimes, each priced by itself."""
    if not rows:
        return Point(at, rules.Quantities(), 0, None, None, Decimal(0))
    uses = [
        rules.PricedUse(row["runtime"], at.date(), rules.Quantities(**{m: row[m] for m in _MEASURES})) for row in rows
    ]
    sums = {m: sum(getattr(use.quantities, m) for use in uses) for m in _MEASURES}
    p50, p95 = _latencies(rows)
    return Point(
        at, rules.Quantities(**sums), sum(row["errors"] for row in rows), p50, p95,
        rules.total_of(rules.cost_by_runtime(cards, uses).values()),
    )  # fmt: skip


def _latencies(rows: Sequence[Mapping[str, Any]]) -> tuple[int | None, int | None]:
    if "slots" in rows[0]:
        slots = [sum(column) for column in zip(*(row["slots"] for row in rows), strict=True)]
        return percentile(slots, 0.5), percentile(slots, 0.95)
    seen = sorted(ms for row in rows for ms in row["latencies"] or ())
    if not seen:
        return None, None
    # The nearest rank: a latency that somebody had.
    return seen[-(-len(seen) * 50 // 100) - 1], seen[-(-len(seen) * 95 // 100) - 1]


def activity_of(account_id: UUID, agent_ids: Iterable[UUID], now: datetime) -> dict[UUID, Activity]:
    """Return what each of these agents did in the last 24 hours; one statement, however many they are."""
    ids = list(agent_ids)
    if not ids:
        return {}
    since = now.replace(minute=0, second=0, microsecond=0) - timedelta(hours=23)
    rows = db.run(_ACTIVITY, {"account": account_id, "agents": ids, "since": since})
    return {row["agent_id"]: Activity(row["requests"], row["errors"], row["last_hour"]) for row in rows}


# The newest of each agent by its small index, and of those the newest. The condition is the index's, word for word.
_LAST_ERRORS: Final = """
SELECT e.id, e.agent_id, a.name AS agent_name, e.outcome, e.error_class, e.trace_id, e.admitted_at
  FROM runtimes_agent a
 CROSS JOIN LATERAL (
    SELECT id, agent_id, outcome, error_class, trace_id, admitted_at FROM entitlements_admission w
     WHERE w.agent_id = a.id AND w.account_id = a.account_id AND w.outcome IN ('failed', 'voided', 'expired')
     ORDER BY w.id DESC LIMIT %(most)s) e
 WHERE a.account_id = %(account)s AND a.deleted_at IS NULL
 ORDER BY e.id DESC LIMIT %(most)s
"""


@dataclass(frozen=True)
class LastError:
    """An invocation that went wrong, of an agent that the account still has."""

    id: UUID
    agent_id: UUID
    agent_name: str
    outcome: str
    error_class: str | None
    trace_id: str
    admitted_at: datetime


def last_errors(account_id: UUID, most: int) -> list[LastError]:
    """Return the newest calls of all of an account's agents that went wrong; one statement."""
    return [LastError(**row) for row in db.run(_LAST_ERRORS, {"account": account_id, "most": most})]


def recent_errors(
    account_id: UUID, agent_id: UUID, span: Span, most: int, *, runtime: str | None = None,
    deployment_id: UUID | None = None,
) -> list[Admission]:  # fmt: skip
    """Return the newest calls of a time that went wrong; their texts go with the account's retention."""
    chosen: dict[str, Any] = {"runtime": runtime, "deployment_id": deployment_id}
    found = Admission.objects.filter(
        agent_id=agent_id, account_id=account_id, outcome__in=[str(o) for o in WENT_WRONG],
        admitted_at__gte=span.start, admitted_at__lt=span.end,
        **{name: value for name, value in chosen.items() if value is not None},
    )  # fmt: skip
    return list(found.order_by("-id")[:most])
