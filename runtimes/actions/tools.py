"""What a deployment's tools did, as the control plane sees it at the provider.

A workload may say that it used nothing; its role's sessions at the provider say what it used. Each is
recorded once, belongs to one invocation, and is signed: what is charged can be shown. What cannot be
seen is charged at the hold until it can.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from uuid import UUID

from django.db.models import Q

from entitlements import ledger
from runtimes import rules
from runtimes.actions.sessions import last_use_of
from runtimes.actions.targets import target_of
from runtimes.models import Deployment, Grant, ToolUse
from runtimes.providers import PROVIDERS
from runtimes.providers.base import Target, ToolSession
from webhost import db
from webhost.errors import NotFoundError, WebhostError
from webhost.ids import Prefix, parse_id
from webhost.signing import sign_settlement

logger = logging.getLogger(__name__)

# A microVM lives 8 hours at most, and a tool's session that it started as long again.
_MAY_RUN: Final = timedelta(hours=16)
_KNOWN: Final = """
SELECT kind, remote_id, invocation_id, ended_at FROM runtimes_tooluse
 WHERE deployment_id = %(deployment)s AND remote_id = ANY(%(ids)s)
"""
# Of two that see a new session at once, the first says whose it is; the other's figures follow with the next look.
_KEEP: Final = """
INSERT INTO runtimes_tooluse AS t (account_id, deployment_id, invocation_id, kind, remote_id, started_at, ended_at,
    code_ms, seen_at, mac)
VALUES (%(account)s, %(deployment)s, %(invocation)s, %(kind)s, %(remote)s, %(started)s, %(ended)s, %(code_ms)s,
    %(now)s, %(mac)s)
ON CONFLICT (deployment_id, kind, remote_id) DO UPDATE SET
    ended_at = coalesce(t.ended_at, excluded.ended_at), code_ms = excluded.code_ms, seen_at = excluded.seen_at,
    mac = excluded.mac
 WHERE t.invocation_id = excluded.invocation_id AND t.ended_at IS NULL AND excluded.code_ms >= t.code_ms
RETURNING id
"""
_TOTALS: Final = """
SELECT invocation_id, count(*) AS tool_calls, sum(code_ms)::bigint AS code_ms,
       count(*) FILTER (WHERE kind = 'browser') AS browser_sessions
  FROM runtimes_tooluse WHERE invocation_id = ANY(%(ids)s) GROUP BY invocation_id
"""


def look(target: Target) -> set[UUID]:
    """Ask the provider what a deployment's tools did, keep it, and return the invocations that it concerns.

    Raises as providers do.
    """
    now = datetime.now(UTC)
    listed = PROVIDERS[target.runtime].tool_sessions(target)
    known = {
        (row["kind"], row["remote_id"]): row
        for row in db.run(_KNOWN, {"deployment": target.deployment_id, "ids": [s.remote_id for s in listed]})
    }
    concerned: set[UUID] = set()
    for session in listed:
        row = known.get((session.kind.value, session.remote_id))
        if row is not None and row["ended_at"] is not None:
            continue
        owner = row["invocation_id"] if row is not None else _owner_of(target, session)
        if owner is None:
            logger.error("Tool session %s of %s is nobody's.", session.remote_id, target.public_deployment_id)
            continue
        _keep(target, session, owner, now)
        concerned.add(owner)
    return concerned | _vanished(target, listed, now)


def _owner_of(target: Target, session: ToolSession) -> UUID | None:
    try:
        named = parse_id(Prefix.INVOCATION, session.name)
    except NotFoundError:
        named = None
    return ledger.invocation_of(target.deployment_id, session.started_at, named)


def _keep(target: Target, session: ToolSession, owner: UUID, now: datetime) -> None:
    code_ms = rules.code_ms_of(session.kind, session.started_at, session.ended_at, now)
    evidence = rules.tool_evidence(session.kind, session.remote_id, target.deployment_id, owner, code_ms)
    db.run(
        _KEEP,
        {
            "account": target.account_id,
            "deployment": target.deployment_id,
            "invocation": owner,
            "kind": session.kind.value,
            "remote": session.remote_id,
            "started": session.started_at,
            "ended": session.ended_at,
            "code_ms": code_ms,
            "now": now,
            "mac": sign_settlement(evidence.encode()),
        },
    )


_VANISHED: Final = """
UPDATE runtimes_tooluse SET ended_at = seen_at
 WHERE deployment_id = %(deployment)s AND ended_at IS NULL AND seen_at < %(now)s AND remote_id <> ALL(%(ids)s)
RETURNING invocation_id
"""


def _vanished(target: Target, listed: Sequence[ToolSession], now: datetime) -> set[UUID]:
    """Close what the provider no longer lists where it was last seen."""
    values = {"deployment": target.deployment_id, "now": now, "ids": [s.remote_id for s in listed]}
    return {row["invocation_id"] for row in db.run(_VANISHED, values)}


def _totals(invocations: Sequence[UUID]) -> dict[UUID, dict[str, int]]:
    rows = db.run(_TOTALS, {"ids": list(invocations)}) if invocations else []
    return {row["invocation_id"]: {m: row[m] for m in ("tool_calls", "code_ms", "browser_sessions")} for row in rows}


def measured(target: Target, invocation_id: UUID, claimed: ledger.Usage) -> tuple[ledger.Usage, bool]:
    """Return what an invocation used of its tools: the larger of what it claims and what was seen.

    The flag says that nobody could look. Never raises: an invocation has to be settled either way.
    """
    try:
        concerned = look(target) | {invocation_id}
        totals = _totals(sorted(concerned))
        seen = totals.pop(invocation_id, {})
        for other, figures in totals.items():
            ledger.see_tools(other, **figures)
    except WebhostError as error:
        logger.warning("The tools of %s could not be looked at: %s", target.public_deployment_id, error.message)
        return claimed, True
    larger: dict[str, Any] = {measure: max(getattr(claimed, measure), figure) for measure, figure in seen.items()}
    return replace(claimed, **larger), False


def sweep_tools(now: datetime) -> int:
    """Look at the tools of every deployment that may use them, and charge what was not seen before.

    Returns how many deployments were looked at; one that cannot be is tried again by the next sweep.
    """
    unseen = ledger.tools_to_see()
    running = set(ToolUse.objects.filter(ended_at=None).values_list("deployment_id", flat=True))
    lent = list(
        Grant.objects.filter(capability__in=rules.TOOLS)
        .filter(Q(withdrawn_at=None) | Q(withdrawn_at__gt=now - _MAY_RUN))
        .values_list("deployment_id", flat=True)
    )
    used = {pk for pk, at in last_use_of(lent).items() if at > now - _MAY_RUN}
    seen = 0
    for deployment in Deployment.objects.filter(pk__in=used | running | unseen.keys()):
        if deployment.runtime_provider not in PROVIDERS:
            continue
        try:
            concerned = look(target_of(deployment)) | set(unseen.get(deployment.pk, ()))
        except WebhostError as error:
            logger.warning("The tools of %s could not be looked at: %s", deployment.public_id, error.message)
            continue
        totals = _totals(sorted(concerned))
        nothing = {"tool_calls": 0, "code_ms": 0, "browser_sessions": 0}
        for invocation in sorted(concerned):
            ledger.see_tools(invocation, **totals.get(invocation, nothing))
        seen += 1
    return seen
