"""Background work of the runtimes. Each takes ids, calls one action, and is safe to run twice."""

from __future__ import annotations

from uuid import UUID

from celery import shared_task
from django.utils import timezone

from runtimes.actions import deployments, grants, removals, tools


@shared_task(name="runtimes.run_deployment")
def run_deployment(deployment_id: str) -> str | None:
    """Bring one deployment to its provider."""
    return deployments.run_deployment(UUID(deployment_id))


@shared_task(name="runtimes.sweep_deployments")
def sweep_deployments() -> int:
    """Resume deployments whose wake-up was lost or whose worker was killed; return how many were looked at."""
    waiting = deployments.unfinished(timezone.now())
    for deployment_id in waiting:
        deployments.run_deployment(deployment_id)
    return len(waiting)


@shared_task(name="runtimes.sweep_removals")
def sweep_removals() -> int:
    """Remove at the providers what was deleted or given up; return how much is gone."""
    return removals.remove_remote(timezone.now())


@shared_task(name="runtimes.sweep_grants")
def sweep_grants() -> int:
    """Withdraw capabilities that tiers no longer cover, give back what they cover again; return how many changed."""
    return grants.sweep_grants(timezone.now())


@shared_task(name="runtimes.sweep_tools")
def sweep_tools() -> int:
    """Charge what deployments' tools did unseen; return how many deployments were looked at."""
    return tools.sweep_tools(timezone.now())
