"""Remove at the providers what was deleted or given up: by the sweep until it is gone, by hand where it is stuck."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import datetime
from functools import partial
from uuid import UUID

from django.utils import timezone

from entitlements.actions.authorship import ChangeSource, written_by
from runtimes.actions.grants import close_grants
from runtimes.actions.sessions import stop_sessions_of
from runtimes.actions.targets import target_of
from runtimes.enums import DeploymentStatus
from runtimes.models import Agent, Deployment, SecretName
from runtimes.providers import PROVIDERS
from runtimes.providers.base import AgentRef
from webhost.errors import ConflictError, NotFoundError, WebhostError
from webhost.history import noted

logger = logging.getLogger(__name__)


def remove_remote(now: datetime) -> int:
    """Remove at the providers what was given up: deployments, then deleted agents. Returns how many are gone.

    What cannot be removed now stays marked and is tried again by the next sweep, until it is gone.
    """
    gone = 0
    with noted(source="task runtimes.sweep_removals"):
        # Some of them, each time others: fifty that are stuck keep nobody else waiting.
        for deployment in Deployment.objects.filter(
            removal_requested_at__isnull=False, removed_at__isnull=True
        ).order_by("?")[:50]:
            gone += _tried(f"Deployment {deployment.public_id}", partial(_remove_deployment, deployment, now))
        for agent in Agent.objects.filter(deleted_at__isnull=False, removed_at__isnull=True).order_by("?")[:50]:
            gone += _tried(f"Agent {agent.public_id}", partial(_remove_agent, agent, now))
    return gone


def retry_deployment_removal(deployment_id: UUID, *, actor: str, reason: str) -> None:
    """Try at once to remove what a provider has of a version that was given up.

    That it was tried is in the audit log, whatever comes of it. Raises ConflictError where nothing waits to be
    removed, InvalidRequestError without a reason, or what the provider refuses; then the sweep goes on trying.
    """
    with written_by(actor, reason):
        deployment = Deployment.objects.select_for_update().filter(pk=deployment_id).first()
        if deployment is None:
            raise NotFoundError
        if deployment.removal_requested_at is None or deployment.removed_at is not None:
            raise ConflictError("Nothing of this version waits to be removed.")
        Deployment.objects.filter(pk=deployment_id).update(removal_retried_at=timezone.now())
    # Outside the transaction: nothing holds a connection while a provider works.
    with noted(actor=actor, reason=reason.strip(), source=ChangeSource.ADMIN.value):
        _remove_deployment(deployment, timezone.now())


def retry_agent_removal(agent_id: UUID, *, actor: str, reason: str) -> None:
    """Try at once to remove what providers have of a deleted agent and all its versions; as for one version."""
    with written_by(actor, reason):
        agent = Agent.objects.select_for_update().filter(pk=agent_id).first()
        if agent is None:
            raise NotFoundError
        if agent.deleted_at is None or agent.removed_at is not None:
            raise ConflictError("Nothing of this agent waits to be removed.")
        Agent.objects.filter(pk=agent_id).update(removal_retried_at=timezone.now())
    with noted(actor=actor, reason=reason.strip(), source=ChangeSource.ADMIN.value):
        _remove_agent(agent, timezone.now())


def _tried(name: str, remove: Callable[[], None]) -> int:
    try:
        remove()
    except WebhostError as error:
        logger.warning("%s could not be removed yet: %s", name, error.message)
        return 0
    return 1


def _remove_agent(agent: Agent, now: datetime) -> None:
    if agent.deployments.filter(status=DeploymentStatus.DEPLOYING).exists():
        raise ConflictError("A deployment of it is still under way.")
    for deployment in agent.deployments.filter(removed_at__isnull=True):
        _remove_deployment(deployment, now)
    # Only those that ever had something of it are asked.
    runtimes = set(agent.deployments.values_list("runtime_provider", flat=True))
    runtimes |= set(SecretName.objects.filter(agent=agent).values_list("runtime", flat=True))
    for runtime in sorted(runtimes & PROVIDERS.keys()):
        PROVIDERS[runtime].remove_agent(AgentRef(agent.account_id, agent.pk))
    Agent.objects.filter(pk=agent.pk).update(removed_at=now)


def _remove_deployment(deployment: Deployment, now: datetime) -> None:
    provider = PROVIDERS.get(deployment.runtime_provider)
    if provider is not None:
        if provider.has_machines:
            stop_sessions_of(deployment, now, because="its version was removed")
        provider.remove(target_of(deployment))
    close_grants(deployment, because="removed")
    Deployment.objects.filter(pk=deployment.pk).update(removed_at=now)
