"""Buckets of time and percentiles of the metrics of one agent. Imports no Django."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Final

from telemetry.rules import KNOWN_FOR, LATENCY_BOUNDS
from webhost.errors import InvalidRequestError

MOST_BUCKETS: Final = 1_500
_YEARS: Final = range(2000, 9998)


class Bucket(StrEnum):
    """How wide a bucket is. Days are days in UTC."""

    MINUTE = "minute"
    HOUR = "hour"
    DAY = "day"


WIDTH: Final = {Bucket.MINUTE: timedelta(minutes=1), Bucket.HOUR: timedelta(hours=1), Bucket.DAY: timedelta(days=1)}
# What is shown where nobody asks for a time: the last hour, day or 30 days.
_USUAL: Final = {Bucket.MINUTE: 60, Bucket.HOUR: 24, Bucket.DAY: 30}


@dataclass(frozen=True)
class Span:
    """Whole buckets, half-open: `[start, end)`."""

    start: datetime
    end: datetime
    bucket: Bucket

    @property
    def times(self) -> list[datetime]:
        """Return the left end of every bucket."""
        width = WIDTH[self.bucket]
        return [self.start + n * width for n in range((self.end - self.start) // width)]


def span_of(since: datetime | None, until: datetime | None, bucket: Bucket, now: datetime) -> Span:
    """Return the whole buckets that a time touches; by default those that end with the present one.

    Raises InvalidRequestError for an empty time, too many buckets, and minutes of before receipts are surely kept.
    """
    width = WIDTH[bucket]
    for path, given in (("from", since), ("to", until)):
        # A zone may lead out of the calendar, and nobody has usage at either end of it.
        if given is not None and given.year not in _YEARS:
            raise InvalidRequestError("A time lies between the years 2000 and 9997.", path=path)
    last = until or now
    end = _floor(last, bucket)
    if end < last or until is None:
        end += width
    start = end - _USUAL[bucket] * width if since is None else _floor(since, bucket)
    if start >= end or (since and until and until <= since):
        raise InvalidRequestError("`to` is after `from`.", path="to")
    count = (end - start) // width
    if count > MOST_BUCKETS:
        raise InvalidRequestError(
            f"These are {count:,} buckets, of at most {MOST_BUCKETS:,}. Ask for a shorter time or wider buckets.",
            path="bucket",
        )
    if bucket == Bucket.MINUTE and start < now - KNOWN_FOR:
        raise InvalidRequestError(
            f"Minutes are known for the last {KNOWN_FOR.days} days. Ask for hours or days.", path="from"
        )
    return Span(start, end, bucket)


def _floor(at: datetime, bucket: Bucket) -> datetime:
    at = at.astimezone(UTC).replace(second=0, microsecond=0)
    if bucket == Bucket.MINUTE:
        return at
    return at.replace(minute=0) if bucket == Bucket.HOUR else at.replace(minute=0, hour=0)


def percentile(counts: Sequence[int], share: float) -> int | None:
    """Return a percentile of a histogram by telemetry.rules.LATENCY_BOUNDS, in milliseconds; None of nothing.

    Interpolated within its bucket, as Prometheus does; of the last bucket, which is open, its lower bound.
    """
    total = sum(counts)
    if not total:
        return None
    rank, below = share * total, 0
    for n, count in enumerate(counts):
        if count and below + count >= rank:
            low = LATENCY_BOUNDS[n - 1] if n else 0
            high = LATENCY_BOUNDS[n] if n < len(LATENCY_BOUNDS) else low
            return round(low + (high - low) * (rank - below) / count)
        below += count
    return LATENCY_BOUNDS[-1]
