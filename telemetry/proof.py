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
_PARTS = 3 + len(MEASURES)


@dataclass(frozen=True)
class Settled:
    """What the gateway signed when it closed an admission."""

    outcome: Outcome
    measures: Mapping[str, int]


@dataclass(frozen=True)
class Observed:
    """What an accepted report says. A claim (not trusted) never replaces an estimate downwards."""

    measures: Mapping[str, int]
    trusted: bool
    at: datetime | None


def read_settlement(text: str, admission_id: UUID) -> Settled | None:
    """Read `v1|inv_...|outcome|measures` (entitlements.ledger.settlement_of); None if it is of another kind or row."""
    parts = text.split("|")
    if len(parts) != _PARTS or parts[:2] != ["v1", public_id(Prefix.INVOCATION, admission_id)]:
        return None
    try:
        return Settled(Outcome(parts[2]), dict(zip(MEASURES, map(int, parts[3:]), strict=True)))
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


def charge_problems(row: Mapping[str, Any], settled: Settled | None, observed: Sequence[Observed]) -> Iterator[str]:
    """Compare what is charged, measure by measure, with the largest that was observed.

    A hold counts only where it was charged and nobody trusted has observed since (ledger.sql: expire). Where
    somebody did, claims that came before were replaced too, so the charge is one of the figures observed, and
    none that a trusted observer gave is above it.
    """
    for measure in MEASURES:
        charged = row[f"charged_{measure}"]
        trusted = [o.measures[measure] for o in observed if o.trusted]
        if settled is not None:
            trusted.append(settled.measures[measure])
        figures = [*trusted, *(o.measures[measure] for o in observed if not o.trusted)]
        if _was_replaced(row):
            if charged not in figures or charged < max(trusted, default=0):
                yield f"charged_{measure} is {charged}, observed was {sorted(figures)}"
            continue
        if row["estimate_stands"]:
            figures.append(row[f"held_{measure}"])
        right = max(figures, default=0)
        if charged != right:
            yield f"charged_{measure} is {charged}, the largest observed is {right}"


def _was_replaced(row: Mapping[str, Any]) -> bool:
    """Say whether an estimate stood at expiry and was replaced: held, unobserved then, and no longer standing."""
    if row["outcome"] != Outcome.EXPIRED or row["estimate_stands"] or not any(row[f"held_{m}"] for m in MEASURES):
        return False
    return row["observed_at"] is None or row["observed_at"] > row["settled_at"]
