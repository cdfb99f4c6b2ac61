"""Who deployed a version, and why it serves or served again, from the history, as its owner may read it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.apps import apps
from pghistory.models import Context

from runtimes.models import Agent, Deployment


@dataclass(frozen=True)
class Authorship:
    """Who made a version, and the last reason that was given for letting it serve."""

    by: str = "not recorded"
    reason: str = ""


def authorship_of(agent: Agent, deployments: Iterable[Deployment]) -> dict[UUID, Authorship]:
    """Return it for each of these versions; one query. Of others than the owner no name is told."""
    found = {d.pk: Authorship() for d in deployments}
    model: Any = apps.get_model("runtimes", "DeploymentEvent")
    events = model.objects.filter(pgh_obj_id__in=list(found)).select_related("pgh_context")
    for event in events.order_by("pgh_id"):
        before = found[event.pgh_obj_id]
        context: Context | None = event.pgh_context
        notes: dict[str, Any] = context.metadata if context else {}
        if event.pgh_label == "insert":
            found[event.pgh_obj_id] = Authorship(_by(agent, notes), before.reason)
        elif notes.get("reason"):
            found[event.pgh_obj_id] = Authorship(before.by, str(notes["reason"]))
    return found


def _by(agent: Agent, notes: dict[str, Any]) -> str:
    if notes and notes.get("user") != str(agent.account_id):
        return "support"
    return "you, by API" if not notes or notes.get("source") == "api" else "you, on this page"
