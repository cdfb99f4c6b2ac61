"""Would this invocation, or this runtime, be allowed now? Answered by the same rules, consuming nothing."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from uuid import UUID

from entitlements import rules
from entitlements.actions.admit import check
from entitlements.actions.gates import gate_refusal
from entitlements.actions.standing import read_standing
from entitlements.enums import LimitType
from runtimes.actions.invoke import resolve
from webhost.errors import ConflictError, ForbiddenError, WebhostError


def check_invocation(account_id: UUID, agent: str, estimate: Mapping[LimitType, int]) -> WebhostError | None:
    """Return what an invocation of an agent would be refused with now, or None.

    Raises NotFoundError for nobody's and somebody else's agent.
    """
    try:
        target = resolve(account_id, agent)
    except ConflictError as refusal:
        return refusal
    ask = rules.Ask(estimate, tools_of(target.capabilities), target.runtime, target.capabilities)
    return check(account_id, ask)


def check_runtime(account_id: UUID, runtime: str, capabilities: Collection[str]) -> WebhostError | None:
    """Return what a deployment to a runtime with these capabilities would be refused with now, or None."""
    look = read_standing(account_id)
    if not look.is_active:
        return ForbiddenError("This account is disabled. Please contact support.")
    return gate_refusal(look, runtime, capabilities)


def tools_of(capabilities: Collection[str]) -> frozenset[LimitType]:
    """Return the quotas that speak where these capabilities were granted."""
    limit_of_key = {key: limit for limit, key in rules.KEY_OF_LIMIT.items()}
    return frozenset(
        limit_of_key[quota]
        for capability, flag in rules.FLAG_OF_CAPABILITY.items()
        if capability in capabilities
        for quota in rules.QUOTAS_OF_FLAG.get(flag, ())
    )
