"""What this app adds to an account's page: would its agents' calls pass, and what became of agents and secrets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from django.db.models import Case, F, OuterRef, QuerySet, Subquery, TextField, Value, When
from django.db.models.functions import Cast, Coalesce, Concat, JSONObject, Left

from entitlements.admin.account_events import AUDIT_LOG, event_model, moment_of
from entitlements.admin.sections import BLOCKERS, NAMES, TIMELINE, Before, Moment, Source, page_of_row
from entitlements.display import RUNTIME_NAMES
from entitlements.enums import Runtime
from runtimes.actions.standing import agent_names, verdicts_now
from runtimes.enums import DeploymentStatus
from runtimes.models import Agent, AgentSession, SecretName

_MOST_AGENTS = 10_000
_PAGES = {"secret": "runtimes_secretname", "session": "runtimes_agentsession"}
_SAID = {
    DeploymentStatus.DEPLOYING: "is being deployed",
    DeploymentStatus.ACTIVE: "is deployed",
    DeploymentStatus.FAILED: "failed",
    DeploymentStatus.ROLLED_BACK: "serves no longer",
}


def _on(runtime: str) -> str:
    return RUNTIME_NAMES[Runtime(runtime)]


def _moment(event: Any, what: str, model: str) -> Moment:
    # Calls of the API leave no context, tasks name themselves as the source.
    unknown = "" if event.pgh_context else "the customer"
    return moment_of(event, what, page_of_row(f"runtimes_{model}", event.pgh_obj_id), unknown=unknown)


def _agents_of(account_id: UUID) -> QuerySet[Agent, Any]:
    """Return an account's agents to compare with; bounded, as a join without a bound may walk through everybody's."""
    return Agent.objects.filter(account_id=account_id).order_by().values("pk")[:_MOST_AGENTS]


def agent_moments(account_id: UUID, before: Before, most: int) -> Sequence[Moment]:
    """Return what became of the account's agents."""
    model = event_model("runtimes", "Agent")
    earlier = model.objects.filter(pgh_obj_id=OuterRef("pgh_obj_id"), pgh_id__lt=OuterRef("pgh_id")).order_by("-pgh_id")
    columns = ("name", "runtime_provider", "disabled_at", "deleted_at", "active_deployment_id")
    was = Subquery(earlier.values(was=JSONObject(**{c: c for c in columns}))[:1])
    events = model.objects.filter(account_id=account_id).annotate(was=was)
    rows = before.rows(events.select_related("pgh_context", "active_deployment"), "pgh_created_at", "pgh_id")
    return [_moment(e, _agent_change(e), "agent") for e in rows[:most]]


def _agent_change(event: Any) -> str:
    name, was = f"Agent {event.name}", event.was
    if event.pgh_label == "delete":
        return f"{name} removed for good"
    if was is None:
        return f"{name} created for {_on(event.runtime_provider)}"
    said = []
    if was["name"] != event.name:
        said.append(f"renamed from {was['name']}")
    if was["runtime_provider"] != event.runtime_provider:
        said.append(f"moved from {_on(was['runtime_provider'])} to {_on(event.runtime_provider)}")
    if bool(was["disabled_at"]) != bool(event.disabled_at):
        said.append("disabled" if event.disabled_at else "enabled")
    if not was["deleted_at"] and event.deleted_at:
        said.append("deleted by its owner")
    if was["active_deployment_id"] != (str(event.active_deployment_id) if event.active_deployment_id else None):
        serving = event.active_deployment
        said.append(f"serves version {serving.version} now" if serving is not None else "serves nothing now")
    return f"{name} {', '.join(said) or 'changed'}"


def deployment_moments(account_id: UUID, before: Before, most: int) -> Sequence[Moment]:
    """Return what became of the account's deployments, and why some failed."""
    events = event_model("runtimes", "Deployment").objects.filter(agent_id__in=_agents_of(account_id))
    rows = before.rows(events.select_related("pgh_context", "agent"), "pgh_created_at", "pgh_id")
    return [_moment(e, _deployment_change(e), "deployment") for e in rows[:most]]


def _deployment_change(event: Any) -> str:
    what = f"Version {event.version} of {event.agent.name}"
    if event.pgh_label == "delete":
        return f"{what} was removed for good"
    why = f": {event.error_message}" if event.status == DeploymentStatus.FAILED and event.error_message else ""
    return f"{what} {_SAID[DeploymentStatus(event.status)]}{why}"


def other_moments(account_id: UUID, before: Before, most: int) -> Sequence[Moment]:
    """Return when each secret was set last, by its name, and the sessions that somebody stopped; one query.

    The value of a secret is nowhere in this product.
    """
    text = TextField()
    secrets = SecretName.objects.filter(agent_id__in=_agents_of(account_id)).annotate(
        at=Coalesce("rotated_at", "set_at"), key=Concat(Value("secret-"), Cast("pk", text), output_field=text),
        what=Concat(
            Value("Secret "), "name", Value(" of "), "agent__name",
            Case(When(rotated_at__isnull=True, then=Value(" set")), default=Value(" set again")), output_field=text,
        ),
        why=Value("", text), row=Cast("pk", text),
    )  # fmt: skip
    stopped = AgentSession.objects.filter(account_id=account_id, stopped_at__isnull=False).annotate(
        at=F("stopped_at"), key=Concat(Value("session-"), Cast("pk", text), output_field=text),
        what=Concat(Value("Session "), Left("session_id", 60), Value(" stopped"), output_field=text),
        why=Cast("stopped_because", text), row=Cast("pk", text),
    )  # fmt: skip
    columns = ("at", "key", "what", "why", "row")
    parts = [before.rows(rows, "at", "key").values_list(*columns)[:most] for rows in (secrets, stopped)]
    # Their order among each other is the reader's to make: at one instant keys compare as Python compares them.
    found = parts[0].union(parts[1], all=True)
    return [
        Moment(at, key, what, why=why, url=page_of_row(_PAGES[key.partition("-")[0]], row))
        for at, key, what, why, row in found
    ]


BLOCKERS.append(verdicts_now)
NAMES.append(agent_names)
TIMELINE.extend(
    [
        Source("agent", "Agents", AUDIT_LOG, agent_moments),
        Source("deployment", "Deployments", AUDIT_LOG, deployment_moments),
        Source("other", "Secrets, sessions", "runtimes.view_secretname", other_moments),
    ]
)
