"""Who may do what, and which limit refuses: pure decisions on frozen values. Imports no Django.

The database decides admissions (entitlements/ledger.py); these rules name the reason, answer
"would it pass?", and suggest the way out, from the same numbers.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from entitlements.enums import Capability, LimitType, Runtime


class Key(StrEnum):
    """The public name of everything a tier sets."""

    MAX_REQUESTS = "maxRequestsPerPeriod"
    MAX_TOKENS = "maxTokensPerPeriod"
    MAX_COMPUTE_MS = "maxComputeMsPerPeriod"
    MAX_TOOL_CALLS = "maxToolCallsPerPeriod"
    MAX_CODE_SECONDS = "maxCodeExecutionSecondsPerPeriod"
    MAX_BROWSER_SESSIONS = "maxBrowserSessionsPerPeriod"
    MAX_AGENTS = "maxAgents"
    MAX_DEPLOYMENTS = "maxDeploymentsPerAgent"
    MAX_CONCURRENT = "maxConcurrentInvocations"
    REQUESTS_PER_MINUTE = "requestsPerMinute"
    AGENTCORE = "agentcoreEnabled"
    MEMORY = "memoryEnabled"
    CODE_INTERPRETER = "codeInterpreterEnabled"
    BROWSER = "browserEnabled"
    TELEMETRY_DAYS = "telemetryRetentionDays"
    LOGS_DAYS = "logsRetentionDays"


KEY_OF_FIELD: Mapping[str, Key] = {
    "max_requests_per_period": Key.MAX_REQUESTS,
    "max_tokens_per_period": Key.MAX_TOKENS,
    "max_compute_ms_per_period": Key.MAX_COMPUTE_MS,
    "max_tool_calls_per_period": Key.MAX_TOOL_CALLS,
    "max_code_execution_seconds_per_period": Key.MAX_CODE_SECONDS,
    "max_browser_sessions_per_period": Key.MAX_BROWSER_SESSIONS,
    "max_agents": Key.MAX_AGENTS,
    "max_deployments_per_agent": Key.MAX_DEPLOYMENTS,
    "max_concurrent_invocations": Key.MAX_CONCURRENT,
    "requests_per_minute": Key.REQUESTS_PER_MINUTE,
    "agentcore_enabled": Key.AGENTCORE,
    "memory_enabled": Key.MEMORY,
    "code_interpreter_enabled": Key.CODE_INTERPRETER,
    "browser_enabled": Key.BROWSER,
    "telemetry_retention_days": Key.TELEMETRY_DAYS,
    "logs_retention_days": Key.LOGS_DAYS,
}
FLAGS = frozenset({Key.AGENTCORE, Key.MEMORY, Key.CODE_INTERPRETER, Key.BROWSER})
RETENTION = frozenset({Key.TELEMETRY_DAYS, Key.LOGS_DAYS})
QUOTAS = frozenset({Key.MAX_TOOL_CALLS, Key.MAX_CODE_SECONDS, Key.MAX_BROWSER_SESSIONS})
FLAG_OF_CAPABILITY: Mapping[Capability, Key] = {
    Capability.MEMORY: Key.MEMORY,
    Capability.CODE_INTERPRETER: Key.CODE_INTERPRETER,
    Capability.BROWSER: Key.BROWSER,
}
QUOTAS_OF_FLAG: Mapping[Key, tuple[Key, ...]] = {
    Key.CODE_INTERPRETER: (Key.MAX_TOOL_CALLS, Key.MAX_CODE_SECONDS),
    Key.BROWSER: (Key.MAX_TOOL_CALLS, Key.MAX_BROWSER_SESSIONS),
}
GATE_OF_FLAG: Mapping[Key, LimitType] = {
    Key.AGENTCORE: LimitType.RUNTIME_GATED,
    Key.MEMORY: LimitType.MEMORY_ENABLED,
    Key.CODE_INTERPRETER: LimitType.CODE_INTERPRETER_ENABLED,
    Key.BROWSER: LimitType.BROWSER_ENABLED,
}
GATES = frozenset(GATE_OF_FLAG.values())
CAPS = frozenset({LimitType.AGENTS, LimitType.DEPLOYMENTS})
RATES = frozenset({LimitType.CONCURRENCY, LimitType.REQUESTS_PER_MINUTE})
KEY_OF_LIMIT: Mapping[LimitType, Key] = {
    LimitType.REQUESTS: Key.MAX_REQUESTS,
    LimitType.TOKENS: Key.MAX_TOKENS,
    LimitType.COMPUTE_MS: Key.MAX_COMPUTE_MS,
    LimitType.TOOL_CALLS: Key.MAX_TOOL_CALLS,
    LimitType.CODE_EXECUTION_SECONDS: Key.MAX_CODE_SECONDS,
    LimitType.BROWSER_SESSIONS: Key.MAX_BROWSER_SESSIONS,
    LimitType.CONCURRENCY: Key.MAX_CONCURRENT,
    LimitType.REQUESTS_PER_MINUTE: Key.REQUESTS_PER_MINUTE,
    LimitType.AGENTS: Key.MAX_AGENTS,
    LimitType.DEPLOYMENTS: Key.MAX_DEPLOYMENTS,
    **{gate: flag for flag, gate in GATE_OF_FLAG.items()},
}
BUDGETS = (
    LimitType.REQUESTS,
    LimitType.TOKENS,
    LimitType.COMPUTE_MS,
    LimitType.TOOL_CALLS,
    LimitType.CODE_EXECUTION_SECONDS,
    LimitType.BROWSER_SESSIONS,
)
TOOL_BUDGETS = frozenset(BUDGETS[3:])


@dataclass(frozen=True)
class TierValues:
    """A tier as plain values: limits (None is unlimited), switches, retention in days."""

    slug: str
    name: str
    rank: int
    version: int
    limits: Mapping[Key, int | None]
    flags: Mapping[Key, bool]
    retention: Mapping[Key, int]


@dataclass(frozen=True)
class OverrideValue:
    """One value that support set for one account; `id` orders them, the newest wins."""

    id: int
    key: Key
    value: int | None
    ends_at: datetime | None = None


@dataclass(frozen=True)
class Entitlements:
    """What an account may do, and where each value came from (`tier:pro`, `override:123`)."""

    tier: str
    tier_name: str
    tier_version: int
    limits: Mapping[Key, int | None]
    runtime_access: Mapping[Key, bool]
    retention: Mapping[Key, int]
    sources: Mapping[Key, str] = field(default_factory=dict)

    def limit(self, limit_type: LimitType) -> int | None:
        """Return the number behind a limit; None is unlimited."""
        return self.limits[KEY_OF_LIMIT[limit_type]]

    def allows(self, flag: Key) -> bool:
        """Say whether a runtime or capability is switched on, with everything that it needs."""
        return self.runtime_access[flag]


@dataclass(frozen=True)
class Problem:
    """A combination of values that cannot be sold, in words."""

    key: Key
    message: str


def problems_of(tier: TierValues) -> list[Problem]:
    """Return what is wrong with a tier, or with a tier and overrides taken together."""
    found = [
        Problem(key, f"{key} must be empty (unlimited) or 0 and more.")
        for key, value in tier.limits.items()
        if value is not None and value < 0
    ]
    if not tier.flags[Key.AGENTCORE]:
        found += [
            Problem(flag, f"{flag} needs {Key.AGENTCORE}.")
            for flag in sorted(QUOTAS_OF_FLAG.keys() | {Key.MEMORY})
            if tier.flags[flag]
        ]
    for flag, quotas in QUOTAS_OF_FLAG.items():
        if tier.flags[flag]:
            found += [Problem(q, f"{flag} needs {q} set and above 0.") for q in quotas if not tier.limits[q]]
    found += [Problem(key, f"{key} must be at least 1 day.") for key, days in tier.retention.items() if days < 1]
    return found


def get_entitlements_for_tier(tier: TierValues) -> Entitlements:
    """Return what a tier allows: limits, runtime access, retention. Deterministic, no input but the tier."""
    return entitlements_of(tier, (), None)


def merge(
    tier: TierValues, overrides: Iterable[OverrideValue], at: datetime | None
) -> tuple[TierValues, dict[Key, str]]:
    """Lay the live overrides over a tier; return what results, and the source of each value.

    Of several live overrides for one key the newest wins. The result may break the rules (problems_of).
    """
    limits, flags, retention = dict(tier.limits), dict(tier.flags), dict(tier.retention)
    sources = dict.fromkeys(Key, f"tier:{tier.slug}")
    for override in sorted(overrides, key=lambda o: o.id):
        if override.ends_at is not None and at is not None and override.ends_at <= at:
            continue
        if override.key in FLAGS:
            flags[override.key] = bool(override.value)
        elif override.key in RETENTION:
            retention[override.key] = override.value or 0
        else:
            limits[override.key] = override.value
        sources[override.key] = f"override:{override.id}"
    return TierValues(tier.slug, tier.name, tier.rank, tier.version, limits, flags, retention), sources


def entitlements_of(tier: TierValues, overrides: Iterable[OverrideValue], at: datetime | None) -> Entitlements:
    """Return what an account may do at an instant: its tier, with live overrides over it.

    A capability whose runtime is off, or whose quota is missing or 0, is off: what results obeys the
    same rules as a tier.
    """
    merged, sources = merge(tier, overrides, at)
    flags = dict(merged.flags)
    for flag, quotas in QUOTAS_OF_FLAG.items():
        flags[flag] = flags[flag] and all(merged.limits[quota] for quota in quotas)
    for flag in FLAG_OF_CAPABILITY.values():
        flags[flag] = flags[flag] and flags[Key.AGENTCORE]
    return Entitlements(tier.slug, tier.name, tier.version, merged.limits, flags, merged.retention, sources)


def refused_by_gates(
    entitlements: Entitlements, runtime: Runtime | str, capabilities: Iterable[Capability | str] = ()
) -> list[LimitType]:
    """Return the gates that keep an account from a runtime or from capabilities on it, in public order."""
    if runtime != Runtime.AGENTCORE:
        return []
    wanted = {FLAG_OF_CAPABILITY[Capability(c)] for c in capabilities}
    closed = [] if entitlements.allows(Key.AGENTCORE) else [LimitType.RUNTIME_GATED]
    closed += [
        GATE_OF_FLAG[flag] for flag in FLAG_OF_CAPABILITY.values() if flag in wanted and not entitlements.allows(flag)
    ]
    return closed


@dataclass(frozen=True)
class Standing:
    """How much of a budget is used and held at an instant (code execution in seconds, rounded up)."""

    used: Mapping[LimitType, int]
    held: Mapping[LimitType, int]
    in_flight: int = 0
    this_minute: int = 0
    code_ms: int | None = None  # used and held, as exact as the ledger keeps it


@dataclass(frozen=True)
class Ask:
    """What one invocation needs: its estimate per measure (0: none), and whether it may use tools."""

    estimate: Mapping[LimitType, int] = field(default_factory=dict)
    tools: frozenset[LimitType] = frozenset()
    runtime: str = Runtime.CLOUDFLARE
    capabilities: frozenset[str] = frozenset()
    code_ms: int | None = None


@dataclass(frozen=True)
class Refusal:
    """One reason to refuse. Gates have no numbers."""

    limit_type: LimitType
    current: int | None = None
    limit: int | None = None
    estimate: int | None = None


def refusals_of(entitlements: Entitlements, standing: Standing, ask: Ask) -> list[Refusal]:
    """Return every reason to refuse an invocation, in public order; none means that it passes.

    For a measure with limit L and estimate e it passes while used + held + max(e, 1) <= L: without an
    estimate an invocation is refused once used has reached L. A tool's quota speaks only where that
    tool may be used: where its gate is closed, the gate speaks.
    """
    found: list[Refusal] = []
    gates = refused_by_gates(entitlements, ask.runtime, ask.capabilities)
    silent = _quotas_behind(gates, ask.capabilities)
    for measure in BUDGETS:
        limit = entitlements.limit(measure)
        if measure in TOOL_BUDGETS and (measure not in ask.tools or measure in silent):
            continue
        if measure in TOOL_BUDGETS and limit is None:
            limit = 0
        estimate = ask.estimate.get(measure, 0)
        current = standing.used.get(measure, 0) + standing.held.get(measure, 0)
        if limit is None:
            continue
        taken, need, most = current, max(estimate, 1), limit
        if measure == LimitType.CODE_EXECUTION_SECONDS and standing.code_ms is not None:
            # The ledger judges milliseconds; seconds, rounded up, are only shown.
            wanted = estimate * 1000 if ask.code_ms is None else ask.code_ms
            taken, need, most = standing.code_ms, max(wanted, 1), limit * 1000
        if taken + need > most:
            # Only an estimate of more than the least possible use can be what refused.
            guessed = estimate if need > 1 and taken + 1 <= most else None
            found.append(Refusal(measure, current, limit, guessed))
    for measure, current in (
        (LimitType.CONCURRENCY, standing.in_flight),
        (LimitType.REQUESTS_PER_MINUTE, standing.this_minute),
    ):
        limit = entitlements.limit(measure)
        if limit is not None and current + 1 > limit:
            found.append(Refusal(measure, current, limit))
    return found + [Refusal(gate) for gate in gates]


def _quotas_behind(gates: Iterable[LimitType], capabilities: Iterable[Capability | str]) -> frozenset[LimitType]:
    """Return the quotas that belong only to capabilities behind closed gates."""
    closed = set(gates)
    if LimitType.RUNTIME_GATED in closed:
        return TOOL_BUDGETS
    behind: set[Key] = set()
    before: set[Key] = set()
    for capability in capabilities:
        flag = FLAG_OF_CAPABILITY[Capability(capability)]
        (behind if GATE_OF_FLAG[flag] in closed else before).update(QUOTAS_OF_FLAG.get(flag, ()))
    return frozenset(limit for limit in TOOL_BUDGETS if KEY_OF_LIMIT[limit] in behind - before)


def refused_by_cap(entitlements: Entitlements, cap: LimitType, current: int) -> Refusal | None:
    """Say whether one more agent or deployment would pass its cap."""
    limit = entitlements.limit(cap)
    return None if limit is None or current + 1 <= limit else Refusal(cap, current, limit)


def in_public_order(limits: Iterable[LimitType]) -> list[LimitType]:
    """Sort limits into the order in which a refusal names them."""
    order = list(LimitType)
    return sorted(limits, key=order.index)


def tier_that_allows(
    tiers: Sequence[TierValues], overrides: Sequence[OverrideValue], at: datetime, standing: Standing, ask: Ask
) -> TierValues | None:
    """Return the lowest-ranked of these public tiers under which the very same request would pass.

    The account's overrides stay in force over a new tier, so they are applied to each candidate.
    """
    for tier in sorted(tiers, key=lambda t: t.rank):
        if not refusals_of(entitlements_of(tier, overrides, at), standing, ask):
            return tier
    return None


def tier_with_cap(
    tiers: Sequence[TierValues], overrides: Sequence[OverrideValue], at: datetime, cap: LimitType, current: int
) -> TierValues | None:
    """Return the lowest-ranked of these public tiers that has room for one more agent or deployment."""
    for tier in sorted(tiers, key=lambda t: t.rank):
        if refused_by_cap(entitlements_of(tier, overrides, at), cap, current) is None:
            return tier
    return None


_IDEMPOTENCY_KEY = re.compile(r"[\x21-\x7e]{1,255}")


def valid_idempotency_key(text: str) -> bool:
    """Say whether a request may be remembered under that: 1 to 255 visible ASCII characters."""
    return _IDEMPOTENCY_KEY.fullmatch(text) is not None
