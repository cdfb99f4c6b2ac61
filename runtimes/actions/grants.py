"""Capabilities that deployments have at their provider: opened, withdrawn after a downgrade, given back.

A row is there before the provider gives, and stays until the provider was seen to have taken away. So
refusing while a row is open that the tier no longer covers (rules.only_waits_for_withdrawal) leaves no
moment in which a call runs with more than it may have.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

from django.utils import timezone

from entitlements.actions.standing import read_standing
from entitlements.enums import Capability
from entitlements.rules import Entitlements, refused_by_gates
from runtimes.actions.sessions import stop_sessions_of
from runtimes.actions.targets import target_of
from runtimes.enums import DeploymentStatus
from runtimes.models import Agent, AgentSession, Deployment, Grant
from runtimes.providers import PROVIDERS
from webhost.errors import WebhostError

logger = logging.getLogger(__name__)

_DOWNGRADE: Final = "not in the tier any more"
_LONGEST: Final = timedelta(hours=8)  # that a session of AgentCore lives


def open_grants(deployment: Deployment, capabilities: Iterable[str]) -> None:
    """Record capabilities that are about to be given to a deployment; what is open already stays."""
    Grant.objects.bulk_create(
        [
            Grant(deployment=deployment, account_id=deployment.account_id, capability=capability)
            for capability in sorted(capabilities)
        ],
        ignore_conflicts=True,
    )


def close_grants(deployment: Deployment, *, because: str) -> None:
    """Record that nothing of a deployment is left at its provider."""
    Grant.objects.filter(deployment=deployment, withdrawn_at=None).update(
        withdrawn_at=timezone.now(), withdrawn_because=because[:200]
    )


def sweep_grants(now: datetime) -> int:
    """Withdraw what tiers no longer cover, give back what they cover again; return how many grants changed.

    Also ends the sessions of accounts that may not use their runtime any more: an idle microVM costs money.
    What fails is tried again by the next sweep.
    """
    changed = 0
    grants: dict[UUID, list[Grant]] = defaultdict(list)
    # One that is being deployed waits: closed now, its row would say "is not" of what is given a moment later.
    settled = Grant.objects.exclude(deployment__status=DeploymentStatus.DEPLOYING)
    for grant in settled.filter(withdrawn_at=None).select_related("deployment"):
        grants[grant.account_id].append(grant)
    lacking = _lacking()
    machines = [runtime for runtime, provider in PROVIDERS.items() if provider.has_machines]
    running = AgentSession.objects.filter(runtime__in=machines, gone_at=None, last_used_at__gt=now - _LONGEST)
    sessions: dict[UUID, set[UUID]] = defaultdict(set)
    for account_id, deployment_id in running.values_list("account_id", "scope_id").distinct():
        sessions[account_id].add(deployment_id)
    for account_id in {*grants, *lacking, *sessions}:
        try:
            entitled = read_standing(account_id, at=None).entitlements
        except WebhostError as error:
            logger.warning("The grants of account %s could not be looked at: %s", account_id, error.message)
            continue
        changed += _withdraw(grants[account_id], entitled, now)
        changed += _give_back(lacking[account_id], entitled)
        # Where a grant was open, withdrawing has ended them, or is tried again.
        without = sessions[account_id] - {grant.deployment_id for grant in grants[account_id]}
        for deployment in Deployment.objects.filter(pk__in=without):
            if refused_by_gates(entitled, deployment.runtime_provider):
                with _later(deployment):
                    stop_sessions_of(deployment, now, because=_DOWNGRADE)
    return changed


@contextmanager
def _later(deployment: Deployment) -> Iterator[None]:
    """Leave what fails for one deployment to the next sweep, so that it keeps nothing from the others."""
    try:
        yield
    except WebhostError as error:
        logger.warning("The grants of %s could not be brought up to date: %s", deployment.public_id, error.message)


def _may(entitled: Entitlements, deployment: Deployment, capability: str) -> bool:
    return not refused_by_gates(entitled, deployment.runtime_provider, [Capability(capability)])


def _withdraw(grants: list[Grant], entitled: Entitlements, now: datetime) -> int:
    by_deployment: dict[Deployment, list[Grant]] = defaultdict(list)
    for grant in grants:
        if not _may(entitled, grant.deployment, grant.capability):
            by_deployment[grant.deployment].append(grant)
    withdrawn = 0
    for deployment, taken in by_deployment.items():
        with _later(deployment):
            # First no new tool can be started; then what runs ends, with the credentials it may have kept.
            provider = PROVIDERS[deployment.runtime_provider]
            provider.withdraw(target_of(deployment), frozenset(g.capability for g in taken))
            stop_sessions_of(deployment, now, because=_DOWNGRADE)
            withdrawn += Grant.objects.filter(pk__in=[g.pk for g in taken], withdrawn_at=None).update(
                withdrawn_at=timezone.now(), withdrawn_because=_DOWNGRADE
            )
    return withdrawn


def _lacking() -> dict[UUID, list[Deployment]]:
    """Return the deployments that serve without a capability that they asked for, by account."""
    found: dict[UUID, list[Deployment]] = defaultdict(list)
    serving = Deployment.objects.filter(
        pk__in=Agent.objects.filter(deleted_at=None).exclude(active_deployment=None).values("active_deployment"),
        capabilities__len__gt=0,
    )
    for deployment in serving.prefetch_related("grants"):
        if _missing(deployment):
            found[deployment.account_id].append(deployment)
    return found


def _missing(deployment: Deployment) -> set[str]:
    return set(deployment.capabilities) - {
        g.capability for g in deployment.grants.all() if g.withdrawn_at is None and g.given_at is not None
    }


def _give_back(deployments: list[Deployment], entitled: Entitlements) -> int:
    given = 0
    for deployment in deployments:
        wanted = frozenset(c for c in _missing(deployment) if _may(entitled, deployment, c))
        if wanted:
            with _later(deployment):
                give(deployment, wanted)
                given += len(wanted)
    return given


def give(deployment: Deployment, capabilities: frozenset[str]) -> None:
    """Give a deployment capabilities again that were withdrawn from it. Raises as providers do.

    If it fails half-way the open row stands for what may be there, and the sweep tries again or takes it away.
    """
    provider, target = PROVIDERS[deployment.runtime_provider], target_of(deployment)
    open_grants(deployment, capabilities)
    provider.grant(target, capabilities)
    mark_given(deployment)
    still_open = Grant.objects.filter(deployment=deployment, capability__in=capabilities, withdrawn_at=None)
    closed = capabilities - set(still_open.values_list("capability", flat=True))
    if closed:  # another sweep saw a downgrade meanwhile, and withdrew what was not there yet
        provider.withdraw(target, frozenset(closed))


def mark_given(deployment: Deployment) -> None:
    """Record that the provider has given a deployment all that is open."""
    Grant.objects.filter(deployment=deployment, withdrawn_at=None, given_at=None).update(given_at=timezone.now())


def give_back_all(deployment: Deployment) -> None:
    """Give a deployment that is about to serve again all that it asks for; the caller asked whether it may."""
    missing = _missing(Deployment.objects.prefetch_related("grants").get(pk=deployment.pk))
    if missing:
        give(deployment, frozenset(missing))
