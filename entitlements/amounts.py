"""Amounts as one says them on the phone, beside the exact number. Imports no Django."""

from __future__ import annotations

from typing import Final

from entitlements.enums import LimitType

_NAMES: Final = ((10**12, "trillion"), (10**9, "billion"), (10**6, "million"), (10**3, "thousand"))
_SAID_FROM: Final = 10_000  # below, the number itself is as short
_SECOND: Final = 1000
_MINUTE: Final = 60 * _SECOND
_HOUR: Final = 60 * _MINUTE
_DAY: Final = 24 * _HOUR


def duration(milliseconds: int) -> str:
    """Return a time as hours and minutes, minutes and seconds, or seconds; what is over is left out."""
    if milliseconds >= 4 * _DAY:
        return f"{milliseconds // _HOUR:,} h"
    if milliseconds >= _HOUR:
        return f"{milliseconds // _HOUR} h {milliseconds % _HOUR // _MINUTE} min"
    if milliseconds >= _MINUTE:
        return f"{milliseconds // _MINUTE} min {milliseconds % _MINUTE // _SECOND} s"
    return f"{milliseconds // _SECOND}.{milliseconds % _SECOND // 100} s"


def about(number: int) -> str:
    """Return a number in words, rounded towards zero: `1.2 million`; empty where the number itself is short."""
    if abs(number) < _SAID_FROM:
        return ""
    size, name = next((size, name) for size, name in _NAMES if abs(number) >= size)
    tenths = abs(number) * 10 // size
    sign = "-" if number < 0 else ""
    return f"{sign}{tenths // 10:,}{f'.{tenths % 10}' if tenths % 10 and tenths < 1000 else ''} {name}"


def in_words(measure: LimitType, amount: int | None) -> str:
    """Return an amount of a measure in words; empty where the exact number says it as well."""
    if amount is None:
        return ""
    if measure == LimitType.COMPUTE_MS:
        return duration(amount) if amount >= _SECOND else ""
    if measure == LimitType.CODE_EXECUTION_SECONDS:
        return duration(amount * _SECOND) if amount >= _MINUTE // _SECOND else ""
    return about(amount)


def time_left(seconds: float) -> str:
    """Return how long it is until something, in its largest two units."""
    minutes = max(int(seconds) // 60, 0)
    days, hours = minutes // 1440, minutes % 1440 // 60
    if days:
        return f"{days} d {hours} h"
    return f"{hours} h {minutes % 60} min" if hours else f"{minutes % 60} min"
