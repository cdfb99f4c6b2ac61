"""Admit an invocation exactly, or refuse it with the reason and the way out."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any
from uuid import UUID

from entitlements import ledger, rules
from entitlements.actions.denials import record_denial
from entitlements.actions.standing import AccountStanding, read_standing
from entitlements.enums import LimitType
from entitlements.refusals import refusal_error
from webhost.errors import ForbiddenError, NotFoundError, UnavailableError, WebhostError

# How often a verdict may be overtaken by another before we say so. Each run is a fresh look.
_MOST_RUNS = 50


def ask_of(subject: ledger.Subject, estimate: ledger.Usage = ledger.NOTHING) -> rules.Ask:
    """Return what the rules compare for this invocation; code execution in seconds, rounded up."""
    return rules.Ask(
        estimate={
            LimitType.TOKENS: estimate.tokens,
            LimitType.COMPUTE_MS: estimate.compute_ms,
            LimitType.TOOL_CALLS: estimate.tool_calls,
            LimitType.CODE_EXECUTION_SECONDS: -(-estimate.code_ms // 1000),
            LimitType.BROWSER_SESSIONS: estimate.browser_sessions,
        },
        tools=subject.tools,
        runtime=subject.runtime,
        capabilities=subject.capabilities,
        code_ms=estimate.code_ms,
    )


def admit(
    admission_id: UUID,
    subject: ledger.Subject,
    *,
    estimate: ledger.Usage = ledger.NOTHING,
    trace_id: str = "",
    session_id: str = "",
    at: datetime | None = None,
) -> Mapping[str, Any]:
    """Count the request and hold the estimate, or raise the refusal; nothing is written when refused.

    Raises LimitExceededError (402), RateLimitedError (429), ForbiddenError for a disabled account,
    UnavailableError (503) when the database is away: nothing is ever served uncounted.
    """
    for _ in range(_MOST_RUNS):
        judged = ledger.judge(admission_id, subject, estimate=estimate, trace_id=trace_id, session_id=session_id, at=at)
        if judged is None:
            raise NotFoundError
        if judged.admitted:
            return judged.row
        # Refused: let the rules name the limit, from a look at the same numbers. Where that look would
        # let it pass, the counter moved in between, or the month turned: ask again.
        look = read_standing(subject.account_id, at=at)
        if not look.is_active:
            raise ForbiddenError("This account is disabled. Please contact support.")
        found = rules.refusals_of(look.entitlements, look.standing, ask_of(subject, estimate))
        if found:
            record_denial(
                subject.account_id,
                found[0].limit_type,
                period=look.period,
                at=look.at,
                agent_id=subject.agent_id,
                trace_id=trace_id,
                tier=look.entitlements.tier,
            )
            raise explained(look, found, ask_of(subject, estimate))
    raise UnavailableError("Too many calls at once to decide on this one; please try again.", retry_after=1)


def explained(look: AccountStanding, found: list[rules.Refusal], ask: rules.Ask) -> WebhostError:
    """Return the error for these refusals, with the lowest public tier that would have let it pass."""
    way_out = rules.tier_that_allows(look.offered, look.overrides, look.at, look.standing, ask)
    return refusal_error(found, look.entitlements, period=look.period, at=look.at, way_out=way_out)


def check(account_id: UUID, ask: rules.Ask) -> WebhostError | None:
    """Answer the same question without consuming anything: the refusal there would be, or None."""
    look = read_standing(account_id)
    if not look.is_active:
        return ForbiddenError("This account is disabled. Please contact support.")
    found = rules.refusals_of(look.entitlements, look.standing, ask)
    return explained(look, found, ask) if found else None
