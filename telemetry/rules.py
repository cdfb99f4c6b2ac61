"""What becomes of a report, latency buckets, and what usage is estimated to cost. Imports no Django."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import ROUND_HALF_UP, Context, Decimal
from enum import StrEnum
from typing import Final
from uuid import UUID

from telemetry.events import Event, timestamp_issue
from webhost.errors import Issue

# How long a report for an invocation that we know is taken (telemetry.md).
KNOWN_FOR: Final = timedelta(days=35)
# A period stays open for late reports this long into the next.
CLOSES_AFTER: Final = timedelta(hours=72)
# Upper bounds, in milliseconds, of all latency buckets but the last, which is open.
LATENCY_BOUNDS: Final = (10, 25, 50, 100, 250, 500, 1000, 2500, 5000, 10_000, 30_000, 60_000)


class Status(StrEnum):
    """What a judged report is."""

    ACCEPTED = "accepted"
    DUPLICATE = "duplicate"
    REJECTED = "rejected"


class Effect(StrEnum):
    """What a judged report does to the ledger."""

    NONE = "none"
    OBSERVE = "observe"
    ADOPT = "adopt"


class Reason(StrEnum):
    """Why a report was not accepted, in words that its owner reads."""

    UNKNOWN_DEPLOYMENT = "no such deployment"
    SIGNATURE = "signature does not fit"
    MALFORMED = "malformed"
    ATTRIBUTION = "deployment, agent and account do not belong together"
    CONFLICT = "conflict: this eventId was accepted with other numbers"
    FOREIGN_INVOCATION = "the invocation belongs to another deployment"
    TOO_LATE = "too late or too early"
    AGENT_DELETED = "the agent was deleted before"


@dataclass(frozen=True)
class Owner:
    """Whose deployment it is: from our own row, never from the body."""

    deployment_id: UUID
    agent_id: UUID
    account_id: UUID
    runtime: str
    root_key_id: str
    agent_deleted_at: datetime | None = None


@dataclass(frozen=True)
class KnownInvocation:
    """The admission that a report names."""

    deployment_id: UUID
    admitted_at: datetime


@dataclass(frozen=True)
class Evidence:
    """Everything that decides about one report."""

    received_at: datetime
    owner: Owner | None
    signature_fits: bool
    event: Event | Sequence[Issue]
    invocation: KnownInvocation | None = None
    accepted_facts: str | None = None


@dataclass(frozen=True)
class Verdict:
    """What a report is, why, and what it does."""

    status: Status
    effect: Effect = Effect.NONE
    reason: str = ""


def judge_report(evidence: Evidence) -> Verdict:
    """Decide about one report. Time is when it was received, so a late judge says what a prompt one would."""
    owner, event = evidence.owner, evidence.event
    if owner is None:
        return Verdict(Status.REJECTED, reason=Reason.UNKNOWN_DEPLOYMENT)
    if not evidence.signature_fits:
        return Verdict(Status.REJECTED, reason=Reason.SIGNATURE)
    if not isinstance(event, Event):
        first = event[0]["path"] if event else ""
        return Verdict(Status.REJECTED, reason=f"{Reason.MALFORMED}: {first or 'event'}"[:200])
    if not attribution_holds(owner, event):
        return Verdict(Status.REJECTED, reason=Reason.ATTRIBUTION)
    if evidence.accepted_facts is not None:
        if evidence.accepted_facts == event.facts:
            return Verdict(Status.DUPLICATE)
        return Verdict(Status.REJECTED, reason=Reason.CONFLICT)
    if evidence.invocation is not None:
        return _judge_known(evidence.invocation, owner, evidence.received_at)
    return _judge_unknown(event, owner, evidence.received_at)


def attribution_holds(owner: Owner, event: Event) -> bool:
    """Say whether everything that the body claims about its origin is what our own row says."""
    return (
        event.deployment_id == owner.deployment_id
        and event.agent_id in (None, owner.agent_id)
        and event.account_id in (None, owner.account_id)
        and event.runtime in (None, owner.runtime)
    )


def _judge_known(invocation: KnownInvocation, owner: Owner, received_at: datetime) -> Verdict:
    if invocation.deployment_id != owner.deployment_id:
        return Verdict(Status.REJECTED, reason=Reason.FOREIGN_INVOCATION)
    if received_at - invocation.admitted_at > KNOWN_FOR:
        return Verdict(Status.REJECTED, reason=Reason.TOO_LATE)
    return Verdict(Status.ACCEPTED, Effect.OBSERVE)


def _judge_unknown(event: Event, owner: Owner, received_at: datetime) -> Verdict:
    made_at = made_at_of(event.invocation_id)
    # An admission that retention took is not unknown, only long ago: its statement stands.
    if timestamp_issue(event.at, received_at) or (made_at and received_at - made_at > KNOWN_FOR):
        return Verdict(Status.REJECTED, reason=Reason.TOO_LATE)
    if owner.agent_deleted_at is not None and event.at > owner.agent_deleted_at:
        return Verdict(Status.REJECTED, reason=Reason.AGENT_DELETED)
    return Verdict(Status.ACCEPTED, Effect.ADOPT)


def made_at_of(invocation_id: UUID) -> datetime | None:
    """Return when a UUIDv7 was made (RFC 9562: the first 48 bits are milliseconds); None for other kinds."""
    if invocation_id.version != 7:
        return None
    try:
        return datetime.fromtimestamp((invocation_id.int >> 80) / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return None


def core_goes_before(retention_days: int, at: datetime) -> date:
    """Return the first month (UTC) whose admissions and reports must stay; all before it may go.

    A month's core stays until its last day is past the account's retention, and 35 days in any case, so
    that late reports still find their invocation.
    """
    kept_from = (at - max(timedelta(days=retention_days), KNOWN_FOR)).astimezone(UTC)
    return kept_from.date().replace(day=1)


def is_trusted(runtime: str) -> bool:
    """Say whether a runtime's report comes from platform code: on AgentCore it runs beside the user's."""
    return runtime == "cloudflare"


# --- Latency ---------------------------------------------------------------------------------------


def bucket_of(latency_ms: int) -> int:
    """Return the index of the bucket that a latency falls into; a bound belongs to its own bucket."""
    return sum(latency_ms > bound for bound in LATENCY_BOUNDS)


# --- Cost ------------------------------------------------------------------------------------------

_MILLION: Final = Decimal(10**6)
_CENT: Final = Decimal("0.01")
_IMPLAUSIBLE: Final = 100
# Enough digits that no product of a 64-bit count and a price of 24 digits is ever rounded.
_EXACT: Final = Context(prec=60)


@dataclass(frozen=True)
class Prices:
    """A rate card: US dollars per unit, effective from a day (UTC) on."""

    runtime: str
    effective_from: date
    per_million_requests: Decimal = Decimal(0)
    per_million_tokens: Decimal = Decimal(0)
    per_million_compute_ms: Decimal = Decimal(0)
    per_tool_call: Decimal = Decimal(0)
    per_code_execution_second: Decimal = Decimal(0)
    per_browser_session: Decimal = Decimal(0)


@dataclass(frozen=True)
class Quantities:
    """What is to be priced. Code execution in milliseconds."""

    requests: int = 0
    tokens: int = 0
    compute_ms: int = 0
    tool_calls: int = 0
    code_ms: int = 0
    browser_sessions: int = 0


@dataclass(frozen=True)
class PricedUse:
    """A runtime's use on one day, to be priced by the card of that day."""

    runtime: str
    day: date
    quantities: Quantities = field(default_factory=Quantities)


def card_of(cards: Iterable[Prices], runtime: str, day: date) -> Prices | None:
    """Return the card in force for a runtime on a day: the latest that does not begin after it."""
    fitting = [c for c in cards if c.runtime == runtime and c.effective_from <= day]
    return max(fitting, key=lambda c: c.effective_from, default=None)


def cost_of(prices: Prices, quantities: Quantities) -> Decimal:
    """Return the exact cost in US dollars. Nothing is rounded: more usage never costs less."""
    # Each product times its divisor's power of ten is finite in decimal, so this stays exact.
    parts = (
        (prices.per_million_requests, quantities.requests, _MILLION),
        (prices.per_million_tokens, quantities.tokens, _MILLION),
        (prices.per_million_compute_ms, quantities.compute_ms, _MILLION),
        (prices.per_tool_call, quantities.tool_calls, Decimal(1)),
        (prices.per_code_execution_second, quantities.code_ms, Decimal(1000)),
        (prices.per_browser_session, quantities.browser_sessions, Decimal(1)),
    )
    total = Decimal(0)
    for price, count, per in parts:
        total = _EXACT.add(total, _EXACT.divide(_EXACT.multiply(price, Decimal(count)), per))
    return total


def cost_by_runtime(cards: Sequence[Prices], uses: Iterable[PricedUse]) -> Mapping[str, Decimal]:
    """Return the exact cost of each runtime, every day at its own card; a day without a card costs nothing."""
    costs: dict[str, Decimal] = {}
    for use in uses:
        card = card_of(cards, use.runtime, use.day)
        cost = Decimal(0) if card is None else cost_of(card, use.quantities)
        costs[use.runtime] = _EXACT.add(costs.get(use.runtime, Decimal(0)), cost)
    return costs


def total_of(costs: Iterable[Decimal]) -> Decimal:
    """Return the exact sum."""
    total = Decimal(0)
    for cost in costs:
        total = _EXACT.add(total, cost)
    return total


def shown(amount: Decimal) -> str:
    """Return an amount as it is shown: in cents, half-up, rounded here and nowhere before."""
    return str(amount.quantize(_CENT, ROUND_HALF_UP, context=_EXACT))


def exact(amount: Decimal) -> str:
    """Return an amount with all its digits and without an exponent, so that lines add up to their total."""
    return format(_EXACT.normalize(amount), "f") if amount else "0"


def cents(amount: Decimal) -> int:
    """Return an amount in whole cents, half-up."""
    return int(amount.quantize(_CENT, ROUND_HALF_UP, context=_EXACT).scaleb(2))


def passes_alarm(cost: Decimal, threshold: Decimal | None, raised_for: Decimal | None) -> bool:
    """Say whether a day's cost is to be alerted on: over its threshold, and not told yet for that or a higher one."""
    if threshold is None or cost <= threshold:
        return False
    return raised_for is None or threshold > raised_for


def is_implausible(price: Decimal, peers: Iterable[Decimal]) -> bool:
    """Say whether a price is more than a hundred times each of its peers: most often a unit was mistaken."""
    known = [p for p in peers if p > 0]
    return bool(known) and price > max(known) * _IMPLAUSIBLE
