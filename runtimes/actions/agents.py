"""What owners do to agents: create, rename, switch the runtime, disable, enable, delete."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from uuid import UUID

from django.db import IntegrityError, transaction
from django.db.models import Prefetch
from django.utils import timezone

from entitlements.actions.gates import lock_account, require_room, require_runtime
from entitlements.enums import LimitType
from runtimes.enums import DeploymentStatus
from runtimes.models import Agent, AgentQuerySet, Deployment
from webhost.errors import ConflictError, NotFoundError
from webhost.queue import send_on_commit

_CHANGEABLE = frozenset({"name", "description", "runtime_provider"})


def agents_of(account_id: UUID) -> AgentQuerySet:
    """Return an account's agents, with what their status needs, in two queries however many there are."""
    under_way = Deployment.objects.filter(status=DeploymentStatus.DEPLOYING)
    agents = AgentQuerySet(Agent).kept().filter(account_id=account_id)
    return agents.select_related("active_deployment").prefetch_related(Prefetch("deployments", queryset=under_way))


def get_agent(account_id: UUID, agent_id: UUID) -> Agent:
    """Return an agent of this account; raises NotFoundError for nobody's and somebody else's alike."""
    agent = agents_of(account_id).filter(pk=agent_id).first()
    if agent is None:
        raise NotFoundError
    return agent


def create_agent(account_id: UUID, agent_id: UUID, *, name: str, description: str, runtime: str) -> Agent:
    """Create an agent. Raises LimitExceededError for a gate or the cap, ConflictError for a name in use."""
    require_runtime(account_id, runtime)
    with _once_named(name), transaction.atomic():
        # Locked first and counted then: in one statement the count would be older than the wait.
        lock_account(account_id)
        require_room(account_id, LimitType.AGENTS, AgentQuerySet(Agent).kept().filter(account_id=account_id).count())
        Agent.objects.create(
            id=agent_id, account_id=account_id, name=name, description=description, runtime_provider=runtime
        )
    return get_agent(account_id, agent_id)


def change_agent(account_id: UUID, agent_id: UUID, changes: Mapping[str, Any]) -> Agent:
    """Change name, description or runtime. What serves goes on serving until the next deployment.

    Raises LimitExceededError where the account may not use the runtime, ConflictError for a name in use.
    """
    agent = get_agent(account_id, agent_id)
    values = {field: changes[field] for field in _CHANGEABLE & changes.keys()}
    runtime = values.get("runtime_provider", agent.runtime_provider)
    if runtime != agent.runtime_provider:
        require_runtime(account_id, runtime, agent_id=agent_id)
    with _once_named(values.get("name", agent.name)), transaction.atomic():
        if values and not Agent.objects.filter(pk=agent_id, deleted_at__isnull=True).update(**values):
            raise NotFoundError
    return get_agent(account_id, agent_id)


@contextmanager
def _once_named(name: str) -> Iterator[None]:
    """Turn the database's refusal of a second agent of a name into a ConflictError."""
    try:
        yield
    except IntegrityError as error:
        raise ConflictError(f"You already have an agent named {name}.") from error


def set_disabled(account_id: UUID, agent_id: UUID, *, disabled: bool) -> Agent:
    """Refuse invocations of an agent from now on, or take them again. Doing it twice changes nothing."""
    get_agent(account_id, agent_id)
    Agent.objects.filter(pk=agent_id, deleted_at__isnull=True, disabled_at__isnull=disabled).update(
        disabled_at=timezone.now() if disabled else None
    )
    return get_agent(account_id, agent_id)


def delete_agent(account_id: UUID, agent_id: UUID) -> None:
    """Delete an agent: its invocations end at once, what the provider has of it goes in the background."""
    with transaction.atomic():
        if not (
            Agent.objects.filter(pk=agent_id, account_id=account_id, deleted_at__isnull=True).update(
                deleted_at=timezone.now()
            )
        ):
            raise NotFoundError
        send_on_commit("runtimes.sweep_removals")
