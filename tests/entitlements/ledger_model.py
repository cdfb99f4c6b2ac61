"""The ledger as plain Python: what each verb does to one account, in memory and without SQL.

Written from the prose of the design alone, so that it and ledger.sql can disagree: test_ledger_model.py drives both.
The one rule of charging: a figure is the largest that anybody observed. A hold stands in for it only while nobody
trusted has looked, and the gateway's guess at tokens only while no trusted report counts them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from uuid import UUID

HELD = ("tokens", "compute_ms", "tool_calls", "code_ms", "browser_sessions")
TOOLS = ("tool_calls", "code_ms", "browser_sessions")
Figures = Mapping[str, int]


def largest(figures: Iterable[Figures], measure: str) -> int:
    """Return the largest of some observers' figures of a measure; 0 where there is none."""
    return max((f.get(measure, 0) for f in figures), default=0)


@dataclass
class Call:
    """One invocation, and everything that anybody said about it."""

    period: date
    held: Figures
    expires_at: datetime
    outcome: str = "open"
    settled: Figures | None = None
    guesses_tokens: bool = False
    tools_unseen: bool = False
    charges_hold: bool = False
    trusted: list[Figures] = field(default_factory=list)
    claims: list[Figures] = field(default_factory=list)
    tools: list[Figures] = field(default_factory=list)

    @property
    def requests(self) -> int:
        return 0 if self.outcome == "voided" else 1

    def charged(self, measure: str) -> int:
        said = [*self.trusted, *self.claims]
        guess = measure == "tokens" and self.guesses_tokens and self.trusted
        if self.settled is not None and not guess:
            said.append(self.settled)
        if measure in TOOLS:
            said += self.tools
        if self.charges_hold or (measure in TOOLS and self.tools_unseen):
            said.append(self.held)
        return largest(said, measure)

    def still_held(self, measure: str) -> int:
        return max(self.held.get(measure, 0) - self.charged(measure), 0) if self.outcome == "open" else 0

    def settle(self, outcome: str, usage: Figures, *, guesses_tokens: bool = False, tools_unseen: bool = False) -> None:
        if self.settled is not None:
            # Closed and signed already: a repeat is one more trusted look, and raises only.
            self.trusted_again(usage)
            return
        self.settled = usage
        self.guesses_tokens, self.tools_unseen = guesses_tokens, tools_unseen
        self.charges_hold = False
        if self.outcome == "open":
            self.outcome = outcome

    def trusted_again(self, usage: Figures) -> None:
        assert self.settled is not None
        self.settled = {m: max(usage.get(m, 0), self.settled.get(m, 0)) for m in HELD}
        if self.outcome == "voided":
            self.outcome = "failed"

    def observe(self, usage: Figures, *, trusted: bool) -> None:
        (self.trusted if trusted else self.claims).append(usage)
        self.charges_hold = self.charges_hold and not trusted
        if self.outcome == "voided":
            self.outcome = "failed"

    def see_tools(self, usage: Figures) -> None:
        if self.outcome == "voided":
            return
        self.tools.append(usage)
        self.tools_unseen = False

    def void(self) -> None:
        if self.outcome != "open":
            return
        self.settled = {}
        was_at_work = any(largest(self.tools, m) for m in TOOLS)
        self.outcome = "failed" if self.trusted or self.claims or was_at_work else "voided"

    def expire(self, at: datetime) -> None:
        if self.outcome != "open" or self.expires_at > at:
            return
        self.charges_hold = not self.trusted
        self.outcome = "expired"


@dataclass
class Books:
    """One account: its limits now (None is unlimited), its calls, and staff's corrections."""

    limits: dict[str, int | None]
    calls: dict[UUID, Call] = field(default_factory=dict)
    adjusted: dict[date, dict[str, int]] = field(default_factory=dict)
    minutes: dict[datetime, int] = field(default_factory=dict)

    def used(self, period: date, measure: str) -> int:
        calls = [c for c in self.calls.values() if c.period == period]
        counted = sum(c.requests if measure == "requests" else c.charged(measure) for c in calls)
        return counted + self.adjusted.get(period, {}).get(measure, 0)

    def held(self, period: date, measure: str) -> int:
        return sum(c.still_held(measure) for c in self.calls.values() if c.period == period)

    def running(self, period: date) -> int:
        return sum(c.outcome == "open" for c in self.calls.values() if c.period == period)

    def refuses(self, at: datetime, estimate: Figures, tools: Iterable[str]) -> set[str]:
        """Return every limit that says no; empty is yes."""
        period = at.date().replace(day=1)
        before = (period - timedelta(days=1)).replace(day=1)
        taken = {m: self.used(period, m) + self.held(period, m) for m in HELD}
        need = {m: max(estimate.get(m, 0), 1) for m in HELD}
        judged = {m: taken[m] + need[m] for m in HELD if m not in TOOLS or m in tools}
        judged["requests"] = self.used(period, "requests") + 1
        judged["in_flight"] = self.running(period) + self.running(before) + 1
        judged["minute"] = self.minutes.get(at.replace(second=0, microsecond=0), 0) + 1
        return {name for name, wanted in judged.items() if (limit := self.limits[name]) is not None and wanted > limit}

    def admit(self, admission_id: UUID, at: datetime, estimate: Figures, lifetime: timedelta) -> None:
        minute = at.replace(second=0, microsecond=0)
        self.minutes[minute] = self.minutes.get(minute, 0) + 1
        self.calls[admission_id] = Call(at.date().replace(day=1), estimate, at + lifetime)

    def adjust(self, period: date, figures: Figures) -> None:
        mine = self.adjusted.setdefault(period, {})
        for measure, amount in figures.items():
            mine[measure] = mine.get(measure, 0) + amount
