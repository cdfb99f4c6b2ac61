"""From a zip to a deployment that serves: accept, deploy, finish, activate, give up.

Everything after acceptance may be repeated: a worker killed half-way is resumed by the sweep, the
provider adopts what it made before, and the previous version keeps serving until the pointer moves.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from datetime import datetime, timedelta
from io import BytesIO
from typing import BinaryIO
from uuid import UUID

from django.conf import settings
from django.core.files.base import ContentFile
from django.core.files.storage import default_storage
from django.db import IntegrityError, transaction
from django.db.models import F, Max, Q
from django.utils import timezone

from entitlements.actions.addresses import require_confirmed
from entitlements.actions.gates import lock_account, require_room, require_runtime
from entitlements.enums import LimitType, Runtime
from runtimes.actions.grants import give_back_all, mark_given, open_grants
from runtimes.actions.targets import target_of
from runtimes.bundle import prepare_bundle, read_bundle
from runtimes.bundles.config import timeout_for
from runtimes.enums import DeploymentStatus
from runtimes.errors import DeploymentFailedError
from runtimes.models import Agent, Artifact, Deployment, DeploymentLogLine, RuntimeSwitch
from runtimes.providers import PROVIDERS
from webhost.errors import ConflictError, InvalidRequestError, NotFoundError, WebhostError
from webhost.history import noted
from webhost.ids import new_id
from webhost.queue import send_on_commit
from webhost.signing import current_root_key_id

logger = logging.getLogger(__name__)

# What counts against the cap on deployments of one agent.
KEPT = Q(removal_requested_at__isnull=True) & ~Q(status=DeploymentStatus.FAILED)


def write_line(deployment_id: UUID, line: str) -> None:
    """Tell the owner what a deploy is doing."""
    DeploymentLogLine.objects.create(deployment_id=deployment_id, line=line[:1000])


def accept_deployment(agent: Agent, upload: BinaryIO, *, deployment_id: UUID | None = None) -> Deployment:
    """Check a bundle, ask the entitlements, and queue its deployment; return it as `deploying`.

    Raises ForbiddenError while the owner's address is not confirmed, InvalidRequestError for a bad bundle
    (nothing is stored), LimitExceededError for a gate or a cap,
    ConflictError while another deployment of this agent is under way.
    """
    require_confirmed(agent.account_id)
    upload.seek(0, 2)
    if upload.tell() > settings.BUNDLE_LIMIT:
        raise InvalidRequestError("The bundle is too large.", status=413, path="bundle")
    upload.seek(0)
    source = read_bundle(upload)
    config = source.config
    runtime = agent.runtime_provider
    if runtime not in config.runtimes:
        raise InvalidRequestError(
            f"agent.config.json does not name the runtime {runtime}.", path="agent.config.json/runtime"
        )
    capabilities = sorted(config.capabilities) if runtime == Runtime.AGENTCORE else []
    require_runtime(agent.account_id, runtime, capabilities, agent_id=agent.id)
    if runtime not in PROVIDERS:
        raise ConflictError(f"The runtime {runtime} takes no deployments yet.")
    _require_switched_on(runtime)
    prepare_bundle(source)  # a bundle that cannot be built is refused now, with its own file and line
    artifact = _keep(source.source_sha256, upload)
    try:
        with transaction.atomic():
            lock_account(agent.account_id)
            locked = Agent.objects.kept().select_for_update(no_key=True).get(pk=agent.pk)
            deployments = Deployment.objects.filter(agent=locked)
            if deployments.filter(status=DeploymentStatus.DEPLOYING).exists():
                raise ConflictError("A deployment of this agent is under way.", retryable=True, retry_after=5)
            require_room(agent.account_id, LimitType.DEPLOYMENTS, deployments.filter(KEPT).count(), agent_id=agent.id)
            newest = deployments.aggregate(newest=Max("version"))["newest"] or 0
            deployment = Deployment.objects.create(
                id=deployment_id or new_id(),
                agent=locked,
                account_id=agent.account_id,
                version=newest + 1,
                runtime_provider=runtime,
                artifact=artifact,
                config=config.as_json(),
                capabilities=capabilities,
                timeout_seconds=timeout_for(config, runtime),
                root_key_id=current_root_key_id(),
                deadline_at=timezone.now() + timedelta(seconds=settings.DEPLOY_DEADLINE_SECONDS),
            )
            # Recorded before the provider gives anything, so that nothing is given unrecorded.
            open_grants(deployment, capabilities)
            write_line(deployment.id, f"Accepted version {deployment.version}: {source.source_sha256[:12]}.")
            send_on_commit("runtimes.run_deployment", str(deployment.id))
    except Agent.DoesNotExist as error:
        raise NotFoundError from error
    except IntegrityError as error:
        raise ConflictError("A deployment of this agent is under way.", retryable=True, retry_after=5) from error
    return deployment


def _require_switched_on(runtime: str) -> None:
    switch = RuntimeSwitch.objects.filter(runtime=runtime).first()
    if switch is not None and not switch.deploys:
        raise ConflictError(
            switch.message or "This runtime takes no deployments at the moment.", retryable=True, retry_after=60
        )


def _keep(sha256: str, upload: BinaryIO) -> Artifact:
    """Store the bytes that were checked, once, under their own hash."""
    upload.seek(0)
    content = upload.read()
    artifact = Artifact(sha256=sha256, size=len(content))
    if default_storage.exists(artifact.path) and default_storage.size(artifact.path) != len(content):
        # A process that was killed while it wrote left half of it. Never mended, no deploy of these bytes would work.
        default_storage.delete(artifact.path)
    if not default_storage.exists(artifact.path):
        default_storage.save(artifact.path, ContentFile(content))
    return Artifact.objects.get_or_create(sha256=sha256, defaults={"size": len(content)})[0]


def _claim(deployment_id: UUID) -> Deployment | None:
    """Take a deployment for this worker, unless another has it or it is finished. One statement."""
    now = timezone.now()
    taken = (
        Deployment.objects.filter(pk=deployment_id, status=DeploymentStatus.DEPLOYING)
        .filter(Q(claimed_until__isnull=True) | Q(claimed_until__lt=now))
        .update(claimed_until=now + timedelta(seconds=settings.DEPLOY_LEASE_SECONDS))
    )
    return Deployment.objects.select_related("agent").get(pk=deployment_id) if taken else None


def run_deployment(deployment_id: UUID) -> DeploymentStatus | None:
    """Bring a deployment to its provider and let it serve; None when there is nothing to do.

    Safe to run twice and at once: one worker claims it, and a repeat adopts what was made before.
    """
    deployment = _claim(deployment_id)
    if deployment is None:
        return None
    with noted(source="task runtimes.run_deployment"):
        if deployment.deadline_at <= timezone.now():
            return _fail(deployment, "DeadlineExceeded", "The deployment was interrupted and its time is up.")
        try:
            deployed_sha256, remote = _deploy(deployment)
        except DeploymentFailedError as error:
            if error.retryable and timezone.now() + timedelta(seconds=10) < deployment.deadline_at:
                write_line(deployment.id, f"{error.message} Trying again.")
                Deployment.objects.filter(pk=deployment.pk).update(claimed_until=timezone.now())
                return DeploymentStatus.DEPLOYING
            return _fail(deployment, error.error_class, error.message)
        except WebhostError as error:  # the adapter's own check, or a bundle that no longer builds
            return _fail(deployment, error.code.value, error.message)
        except Exception:
            logger.exception("Deployment %s failed unexpectedly.", deployment.public_id)
            return _fail(deployment, "Internal", "Something went wrong on our side. Please try again.")
        return _finish(deployment, deployed_sha256, remote)


def _deploy(deployment: Deployment) -> tuple[str, dict[str, str]]:
    artifact = deployment.artifact
    with default_storage.open(artifact.path) as stored:
        source = read_bundle(BytesIO(stored.read()))
    if source.source_sha256 != artifact.sha256:
        raise DeploymentFailedError("The stored bundle is damaged.", error_class="ArtifactDamaged")
    write_line(deployment.id, "Building.")
    bundle = prepare_bundle(source)
    write_line(deployment.id, f"Deploying {len(bundle.modules)} modules to {deployment.runtime_provider}.")
    provider = PROVIDERS[deployment.runtime_provider]
    target = target_of(deployment)
    remote = dict(provider.deploy(target, bundle))
    provider.activate(replace(target, remote=remote))
    return bundle.deployed_sha256, remote


def _finish(deployment: Deployment, deployed_sha256: str, remote: dict[str, str]) -> DeploymentStatus:
    with transaction.atomic():
        agent = Agent.objects.select_for_update(no_key=True).get(pk=deployment.agent_id)
        done = Deployment.objects.filter(pk=deployment.pk, status=DeploymentStatus.DEPLOYING).update(
            status=DeploymentStatus.ACTIVE,
            deployed_sha256=deployed_sha256,
            remote=remote,
            claimed_until=None,
            finished_at=timezone.now(),
        )
        if not done:
            _remove_again(deployment)
            return DeploymentStatus(Deployment.objects.get(pk=deployment.pk).status)
        mark_given(deployment)
        if agent.deleted_at is not None:
            Deployment.objects.filter(pk=deployment.pk).update(removal_requested_at=timezone.now())
        else:
            _point(agent, deployment)
            _give_up_old(agent, deployment)
        write_line(deployment.id, f"Version {deployment.version} is active.")
    return DeploymentStatus.ACTIVE


def _point(agent: Agent, deployment: Deployment) -> None:
    """Move the agent's pointer; what served before is marked as rolled back. Needs the agent locked."""
    Deployment.objects.filter(agent=agent, status=DeploymentStatus.ACTIVE).exclude(pk=deployment.pk).update(
        status=DeploymentStatus.ROLLED_BACK
    )
    Deployment.objects.filter(pk=deployment.pk, status=DeploymentStatus.ROLLED_BACK).update(
        status=DeploymentStatus.ACTIVE
    )
    Agent.objects.filter(pk=agent.pk).update(active_deployment=deployment, last_error="")


def _give_up_old(agent: Agent, serving: Deployment) -> None:
    """Let go of versions beyond those that the provider keeps beside the one that serves. Needs the agent locked."""
    keeps = PROVIDERS[serving.runtime_provider].keeps
    if keeps is None:
        return
    old = Deployment.objects.filter(
        agent=agent,
        runtime_provider=serving.runtime_provider,
        status=DeploymentStatus.ROLLED_BACK,
        removal_requested_at=None,
    )
    beyond = list(old.order_by("-version").values_list("pk", flat=True)[keeps:])
    if beyond:
        Deployment.objects.filter(pk__in=beyond).update(removal_requested_at=timezone.now())
        send_on_commit("runtimes.sweep_removals")


def _fail(deployment: Deployment, code: str, message: str) -> DeploymentStatus:
    with transaction.atomic():
        failed = Deployment.objects.filter(pk=deployment.pk, status=DeploymentStatus.DEPLOYING).update(
            status=DeploymentStatus.FAILED,
            error_code=code[:60],
            error_message=message[:500],
            claimed_until=None,
            finished_at=timezone.now(),
            removal_requested_at=timezone.now(),  # whatever was made of it half-way goes away
        )
        if failed:
            Agent.objects.filter(pk=deployment.agent_id).update(last_error=message[:500])
            write_line(deployment.id, f"Failed: {message}")
            send_on_commit("runtimes.sweep_removals")
        else:
            _remove_again(deployment)
    return DeploymentStatus.FAILED


def _remove_again(deployment: Deployment) -> None:
    """Remove what a late worker made of a deployment that had been given up, and perhaps removed, meanwhile."""
    if Deployment.objects.filter(pk=deployment.pk, status=DeploymentStatus.FAILED).update(removed_at=None):
        send_on_commit("runtimes.sweep_removals")


def activate_deployment(agent: Agent, deployment: Deployment, reason: str) -> Deployment:
    """Let an older (or newer) version serve: a pointer move, after asking the entitlements again."""
    if deployment.status not in (DeploymentStatus.ACTIVE, DeploymentStatus.ROLLED_BACK):
        raise ConflictError(f"A deployment that is {deployment.status} cannot serve.")
    require_runtime(agent.account_id, deployment.runtime_provider, deployment.capabilities, agent_id=agent.id)
    PROVIDERS[deployment.runtime_provider].activate(target_of(deployment))
    give_back_all(deployment)
    with noted(reason=reason), transaction.atomic():
        locked = Agent.objects.select_for_update(no_key=True).get(pk=agent.pk)
        fresh = Deployment.objects.get(pk=deployment.pk)
        if locked.deleted_at is not None or fresh.removal_requested_at is not None:
            raise NotFoundError
        _point(locked, fresh)
        write_line(fresh.id, f"Version {fresh.version} is active again: {reason}" if reason else "Active again.")
    deployment.refresh_from_db()
    return deployment


def remove_deployment(agent: Agent, deployment: Deployment) -> None:
    """Give up a version that does not serve; what the provider has of it is removed in the background."""
    with transaction.atomic():
        locked = Agent.objects.select_for_update(no_key=True).get(pk=agent.pk)
        if locked.active_deployment_id == deployment.pk:
            raise ConflictError("This version serves. Activate another one first.")
        if deployment.status == DeploymentStatus.DEPLOYING:
            raise ConflictError("This version is being deployed.")
        Deployment.objects.filter(pk=deployment.pk, removal_requested_at__isnull=True).update(
            removal_requested_at=timezone.now()
        )
        send_on_commit("runtimes.sweep_removals")


def unfinished(now: datetime) -> list[UUID]:
    """Return deployments that nobody works on: never started, or their worker was killed."""
    return list(
        Deployment.objects.filter(status=DeploymentStatus.DEPLOYING)
        .filter(Q(claimed_until__lt=now) | Q(claimed_until__isnull=True, created_at__lt=now - timedelta(seconds=10)))
        .order_by(F("deadline_at"))
        .values_list("pk", flat=True)[:50]
    )
