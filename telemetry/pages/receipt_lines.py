"""The tables of a receipt: limits and counters then, what each observer saw, and its reports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from entitlements.display import LABELS, docs_of, shown
from entitlements.enums import LimitType, Outcome, Source
from entitlements.models import Admission
from entitlements.rules import KEY_OF_LIMIT, TOOL_BUDGETS
from runtimes.models import ToolUse
from telemetry.models import Report
from telemetry.receipt_words import (
    MEASURES,
    Charge,
    Said,
    is_estimated,
    largest,
    read_facts,
    read_settlement,
    said_of_report,
)

# Milliseconds, as the ledger counts; the limit's own name says seconds.
_CODE: Final = "Code execution (ms)"
_COLUMNS: Final[Mapping[LimitType, str]] = {
    LimitType.REQUESTS: "requests",
    LimitType.TOKENS: "tokens",
    LimitType.COMPUTE_MS: "compute_ms",
    LimitType.TOOL_CALLS: "tool_calls",
    LimitType.CODE_EXECUTION_SECONDS: "code_ms",
    LimitType.BROWSER_SESSIONS: "browser_sessions",
    LimitType.CONCURRENCY: "in_flight",
    LimitType.REQUESTS_PER_MINUTE: "minute",
}
_LIMIT_OF: Final = {column: limit for limit, column in _COLUMNS.items()}


def _label(limit: LimitType) -> str:
    return _CODE if limit == LimitType.CODE_EXECUTION_SECONDS else LABELS[limit]


@dataclass(frozen=True)
class LimitLine:
    """One limit that a call was judged by: used just after, its own hold included, and whose word the limit was."""

    label: str
    used: str
    limit: str
    source: str
    docs: str


def limit_lines(receipt: Admission) -> list[LimitLine]:
    """Return the limits of a receipt; none where nobody judged it. A tool's only where the call might use it."""
    if receipt.source == Source.REPORT:
        return []
    said = receipt.overrides or {}
    ids = said.get("ids") or {}
    tier = f"tier {receipt.tier}" + (f", version {receipt.tier_version}" if receipt.tier_version is not None else "")
    lines = []
    for limit, column in _COLUMNS.items():
        used, most = getattr(receipt, f"then_{column}"), getattr(receipt, f"limit_{column}")
        if used is None or (limit in TOOL_BUDGETS and most is None):
            continue
        key = KEY_OF_LIMIT[limit].value
        source = f"set by support (override {ids[key]})" if key in ids else tier
        lines.append(LimitLine(_label(limit), shown(used), shown(most), source, docs_of(limit)))
    return lines


@dataclass(frozen=True)
class ChargeLine:
    """One measure: held, what each observer saw (empty: nobody), what is charged, and whether that is an estimate."""

    label: str
    held: str
    gateway: str
    reported: str
    tools: str
    charged: str
    is_estimated: bool


def charge_of(receipt: Admission, facts: Sequence[str], tools: Sequence[ToolUse]) -> Charge:
    """Return what decides about a receipt's charge, with the figures of its accepted reports and seen tools."""
    signed_outcome, signed = read_settlement(receipt.settlement)
    seen = {
        "tool_calls": len(tools),
        "code_ms": sum(t.code_ms for t in tools),
        "browser_sessions": sum(t.kind == "browser" for t in tools),
    }
    return Charge(
        outcome=Outcome(receipt.outcome),
        source=Source(receipt.source),
        runtime=receipt.runtime,
        is_observed=receipt.observed_at is not None,
        tokens_estimated=receipt.tokens_estimated,
        tools_estimated=receipt.tools_estimated,
        estimate_stands=receipt.estimate_stands,
        reports=receipt.reports,
        held={m: getattr(receipt, f"held_{m}") for m in MEASURES},
        charged={m: getattr(receipt, f"charged_{m}") for m in MEASURES},
        signed_outcome=signed_outcome,
        signed=signed,
        reported=largest([read_facts(text) for text in facts]),
        tools_seen=seen if tools else {},
    )


def charge_lines(charge: Charge, requests: int) -> list[ChargeLine]:
    """Return every measure of a charge; a tool's measure only where anything is known of it."""
    lines = [ChargeLine(LABELS[LimitType.REQUESTS], "", "", "", "", shown(requests), is_estimated=False)]
    seen = (charge.held, charge.signed, charge.reported, charge.tools_seen, charge.charged)
    for measure in MEASURES:
        limit = _LIMIT_OF[measure]
        if limit in TOOL_BUDGETS and not any(figures.get(measure) for figures in seen):
            continue
        held, gateway, reported, tools, charged = (shown(f[measure]) if measure in f else "" for f in seen)
        lines.append(ChargeLine(_label(limit), held, gateway, reported, tools, charged, is_estimated(charge, measure)))
    return lines


@dataclass(frozen=True)
class ReportLine:
    """A signed report as its owner sees it: what became of it and why; never its body."""

    report: Report

    @property
    def event(self) -> str:
        """The id that its sender gave it."""
        return bytes(self.report.event_id).decode(errors="replace")

    @property
    def facts(self) -> str:
        """Its figures, as kept."""
        return self.report.facts

    @property
    def figures(self) -> str:
        """Its figures in words; empty where it was not read."""
        read = read_facts(self.report.facts)
        return ", ".join(f"{shown(read[m])} {_WORDS[m]}" for m in read if m in _ALWAYS or read[m])

    @property
    def said(self) -> Said:
        """What became of it in words."""
        return said_of_report(self.report.status, self.report.reason)


_WORDS: Final[Mapping[str, str]] = {
    "tokens": "tokens", "compute_ms": "ms of compute", "tool_calls": "tool calls", "code_ms": "ms of code",
    "browser_sessions": "browser sessions",
}  # fmt: skip
_ALWAYS: Final = frozenset({"tokens", "compute_ms"})
