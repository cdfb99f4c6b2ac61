"""The ledger's verbs in Python: admit, settle, observe, void, expire, adopt, adjust, verify.

Each is one statement of ledger.sql on an autocommit connection (webhost/db.py), so each is a
transaction of its own and safe to run twice.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date, datetime
from pathlib import Path
from typing import Any, Final
from uuid import UUID

import psycopg
from django.conf import settings

from entitlements.enums import LimitType, Outcome
from webhost import db
from webhost.ids import Prefix, public_id
from webhost.signing import sign_settlement

_PARTS = re.split(
    r"^-- name: (\w+)\n", Path(__file__).with_name("ledger.sql").read_text(encoding="utf-8"), flags=re.MULTILINE
)
SQL: Final[Mapping[str, str]] = {name: body.strip() for name, body in zip(_PARTS[1::2], _PARTS[2::2], strict=True)}
_ADMITTED: Final = "SELECT true AS admitted, * FROM entitlements_admission WHERE id = %(id)s"
_RECENT_OF_ALL: Final = f"""
SELECT d.id AS deployment, r.* FROM unnest(%(deployments)s::uuid[]) d (id)
 CROSS JOIN LATERAL ({SQL["recent"].replace("%(deployment)s::uuid", "d.id")}) r
"""  # noqa: S608 - composed of constants
ESTIMATED: Final = "estimated"
_FIRST_PERIOD = date(2000, 1, 1)


@dataclass(frozen=True)
class Usage:
    """What one observer saw of an invocation. Integers, never negative; code execution in milliseconds."""

    tokens: int = 0
    compute_ms: int = 0
    tool_calls: int = 0
    code_ms: int = 0
    browser_sessions: int = 0
    tokens_estimated: bool = False

    def measures(self) -> dict[str, int]:
        """Return the five measures under the ledger's names."""
        return {
            "tokens": self.tokens,
            "compute_ms": self.compute_ms,
            "tool_calls": self.tool_calls,
            "code_ms": self.code_ms,
            "browser_sessions": self.browser_sessions,
        }


NOTHING: Final = Usage()


@dataclass(frozen=True)
class Subject:
    """Whose invocation it is, and of what: what the ledger needs to judge and to remember it."""

    account_id: UUID
    agent_id: UUID
    deployment_id: UUID
    runtime: str
    timeout_seconds: int
    token_id: UUID | None = None
    capabilities: frozenset[str] = frozenset()
    tools: frozenset[LimitType] = field(default=frozenset())
    delegated_by: str = ""


@dataclass(frozen=True)
class Judged:
    """What `admit` answered: admitted or not, and the budgets with the counter just after."""

    admitted: bool
    row: Mapping[str, Any]


def admit_parameters(
    admission_id: UUID,
    subject: Subject,
    *,
    estimate: Usage = NOTHING,
    trace_id: str = "",
    session_id: str = "",
    at: datetime | None = None,
) -> dict[str, Any]:
    """Return what the admit statement is given, by name; here alone, for whoever runs it."""
    return {
        "id": admission_id,
        "account": subject.account_id,
        "agent": subject.agent_id,
        "deployment": subject.deployment_id,
        "token": subject.token_id,
        "delegated_by": subject.delegated_by,
        "runtime": subject.runtime,
        "capabilities": sorted(subject.capabilities),
        "tools": sorted(subject.tools),
        "lifetime": subject.timeout_seconds + settings.OVERDUE_GRACE_SECONDS,
        "trace": trace_id,
        "session": session_id,
        "at": at,
        **estimate.measures(),
    }


def judge(
    admission_id: UUID,
    subject: Subject,
    *,
    estimate: Usage = NOTHING,
    trace_id: str = "",
    session_id: str = "",
    at: datetime | None = None,
) -> Judged | None:
    """Count the request and hold the estimate if every limit still fits; one statement, one round trip.

    None: no such account. Not admitted: some limit was full, and nothing was written. A repeat with
    the same id after a lost answer finds its own admission and does not count again.
    """
    parameters = admit_parameters(
        admission_id, subject, estimate=estimate, trace_id=trace_id, session_id=session_id, at=at
    )
    try:
        rows, repeated = db.run_surely(SQL["admit"], parameters)
    except psycopg.errors.UniqueViolation:
        rows, repeated = [], True
    if repeated and not (rows and rows[0]["admitted"]):
        # The answer was lost, but it had counted after all; it may even have taken the last that was left.
        rows = db.run(_ADMITTED, {"id": admission_id}) or rows
    return Judged(rows[0]["admitted"], rows[0]) if rows else None


def settlement_of(admission_id: UUID, outcome: Outcome, usage: Usage) -> str:
    """Return what the gateway signs when it closes an admission: id, outcome, measures, `estimated` if it guessed."""
    said = ["v1", public_id(Prefix.INVOCATION, admission_id), outcome.value, *map(str, usage.measures().values())]
    return "|".join([*said, ESTIMATED] if usage.tokens_estimated else said)


def _signed(admission_id: UUID, outcome: Outcome, usage: Usage) -> dict[str, str]:
    settlement = settlement_of(admission_id, outcome, usage)
    return {"settlement": settlement, "settlement_mac": sign_settlement(settlement.encode())}


def settle(
    admission_id: UUID,
    outcome: Outcome,
    usage: Usage,
    *,
    error_class: str | None = None,
    latency_ms: int | None = None,
    tools_unseen: bool = False,
) -> Mapping[str, Any] | None:
    """Fold in what the gateway saw, release the hold and close; once. Return what is charged now.

    `tools_unseen`: the provider could not be asked what its tools did, so they are charged at the hold
    until `see_tools`. None: it was closed and settled before.
    """
    rows = db.run(
        SQL["settle"],
        {
            "id": admission_id,
            "outcome": outcome.value,
            "error_class": error_class,
            "latency_ms": latency_ms,
            "tokens_estimated": usage.tokens_estimated,
            "tools_unseen": tools_unseen,
            **usage.measures(),
            **_signed(admission_id, outcome, usage),
        },
    )
    return rows[0] if rows else None


def void(admission_id: UUID, error_class: str) -> str | None:
    """Give the request back, because the provider was certainly not reached. Return the outcome."""
    signed = _signed(admission_id, Outcome.VOIDED, NOTHING)
    rows = db.run(SQL["void"], {"id": admission_id, "error_class": error_class, **signed})
    return rows[0]["outcome"] if rows else None


def observe(admission_id: UUID, deployment_id: UUID, usage: Usage, *, trusted: bool) -> Mapping[str, Any] | None:
    """Fold one accepted report into the admission of its invocation. None: no such admission there.

    Counts the report, so call it once per accepted report and in the same transaction (SQL["observe"]).
    """
    rows = db.run(SQL["observe"], observation(admission_id, deployment_id, usage, trusted=trusted))
    return rows[0] if rows else None


def observation(admission_id: UUID, deployment_id: UUID, usage: Usage, *, trusted: bool) -> dict[str, Any]:
    """Return the parameters of SQL["observe"]."""
    return {
        "id": admission_id,
        "deployment": deployment_id,
        "trusted": trusted,
        "tokens_estimated": usage.tokens_estimated,
        **usage.measures(),
    }


@dataclass(frozen=True)
class Recent:
    """What one call of a deployment used lately, at most but for one in twenty; of how many calls."""

    calls: int = 0
    usage: Usage = NOTHING


def recent_use(deployment_id: UUID) -> Recent:
    """Return what a deployment's calls used lately, where calls set an estimate aside."""
    return _recent(db.run(SQL["recent"], {"deployment": deployment_id})[0])


def recent_uses(deployment_ids: list[UUID]) -> dict[UUID, Recent]:
    """Return the same of some deployments, in one statement."""
    if not deployment_ids:
        return {}
    return {row["deployment"]: _recent(row) for row in db.run(_RECENT_OF_ALL, {"deployments": deployment_ids})}


def _recent(row: Mapping[str, Any]) -> Recent:
    return Recent(
        row["calls"],
        Usage(row["tokens"], row["compute_ms"], row["tool_calls"], row["code_ms"], row["browser_sessions"]),
    )


def see_tools(admission_id: UUID, *, tool_calls: int, code_ms: int, browser_sessions: int) -> bool:
    """Fold in what the control plane saw of an invocation's tools; say whether that moved anything."""
    seen = {"tool_calls": tool_calls, "code_ms": code_ms, "browser_sessions": browser_sessions}
    return bool(db.run(SQL["see_tools"], {"id": admission_id, **seen}))


def tools_to_see() -> dict[UUID, list[UUID]]:
    """Return the invocations whose tools are charged at the hold until somebody looks, by deployment."""
    return {row["deployment_id"]: row["ids"] for row in db.run(SQL["tools_to_see"], {})}


def invocation_of(deployment_id: UUID, at: datetime, named: UUID | None = None) -> UUID | None:
    """Return the invocation of a deployment that something begun at an instant belongs to; None: it had none."""
    rows = db.run(SQL["whose"], {"deployment": deployment_id, "at": at, "named": named})
    return rows[0]["id"] if rows else None


def close_overdue(*, at: datetime | None = None, batch: int = 500) -> int:
    """Close open admissions whose time is up, one transaction each; return how many."""
    closed = 0
    for row in db.run(SQL["overdue"], {"at": at, "batch": batch}):
        closed += len(db.run(SQL["expire"], {"id": row["id"], "at": at}))
    return closed


@dataclass(frozen=True)
class Difference:
    """A counter that does not equal its admissions and adjustments, column by column."""

    account_id: UUID
    period: date
    counter: Mapping[str, Any] | None
    admissions: Mapping[str, Any] | None
    adjustments: Mapping[str, Any] | None


def verify(*, account_id: UUID | None = None, since: date = _FIRST_PERIOD) -> list[Difference]:
    """Return every counter that differs from the sum of its admissions and adjustments; empty is proof."""
    with db.hot_connection() as connection:
        rows = connection.execute(SQL["verify"], {"account": account_id, "since": since}).fetchall()
    return [Difference(**row) for row in rows]
