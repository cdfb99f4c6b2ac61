"""The secrets of an agent, by their names: a value goes in and comes out on no page, in no log, in no message."""

from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.views.decorators.cache import never_cache
from django.views.decorators.debug import sensitive_post_parameters
from django.views.decorators.http import require_http_methods, require_POST

from entitlements.actions.standing import read_standing
from runtimes.actions.secrets import LARGEST_VALUE_BYTES, MOST_SECRETS, delete_secret, list_secrets, put_secrets
from runtimes.models import Agent
from runtimes.pages.frame import Refused, own_agent, render_tab
from runtimes.pages.offers import require_runtime
from webhost.errors import WebhostError


def _render(request: HttpRequest, agent: Agent, refused: Refused | None = None) -> HttpResponse:
    context: dict[str, Any] = {
        "secrets": list_secrets(agent),
        "name": request.POST.get("name", "")[:64] if refused else request.GET.get("name", "")[:64],
        "most": MOST_SECRETS,
        "largest": LARGEST_VALUE_BYTES,
    }
    return render_tab(request, agent, "secrets", context, refused=refused)


def _back(agent: Agent) -> HttpResponseRedirect:
    return HttpResponseRedirect(f"/agents/{agent.public_id}/secrets/")


@sensitive_post_parameters("value")
@never_cache
@login_required
@require_http_methods(["GET", "POST"])
def show_secrets(request: HttpRequest, agent: str) -> HttpResponse:
    """List the names of secrets; set or rotate one. The value is not sent back, whatever happens."""
    own = own_agent(request, agent)
    if request.method == "GET":
        return _render(request, own)
    name, value = request.POST.get("name", "").strip(), request.POST.get("value", "")
    try:
        require_runtime(read_standing(own.account_id), own.runtime_provider)
        # A browser ends each line of a form with two characters; a key has one.
        put_secrets(own, {name: value.replace("\r\n", "\n")})
    except WebhostError as error:
        return _render(request, own, Refused("set", error))
    messages.success(request, f"{name} is set. The agent sees it with its next invocation.")
    return _back(own)


@never_cache
@login_required
@require_POST
def remove_secret(request: HttpRequest, agent: str) -> HttpResponse:
    """Delete one secret."""
    own = own_agent(request, agent)
    name = request.POST.get("name", "").replace("\x00", "")
    try:
        require_runtime(read_standing(own.account_id), own.runtime_provider)
        delete_secret(own, name)
    except WebhostError as error:
        return _render(request, own, Refused("delete", error))
    messages.success(request, f"{name} is deleted.")
    return _back(own)
