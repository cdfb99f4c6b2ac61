"""When a budget is worth a message, and when a message is tried again: pure decisions. Imports no Django.

Alerts are about what is used: what was charged for calls that have ended. What is held for calls that run is a guess,
and a call that turns out never to have reached its provider is given back; neither is worth waking somebody for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from entitlements.enums import LimitType
from entitlements.rules import BUDGETS

THRESHOLDS: Final = (80, 100)
LONGEST_ADDRESS: Final = 500
MOST_TARGETS: Final = 10
MOST_TRIES: Final = 10
_FIRST_WAIT: Final = timedelta(minutes=1)
_LONGEST_WAIT: Final = timedelta(hours=6)
_GROWTH: Final = 3
_JITTER: Final = 0.25


def all_thresholds() -> list[int]:
    """Return every threshold, as a list of its own."""
    return list(THRESHOLDS)


@dataclass(frozen=True)
class Budget:
    """One measure: used of how much, in one unit. A limit of None is unlimited, or not in the tier."""

    used: int
    limit: int | None


@dataclass(frozen=True)
class Mark:
    """A threshold, in percent, of one measure."""

    measure: LimitType
    threshold: int


@dataclass(frozen=True)
class Turn:
    """What changes: marks that fire now, and marks that are no longer reached, so that they may fire again."""

    fired: tuple[Mark, ...] = ()
    recovered: tuple[Mark, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.fired or self.recovered)


def is_reached(budget: Budget, threshold: int) -> bool:
    """Say whether a budget's use has reached a threshold. No limit, and a limit of 0, never is: nothing ran out."""
    return bool(budget.limit) and budget.used * 100 >= (budget.limit or 0) * threshold


def reached_marks(budgets: Mapping[LimitType, Budget]) -> frozenset[Mark]:
    """Return every mark that use has reached."""
    return frozenset(
        Mark(measure, threshold)
        for measure, budget in budgets.items()
        for threshold in THRESHOLDS
        if is_reached(budget, threshold)
    )


def turn(open_marks: AbstractSet[Mark], reached: AbstractSet[Mark]) -> Turn:
    """Return what fires and what recovers, given what has fired and not recovered in this period."""
    return Turn(_in_order(reached - open_marks), _in_order(open_marks - reached))


def _in_order(marks: Iterable[Mark]) -> tuple[Mark, ...]:
    return tuple(sorted(marks, key=lambda mark: (BUDGETS.index(mark.measure), mark.threshold)))


def messages(fired: Iterable[Mark], thresholds: Iterable[int]) -> list[Mark]:
    """Return what a target with these thresholds is told: of each measure that fired, the highest mark only."""
    wanted = set(thresholds)
    highest: dict[LimitType, Mark] = {}
    for mark in sorted(fired, key=lambda m: m.threshold):
        if mark.threshold in wanted:
            highest[mark.measure] = mark
    return list(_in_order(highest.values()))


def wait_after(tries: int, jitter: float) -> timedelta | None:
    """Return how long to wait after that many tries that failed; None: it is given up.

    A minute, three, nine, up to six hours: ten tries in about a day. `jitter` in [0, 1) takes up to a quarter
    off, so that what failed together is not tried together.
    """
    if tries >= MOST_TRIES:
        return None
    wait: timedelta = min(_FIRST_WAIT * _GROWTH ** (tries - 1), _LONGEST_WAIT)
    return wait * (1 - _JITTER * jitter)
