"""Agents, their deployments and artifacts, and what they print."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import ClassVar

import pghistory
import pgtrigger
from django.conf import settings
from django.contrib.postgres.fields import ArrayField
from django.core.validators import RegexValidator
from django.db import models
from django.db.models import Q
from django.utils import timezone

from entitlements.enums import Capability, Runtime
from runtimes.enums import AgentStatus, DeploymentStatus
from webhost.ids import new_id

RUNTIMES = [(r, r) for r in Runtime]
AGENT_NAME = RegexValidator(r"^[A-Za-z0-9_-]{3,64}\Z", "3 to 64 of letters, digits, _ and -.")


class AgentQuerySet(models.QuerySet["Agent"]):
    """Questions about agents."""

    def kept(self) -> AgentQuerySet:
        """Leave out what its owner deleted."""
        return self.filter(deleted_at__isnull=True)


@pghistory.track(pghistory.InsertEvent(), pghistory.UpdateEvent(), pghistory.DeleteEvent(), append_only=True)
class Agent(models.Model):
    """A customer's agent: a name, a runtime, and a pointer to the deployment that serves."""

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    account = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="agents")
    name = models.CharField(max_length=64, validators=[AGENT_NAME])
    description = models.CharField(max_length=200, blank=True)
    runtime_provider = models.CharField(max_length=20, choices=RUNTIMES, default=Runtime.CLOUDFLARE)
    active_deployment = models.ForeignKey(
        "runtimes.Deployment", null=True, blank=True, on_delete=models.SET_NULL, related_name="+"
    )
    last_error = models.CharField(max_length=500, blank=True)
    created_at = models.DateTimeField(default=timezone.now, editable=False)
    disabled_at = models.DateTimeField(null=True, blank=True)
    deleted_at = models.DateTimeField(null=True, blank=True)
    removal_retried_at = models.DateTimeField(null=True, blank=True, help_text="When support tried it last by hand.")
    removed_at = models.DateTimeField(null=True, blank=True, help_text="When nothing of it was left at the provider.")

    objects: ClassVar[models.Manager[Agent]] = AgentQuerySet.as_manager()

    class Meta:
        ordering = ("-id",)
        constraints: ClassVar = [
            models.UniqueConstraint(
                "account", "name", condition=Q(deleted_at__isnull=True), name="agent_name_once_per_account"
            ),
            models.CheckConstraint(name="agent_known_runtime", condition=Q(runtime_provider__in=list(Runtime))),
        ]
        indexes: ClassVar = [
            models.Index(
                "deleted_at", condition=Q(deleted_at__isnull=False, removed_at__isnull=True), name="agent_to_remove"
            ),
        ]

    def __str__(self) -> str:
        return self.name

    @property
    def public_id(self) -> str:
        """The id that the API shows."""
        return f"agt_{self.id.hex}"

    @property
    def status(self) -> AgentStatus:
        """Where it stands, from its own row and its latest deployment."""
        if self.disabled_at is not None:
            return AgentStatus.DISABLED
        if any(d.status == DeploymentStatus.DEPLOYING for d in self.deployments.all()):
            return AgentStatus.DEPLOYING
        if self.active_deployment_id is not None:
            return AgentStatus.ACTIVE
        return AgentStatus.ERROR if self.last_error else AgentStatus.CREATED


class Artifact(models.Model):
    """The bytes of a bundle that were checked and are deployed, named by their sha256."""

    sha256 = models.CharField(primary_key=True, max_length=64)
    size = models.PositiveBigIntegerField()
    created_at = models.DateTimeField(default=timezone.now)

    def __str__(self) -> str:
        return self.sha256

    @property
    def path(self) -> str:
        """Where the storage keeps it."""
        return f"bundles/{self.sha256[:2]}/{self.sha256}.zip"


_FROZEN = (
    "id",
    "agent_id",
    "account_id",
    "version",
    "runtime_provider",
    "artifact_id",
    "config",
    "capabilities",
    "timeout_seconds",
    "root_key_id",
    "created_at",
)


@pghistory.track(
    pghistory.InsertEvent(),
    pghistory.UpdateEvent(condition=pghistory.AnyChange("status", "removal_retried_at")),
    pghistory.DeleteEvent(),
    exclude=["claimed_until"],
    append_only=True,
)
class Deployment(models.Model):
    """One version of an agent at a provider. What it is never changes; only where it stands does."""

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    agent = models.ForeignKey(Agent, on_delete=models.CASCADE, related_name="deployments")
    account_id = models.UUIDField(editable=False)
    version = models.PositiveIntegerField()
    runtime_provider = models.CharField(max_length=20, choices=RUNTIMES)
    artifact = models.ForeignKey(Artifact, on_delete=models.PROTECT, related_name="+")
    config = models.JSONField(help_text="agent.config.json as it was checked.")
    capabilities = ArrayField(models.CharField(max_length=20), default=list)
    timeout_seconds = models.PositiveIntegerField(default=60)
    root_key_id = models.CharField(max_length=16)
    created_at = models.DateTimeField(default=timezone.now)

    status = models.CharField(
        max_length=12, choices=[(s, s) for s in DeploymentStatus], default=DeploymentStatus.DEPLOYING
    )
    deployed_sha256 = models.CharField(max_length=64, blank=True)
    remote = models.JSONField(default=dict, help_text="What the provider called the things that deploying made.")
    error_code = models.CharField(max_length=60, blank=True)
    error_message = models.CharField(max_length=500, blank=True)
    deadline_at = models.DateTimeField(help_text="When a deploy that nobody finished ends as failed.")
    claimed_until = models.DateTimeField(null=True, blank=True, help_text="A worker is at it until then.")
    finished_at = models.DateTimeField(null=True, blank=True)
    removal_requested_at = models.DateTimeField(null=True, blank=True)
    removal_retried_at = models.DateTimeField(null=True, blank=True, help_text="When support tried it last by hand.")
    removed_at = models.DateTimeField(null=True, blank=True, help_text="When nothing of it was left at the provider.")

    class Meta:
        ordering = ("-version",)
        constraints: ClassVar = [
            models.UniqueConstraint("agent", "version", name="deployment_version_once"),
            models.UniqueConstraint(
                "agent", condition=Q(status=DeploymentStatus.DEPLOYING), name="deployment_one_at_a_time"
            ),
            models.CheckConstraint(name="deployment_known_status", condition=Q(status__in=list(DeploymentStatus))),
        ]
        indexes: ClassVar = [
            models.Index("deadline_at", condition=Q(status=DeploymentStatus.DEPLOYING), name="deployment_unfinished"),
            models.Index(
                "removal_requested_at",
                condition=Q(removal_requested_at__isnull=False, removed_at__isnull=True),
                name="deployment_to_remove",
            ),
        ]
        triggers: ClassVar = [
            pgtrigger.Trigger(
                name="deployment_is_immutable",
                when=pgtrigger.Before,
                operation=pgtrigger.Update,
                condition=pgtrigger.AnyChange(
                    *[f.removesuffix("_id") if f in ("agent_id", "artifact_id") else f for f in _FROZEN]
                ),
                func="RAISE EXCEPTION 'deployment %: what it is never changes', OLD.id;",
            ),
            pgtrigger.Trigger(
                name="deployment_ends_once",
                when=pgtrigger.Before,
                operation=pgtrigger.Update,
                condition=pgtrigger.Q(old__status=DeploymentStatus.FAILED)
                & ~pgtrigger.Q(new__status=DeploymentStatus.FAILED),
                func="RAISE EXCEPTION 'deployment %: a failed one stays failed', OLD.id;",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.agent} v{self.version}"

    @property
    def public_id(self) -> str:
        """The id that the API shows."""
        return f"dep_{self.id.hex}"


@pghistory.track(pghistory.InsertEvent(), pghistory.UpdateEvent(), pghistory.DeleteEvent(), append_only=True)
class SecretName(models.Model):
    """That an agent has a secret, and since when. Its value is sent through and never kept."""

    agent = models.ForeignKey(Agent, on_delete=models.CASCADE, related_name="secret_names")
    # The account beside the agent, so that the audit log of an account finds it.
    account_id = models.UUIDField(editable=False)
    runtime = models.CharField(
        max_length=20, choices=RUNTIMES, default=Runtime.CLOUDFLARE, help_text="Whose provider has it."
    )
    name = models.CharField(max_length=64)
    set_at = models.DateTimeField(default=timezone.now)
    rotated_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ("name",)
        constraints: ClassVar = [models.UniqueConstraint("agent", "runtime", "name", name="secret_name_once")]

    def __str__(self) -> str:
        return self.name


class DeploymentLogLine(models.Model):
    """A line that tells its owner what a deploy is doing."""

    id = models.BigAutoField(primary_key=True)
    deployment = models.ForeignKey(Deployment, on_delete=models.CASCADE, related_name="log_lines")
    at = models.DateTimeField(default=timezone.now)
    line = models.CharField(max_length=1000)

    class Meta:
        ordering = ("id",)

    def __str__(self) -> str:
        return self.line


class AgentLogLine(models.Model):
    """What an agent printed during one invocation; kept for the tier's logsRetentionDays."""

    id = models.BigAutoField(primary_key=True)
    account_id = models.UUIDField()
    agent_id = models.UUIDField()
    deployment_id = models.UUIDField()
    invocation_id = models.UUIDField()
    at = models.DateTimeField(default=timezone.now)
    text = models.TextField(max_length=65536)

    class Meta:
        ordering = ("-id",)
        indexes: ClassVar = [
            models.Index("deployment_id", models.F("id").desc(), name="log_of_deployment"),
            models.Index("account_id", "at", name="log_of_account"),
        ]

    def __str__(self) -> str:
        return self.text[:80]


class Grant(models.Model):
    """A capability that a deployment has, or had, at its provider.

    The row is there before the provider gives and stays open until it is seen to have taken away, so an
    open row says "may be there" and no row says "is not".
    """

    id = models.BigAutoField(primary_key=True)
    deployment = models.ForeignKey(Deployment, on_delete=models.CASCADE, related_name="grants")
    account_id = models.UUIDField()
    capability = models.CharField(max_length=20, choices=[(c, c) for c in Capability])
    granted_at = models.DateTimeField(default=timezone.now)
    given_at = models.DateTimeField(null=True, blank=True, help_text="When the provider had given it.")
    withdrawn_at = models.DateTimeField(null=True, blank=True)
    withdrawn_because = models.CharField(max_length=200, blank=True)

    class Meta:
        ordering = ("-id",)
        constraints: ClassVar = [
            models.UniqueConstraint(
                "deployment", "capability", condition=Q(withdrawn_at__isnull=True), name="grant_open_once"
            ),
            models.CheckConstraint(name="grant_known_capability", condition=Q(capability__in=list(Capability))),
        ]
        indexes: ClassVar = [
            models.Index("account_id", condition=Q(withdrawn_at__isnull=True), name="grant_open_of_account"),
        ]

    def __str__(self) -> str:
        return f"{self.capability} of {self.deployment}"


# Only that it was stopped: it is written with every invocation, and its going later is retention.
@pghistory.track(
    pghistory.UpdateEvent("stop", condition=pghistory.AnyChange("stopped_at")),
    fields=["id", "account_id", "agent_id", "runtime", "session_id", "started_at", "stopped_at", "stopped_because"],
    model_name="AgentSessionEvent",
    append_only=True,
)
class AgentSession(models.Model):
    """A conversation with an agent: no provider lists them, so what was started is recorded here.

    `scope_id` is what it lives in: on AgentCore the deployment, whose VMs are its own; on Cloudflare the
    agent, whose sessions outlive a version. No foreign keys: it is written with every invocation.
    """

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    account_id = models.UUIDField()
    agent_id = models.UUIDField()
    deployment_id = models.UUIDField(help_text="The version that answered last.")
    scope_id = models.UUIDField()
    runtime = models.CharField(max_length=20, choices=RUNTIMES)
    session_id = models.CharField(max_length=256, help_text="As its caller names it.")
    started_at = models.DateTimeField()
    last_used_at = models.DateTimeField()
    idle_seconds = models.PositiveIntegerField(help_text="Unused for so long, it has ended.")
    lifetime_seconds = models.PositiveIntegerField(null=True, help_text="So long after its start, it has ended.")
    invocations = models.PositiveBigIntegerField(default=1)
    stopped_at = models.DateTimeField(null=True, blank=True)
    stopped_because = models.CharField(max_length=200, blank=True)
    gone_at = models.DateTimeField(null=True, blank=True, help_text="When the provider had ended what was stopped.")

    class Meta:
        ordering = ("-last_used_at",)
        constraints: ClassVar = [models.UniqueConstraint("scope_id", "session_id", name="session_once")]
        indexes: ClassVar = [
            models.Index("agent_id", models.F("last_used_at").desc(), name="session_of_agent"),
            # For the timeline of an account: few of its sessions were stopped by somebody.
            models.Index(
                "account_id",
                models.F("stopped_at").desc(),
                condition=Q(stopped_at__isnull=False),
                name="session_stopped",
            ),
            models.Index("session_id", name="session_named"),
            models.Index("last_used_at", condition=Q(gone_at__isnull=True), name="session_running"),
        ]

    def __str__(self) -> str:
        return self.session_id

    def ends_at(self) -> datetime:
        """Return when it ends, or ended, if nobody uses or stops it."""
        idle = self.last_used_at + timedelta(seconds=self.idle_seconds)
        if self.lifetime_seconds is None:
            return idle
        return min(idle, self.started_at + timedelta(seconds=self.lifetime_seconds))


class ToolUse(models.Model):
    """A session of a tool as the control plane saw it at the provider: evidence for what is charged."""

    id = models.BigAutoField(primary_key=True)
    account_id = models.UUIDField()
    deployment_id = models.UUIDField()
    invocation_id = models.UUIDField(help_text="Which invocation is charged with it.")
    kind = models.CharField(max_length=20, choices=[(c, c) for c in Capability])
    remote_id = models.CharField(max_length=64)
    started_at = models.DateTimeField()
    ended_at = models.DateTimeField(null=True, blank=True)
    code_ms = models.PositiveBigIntegerField(default=0, help_text="How long it ran, as far as it was seen.")
    seen_at = models.DateTimeField()
    mac = models.CharField(max_length=80, help_text="The control plane's signature over what it saw.")

    class Meta:
        ordering = ("-id",)
        constraints: ClassVar = [models.UniqueConstraint("deployment_id", "kind", "remote_id", name="tool_use_once")]
        indexes: ClassVar = [
            models.Index("invocation_id", name="tool_use_of_invocation"),
            models.Index("deployment_id", condition=Q(ended_at__isnull=True), name="tool_use_running"),
        ]

    def __str__(self) -> str:
        return f"{self.kind} {self.remote_id}"


@pghistory.track(pghistory.InsertEvent(), pghistory.UpdateEvent(), pghistory.DeleteEvent(), append_only=True)
class RuntimeSwitch(models.Model):
    """An operator's switch for one runtime: whether it takes deploys and invocations, and why not.

    The alarm is on the estimated cost of a day (UTC) at the provider, all accounts together.
    """

    runtime = models.CharField(max_length=20, choices=RUNTIMES, primary_key=True)
    deploys = models.BooleanField(default=True)
    invocations = models.BooleanField(default=True)
    message = models.CharField(max_length=300, blank=True, help_text="What customers read while it is off.")
    daily_cost_alarm = models.DecimalField(
        max_digits=14, decimal_places=2, null=True, blank=True, help_text="US dollars a day; empty: no alarm."
    )

    class Meta:
        verbose_name_plural = "runtime switches"
        constraints: ClassVar = [
            models.CheckConstraint(name="switch_known_runtime", condition=Q(runtime__in=list(Runtime))),
            models.CheckConstraint(
                name="switch_alarm_not_negative",
                condition=Q(daily_cost_alarm__isnull=True) | Q(daily_cost_alarm__gte=0),
            ),
        ]

    def __str__(self) -> str:
        return self.runtime
