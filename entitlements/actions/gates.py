"""The gates and caps that are asked outside an invocation: runtimes, capabilities, agents, deployments."""

from __future__ import annotations

from collections.abc import Iterable
from uuid import UUID

from django.db import connection

from entitlements import rules
from entitlements.actions.denials import record_denial
from entitlements.actions.standing import AccountStanding, read_standing
from entitlements.enums import LimitType, Runtime
from entitlements.refusals import refusal_error
from webhost.errors import NotFoundError, WebhostError
from webhost.tracing import current_trace_id


def gate_refusal(look: AccountStanding, runtime: str, capabilities: Iterable[str] = ()) -> WebhostError | None:
    """Return why this account may not use a runtime with these capabilities, or None."""
    wanted = frozenset(capabilities)
    closed = rules.refused_by_gates(look.entitlements, runtime, wanted)
    if not closed:
        return None
    candidates = sorted(look.offered, key=lambda t: t.rank)
    way_out = next(
        (
            tier
            for tier in candidates
            if not rules.refused_by_gates(rules.entitlements_of(tier, look.overrides, look.at), runtime, wanted)
        ),
        None,
    )
    found = [rules.Refusal(gate) for gate in closed]
    return refusal_error(found, look.entitlements, period=look.period, at=look.at, way_out=way_out)


def require_runtime(
    account_id: UUID, runtime: str, capabilities: Iterable[str] = (), *, agent_id: UUID | None = None
) -> None:
    """Raise LimitExceededError unless the account may use this runtime with these capabilities, now.

    Fresh from the database and independent of the caller; costs nothing where nothing is gated.
    """
    if runtime != Runtime.AGENTCORE:
        return
    look = read_standing(account_id)
    refusal = gate_refusal(look, runtime, capabilities)
    if refusal is not None:
        record_denial(
            account_id,
            LimitType(refusal.details["limitType"]),
            period=look.period,
            at=look.at,
            agent_id=agent_id,
            trace_id=current_trace_id(),
            tier=look.entitlements.tier,
        )
        raise refusal


def lock_account(account_id: UUID) -> None:
    """Serialise what counts against a cap: lock the account row, then count, then insert.

    In one statement the count would come from a snapshot older than the wait. NO KEY, because FOR
    UPDATE would also block every insert with a foreign key to the account. Needs a transaction.
    """
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1 FROM entitlements_account WHERE id = %s FOR NO KEY UPDATE", [account_id])
        if cursor.fetchone() is None:
            raise NotFoundError


def require_room(account_id: UUID, cap: LimitType, current: int, *, agent_id: UUID | None = None) -> None:
    """Raise LimitExceededError unless one more agent or deployment fits; call it with the account locked."""
    look = read_standing(account_id)
    refusal = rules.refused_by_cap(look.entitlements, cap, current)
    if refusal is None:
        return
    record_denial(
        account_id,
        cap,
        period=look.period,
        at=look.at,
        agent_id=agent_id,
        trace_id=current_trace_id(),
        tier=look.entitlements.tier,
    )
    way_out = rules.tier_with_cap(look.offered, look.overrides, look.at, cap, current)
    raise refusal_error([refusal], look.entitlements, period=look.period, at=look.at, way_out=way_out)
