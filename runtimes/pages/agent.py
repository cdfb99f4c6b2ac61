"""The page of one agent: what it is and has at its provider; deploying to it, moving it, ending its sessions."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, BinaryIO, Final, cast

from django.conf import settings
from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.db.models import Prefetch
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import render
from django.utils import timezone
from django.views.decorators.cache import never_cache
from django.views.decorators.csrf import csrf_exempt, csrf_protect
from django.views.decorators.http import require_GET, require_POST

from entitlements import rules
from entitlements.actions.standing import AccountStanding, read_standing
from entitlements.display import LABELS, RUNTIME_NAMES, tier_that_unlocks
from entitlements.enums import Capability, Runtime
from entitlements.whose import account_of
from runtimes.actions.agents import change_agent, get_agent
from runtimes.actions.deployments import accept_deployment
from runtimes.actions.sessions import list_sessions, stop_session
from runtimes.display import VISIBLE_DEPLOYMENTS, grant_state, session_status
from runtimes.enums import GrantState, SessionStatus
from runtimes.models import Agent, AgentSession, Deployment, DeploymentLogLine, Grant
from runtimes.pages.offers import offers_of, page_capabilities, require_capabilities, require_runtime
from webhost.errors import InvalidRequestError, Issue, NotFoundError, WebhostError
from webhost.ids import Prefix, parse_id
from webhost.wire import refuse_unreadable

_MOST_DEPLOYMENTS: Final = 10
_MOST_SESSIONS: Final = 20
# What a form holds beside the zip.
_FORM_MARGIN: Final = 64 * 1024
_STOPPED_BY_PAGE: Final = "stopped by its owner, on the page"


# --- What is shown --------------------------------------------------------------------------------


@dataclass(frozen=True)
class CapabilityLine:
    """A capability of AgentCore: in the tier, or locked by which."""

    label: str
    allowed: bool
    unlocked_by: str | None


@dataclass(frozen=True)
class GrantLine:
    """A capability that a deployment has, or had."""

    label: str
    version: int
    state: GrantState
    granted_at: datetime
    withdrawn_at: datetime | None


@dataclass(frozen=True)
class SessionLine:
    """A conversation, and whether it can be stopped."""

    session: AgentSession
    status: SessionStatus

    @property
    def is_running(self) -> bool:
        """Whether there is something to stop."""
        return self.status == SessionStatus.RUNNING


def _label(capability: Capability) -> str:
    return LABELS[rules.GATE_OF_FLAG[rules.FLAG_OF_CAPABILITY[capability]]]


def _capability_lines(look: AccountStanding) -> list[CapabilityLine]:
    allowed = page_capabilities(look.entitlements)
    return [
        CapabilityLine(
            _label(c), c in allowed, None if c in allowed else tier_that_unlocks(look, rules.FLAG_OF_CAPABILITY[c])
        )
        for c in Capability
    ]


def _grant_lines(look: AccountStanding, deployments: list[Deployment]) -> list[GrantLine]:
    grants = Grant.objects.filter(deployment__in=deployments).select_related("deployment")
    return [
        GrantLine(
            _label(Capability(g.capability)), g.deployment.version, grant_state(g, look.entitlements),
            g.granted_at, g.withdrawn_at,
        )
        for g in grants.order_by("-deployment__version", "-id")
    ]  # fmt: skip


def _deployments_of(agent: Agent) -> list[Deployment]:
    lines = Prefetch("log_lines", queryset=DeploymentLogLine.objects.order_by("id"))
    return list(
        Deployment.objects.filter(VISIBLE_DEPLOYMENTS, agent=agent)
        .order_by("-version")
        .prefetch_related(lines)[:_MOST_DEPLOYMENTS]
    )


@dataclass(frozen=True)
class Refused:
    """What a form was refused for, to be said beside it."""

    form: str
    error: WebhostError

    @property
    def issues(self) -> list[Issue]:
        """Return what is wrong and where, but for what the message says itself."""
        found: list[Issue] = self.error.details.get("issues", [])
        return [i for i in found if i["message"] != self.error.message or i["path"]]


def _render(request: HttpRequest, agent: Agent, refused: Refused | None = None) -> HttpResponse:
    now = timezone.now()
    look = read_standing(agent.account_id)
    deployments = _deployments_of(agent)
    offers = offers_of(look)
    context: dict[str, Any] = {
        "agent": agent,
        "look": look,
        "runtime": next(o for o in offers if o.runtime == agent.runtime_provider),
        "offers": offers,
        "may_switch": any(o.allowed and o.runtime != agent.runtime_provider for o in offers),
        "capabilities": _capability_lines(look),
        "deployments": deployments,
        "grants": _grant_lines(look, deployments),
        "sessions": [SessionLine(s, session_status(s, now)) for s in list_sessions(agent)[:_MOST_SESSIONS]],
        "refused": refused,
        "bundle_mb": settings.BUNDLE_LIMIT // 2**20,
        "public_url": settings.PUBLIC_URL,
    }
    return render(request, "runtimes/agent.html", context, status=int(refused.error.status) if refused else 200)


# --- Views ----------------------------------------------------------------------------------------


def _own_agent(request: HttpRequest, agent: str) -> Agent:
    try:
        return get_agent(account_of(request).pk, parse_id(Prefix.AGENT, agent))
    except NotFoundError as error:
        raise Http404 from error


def _back(agent: Agent) -> HttpResponseRedirect:
    return HttpResponseRedirect(f"/agents/{agent.public_id}/")


@never_cache
@login_required
@require_GET
def show_agent(request: HttpRequest, agent: str) -> HttpResponse:
    """Show one agent, its versions, what it was lent, and its sessions."""
    return _render(request, _own_agent(request, agent))


# Exempt at first: to find the token, a form is read whole. How large it is, is asked before that.
@csrf_exempt
@never_cache
@login_required
@require_POST
def deploy(request: HttpRequest, agent: str) -> HttpResponse:
    """Deploy the bundle of the form; what is wrong with it is said with file and line."""
    own = _own_agent(request, agent)
    try:
        refuse_unreadable(request, settings.BUNDLE_LIMIT + _FORM_MARGIN)
    except WebhostError as error:
        return _render(request, own, Refused("deploy", error))
    return _deploy(request, own)


@csrf_protect
def _deploy(request: HttpRequest, agent: Agent) -> HttpResponse:
    upload = request.FILES.get("bundle")
    try:
        look = read_standing(agent.account_id)
        require_runtime(look, agent.runtime_provider)
        if upload is None:
            raise InvalidRequestError("Choose a zip file first.")
        file = cast("BinaryIO", upload.file)
        require_capabilities(look, agent.runtime_provider, file)
        deployment = accept_deployment(agent, file)
    except WebhostError as error:
        return _render(request, agent, Refused("deploy", error))
    messages.success(request, f"Version {deployment.version} is being deployed. Reload this page to follow it.")
    return _back(agent)


@never_cache
@login_required
@require_POST
def switch_runtime(request: HttpRequest, agent: str) -> HttpResponse:
    """Move the agent to another runtime, from its next deployment on."""
    own = _own_agent(request, agent)
    runtime = request.POST.get("runtimeProvider", "")
    try:
        require_runtime(read_standing(own.account_id), runtime)
        moved = change_agent(own.account_id, own.pk, {"runtime_provider": runtime})
    except WebhostError as error:
        return _render(request, own, Refused("runtime", error))
    name = RUNTIME_NAMES[Runtime(moved.runtime_provider)]
    messages.success(request, f"The next version is deployed to {name}. What serves now goes on until then.")
    return _back(moved)


@never_cache
@login_required
@require_POST
def end_session(request: HttpRequest, agent: str) -> HttpResponse:
    """Stop one of the agent's sessions."""
    own = _own_agent(request, agent)
    session_id = request.POST.get("sessionId", "").replace("\x00", "")
    try:
        stop_session(own, session_id, because=_STOPPED_BY_PAGE)
    except WebhostError as error:
        return _render(request, own, Refused("sessions", error))
    messages.success(request, f"Session {session_id} is stopped.")
    return _back(own)
