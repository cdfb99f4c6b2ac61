"""What an account used in days of one month, by agent, deployment, runtime or day: lines that add up to the ledger.

What is rolled up and what is journalled are the lines; what still runs and what support adjusted are two more. All are
read in one statement, so that their sum is the counter while calls go on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import StrEnum
from typing import Any, Final
from uuid import UUID

from telemetry import rules
from telemetry.actions.usage import RETENTION_ACTOR, rate_cards
from webhost import db
from webhost.period import ends_at, period_of, starts_at

MEASURES: Final = ("requests", "tokens", "compute_ms", "tool_calls", "code_ms", "browser_sessions")
_SUMS: Final = ", ".join(f"sum({m})::bigint AS {m}" for m in MEASURES)


class Group(StrEnum):
    """What a line of the table stands for."""

    AGENT = "agent"
    DEPLOYMENT = "deployment"
    RUNTIME = "runtime"
    DAY = "day"


_DAY: Final = "(hour AT TIME ZONE 'UTC')::date"
_KEY: Final = {Group.AGENT: "agent_id", Group.DEPLOYMENT: "deployment_id", Group.RUNTIME: "runtime", Group.DAY: _DAY}


def _statement(group: Group) -> str:
    columns = f"agent_id, deployment_id, runtime, hour, {', '.join(MEASURES)}, errors"
    return f"""
WITH parts AS (
    SELECT {columns} FROM telemetry_usagehour
     WHERE account_id = %(account)s AND hour >= %(start)s AND hour < %(end)s
    UNION ALL
    SELECT {columns} FROM entitlements_movement WHERE account_id = %(account)s AND hour >= %(start)s AND hour < %(end)s
)
SELECT 'ended' AS kind, {_KEY[group]}::text AS key, runtime, {_DAY} AS day, {_SUMS}, sum(errors)::bigint AS errors
  FROM parts GROUP BY 2, 3, 4
UNION ALL
SELECT 'running', NULL, runtime, (admitted_at AT TIME ZONE 'UTC')::date,
       {", ".join(f"sum(charged_{m})::bigint" for m in MEASURES)}, 0
  FROM entitlements_admission
 WHERE outcome = 'open' AND account_id = %(account)s AND period = %(period)s
   AND admitted_at >= %(start)s AND admitted_at < %(end)s
 GROUP BY 3, 4
UNION ALL
SELECT 'adjusted', NULL, NULL, NULL, {", ".join(f"coalesce(sum({m}), 0)::bigint" for m in MEASURES)}, 0
  FROM entitlements_adjustment
 WHERE account_id = %(account)s AND period = %(period)s AND actor <> '{RETENTION_ACTOR}'
"""  # noqa: S608 - composed of constants


_READ: Final = {group: _statement(group) for group in Group}


@dataclass(frozen=True)
class Days:
    """Whole days (UTC) of one month: the first and the last of them."""

    first: date
    last: date

    @property
    def start(self) -> datetime:
        """Their first instant."""
        return datetime.combine(self.first, time(), UTC)

    @property
    def end(self) -> datetime:
        """The first instant after them."""
        return datetime.combine(self.last, time(), UTC) + timedelta(days=1)

    @property
    def period(self) -> date:
        """The month that they are of."""
        return self.first.replace(day=1)

    @property
    def is_month(self) -> bool:
        """Say whether they are all of their month."""
        return self.start == starts_at(self.period) and self.end == ends_at(self.period)

    def __iter__(self) -> Any:
        """Go through them."""
        return (self.first + timedelta(days=n) for n in range((self.last - self.first).days + 1))


def month_of(period: date) -> Days:
    """Return all days of a month."""
    return Days(period, (ends_at(period) - timedelta(days=1)).date())


@dataclass(frozen=True)
class Line:
    """A sum, and its exact estimated cost in US dollars."""

    quantities: rules.Quantities
    errors: int = 0
    cost: Decimal = Decimal(0)


@dataclass(frozen=True)
class Breakdown:
    """Lines by key, what still runs, what support adjusted (only of a whole month), and use by day for a chart."""

    days: Days
    lines: Mapping[str, Line]
    running: Line
    adjusted: Line
    by_day: Mapping[date, Line]

    @property
    def total(self) -> Line:
        """The sum of all lines: of a whole month what the ledger counts."""
        return _sum_of([*self.lines.values(), self.running, self.adjusted])

    @property
    def is_empty(self) -> bool:
        """Say whether there is nothing to show."""
        shown = (*self.lines.values(), self.running, self.adjusted)
        return not any(line.errors or any(_figures(line)) for line in shown)


def breakdown_of(account_id: UUID, days: Days, group: Group) -> Breakdown:
    """Return what an account used in these days, in lines; one statement, and one for the prices."""
    rows = db.run(
        _READ[group], {"account": account_id, "period": period_of(days.start), "start": days.start, "end": days.end}
    )
    cards = rate_cards() if any(row["runtime"] for row in rows) else []
    found = [(row, _line(row, cards)) for row in rows]
    lines: dict[str, list[Line]] = {}
    by_day: dict[date, list[Line]] = {}
    for row, line in found:
        if row["kind"] == "ended":
            lines.setdefault(row["key"], []).append(line)
        if row["day"] is not None:
            by_day.setdefault(row["day"], []).append(line)
    return Breakdown(
        days,
        {key: _sum_of(parts) for key, parts in lines.items()},
        _sum_of(line for row, line in found if row["kind"] == "running"),
        # A correction is of a month, not of a day.
        _sum_of(line for row, line in found if row["kind"] == "adjusted" and days.is_month),
        {day: _sum_of(parts) for day, parts in by_day.items()},
    )


def _line(row: Mapping[str, Any], cards: Sequence[rules.Prices]) -> Line:
    quantities = rules.Quantities(**{m: int(row[m]) for m in MEASURES})
    if row["runtime"] is None:
        return Line(quantities)
    card = rules.card_of(cards, row["runtime"], row["day"])
    cost = Decimal(0) if card is None else rules.cost_of(card, quantities)
    return Line(quantities, int(row["errors"]), cost)


def _figures(line: Line) -> list[int]:
    return [getattr(line.quantities, m) for m in MEASURES]


def _sum_of(lines: Iterable[Line]) -> Line:
    parts = list(lines)
    sums = {m: sum(getattr(part.quantities, m) for part in parts) for m in MEASURES}
    return Line(
        rules.Quantities(**sums), sum(part.errors for part in parts), rules.total_of(part.cost for part in parts)
    )
