"""Trying an agent: without a script the form is sent and the whole answer shown; playground.js streams it instead."""

from __future__ import annotations

from typing import Any

from django.contrib.auth.decorators import login_required
from django.db import connection
from django.http import HttpRequest, HttpResponse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods

from entitlements import rules as limits
from entitlements.actions.standing import read_standing
from runtimes import rules
from runtimes.actions import invoke
from runtimes.models import Agent
from runtimes.pages.frame import Refused, own_agent, render_tab
from webhost.errors import InvalidRequestError, WebhostError
from webhost.tracing import current_trace_id

_NUMBERS = {"maxSteps": int, "maxTokens": int, "temperature": float}


@never_cache
@login_required
@require_http_methods(["GET", "POST"])
def show_playground(request: HttpRequest, agent: str) -> HttpResponse:
    """Show the form; send what it says to the agent, and show the answer or why there is none."""
    own = own_agent(request, agent)
    if request.method == "GET":
        return _render(request, own)
    try:
        parsed = rules.parse_invoke(body_of(request.POST.dict()))
        started = invoke.start(own.account_id, own.public_id, parsed, token_id=None, trace_id=current_trace_id())
        connection.close()  # nothing holds one while a provider works
        answer = invoke.finish(started)
    except WebhostError as error:
        return _render(request, own, refused=Refused("invoke", error))
    return _render(request, own, answer=answer)


def body_of(form: dict[str, str]) -> dict[str, Any]:
    """Return what a form says as invoke/v1 says it. Raises InvalidRequestError for what should be a number."""
    body: dict[str, Any] = {"input": {"prompt": form.get("prompt", "").replace("\r\n", "\n")}}
    if session := form.get("sessionId", "").strip():
        body["sessionId"] = session
    options: dict[str, Any] = {}
    for name, kind in _NUMBERS.items():
        if text := form.get(name, "").strip():
            try:
                options[name] = kind(text)
            except ValueError as error:
                raise InvalidRequestError(f"{name} is a number.", path=f"options.{name}") from error
    if form.get("tools"):
        options["tools"] = form["tools"]
    return body | ({"options": options} if options else {})


def _render(
    request: HttpRequest, agent: Agent, *, answer: dict[str, Any] | None = None, refused: Refused | None = None
) -> HttpResponse:
    look = read_standing(agent.account_id)
    serving = agent.active_deployment
    form = request.POST.dict() if request.method == "POST" else {}
    context: dict[str, Any] = {
        "look": look,
        "serving": serving,
        "may_invoke": serving is not None and not limits.refused_by_gates(look.entitlements, serving.runtime_provider),
        "answer": answer,
        "form": form,
        "session": answer["sessionId"] if answer else form.get("sessionId", request.GET.get("sessionId", ""))[:256],
        "longest": rules.LONGEST_TEXT,
    }
    return render_tab(request, agent, "playground", context, refused=refused)
