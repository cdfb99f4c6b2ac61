"""What the pages of one agent share: whose it is, the tabs above them, lists in pages, and how a form is refused."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, TypeVar

from django.db.models import Model, QuerySet
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from rest_framework.exceptions import ValidationError

from entitlements.actions.standing import AccountStanding, read_standing
from entitlements.display import RuntimeOffer
from entitlements.whose import account_of
from runtimes.actions.agents import get_agent
from runtimes.models import Agent
from runtimes.pages.offers import offers_of
from webhost.api import validated
from webhost.errors import InvalidRequestError, Issue, NotFoundError, WebhostError
from webhost.ids import Prefix, parse_id
from webhost.paging import Page, PageQuery, paginate
from webhost.tracing import current_trace_id

M = TypeVar("M", bound=Model)

_TABS: Final = (
    ("", "Deployments"), ("metrics/", "Metrics"), ("playground/", "Playground"), ("secrets/", "Secrets"),
    ("sessions/", "Sessions"), ("settings/", "Settings"),
)  # fmt: skip


@dataclass(frozen=True)
class Tab:
    """A page of the agent, and whether it is this one."""

    href: str
    text: str
    is_here: bool


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

    @property
    def upgrade(self) -> str | None:
        """Where a tier with more room is bought, if there is one: a path of this site."""
        action = self.error.details.get("suggestedAction") or {}
        return action.get("url") if action.get("type") == "upgrade_tier" else None

    @property
    def needs_support(self) -> bool:
        """Whether no tier that is sold would do."""
        return (self.error.details.get("suggestedAction") or {}).get("type") == "contact_support"

    @property
    def tier(self) -> str:
        """The tier that it would be."""
        return str((self.error.details.get("suggestedAction") or {}).get("tier", ""))

    @property
    def resets_at(self) -> str:
        """When the budget is full again, if it is one."""
        return str(self.error.details.get("resetsAt", ""))

    @property
    def trace_id(self) -> str:
        """What support asks for."""
        return current_trace_id()


def own_agent(request: HttpRequest, agent: str) -> Agent:
    """Return an agent of who is signed in; nobody's and somebody else's are both 404."""
    try:
        return get_agent(account_of(request).pk, parse_id(Prefix.AGENT, agent))
    except NotFoundError as error:
        raise Http404 from error


def runtime_of(agent: Agent, look: AccountStanding) -> RuntimeOffer:
    """Return the agent's runtime as the tier has it: allowed, or locked by which."""
    return next(o for o in offers_of(look) if o.runtime == agent.runtime_provider)


def listed(request: HttpRequest, rows: QuerySet[M], *, by: str | tuple[str, ...], many: int) -> Page[M]:
    """Return the page of a list that the address names; an address that is none of ours is 404."""
    try:
        query = validated(PageQuery, {"limit": many, "cursor": request.GET.get("cursor", "")})
        return paginate(rows, query, by=by)
    except (InvalidRequestError, ValidationError) as error:
        raise Http404 from error


def render_tab(
    request: HttpRequest,
    agent: Agent,
    tab: str,
    context: dict[str, Any],
    *,
    template: str | None = None,
    refused: Refused | None = None,
) -> HttpResponse:
    """Show one tab of an agent, `tab` being its last part of the address without the slash."""
    look = context.get("look") or read_standing(agent.account_id)
    here = f"/agents/{agent.public_id}/"
    shared = {
        "agent": agent,
        "here": here,
        "tabs": [Tab(here + tail, text, tail.rstrip("/") == tab) for tail, text in _TABS],
        "look": look,
        "runtime": runtime_of(agent, look),
        "refused": refused,
    }
    status = int(refused.error.status) if refused else 200
    return render(request, template or f"runtimes/agent_{tab}.html", shared | context, status=status)
