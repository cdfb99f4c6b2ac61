"""The words of this app: agent and deployment status. Imports no Django."""

from __future__ import annotations

from enum import StrEnum


class AgentStatus(StrEnum):
    """Where an agent stands."""

    CREATED = "created"
    DEPLOYING = "deploying"
    ACTIVE = "active"
    ERROR = "error"
    DISABLED = "disabled"


class DeploymentStatus(StrEnum):
    """Where a deployment stands: `active` is deployed, `rolled_back` was the pointer and is not now."""

    DEPLOYING = "deploying"
    ACTIVE = "active"
    FAILED = "failed"
    ROLLED_BACK = "rolled_back"


class SessionStatus(StrEnum):
    """Where a session stands: ended by somebody, or by itself."""

    RUNNING = "running"
    STOPPED = "stopped"
    EXPIRED = "expired"


class GrantState(StrEnum):
    """Where a capability of a deployment stands, as its owner reads it."""

    GRANTED = "granted"
    BEING_WITHDRAWN = "being withdrawn"
    WITHDRAWN = "withdrawn"
