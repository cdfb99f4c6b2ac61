"""How limits, use and refusals are shown, the same on every page.

Empty is "unlimited", 0 is 0, and a tool that the tier does not lend is "not in this tier".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from entitlements import rules
from entitlements.actions.standing import AccountStanding
from entitlements.enums import LimitType, Runtime
from webhost.errors import anchor_of
from webhost.period import ends_at

UNLIMITED = "unlimited"
NOT_INCLUDED = "not in this tier"
NO_BREAK = "\N{NO-BREAK SPACE}"

LABELS: Mapping[LimitType, str] = {
    LimitType.REQUESTS: "Requests",
    LimitType.TOKENS: "Tokens",
    LimitType.COMPUTE_MS: "Compute (ms)",
    LimitType.TOOL_CALLS: "Tool calls",
    LimitType.CODE_EXECUTION_SECONDS: "Code execution (s)",
    LimitType.BROWSER_SESSIONS: "Browser sessions",
    LimitType.CONCURRENCY: "Invocations at once",
    LimitType.REQUESTS_PER_MINUTE: "Invocations per minute",
    LimitType.AGENTS: "Agents",
    LimitType.DEPLOYMENTS: "Deployments per agent",
    LimitType.RUNTIME_GATED: "AgentCore",
    LimitType.MEMORY_ENABLED: "AgentCore Memory",
    LimitType.CODE_INTERPRETER_ENABLED: "Code interpreter",
    LimitType.BROWSER_ENABLED: "Browser",
}
RUNTIME_NAMES: Mapping[Runtime, str] = {Runtime.CLOUDFLARE: "Cloudflare Workers", Runtime.AGENTCORE: "AWS AgentCore"}
_LABELS_OF_KEYS: Mapping[rules.Key, str] = {key: LABELS[limit] for limit, key in rules.KEY_OF_LIMIT.items()} | {
    rules.Key.TELEMETRY_DAYS: "Telemetry kept (days)",
    rules.Key.LOGS_DAYS: "Logs kept (days)",
}


def shown(value: object) -> str:
    """Return a value as every page shows it: nothing is unlimited, 0 is 0, thousands are grouped."""
    if value is None:
        return UNLIMITED
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int) else str(value)


def duration(milliseconds: int | None) -> str:
    """Return a time as a person says it, on one line: 450 ms, 1.2 s, 3 min 5 s; an empty one is a dash."""
    if milliseconds is None:
        return "-"
    seconds = milliseconds / 1000
    if milliseconds < 1000:
        text = f"{milliseconds} ms"
    elif seconds < 59.95:
        text = f"{seconds:.1f} s"
    else:
        minutes, rest = divmod(round(seconds), 60)
        hours, minutes = divmod(minutes, 60)
        text = f"{hours:,} h {minutes} min" if hours else f"{minutes} min {rest} s"
    return text.replace(" ", NO_BREAK)


def label_of(key: rules.Key) -> str:
    """Return the name of an entitlement for people."""
    return _LABELS_OF_KEYS[key]


def docs_of(limit_type: LimitType) -> str:
    """Return the address of the documentation's explanation of a limit, below our own."""
    return f"/docs/errors/#{anchor_of(limit_type)}"


def source_text(source: str) -> str:
    """Say where a value comes from, for people."""
    kind, _, name = source.partition(":")
    return f"set by support (override {name})" if kind == "override" else f"tier {name}"


@dataclass(frozen=True)
class UseLine:
    """One measure: used and held of how much, ready to show. `percent` is None where there is no bar."""

    measure: LimitType
    label: str
    used: int
    held: int
    limit: int | None
    percent: int | None
    included: bool
    source: str

    @property
    def limit_text(self) -> str:
        """The limit in words."""
        return shown(self.limit) if self.included else NOT_INCLUDED

    @property
    def percent_text(self) -> str:
        """How full it is, in words."""
        return "-" if self.percent is None else f"{self.percent:,} %"

    @property
    def bar(self) -> int:
        """How full the bar is drawn; one call may pass a budget, a bar cannot."""
        return min(self.percent or 0, 100)

    @property
    def state(self) -> str:
        """How urgent it is: `none`, `ok`, `high` from 80 % on, `full`."""
        if self.percent is None:
            return "none"
        return "full" if self.percent >= 100 else "high" if self.percent >= 80 else "ok"


def is_included(entitlements: rules.Entitlements, measure: LimitType) -> bool:
    """Say whether a measure means anything in these entitlements: a tool's quota only with the tool."""
    key = rules.KEY_OF_LIMIT[measure]
    if key not in rules.QUOTAS:
        return True
    return any(entitlements.allows(flag) for flag, quotas in rules.QUOTAS_OF_FLAG.items() if key in quotas)


def use_line(entitlements: rules.Entitlements, measure: LimitType, used: int, held: int) -> UseLine:
    """Return one measure as it is shown."""
    limit, included = entitlements.limit(measure), is_included(entitlements, measure)
    percent = None
    if included and limit is not None:
        percent = (used + held) * 100 // limit if limit else 100  # none at all is used up
    source = entitlements.sources.get(rules.KEY_OF_LIMIT[measure], f"tier:{entitlements.tier}")
    return UseLine(measure, LABELS[measure], used, held, limit, percent, included, source_text(source))


def use_lines(look: AccountStanding) -> list[UseLine]:
    """Return every budget of a period, in public order."""
    standing = look.standing
    return [use_line(look.entitlements, m, standing.used.get(m, 0), standing.held.get(m, 0)) for m in rules.BUDGETS]


@dataclass(frozen=True)
class ValueLine:
    """One entitlement: its name, its value in words, and where it comes from."""

    label: str
    key: str
    text: str
    source: str
    overridden: bool


def value_lines(entitlements: rules.Entitlements) -> list[ValueLine]:
    """Return everything that an account may do, with the source of each value."""
    lines = []
    for key in rules.Key:
        if key in rules.FLAGS:
            text = "yes" if entitlements.allows(key) else "no"
        elif key in rules.RETENTION:
            text = shown(entitlements.retention[key])
        elif key in rules.QUOTAS and not any(
            entitlements.allows(flag) for flag, quotas in rules.QUOTAS_OF_FLAG.items() if key in quotas
        ):
            text = NOT_INCLUDED
        else:
            text = shown(entitlements.limits[key])
        source = entitlements.sources.get(key, f"tier:{entitlements.tier}")
        lines.append(ValueLine(label_of(key), key.value, text, source_text(source), source.startswith("override:")))
    return lines


@dataclass(frozen=True)
class Denied:
    """A limit that was met in one minute, as it was counted."""

    limit_type: LimitType
    minute: datetime
    count: int
    agent_id: UUID | None
    trace_id: str


@dataclass(frozen=True)
class Advice:
    """Why a limit refused, and what to do about it."""

    why: str
    what_to_do: str


def advice_on(look: AccountStanding, limit_type: LimitType) -> Advice:
    """Say why a limit refused, in the account's present numbers, and the way out.

    The numbers are today's: a refusal does not keep its own, and what counts is what helps now.
    """
    entitlements, standing = look.entitlements, look.standing
    plan = entitlements.tier_name
    if limit_type in rules.GATES:
        return _advice_on_gate(look, limit_type)
    limit = entitlements.limit(limit_type)
    label = LABELS[limit_type].lower()
    upgrade = _upgrade(look, limit_type)
    if limit_type == LimitType.CONCURRENCY:
        return Advice(f"Your limit is {shown(limit)} at once.", f"Wait for one to end and try again{upgrade}.")
    if limit_type == LimitType.REQUESTS_PER_MINUTE:
        return Advice(f"Your limit is {shown(limit)} a minute.", f"Spread the calls out{upgrade}.")
    if limit_type in rules.CAPS:
        return Advice(f"Your limit is {shown(limit)}.", f"Delete one that you do not need{upgrade}.")
    current = standing.used.get(limit_type, 0) + standing.held.get(limit_type, 0)
    if limit == 0:
        return Advice(f"{plan} includes no {label}.", _sentence(upgrade) or "Please contact support.")
    if limit is None or current < limit:
        return Advice(f"The budget of {label} was used up then.", "It has room now: try again.")
    return Advice(
        f"{current:,} of {shown(limit)} {label} are used.",
        f"Wait until {ends_at(look.period):%-d %B} (UTC){upgrade}.",
    )


def _advice_on_gate(look: AccountStanding, gate: LimitType) -> Advice:
    if look.entitlements.allows(rules.KEY_OF_LIMIT[gate]):
        return Advice(f"{LABELS[gate]} was not in your tier then.", "It is now: try again.")
    tier = tier_that_unlocks(look, rules.KEY_OF_LIMIT[gate])
    way_out = f"Upgrade to {tier}." if tier else "Please contact support."
    return Advice(f"{LABELS[gate]} is not in the {look.entitlements.tier_name} tier.", way_out)


def tier_that_unlocks(look: AccountStanding, flag: rules.Key) -> str | None:
    """Return the name of the lowest public tier that would switch on a runtime or a capability."""
    for tier in sorted(look.offered, key=lambda t: t.rank):
        if rules.entitlements_of(tier, look.overrides, look.at).allows(flag):
            return tier.name
    return None


def _upgrade(look: AccountStanding, limit_type: LimitType) -> str:
    """Return the half of a sentence that offers the lowest public tier with more room."""
    limit = look.entitlements.limit(limit_type)
    for tier in sorted(look.offered, key=lambda t: t.rank):
        there = rules.entitlements_of(tier, look.overrides, look.at).limit(limit_type)
        if limit is not None and (there is None or there > limit):
            return f", or upgrade to {tier.name}"
    return ""


def _sentence(half: str) -> str:
    text = half.removeprefix(", or ")
    return f"{text[:1].upper()}{text[1:]}." if text else ""


@dataclass(frozen=True)
class RefusalLine:
    """A refusal for people: what, when, how often, which agent and trace, why, and what to do."""

    label: str
    limit_type: str
    minute: datetime
    count: int
    agent: str
    trace_id: str
    why: str
    what_to_do: str


def refusal_line(look: AccountStanding, denied: Denied, agent: str) -> RefusalLine:
    """Return one refusal as it is shown."""
    advice = advice_on(look, denied.limit_type)
    return RefusalLine(
        LABELS[denied.limit_type], denied.limit_type.value, denied.minute, denied.count, agent, denied.trace_id,
        advice.why, advice.what_to_do,
    )  # fmt: skip


@dataclass(frozen=True)
class RuntimeOffer:
    """A runtime that a page may offer, or show as locked with the tier that unlocks it."""

    runtime: Runtime
    name: str
    allowed: bool
    unlocked_by: str | None
