"""Why an invocation was charged what it was, and what became of a report, in words. Imports no Django.

One sentence holds for all (docs/adr/0028): the largest that anybody observed; a hold counts only while nobody
trusted has looked, and the gateway's guess at tokens only while no trusted report counts them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from entitlements.enums import Outcome, Source
from telemetry.rules import Reason, is_trusted

MEASURES: Final = ("tokens", "compute_ms", "tool_calls", "code_ms", "browser_sessions")
_TOOLS: Final = frozenset({"tool_calls", "code_ms", "browser_sessions"})
_NOTHING: Final[Mapping[str, int]] = {}
_FIGURES_IN_FACTS: Final = 1 + len(MEASURES) + 1  # id, measures, errors
_FIGURES_IN_SETTLEMENT: Final = 3 + len(MEASURES)  # v1, id, outcome, measures


@dataclass(frozen=True)
class Charge:
    """What decides about one charge: how the call ended, and what each observer saw of it."""

    outcome: Outcome
    source: Source = Source.GATEWAY
    runtime: str = "cloudflare"
    is_observed: bool = False
    tokens_estimated: bool = False
    tools_estimated: bool = False
    estimate_stands: bool = False
    reports: int = 0
    held: Mapping[str, int] = field(default_factory=dict)
    charged: Mapping[str, int] = field(default_factory=dict)
    # What the gateway signed when it closed it: its outcome and figures. Empty: it never did.
    signed_outcome: str = ""
    signed: Mapping[str, int] = field(default_factory=dict)
    reported: Mapping[str, int] = field(default_factory=dict)
    tools_seen: Mapping[str, int] = field(default_factory=dict)

    @property
    def holds(self) -> bool:
        """Whether anything was set aside."""
        return any(self.held.values())


def read_settlement(settlement: str) -> tuple[str, Mapping[str, int]]:
    """Return the outcome and the figures that the gateway signed; of an empty one, nothing."""
    parts = settlement.split("|")
    if len(parts) < _FIGURES_IN_SETTLEMENT:
        return "", _NOTHING
    return parts[2], dict(zip(MEASURES, map(int, parts[3:_FIGURES_IN_SETTLEMENT]), strict=True))


def read_facts(facts: str) -> Mapping[str, int]:
    """Return the figures of one report; of one that was never read, nothing."""
    parts = facts.split("|")
    if len(parts) != _FIGURES_IN_FACTS:
        return _NOTHING
    return dict(zip(MEASURES, map(int, parts[1:-1]), strict=True))


def largest(figures: Sequence[Mapping[str, int]]) -> Mapping[str, int]:
    """Return the largest of each measure; of no figures, nothing."""
    read = [each for each in figures if each]
    return {m: max(each.get(m, 0) for each in read) for m in MEASURES} if read else _NOTHING


def is_estimated(charge: Charge, measure: str) -> bool:
    """Say whether what is charged of a measure is an estimate, which a trusted observer replaces."""
    if charge.estimate_stands and charge.held.get(measure, 0) > 0:
        return True
    if measure == "tokens":
        return charge.tokens_estimated
    return measure in _TOOLS and charge.tools_estimated


def why_charged(charge: Charge) -> list[str]:
    """Say in a few sentences why this is charged what it is."""
    if charge.outcome == Outcome.OPEN:
        return _why_open(charge)
    if charge.outcome == Outcome.VOIDED:
        return [
            "Nothing is charged: the runtime was certainly not reached, so request and hold were given back.",
            "Should a signed report show that it ran after all, it counts.",
        ]
    said = [_why_it_counts(charge)]
    if charge.outcome == Outcome.EXPIRED:
        said += _why_expired(charge)
    if not charge.estimate_stands and (observers := _observers(charge)):
        said.append(f"Of each measure the largest counts that anybody observed: {_listed(observers)}.")
    return said + _estimates(charge)


def _why_open(charge: Charge) -> list[str]:
    said = ["It still runs. The request counts already."]
    if charge.holds:
        said.append("What is held is set aside for it; when it ends, what it used counts instead.")
    if charge.reports:
        said.append(f"{_reports(charge.reports)} came in already: what they say counts too.")
    return said


def _why_it_counts(charge: Charge) -> str:
    if charge.source == Source.REPORT:
        return (
            "A signed report told of this call; the gateway never saw it. It counts, but no limit judged it and nothing"
            " was held."
        )
    if charge.outcome == Outcome.FAILED and charge.signed_outcome == Outcome.VOIDED:
        return (
            "The gateway had given the request back, for it did not reach the runtime; then evidence came that it ran."
            " Evidence goes before: it counts, as failed."
        )
    if charge.outcome == Outcome.FAILED:
        return "The agent was reached and failed: the request counts, and what it used until then."
    if charge.outcome == Outcome.EXPIRED:
        return "Its time was up and nobody had said how it ended. The request counts."
    return "It was answered: the request counts, and what it used."


def _why_expired(charge: Charge) -> list[str]:
    if charge.estimate_stands:
        return [
            "Nobody trusted has looked yet, so what was held is charged, as an estimate.",
            "The first who looks, the gateway or a trusted report, replaces it, down as well as up.",
        ]
    if not charge.holds:
        return ["Nothing was held for it, so only what somebody observed is charged beside it."]
    return ["Somebody trusted has looked since, so the hold no longer counts."]


def _observers(charge: Charge) -> list[str]:
    found = []
    if charge.signed_outcome and charge.signed_outcome != Outcome.VOIDED:
        found.append("the gateway")
    if charge.reports:
        found.append(_reports(charge.reports))
    if charge.tools_seen:
        found.append("our own look at its tools")
    return found


def _estimates(charge: Charge) -> list[str]:
    said = []
    if charge.tokens_estimated and not charge.estimate_stands:
        said.append(
            "The runtime does not count tokens: it guessed them from the text."
            if charge.is_observed
            else "Nobody counted tokens: they are guessed from the text. The first trusted report that counts them"
            " replaces the guess, down as well as up."
        )
    if charge.tools_estimated:
        said.append(
            "What its tools did could not be looked at yet, so they are charged at what was held. We look again, and"
            " what we see replaces it, down as well as up."
        )
    if charge.reports and not is_trusted(charge.runtime):
        said.append(
            "Reports of this runtime come from beside your code: they may raise what is charged, not lower an estimate."
        )
    return said


def _reports(count: int) -> str:
    return "1 signed report" if count == 1 else f"{count:,} signed reports"


def _listed(names: Sequence[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


# --- Reports -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Said:
    """What became of a report in words, and what the author of a runtime should do; empty: nothing."""

    why: str
    what_to_do: str = ""


_TO_DO: Final[Mapping[Reason, str]] = {
    Reason.UNKNOWN_DEPLOYMENT: "Send the deployment's own id in X-Telemetry-Deployment-Id.",
    Reason.SIGNATURE: "Sign the very bytes that are sent, with the key of this deployment.",
    Reason.MALFORMED: "Send this field as the API document has it, as a new event.",
    Reason.ATTRIBUTION: "Leave out accountId, agentId and runtimeProvider, or send the deployment's own.",
    Reason.CONFLICT: "Use a new eventId for each event; repeat an event with the same numbers only.",
    Reason.FOREIGN_INVOCATION: "Report the id that this deployment was called with.",
    Reason.TOO_LATE: "Report within 72 hours, by a clock that is right; a call that we know, within 35 days.",
    Reason.AGENT_DELETED: "Stop sending: the agent was deleted before this happened.",
}
_FIXED: Final[Mapping[str, Said]] = {
    "accepted": Said("Counted."),
    "duplicate": Said("A repeat of an event that was accepted. It counts once.", "Nothing: repeats are harmless."),
    "pending": Said("Kept, and not judged yet.", "Nothing: it is judged within seconds."),
    "parked": Said(
        "Kept, but it could not be folded in after several attempts, by a fault of ours.",
        "Nothing: it is not lost. We look at it; write to support if it stays.",
    ),
}


def said_of_report(status: str, reason: str) -> Said:
    """Say what became of a report and what to do; a reason that is none of ours is not repeated."""
    if status in _FIXED:
        return _FIXED[status]
    found = next((r for r in Reason if reason.startswith(r.value)), None)
    if found is None:
        return Said("Not accepted.", "Write to support.")
    why = reason if found is Reason.MALFORMED else found.value
    return Said(f"{why[:1].upper()}{why[1:]}.", _TO_DO[found])
