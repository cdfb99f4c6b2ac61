"""Conversations with agents: recorded, listed, stopped. No provider lists them, so this record is the only one.

Recorded with every call where a session is a machine that costs money while it lives (AgentCore), elsewhere
(Cloudflare) where the caller named one. A session that was stopped, or idle past its limit, is answered so
without a call: under the same id the provider would start another one, with nothing in it.
"""

from __future__ import annotations

import logging
from datetime import datetime
from typing import Final
from uuid import UUID

from django.db import transaction
from django.db.models import Max, QuerySet
from django.utils import timezone

from runtimes.actions.targets import target_of
from runtimes.errors import SessionEndedError
from runtimes.models import Agent, AgentSession, Deployment
from runtimes.providers import PROVIDERS
from runtimes.providers.base import Target
from webhost import db
from webhost.errors import NotFoundError, WebhostError
from webhost.ids import new_id

logger = logging.getLogger(__name__)

_USE: Final = """
INSERT INTO runtimes_agentsession AS s (id, account_id, agent_id, deployment_id, scope_id, runtime, session_id,
    started_at, last_used_at, idle_seconds, lifetime_seconds, invocations, stopped_because)
VALUES (%(id)s, %(account)s, %(agent)s, %(deployment)s, %(scope)s, %(runtime)s, %(session)s, now(), now(), %(idle)s,
    %(lifetime)s, 1, '')
ON CONFLICT (scope_id, session_id) DO UPDATE SET
    last_used_at = now(), deployment_id = excluded.deployment_id, invocations = s.invocations + 1
 WHERE s.stopped_at IS NULL
   AND now() < s.last_used_at + make_interval(secs => s.idle_seconds)
   AND (now() < s.started_at + make_interval(secs => s.lifetime_seconds)) IS NOT FALSE
RETURNING id
"""
# Idle time counts from the end of the last call.
_USED: Final = "UPDATE runtimes_agentsession SET last_used_at = now() WHERE id = %(id)s RETURNING id"


def scope_of(target: Target) -> UUID:
    """Return what a session lives in: the deployment where each has its own VMs, else the agent."""
    return target.deployment_id if PROVIDERS[target.runtime].has_machines else target.agent_id


def use_session(target: Target, session_id: str, life: tuple[int, int | None]) -> UUID:
    """Record that a call uses a session, which begins with its first; `life` is idle and whole lifetime in seconds.

    Before the provider is called, so that none runs unrecorded. Raises SessionEndedError where it was
    stopped or is past its limits.
    """
    rows = db.run(
        _USE,
        {
            "id": new_id(),
            "account": target.account_id,
            "agent": target.agent_id,
            "deployment": target.deployment_id,
            "scope": scope_of(target),
            "runtime": target.runtime,
            "session": session_id,
            "idle": life[0],
            "lifetime": life[1],
        },
    )
    if not rows:
        raise SessionEndedError
    found: UUID = rows[0]["id"]
    return found


def used_session(record_id: UUID) -> None:
    """Record that a call in a session has ended."""
    try:
        db.run(_USED, {"id": record_id})
    except WebhostError:
        logger.warning("The end of a call in session %s could not be recorded.", record_id)


def list_sessions(agent: Agent) -> QuerySet[AgentSession]:
    """Return an agent's sessions, the last used first."""
    return AgentSession.objects.filter(agent_id=agent.pk)


def stop_session(agent: Agent, session_id: str, *, because: str) -> AgentSession:
    """End an agent's session everywhere it runs; ended already is success. Raises NotFoundError, or as providers do."""
    sessions = list(list_sessions(agent).filter(session_id=session_id))
    if not sessions:
        raise NotFoundError
    for session in sessions:
        _stop(session, because)
    return sessions[0]


def _stop(session: AgentSession, because: str) -> None:
    """Mark it first, so that no call begins in it, then end it at the provider."""
    with transaction.atomic():
        # Each call locks this row while it records itself: what is stopped here gets no new one.
        locked = AgentSession.objects.select_for_update().get(pk=session.pk)
        if locked.stopped_at is None:
            locked.stopped_at, locked.stopped_because = timezone.now(), because[:200]
            locked.save(update_fields=["stopped_at", "stopped_because"])
    session.stopped_at, session.stopped_because = locked.stopped_at, locked.stopped_because
    deployment = Deployment.objects.filter(pk=session.deployment_id).first()
    if deployment is not None and deployment.removed_at is None and session.runtime in PROVIDERS:
        PROVIDERS[session.runtime].stop_session(target_of(deployment), session.session_id)
    AgentSession.objects.filter(pk=session.pk).update(gone_at=timezone.now())


def stop_sessions_of(deployment: Deployment, now: datetime, *, because: str) -> int:
    """End every session that lives in a deployment and may still run; return how many. Raises as providers do."""
    running = [s for s in AgentSession.objects.filter(scope_id=deployment.pk, gone_at=None) if s.ends_at() > now]
    for session in running:
        _stop(session, because)
    return len(running)


def last_use_of(deployment_ids: list[UUID]) -> dict[UUID, datetime]:
    """Return when each of these deployments, which sessions live in, was last used, of those that were."""
    rows = (
        AgentSession.objects.filter(scope_id__in=deployment_ids)
        .values_list("scope_id")
        .annotate(Max("last_used_at"))
    )  # fmt: skip
    return dict(rows)
