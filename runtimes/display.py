"""How deployments, sessions and grants are shown, the same by API, page and admin."""

from __future__ import annotations

from datetime import datetime
from typing import Final

from django.db.models import Q

from entitlements.rules import Entitlements, refused_by_gates
from runtimes.enums import DeploymentStatus, GrantState, SessionStatus
from runtimes.models import AgentSession, Grant

# What was given up is gone for its owner. A failed one is cleaned up at once, but says why it failed.
VISIBLE_DEPLOYMENTS: Final = Q(removal_requested_at__isnull=True) | Q(status=DeploymentStatus.FAILED)


def session_status(session: AgentSession, now: datetime) -> SessionStatus:
    """Return where a session stands; one that was stopped stays stopped when its time would be up."""
    if session.stopped_at is not None:
        return SessionStatus.STOPPED
    return SessionStatus.RUNNING if now < session.ends_at() else SessionStatus.EXPIRED


def grant_state(grant: Grant, entitlements: Entitlements) -> GrantState:
    """Return where a grant stands: what is open at the provider and not in the tier is being withdrawn."""
    if grant.withdrawn_at is not None:
        return GrantState.WITHDRAWN
    closed = refused_by_gates(entitlements, grant.deployment.runtime_provider, [grant.capability])
    return GrantState.BEING_WITHDRAWN if closed else GrantState.GRANTED
