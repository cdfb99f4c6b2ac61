"""Why is this account blocked? The rules that refuse, asked now, with what support can do about each answer.

Pure: frozen values in, frozen values out. What only a higher app knows (agents, switches), it says itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Final

from entitlements import rules
from entitlements.actions.standing import AccountStanding
from entitlements.amounts import time_left
from entitlements.display import LABELS, RUNTIME_NAMES
from entitlements.enums import LimitType, Runtime
from entitlements.refusals import sentence
from webhost.period import ends_at

_DISABLED: Final = "This account is disabled. Please contact support."
_ROOM: Final = 4  # one part in so many is added, so that the next call does not meet the limit again
_LEAST_ROOM: Final = 100


class Weight(StrEnum):
    """How much an answer matters: calls fail, something else is refused, or it is simply not in the tier."""

    BLOCKS = "blocks"
    REFUSES = "refuses"
    NOT_INCLUDED = "not included"


@dataclass(frozen=True)
class Raise:
    """An override that would help: which key, and a value that leaves some room."""

    key: rules.Key
    value: int


@dataclass(frozen=True)
class Obstacle:
    """One thing that refuses: the sentence that the customer reads, when it ends by itself, and what support can do."""

    label: str
    said: str
    ends: str
    remedy: str = ""
    would_help: Raise | None = None
    link: str = ""
    link_text: str = ""
    used: bool = False  # some of it is used, so it can be given back
    limit: LimitType | None = None  # where it is a limit that refuses


@dataclass(frozen=True)
class Verdict:
    """Whether one thing would pass now, and if not, everything that refuses it."""

    what: str
    obstacles: tuple[Obstacle, ...] = ()
    weight: Weight = Weight.BLOCKS
    note: str = ""
    runtime: str = ""  # of a call: on which runtime

    @property
    def passes(self) -> bool:
        """Whether nothing refuses it."""
        return not self.obstacles


@dataclass(frozen=True)
class Call:
    """A call to ask the rules about; `in_use`: the account has agents that make such calls."""

    what: str
    ask: rules.Ask
    in_use: bool = True


@dataclass(frozen=True)
class Answer:
    """The one answer: its headline, how bad it is, and what it is made of."""

    headline: str
    weight: Weight | None
    verdicts: Sequence[Verdict]


def plain_calls(verdicts: Sequence[Verdict]) -> list[Call]:
    """Return a call on each runtime that none of these verdicts is about."""
    on = {verdict.runtime for verdict in verdicts}
    return [
        Call(f"A call on {RUNTIME_NAMES[runtime]}", rules.Ask(runtime=runtime), in_use=False)
        for runtime in Runtime
        if runtime not in on
    ]


def verdict_on(look: AccountStanding, call: Call) -> Verdict:
    """Ask the rules about one call, as the gateway does."""
    if not look.is_active:
        return Verdict(call.what, (disabled(look),), runtime=call.ask.runtime)
    found = rules.refusals_of(look.entitlements, look.standing, call.ask)
    way_out = rules.tier_that_allows(look.offered, look.overrides, look.at, look.standing, call.ask)
    gated = any(refusal.limit_type in rules.GATES for refusal in found)
    weight = Weight.NOT_INCLUDED if gated and not call.in_use else Weight.BLOCKS
    return Verdict(call.what, tuple(obstacle_of(look, r, way_out) for r in found), weight, runtime=call.ask.runtime)


def verdict_on_cap(look: AccountStanding, what: str, cap: LimitType, current: int) -> Verdict:
    """Ask the rules whether one more agent or deployment has room."""
    if not look.is_active:
        return Verdict(what, (disabled(look),), Weight.REFUSES)
    refusal = rules.refused_by_cap(look.entitlements, cap, current)
    way_out = rules.tier_with_cap(look.offered, look.overrides, look.at, cap, current)
    obstacles = () if refusal is None else (obstacle_of(look, refusal, way_out),)
    return Verdict(what, obstacles, Weight.REFUSES)


def disabled(look: AccountStanding) -> Obstacle:
    """Return what a disabled account meets everywhere."""
    return Obstacle(
        "Disabled account", _DISABLED, "When support enables it again",
        f"It is disabled because: {look.disabled_reason or 'no reason was given'}.", link="#state", link_text="Enable",
    )  # fmt: skip


def obstacle_of(look: AccountStanding, refusal: rules.Refusal, way_out: rules.TierValues | None) -> Obstacle:
    """Say one refusal to support: the customer's own sentence, when it ends, and what helps."""
    kind = refusal.limit_type
    higher = "" if way_out is None else f"The {way_out.name} tier would let it pass."
    return Obstacle(
        label=LABELS[kind],
        said=sentence(refusal, look.entitlements.tier_name, look.period),
        ends=_ends(look, refusal),
        remedy=higher,
        would_help=Raise(rules.KEY_OF_LIMIT[kind], raised_value(refusal)),
        used=kind in rules.BUDGETS and bool(look.standing.used.get(kind)),
        limit=kind,
    )


def _ends(look: AccountStanding, refusal: rules.Refusal) -> str:
    kind = refusal.limit_type
    if kind in rules.GATES:
        return "Not by itself"
    if kind in rules.CAPS:
        return "When the customer deletes one"
    if kind == LimitType.CONCURRENCY:
        return "When a running call ends" if refusal.limit else "Not by itself"
    if kind == LimitType.REQUESTS_PER_MINUTE:
        return f"In {60 - look.at.second} s, with the next minute" if refusal.limit else "Not by itself"
    if not refusal.limit:
        return "Not by itself"
    end = ends_at(look.period)
    return f"{end:%Y-%m-%d %H:%M}, in {time_left((end - look.at).total_seconds())}"


def raised_value(refusal: rules.Refusal) -> int:
    """Return a limit that would let this pass, with a quarter of room, in round numbers."""
    if refusal.limit_type in rules.GATES:
        return 1
    taken = max(refusal.current or 0, refusal.limit or 0)
    need = max(refusal.estimate or 0, 1)
    if refusal.limit_type in rules.CAPS | rules.RATES:
        return taken + max(need, taken // _ROOM)
    return rounded_up(taken + max(need, taken // _ROOM, _LEAST_ROOM))


def rounded_up(number: int) -> int:
    """Round up to two digits and zeros."""
    step = int(10 ** max(len(str(number)) - 2, 0))
    return -(-number // step) * step


def answer_of(look: AccountStanding, verdicts: Sequence[Verdict], last_refused: datetime | None) -> Answer:
    """Make one answer of all: what fails comes first."""
    if not look.is_active:
        return Answer("Blocked: this account is disabled", Weight.BLOCKS, verdicts)
    order = [Weight.BLOCKS, Weight.REFUSES, Weight.NOT_INCLUDED]
    ordered = sorted(verdicts, key=lambda v: (v.passes, order.index(v.weight)))
    blocking = _labels(v for v in ordered if v.weight == Weight.BLOCKS)
    refusing = [v.what for v in ordered if v.obstacles and v.weight == Weight.REFUSES]
    if blocking:
        return Answer(f"Blocked: {', '.join(blocking)}", Weight.BLOCKS, ordered)
    if refusing:
        return Answer(f"Calls pass. Refused now: {', '.join(refusing[:3]).lower()}", Weight.REFUSES, ordered)
    said = "" if last_refused is not None else ", and nothing was refused in the last 7 days"
    return Answer(f"Nothing blocks this account now{said}", None, ordered)


def _labels(verdicts: Iterable[Verdict]) -> list[str]:
    found: dict[str, None] = {}
    for verdict in verdicts:
        found |= dict.fromkeys(obstacle.label for obstacle in verdict.obstacles)
    return list(found)
