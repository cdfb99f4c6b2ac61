"""The first tab of an agent: deploying to it, following that, its versions, which of them serves, its runtime."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, BinaryIO, Final, cast

from django.conf import settings
from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.db.models import Prefetch, QuerySet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import render
from django.views.decorators.cache import never_cache
from django.views.decorators.csrf import csrf_exempt, csrf_protect
from django.views.decorators.http import require_GET, require_POST

from entitlements import rules
from entitlements.actions.standing import AccountStanding, read_standing
from entitlements.display import LABELS, RUNTIME_NAMES, tier_that_unlocks
from entitlements.enums import Capability, Runtime
from runtimes.actions.agents import change_agent
from runtimes.actions.deployments import accept_deployment, activate_deployment
from runtimes.display import VISIBLE_DEPLOYMENTS, grant_state
from runtimes.enums import DeploymentStatus, GrantState
from runtimes.models import Agent, AgentLogLine, Deployment, DeploymentLogLine, Grant
from runtimes.pages.authors import Authorship, authorship_of
from runtimes.pages.frame import Refused, listed, own_agent, render_tab, runtime_of
from runtimes.pages.offers import offers_of, page_capabilities, require_capabilities, require_runtime
from webhost.errors import InvalidRequestError, NotFoundError, WebhostError
from webhost.ids import Prefix, parse_id
from webhost.wire import refuse_unreadable

_A_PAGE: Final = 10
_MOST_LINES: Final = 50
_LONGEST_REASON: Final = 500
# What a form holds beside the zip.
_FORM_MARGIN: Final = 64 * 1024


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
class VersionLine:
    """A version, who deployed it, and what may be done with it."""

    deployment: Deployment
    author: Authorship
    serves: bool
    runtime: str
    may_serve: bool

    @property
    def can_serve_again(self) -> bool:
        """Whether it is one to go back to, in the tier or not."""
        return self.deployment.status == DeploymentStatus.ROLLED_BACK and not self.serves


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


def _visible(agent: Agent) -> QuerySet[Deployment]:
    lines = Prefetch("log_lines", queryset=DeploymentLogLine.objects.order_by("id"))
    return Deployment.objects.filter(VISIBLE_DEPLOYMENTS, agent=agent).prefetch_related(lines)


def _version_lines(agent: Agent, look: AccountStanding, deployments: list[Deployment]) -> list[VersionLine]:
    authors = authorship_of(agent, deployments)
    return [
        VersionLine(
            d, authors[d.pk], d.pk == agent.active_deployment_id, RUNTIME_NAMES[Runtime(d.runtime_provider)],
            not rules.refused_by_gates(look.entitlements, d.runtime_provider, d.capabilities),
        )
        for d in deployments
    ]  # fmt: skip


def _context(request: HttpRequest, agent: Agent) -> dict[str, Any]:
    look = read_standing(agent.account_id)
    page = listed(request, _visible(agent), by="version", many=_A_PAGE)
    offers = offers_of(look)
    return {
        "look": look,
        "offers": offers,
        "may_switch": any(o.allowed and o.runtime != agent.runtime_provider for o in offers),
        "capabilities": _capability_lines(look),
        "versions": _version_lines(agent, look, page.items),
        "next_cursor": page.next_cursor,
        "is_first": not request.GET.get("cursor"),
        "building": next((d for d in page.items if d.status == DeploymentStatus.DEPLOYING), None),
        "grants": _grant_lines(look, page.items),
        "bundle_mb": settings.BUNDLE_LIMIT // 2**20,
        "longest_reason": _LONGEST_REASON,
    }


def _render(request: HttpRequest, agent: Agent, refused: Refused | None = None) -> HttpResponse:
    template = "runtimes/agent_deployments.html"
    return render_tab(request, agent, "", _context(request, agent), template=template, refused=refused)


def _back(agent: Agent) -> HttpResponseRedirect:
    return HttpResponseRedirect(f"/agents/{agent.public_id}/")


def _own_deployment(agent: Agent, deployment: str) -> Deployment:
    try:
        found = _visible(agent).filter(pk=parse_id(Prefix.DEPLOYMENT, deployment)).first()
    except NotFoundError as error:
        raise Http404 from error
    if found is None:
        raise Http404
    return found


# --- Views ----------------------------------------------------------------------------------------


@never_cache
@login_required
@require_GET
def show_agent(request: HttpRequest, agent: str) -> HttpResponse:
    """Show one agent, its versions, and what they were lent."""
    return _render(request, own_agent(request, agent))


# Exempt at first: to find the token, a form is read whole. How large it is, is asked before that.
@csrf_exempt
@never_cache
@login_required
@require_POST
def deploy(request: HttpRequest, agent: str) -> HttpResponse:
    """Deploy the bundle of the form; what is wrong with it is said with file and line."""
    own = own_agent(request, agent)
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
    messages.success(request, f"Version {deployment.version} is being deployed.")
    return _back(agent)


@never_cache
@login_required
@require_GET
def follow(request: HttpRequest, agent: str, deployment: str) -> HttpResponse:
    """Show how a deployment goes, as the part of the page that htmx asks for again until it has ended."""
    own = own_agent(request, agent)
    found = _own_deployment(own, deployment)
    if request.headers.get("HX-Request") != "true":
        return _back(own)
    is_over = found.status != DeploymentStatus.DEPLOYING
    context: dict[str, Any] = {
        "agent": own, "here": f"/agents/{own.public_id}/", "building": found, "swapped": is_over, "is_over": is_over,
    }  # fmt: skip
    if is_over:
        # What else on the page said that it was under way is brought along once.
        found_context = _context(request, own)
        context = found_context | {"runtime": runtime_of(own, found_context["look"])} | context
    return render(request, "runtimes/agent_build.html", context)


@never_cache
@login_required
@require_GET
def show_deployment(request: HttpRequest, agent: str, deployment: str) -> HttpResponse:
    """Show one version: how it was deployed, and what it printed, call by call."""
    own = own_agent(request, agent)
    found = _own_deployment(own, deployment)
    look = read_standing(own.account_id)
    page = listed(request, AgentLogLine.objects.filter(deployment_id=found.pk), by="id", many=_MOST_LINES)
    context: dict[str, Any] = {
        "look": look,
        "version": _version_lines(own, look, [found])[0],
        "printed": page.items,
        "next_cursor": page.next_cursor,
        "is_first": not request.GET.get("cursor"),
        "logs_days": look.entitlements.retention[rules.Key.LOGS_DAYS],
        "longest_reason": _LONGEST_REASON,
    }
    return render_tab(request, own, "", context, template="runtimes/agent_version.html")


@never_cache
@login_required
@require_POST
def activate(request: HttpRequest, agent: str, deployment: str) -> HttpResponse:
    """Let another version serve, for a reason that its history keeps."""
    own = own_agent(request, agent)
    chosen = _own_deployment(own, deployment)
    reason = " ".join(request.POST.get("reason", "").replace("\x00", "").split())[:_LONGEST_REASON]
    try:
        require_runtime(read_standing(own.account_id), chosen.runtime_provider)
        if not reason:
            raise InvalidRequestError("Say why, in a few words: it is kept with the version.")
        active = activate_deployment(own, chosen, reason)
    except WebhostError as error:
        return _render(request, own, Refused("activate", error))
    messages.success(request, f"Version {active.version} serves.")
    return _back(own)


@never_cache
@login_required
@require_POST
def switch_runtime(request: HttpRequest, agent: str) -> HttpResponse:
    """Move the agent to another runtime, from its next deployment on."""
    own = own_agent(request, agent)
    runtime = request.POST.get("runtimeProvider", "")
    try:
        require_runtime(read_standing(own.account_id), runtime)
        moved = change_agent(own.account_id, own.pk, {"runtime_provider": runtime})
    except WebhostError as error:
        return _render(request, own, Refused("runtime", error))
    name = RUNTIME_NAMES[Runtime(moved.runtime_provider)]
    messages.success(request, f"The next version is deployed to {name}. What serves now goes on until then.")
    return _back(moved)
