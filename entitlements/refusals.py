"""Say a refusal: one sentence for people, details for programs, and the way out. Imports no Django."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, datetime
from typing import Any

from entitlements import rules
from entitlements.enums import LimitType
from entitlements.errors import LimitExceededError, RateLimitedError
from webhost.errors import WebhostError
from webhost.period import ends_at, key_of

_NOUNS = {
    LimitType.REQUESTS: "requests",
    LimitType.TOKENS: "tokens",
    LimitType.COMPUTE_MS: "milliseconds of compute",
    LimitType.TOOL_CALLS: "tool calls",
    LimitType.CODE_EXECUTION_SECONDS: "seconds of code execution",
    LimitType.BROWSER_SESSIONS: "browser sessions",
    LimitType.CONCURRENCY: "invocations at the same time",
    LimitType.REQUESTS_PER_MINUTE: "invocations a minute",
    LimitType.AGENTS: "agents",
    LimitType.DEPLOYMENTS: "deployments of one agent",
}
_GATED = {
    LimitType.RUNTIME_GATED: "AgentCore is not included in the {tier} plan.",
    LimitType.MEMORY_ENABLED: "AgentCore Memory is not included in the {tier} plan.",
    LimitType.CODE_INTERPRETER_ENABLED: "The code interpreter is not included in the {tier} plan.",
    LimitType.BROWSER_ENABLED: "The browser is not included in the {tier} plan.",
}


def sentence(refusal: rules.Refusal, tier_name: str, period: date) -> str:
    """Say one refusal in a sentence that a customer understands."""
    kind, limit = refusal.limit_type, refusal.limit or 0
    if kind in rules.GATES:
        return _GATED[kind].format(tier=tier_name)
    noun, month = _NOUNS[kind], f"{period:%B %Y}"
    if kind == LimitType.CONCURRENCY:
        return f"The {tier_name} plan runs {limit:,} {noun}, and {refusal.current or 0:,} are running."
    if kind == LimitType.REQUESTS_PER_MINUTE:
        return f"The {tier_name} plan allows {limit:,} {noun}."
    if kind in rules.CAPS:
        return f"The {tier_name} plan allows {limit:,} {noun}, and you have {refusal.current or 0:,}."
    if limit == 0:
        return f"The {tier_name} plan includes no {noun}."
    if refusal.estimate is not None:
        left = max(limit - (refusal.current or 0), 0)
        return (
            f"This call is estimated to need {refusal.estimate:,} {noun}, and {left:,} of {limit:,} "
            f"are left of the {tier_name} plan for {month}."
        )
    if (refusal.current or 0) > limit:
        return f"You have used {refusal.current:,} of the {limit:,} {noun} of the {tier_name} plan for {month}."
    return f"You have used all {limit:,} {noun} of the {tier_name} plan for {month}."


def suggestion(tier: rules.TierValues | None) -> dict[str, Any]:
    """Return suggestedAction: the tier to upgrade to, or to talk to support where none would do."""
    if tier is None:
        return {"type": "contact_support"}
    return {"type": "upgrade_tier", "tier": tier.slug, "url": f"/billing/?tier={tier.slug}"}


def refusal_error(
    found: Sequence[rules.Refusal],
    entitlements: rules.Entitlements,
    *,
    period: date,
    at: datetime,
    way_out: rules.TierValues | None,
) -> WebhostError:
    """Return the error for these refusals, named by the first of them in public order.

    Gates carry the period and no numbers; caps numbers and no period; everything else numbers, period
    and when it resets. Rates are 429 with Retry-After, all else is 402.
    """
    first = found[0]
    kind = first.limit_type
    details: dict[str, Any] = {
        "limitType": kind.value,
        "periodKey": None if kind in rules.CAPS else key_of(period),
    }
    if kind not in rules.GATES:
        details |= {"current": first.current, "limit": first.limit}
        if first.estimate is not None:
            details["estimate"] = first.estimate
    retry_after = 1
    if kind in rules.BUDGETS:
        details["resetsAt"] = f"{ends_at(period):%Y-%m-%dT%H:%M:%SZ}"
    elif kind == LimitType.REQUESTS_PER_MINUTE:
        retry_after = 60 - at.second
    details["source"] = entitlements.sources.get(rules.KEY_OF_LIMIT[kind], f"tier:{entitlements.tier}")
    details["suggestedAction"] = suggestion(way_out)
    details["exceeded"] = [r.limit_type.value for r in found]
    message = sentence(first, entitlements.tier_name, period)
    if kind in rules.RATES:
        return RateLimitedError(message, details=details, retry_after=retry_after)
    return LimitExceededError(message, details=details)
