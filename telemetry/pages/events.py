"""Usage events: the signed reports of an account, what became of each, why, and what its sender should do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final
from urllib.parse import urlencode
from uuid import UUID

from django.contrib.auth.decorators import login_required
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import path
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET
from rest_framework.exceptions import ValidationError

from entitlements.models import Admission
from entitlements.whose import account_of
from runtimes.models import Agent, Deployment
from runtimes.pages.frame import Refused
from telemetry.actions.usage_events import EventFilter, usage_events
from telemetry.models import Report, ReportStatus
from telemetry.pages.filters import agents_to_choose, chosen_agent, instant_of, texts_of
from telemetry.pages.receipt_lines import ReportLine
from webhost.api import validated
from webhost.errors import InvalidRequestError
from webhost.ids import Prefix, public_id
from webhost.paging import Page, PageQuery

_A_PAGE: Final = 25
_FIELDS: Final = ("status", "agent", "from", "to")


@dataclass(frozen=True)
class EventLine(ReportLine):
    """A report in the list, with its deployment and the receipt of its call, where they are one's own."""

    deployment: Deployment | None
    has_receipt: bool

    @property
    def invocation(self) -> str:
        """The call that it names; empty where it was not read."""
        return public_id(Prefix.INVOCATION, self.report.invocation_id) if self.report.invocation_id else ""


@never_cache
@login_required
@require_GET
def show_events(request: HttpRequest) -> HttpResponse:
    """List the account's usage events, newest first, by filters."""
    account = account_of(request)
    given = texts_of(request, _FIELDS)
    agent, refused, page = None, None, Page[Report]([], None)
    try:
        agent, chosen = _filter_of(account.pk, given)
        page = _page(request, account.pk, chosen)
    except InvalidRequestError as error:
        refused = Refused("filters", error)
    kept = {name: text for name, text in given.items() if text}
    context = {
        "lines": _lines(account.pk, page.items),
        "given": given,
        "agents": agents_to_choose(account.pk, agent),
        "statuses": ReportStatus.values,
        "is_first": not request.GET.get("cursor"),
        "is_filtered": bool(kept),
        "newest": f"?{urlencode(kept)}" if kept else "",
        "older": f"?{urlencode(kept | {'cursor': page.next_cursor})}" if page.next_cursor else "",
        "refused": refused,
    }
    return render(request, "telemetry/events.html", context, status=int(refused.error.status) if refused else 200)


def _filter_of(account_id: UUID, given: dict[str, str]) -> tuple[Agent | None, EventFilter]:
    agent = chosen_agent(account_id, given["agent"])
    since, until = instant_of("from", given["from"]), instant_of("to", given["to"])
    if since and until and until <= since:
        raise InvalidRequestError("`to` is after `from`.", path="to")
    status = ReportStatus(given["status"]) if given["status"] in ReportStatus.values else None
    return agent, EventFilter(agent.pk if agent else None, status, since, until)


def _page(request: HttpRequest, account_id: UUID, chosen: EventFilter) -> Page[Report]:
    """Return the page that the address names; an address that is none of ours is 404."""
    try:
        query = validated(PageQuery, {"limit": _A_PAGE, "cursor": request.GET.get("cursor", "")})
        return usage_events(account_id, chosen, query)
    except (InvalidRequestError, ValidationError) as error:
        raise Http404 from error


def _lines(account_id: UUID, reports: list[Report]) -> list[EventLine]:
    mine = Deployment.objects.filter(account_id=account_id, pk__in={r.deployment_id for r in reports})
    deployments = {d.pk: d for d in mine.select_related("agent")}
    named = {r.invocation_id for r in reports if r.invocation_id}
    receipts = set(Admission.objects.filter(account_id=account_id, pk__in=named).values_list("pk", flat=True))
    return [EventLine(r, deployments.get(r.deployment_id), r.invocation_id in receipts) for r in reports]


urlpatterns = [path("usage/events/", show_events, name="usage_events_page")]
