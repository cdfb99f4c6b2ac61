"""What an admission must be charged, given everything that was signed about it. Pure; imports no Django."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from entitlements.enums import Outcome
from webhost.ids import Prefix, public_id

MEASURES: Final = ("tokens", "compute_ms", "tool_calls", "code_ms", "browser_sessions")
TOOL_MEASURES: Final = MEASURES[2:]
_PARTS = 3 + len(MEASURES)
_ESTIMATED = ["estimated"]  # entitlements.ledger.ESTIMATED, which this module, without Django, cannot import


@dataclass(frozen=True)
class Settled:
    """What the gateway signed when it closed an admission; whether it counted the tokens from the text."""

    outcome: Outcome
    measures: Mapping[str, int]
    tokens_estimated: bool = False


@dataclass(frozen=True)
class Observed:
    """What an accepted report says. A claim (not trusted) never replaces an estimate downwards."""

    measures: Mapping[str, int]
    trusted: bool
    at: datetime | None


def read_settlement(text: str, admission_id: UUID) -> Settled | None:
    """Read `v1|inv_...|outcome|measures` (entitlements.ledger.settlement_of); None if it is of another kind or row."""
    *parts, last = text.split("|")
    is_estimated = [last] == _ESTIMATED
    if not is_estimated:
        parts.append(last)
    if len(parts) != _PARTS or parts[:2] != ["v1", public_id(Prefix.INVOCATION, admission_id)]:
        return None
    try:
        measures = dict(zip(MEASURES, map(int, parts[3:]), strict=True))
        return Settled(Outcome(parts[2]), measures, is_estimated)
    except ValueError:
        return None


def outcome_problem(outcome: Outcome, settled: Settled | None, *, is_reported: bool, reports: int) -> str:
    """Say why an outcome cannot be what the signatures lead to; empty if it can."""
    if settled is None:
        if outcome in (Outcome.OPEN, Outcome.EXPIRED) or is_reported:
            return ""
        return f"it is {outcome}, and nobody signed that"
    revived = settled.outcome is Outcome.VOIDED and outcome is Outcome.FAILED and reports > 0
    late = outcome is Outcome.EXPIRED
    if outcome is settled.outcome or revived or late:
        return ""
    return f"it is {outcome}, the gateway signed {settled.outcome}"


def charge_problems(
    row: Mapping[str, Any],
    settled: Settled | None,
    observed: Sequence[Observed],
    tools: Mapping[str, int] | None = None,
) -> Iterator[str]:
    """Compare what is charged, measure by measure, with the largest that was observed.

    `tools` is what the control plane saw of the invocation's tools at the provider. Tokens that the gateway
    counted from the text stand only while no trusted report says better.

    A hold counts only where it was charged and nobody trusted has observed since (ledger.sql: expire).
    """
    for measure in MEASURES:
        charged = row[f"charged_{measure}"]
        trusted = [o.measures[measure] for o in observed if o.trusted]
        if settled is not None and not (measure == "tokens" and settled.tokens_estimated and trusted):
            trusted.append(settled.measures[measure])
        if tools is not None and measure in TOOL_MEASURES:
            trusted.append(tools[measure])
        figures = [*trusted, *(o.measures[measure] for o in observed if not o.trusted)]
        if row["estimate_stands"] or (row["tools_estimated"] and measure in TOOL_MEASURES):
            figures.append(row[f"held_{measure}"])
        right = max(figures, default=0)
        if charged != right:
            yield f"charged_{measure} is {charged}, the largest observed is {right}"
