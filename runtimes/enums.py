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
