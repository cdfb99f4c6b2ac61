"""What an account used in a period: the ledger's totals, the same by runtime, and the estimated cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

from entitlements.actions.standing import AccountStanding, read_standing, standing_of
from entitlements.enums import LimitType
from entitlements.rules import BUDGETS, KEY_OF_LIMIT
from telemetry import rules
from telemetry.models import RateCard
from webhost import db
from webhost.period import ends_at, starts_at

_MEASURES = ("requests", "tokens", "compute_ms", "tool_calls", "code_ms", "browser_sessions")
RETENTION_ACTOR: Final = "retention"
"""Who carries the sums of what retention deleted (retention.py); not a correction by staff."""

# One snapshot: the counter, and by runtime and day what is rolled up, what is journalled, and what still runs.
# The three together are the counter, but for staff's adjustments.
_READ = f"""
WITH parts AS (
    SELECT runtime, (hour AT TIME ZONE 'UTC')::date AS day, {", ".join(_MEASURES)}, errors FROM telemetry_usagehour
     WHERE account_id = %(account)s AND hour >= %(since)s AND hour < %(end)s
    UNION ALL
    SELECT runtime, (hour AT TIME ZONE 'UTC')::date, {", ".join(_MEASURES)}, errors FROM entitlements_movement
     WHERE account_id = %(account)s AND hour >= %(since)s AND hour < %(end)s
    UNION ALL
    SELECT runtime, (admitted_at AT TIME ZONE 'UTC')::date, {", ".join(f"charged_{m}" for m in _MEASURES)}, 0
      FROM entitlements_admission
     WHERE outcome = 'open' AND account_id = %(account)s AND admitted_at >= %(since)s AND admitted_at < %(end)s
), days AS (
    SELECT runtime, day, {", ".join(f"sum({m})::bigint AS {m}" for m in _MEASURES)}, sum(errors)::bigint AS errors
      FROM parts GROUP BY 1, 2
), adjusted AS (
    SELECT {", ".join(f"coalesce(sum({m}), 0)::bigint AS {m}" for m in _MEASURES)} FROM entitlements_adjustment
     WHERE account_id = %(account)s AND period = %(period)s AND actor <> '{RETENTION_ACTOR}'
)
SELECT (SELECT to_jsonb(c) FROM entitlements_periodcounter c
         WHERE c.account_id = %(account)s AND c.period = %(period)s) AS counter,
       (SELECT jsonb_agg(to_jsonb(d) ORDER BY runtime, day) FROM days d) AS days,
       (SELECT to_jsonb(a) FROM adjusted a) AS adjusted
"""  # noqa: S608 - composed of constants


@dataclass(frozen=True)
class MeasureUse:
    """One measure in a period: used, held, of how much, and where the limit comes from. None is unlimited."""

    measure: LimitType
    used: int
    held: int
    limit: int | None
    source: str

    @property
    def percent(self) -> int | None:
        """How much of the limit is used or held, rounded down; a limit of 0 is used up. None: unlimited."""
        if self.limit is None:
            return None
        return (self.used + self.held) * 100 // self.limit if self.limit else 100


@dataclass(frozen=True)
class RuntimeUse:
    """What one runtime used, and its exact estimated cost in US dollars."""

    runtime: str
    quantities: rules.Quantities
    errors: int
    cost: Decimal


@dataclass(frozen=True)
class DayUse:
    """Requests, tokens and errors of one day (UTC), of all runtimes together."""

    requests: int = 0
    tokens: int = 0
    errors: int = 0


@dataclass(frozen=True)
class PeriodUse:
    """An account's use of one period. Totals are the ledger's; the cost is an estimate."""

    account: AccountStanding
    period: date
    totals: rules.Quantities
    held: rules.Quantities
    measures: Sequence[MeasureUse]
    in_flight: int
    by_runtime: Sequence[RuntimeUse]
    by_day: Mapping[date, DayUse]
    adjusted: Mapping[str, int]
    starts_at: datetime
    resets_at: datetime

    @property
    def cost(self) -> Decimal:
        """The exact estimated cost of all runtimes together, in US dollars."""
        return rules.total_of(r.cost for r in self.by_runtime)


def usage_of(
    account_id: UUID, period: date, *, at: datetime | None = None, days_since: datetime | None = None
) -> PeriodUse:
    """Return what an account used in a period, with the limits in force now. Raises NotFoundError.

    `by_day` begins with the period, or with `days_since` where that is earlier: one read for both.
    """
    account = read_standing(account_id, at=at, period=period)
    since = min(days_since or starts_at(period), starts_at(period))
    (row,) = db.run(_READ, {"account": account_id, "period": period, "since": since, "end": ends_at(period)})
    days = [day | {"day": date.fromisoformat(day["day"])} for day in row["days"] or ()]
    standing = standing_of(row["counter"])
    entitlements = account.entitlements
    return PeriodUse(
        account=account,
        period=period,
        totals=_quantities(row["counter"], "used"),
        held=_quantities(row["counter"], "held"),
        measures=[
            MeasureUse(
                measure,
                standing.used[measure],
                standing.held.get(measure, 0),
                entitlements.limit(measure),
                entitlements.sources[KEY_OF_LIMIT[measure]],
            )
            for measure in BUDGETS
        ],
        in_flight=standing.in_flight,
        by_runtime=_by_runtime([day for day in days if day["day"] >= period]),
        by_day=_by_day(days),
        adjusted={m: n for m, n in row["adjusted"].items() if n},
        starts_at=starts_at(period),
        resets_at=ends_at(period),
    )


def rate_cards() -> list[rules.Prices]:
    """Return all rate cards as the values that the rules price with."""
    return [card.prices() for card in RateCard.objects.all()]


def _quantities(counter: Mapping[str, Any] | None, kind: str) -> rules.Quantities:
    return rules.Quantities(**{m: int((counter or {}).get(f"{kind}_{m}") or 0) for m in _MEASURES})


def _by_runtime(days: Sequence[Mapping[str, Any]]) -> list[RuntimeUse]:
    sums: dict[str, dict[str, int]] = {}
    priced = []
    for day in days:
        figures = {m: int(day[m]) for m in _MEASURES}
        priced.append(rules.PricedUse(day["runtime"], day["day"], rules.Quantities(**figures)))
        total = sums.setdefault(day["runtime"], dict.fromkeys((*_MEASURES, "errors"), 0))
        for name, value in (*figures.items(), ("errors", int(day["errors"]))):
            total[name] += value
    costs = rules.cost_by_runtime(rate_cards(), priced) if priced else {}
    return [
        RuntimeUse(runtime, rules.Quantities(**{m: total[m] for m in _MEASURES}), total["errors"], costs[runtime])
        for runtime, total in sums.items()
    ]


def _by_day(days: Sequence[Mapping[str, Any]]) -> dict[date, DayUse]:
    found: dict[date, DayUse] = {}
    for day in days:
        before = found.get(day["day"], DayUse())
        found[day["day"]] = DayUse(
            before.requests + day["requests"], before.tokens + day["tokens"], before.errors + day["errors"]
        )
    return found
