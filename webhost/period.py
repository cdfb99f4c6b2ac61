"""Periods: calendar months in UTC, half-open, found by date arithmetic and never opened by a job."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, time

from webhost.errors import InvalidRequestError

_KEY = re.compile(r"([0-9]{4})-(0[1-9]|1[0-2])")


def period_of(at: datetime) -> date:
    """Return the first day of the period that an instant falls in. Raises ValueError without a zone."""
    if at.tzinfo is None:
        raise ValueError("An instant without a time zone is in no period.")
    return at.astimezone(UTC).date().replace(day=1)


def key_of(period: date) -> str:
    """Return the period's name, such as `2026-11`."""
    return f"{period.year:04d}-{period.month:02d}"


def parse_key(text: str) -> date:
    """Read a period's name; raises InvalidRequestError on anything but `YYYY-MM`."""
    match = _KEY.fullmatch(text)
    # The years at either end have no neighbour, and nobody has usage in them.
    if match is None or not 2000 <= int(match[1]) <= 9998:
        raise InvalidRequestError("A period reads YYYY-MM, such as 2026-11.", path="period")
    return date(int(match[1]), int(match[2]), 1)


def starts_at(period: date) -> datetime:
    """Return the period's first instant."""
    return datetime.combine(period.replace(day=1), time.min, tzinfo=UTC)


def ends_at(period: date) -> datetime:
    """Return the first instant after the period, which is the next one's first."""
    return starts_at(next_period(period))


def next_period(period: date) -> date:
    """Return the first day of the month after."""
    return date(period.year + period.month // 12, period.month % 12 + 1, 1)


def previous_period(period: date) -> date:
    """Return the first day of the month before."""
    return date(period.year - (period.month == 1), (period.month - 2) % 12 + 1, 1)
