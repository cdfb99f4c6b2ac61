"""What an owner says about an agent, and ends: its description, whether it takes invocations, deleting it."""

from __future__ import annotations

from typing import Any, Final

from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils import timezone
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_POST

from runtimes.actions.agents import change_agent, delete_agent, set_disabled
from runtimes.display import VISIBLE_DEPLOYMENTS, session_status
from runtimes.enums import SessionStatus
from runtimes.models import Agent, AgentSession, Deployment, SecretName
from runtimes.pages.frame import Refused, own_agent, render_tab
from webhost.errors import InvalidRequestError, WebhostError

_LONGEST: Final = 200
_MOST_SESSIONS: Final = 1_000


@never_cache
@login_required
@require_http_methods(["GET", "POST"])
def show_settings(request: HttpRequest, agent: str) -> HttpResponse:
    """Show what can be changed of an agent; change its description."""
    own = own_agent(request, agent)
    if request.method == "GET":
        return render_tab(request, own, "settings", {"longest": _LONGEST})
    said = " ".join(request.POST.get("description", "").replace("\x00", "").split())
    try:
        if len(said) > _LONGEST:
            raise InvalidRequestError(f"A description takes at most {_LONGEST} characters.")
        change_agent(own.account_id, own.pk, {"description": said})
    except WebhostError as error:
        return render_tab(request, own, "settings", {"longest": _LONGEST}, refused=Refused("description", error))
    messages.success(request, "The description is saved.")
    return HttpResponseRedirect(f"/agents/{own.public_id}/settings/")


@never_cache
@login_required
@require_POST
def switch_agent(request: HttpRequest, agent: str, *, disabled: bool) -> HttpResponse:
    """Take the agent out of service, or back into it."""
    own = own_agent(request, agent)
    set_disabled(own.account_id, own.pk, disabled=disabled)
    takes = "takes no invocations now" if disabled else "takes invocations again"
    messages.success(request, f"{own.name} {takes}.")
    return HttpResponseRedirect(f"/agents/{own.public_id}/settings/")


@never_cache
@login_required
@require_http_methods(["GET", "POST"])
def remove_agent(request: HttpRequest, agent: str) -> HttpResponse:
    """Tell what deleting the agent takes away; delete it when its name is typed."""
    own = own_agent(request, agent)
    refused = None
    if request.method == "POST":
        try:
            if request.POST.get("confirm", "").strip() != own.name:
                raise InvalidRequestError(f"Type {own.name} to delete it.")
            delete_agent(own.account_id, own.pk)
        except WebhostError as error:
            refused = Refused("delete", error)
        else:
            messages.success(request, f"{own.name} is deleted.")
            return HttpResponseRedirect("/agents/")
    return render_tab(request, own, "settings", _lost(own), template="runtimes/agent_delete.html", refused=refused)


def _lost(agent: Agent) -> dict[str, Any]:
    now = timezone.now()
    open_ones = AgentSession.objects.filter(agent_id=agent.pk, stopped_at=None).order_by("-last_used_at")
    return {
        "versions": Deployment.objects.filter(VISIBLE_DEPLOYMENTS, agent=agent).count(),
        "secrets": SecretName.objects.filter(agent=agent).count(),
        "sessions": sum(session_status(s, now) == SessionStatus.RUNNING for s in open_ones[:_MOST_SESSIONS]),
    }
