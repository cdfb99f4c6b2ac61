"""When a budget runs out at the current pace. Imports no Django.

The pace is what was used in the last seven days, or since the first use if that is later, divided by that time: a whole
week, so that a quiet weekend alone promises nothing. With less than a day to go by, nothing is foretold.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from fractions import Fraction
from typing import Final

LOOKS_BACK: Final = timedelta(days=7)
LEAST: Final = timedelta(days=1)
_HOUR: Final = timedelta(hours=1)
_TICK: Final = timedelta(microseconds=1)


class Answer(StrEnum):
    """What can be said of a budget."""

    UNLIMITED = "unlimited"
    USED_UP = "used up"
    TOO_EARLY = "too early to tell"
    NOT_THIS_PERIOD = "not this month"
    RUNS_OUT = "runs out"


@dataclass(frozen=True)
class Forecast:
    """The answer, and for RUNS_OUT the hour by whose end it is reached: never before now, never after the reset."""

    answer: Answer
    at: datetime | None = None


def week_before(now: datetime) -> datetime:
    """Return the full hour a week ago, where the pace of an account in steady use begins."""
    return _floor(now - LOOKS_BACK)


def window_start(first_use: datetime | None, now: datetime) -> datetime | None:
    """Return where the pace is taken from: a week ago, or the first use if that is later; None without any."""
    return None if first_use is None else max(first_use, week_before(now))


def run_out(
    limit: int | None, taken: int, *, lately: Fraction | int, since: datetime | None, now: datetime, resets_at: datetime
) -> Forecast:
    """Say when `taken` (used and held) reaches `limit`, where `lately` was used from `since` until now."""
    if limit is None:
        return Forecast(Answer.UNLIMITED)
    if taken >= limit:
        return Forecast(Answer.USED_UP)
    if since is None or now - since < LEAST:
        return Forecast(Answer.TOO_EARLY)
    if lately <= 0:
        return Forecast(Answer.NOT_THIS_PERIOD)
    # Exact, in microseconds: a budget of 2**63 at one a week is further away than a float or a calendar reaches.
    ticks = (limit - taken) * Fraction((now - since) // _TICK) / Fraction(lately)
    if ticks >= (resets_at - now) // _TICK:
        return Forecast(Answer.NOT_THIS_PERIOD)
    at = now + int(ticks) * _TICK
    hour = _floor(at)
    return Forecast(Answer.RUNS_OUT, min(hour if hour == at else hour + _HOUR, resets_at))


def _floor(at: datetime) -> datetime:
    return at.replace(minute=0, second=0, microsecond=0)
