"""A deployment as the adapters know it."""

from __future__ import annotations

from runtimes.models import Deployment
from runtimes.providers.base import Target


def target_of(deployment: Deployment) -> Target:
    """Return a deployment as the adapters know it, with the capabilities that it asks for."""
    return Target(
        account_id=deployment.account_id,
        agent_id=deployment.agent_id,
        deployment_id=deployment.id,
        version=deployment.version,
        runtime=deployment.runtime_provider,
        root_key_id=deployment.root_key_id,
        capabilities=frozenset(deployment.capabilities),
        timeout_seconds=deployment.timeout_seconds,
        remote=deployment.remote,
    )
