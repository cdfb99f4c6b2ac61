"""Would this invocation, or this runtime, be allowed now? Answered by the same rules, consuming nothing."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from uuid import UUID

from entitlements import rules
from entitlements.actions.admit import ask_of, check
from entitlements.actions.gates import gate_refusal
from entitlements.actions.standing import read_standing
from entitlements.enums import LimitType
from entitlements.errors import LimitExceededError
from runtimes.actions.invoke import need_of, resolve, retryable_while_withdrawn, subject_of
from runtimes.rules import InvokeRequest, quotas_of
from webhost.errors import ConflictError, ForbiddenError, WebhostError


def check_invocation(account_id: UUID, agent: str, estimate: Mapping[LimitType, int]) -> WebhostError | None:
    """Return what an invocation of an agent would be refused with now, or None.

    Without an estimate of the asker's, with the one that the gateway would set aside for a short prompt.

    Raises NotFoundError for nobody's and somebody else's agent.
    """
    try:
        target = resolve(account_id, agent).target
    except ConflictError as conflict:
        return conflict
    tools = quotas_of(target.capabilities)
    if not estimate:
        subject = subject_of(target, tools=tools)
        refusal = check(account_id, ask_of(subject, need_of(target, InvokeRequest(()), tools)))
    else:
        refusal = check(account_id, rules.Ask(estimate, tools, target.runtime, target.capabilities))
    return retryable_while_withdrawn(refusal) if isinstance(refusal, LimitExceededError) else refusal


def check_runtime(account_id: UUID, runtime: str, capabilities: Collection[str]) -> WebhostError | None:
    """Return what a deployment to a runtime with these capabilities would be refused with now, or None."""
    look = read_standing(account_id)
    if not look.is_active:
        return ForbiddenError("This account is disabled. Please contact support.")
    return gate_refusal(look, runtime, capabilities)
