"""How fast an account uses its budgets lately, and when each runs out at that pace."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from fractions import Fraction
from typing import Final
from uuid import UUID

from entitlements.enums import LimitType
from telemetry import rules
from telemetry.actions.usage import PeriodUse
from telemetry.forecast import Forecast, run_out, week_before, window_start
from webhost import db
from webhost.period import period_of, starts_at

_MEASURES: Final = ("requests", "tokens", "compute_ms", "tool_calls", "code_ms", "browser_sessions")
_COLUMN_OF: Final[Mapping[LimitType, str]] = {
    LimitType.REQUESTS: "requests",
    LimitType.TOKENS: "tokens",
    LimitType.COMPUTE_MS: "compute_ms",
    LimitType.TOOL_CALLS: "tool_calls",
    LimitType.CODE_EXECUTION_SECONDS: "code_ms",
    LimitType.BROWSER_SESSIONS: "browser_sessions",
}
# Bounded by weeks of hours, however long the history is: who had a month before the one in which the week began has
# used something before that week, and only for who had none the first use is sought, in at most five weeks.
_READ: Final = f"""
WITH parts AS (
    SELECT {", ".join(_MEASURES)} FROM telemetry_usagehour WHERE account_id = %(account)s AND hour >= %(since)s
    UNION ALL
    SELECT {", ".join(_MEASURES)} FROM entitlements_movement WHERE account_id = %(account)s AND hour >= %(since)s
    UNION ALL
    SELECT {", ".join(f"charged_{m}" for m in _MEASURES)} FROM entitlements_admission
     WHERE outcome = 'open' AND account_id = %(account)s AND admitted_at >= %(since)s
)
SELECT CASE WHEN EXISTS (SELECT FROM entitlements_periodcounter
                          WHERE account_id = %(account)s AND period < %(month)s) THEN %(since)s::timestamptz
            ELSE least((SELECT min(hour) FROM telemetry_usagehour
                         WHERE account_id = %(account)s AND hour >= %(month_start)s),
                       (SELECT min(hour) FROM entitlements_movement
                         WHERE account_id = %(account)s AND hour >= %(month_start)s)) END AS first_use,
       {", ".join(f"coalesce(sum({m}), 0)::bigint AS {m}" for m in _MEASURES)}
  FROM parts
"""  # noqa: S608 - composed of constants


@dataclass(frozen=True)
class Pace:
    """What was used from `since` until `now`; `since` is None where nothing was ever used."""

    used: rules.Quantities
    since: datetime | None
    now: datetime

    def lately(self, measure: LimitType) -> Fraction:
        """How much of a measure that was, in its limit's unit."""
        amount = Fraction(getattr(self.used, _COLUMN_OF[measure]))
        return amount / 1000 if measure is LimitType.CODE_EXECUTION_SECONDS else amount


def pace_of(account_id: UUID, now: datetime) -> Pace:
    """Return what an account used lately; one statement."""
    since = week_before(now)
    (row,) = db.run(
        _READ,
        {"account": account_id, "since": since, "month": period_of(since), "month_start": starts_at(since.date())},
    )
    used = rules.Quantities(**{m: int(row[m]) for m in _MEASURES})
    return Pace(used, window_start(row["first_use"], now), now)


def forecasts_of(use: PeriodUse, pace: Pace) -> dict[LimitType, Forecast]:
    """Return when each budget of the present period runs out."""
    return {
        m.measure: run_out(
            m.limit, m.used + m.held, lately=pace.lately(m.measure), since=pace.since, now=pace.now,
            resets_at=use.resets_at,
        )
        for m in use.measures
    }  # fmt: skip


def run_outs_of(account_id: UUID, use: PeriodUse, now: datetime) -> dict[LimitType, datetime | None]:
    """Return the hours by which budgets run out, None where there is none to name; nothing of a period that is over."""
    if not use.starts_at <= now < use.resets_at:
        return {}
    return {measure: forecast.at for measure, forecast in forecasts_of(use, pace_of(account_id, now)).items()}
