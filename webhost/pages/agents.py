"""The list of agents with what they did lately, and creating one."""

from __future__ import annotations

from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from django.conf import settings
from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.core.exceptions import ValidationError
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import render
from django.utils import timezone
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods

from entitlements.actions.standing import read_standing
from entitlements.display import RUNTIME_NAMES, shown
from entitlements.enums import LimitType, Runtime
from entitlements.whose import account_of
from runtimes.actions.agents import agents_of, create_agent
from runtimes.models import AGENT_NAME, Agent
from runtimes.pages.frame import listed
from runtimes.pages.offers import offers_of, require_runtime
from telemetry.actions.metrics import Activity, activity_of
from webhost.errors import WebhostError
from webhost.ids import new_id

_A_PAGE = 25


@dataclass(frozen=True)
class AgentLine:
    """An agent as the list shows it."""

    agent: Agent
    runtime: str
    activity: Activity


@never_cache
@login_required
@require_http_methods(["GET", "POST"])
def show_agents(request: HttpRequest) -> HttpResponse:
    """Show the account's agents; create one from the form below them, and say beside it what is refused."""
    if request.method == "GET":
        return _render(request)
    account = account_of(request)
    name, runtime = request.POST.get("name", "").strip(), request.POST.get("runtimeProvider", Runtime.CLOUDFLARE)
    try:
        require_runtime(read_standing(account.pk), runtime)
        AGENT_NAME(name)
        agent = create_agent(account.pk, new_id(), name=name, description="", runtime=runtime)
    except ValidationError as error:
        said = f"A name takes {' '.join(error.messages)}"
        return _render(request, said=said, name=name, status=HTTPStatus.BAD_REQUEST)
    except WebhostError as error:
        return _render(request, said=error.message, name=name, status=int(error.status))
    messages.success(request, f"{agent.name} is created. Deploy a bundle to it next.")
    return HttpResponseRedirect(f"/agents/{agent.public_id}/")


def _render(request: HttpRequest, *, said: str = "", name: str = "", status: int = HTTPStatus.OK) -> HttpResponse:
    account = account_of(request)
    look = read_standing(account.pk)
    every = agents_of(account.pk)
    sought = request.GET.get("q", "").replace("\x00", "").strip()[:64]
    page = listed(request, every.filter(name__icontains=sought) if sought else every, by="id", many=_A_PAGE)
    lately = activity_of(account.pk, [agent.pk for agent in page.items], timezone.now())
    context: dict[str, Any] = {
        "lines": [
            AgentLine(agent, RUNTIME_NAMES[Runtime(agent.runtime_provider)], lately[agent.pk]) for agent in page.items
        ],
        "next_cursor": page.next_cursor,
        "is_first": not request.GET.get("cursor"),
        "sought": sought,
        "agent_count": every.count(),
        "agent_limit": shown(look.entitlements.limit(LimitType.AGENTS)),
        "offers": offers_of(look),
        "said": said,
        "name": name,
        "public_url": settings.PUBLIC_URL,
    }
    return render(request, "webhost/agents.html", context, status=status)
