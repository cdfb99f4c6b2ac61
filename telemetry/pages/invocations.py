"""Invocations: the list with its filters, and the receipt of one: why it passed, and why it costs what it does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlencode
from uuid import UUID

from django.contrib.auth.decorators import login_required
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import render
from django.urls import path
from django.utils import timezone
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET
from rest_framework.exceptions import ValidationError

from entitlements.display import RUNTIME_NAMES
from entitlements.enums import Outcome, Runtime
from entitlements.models import Admission, ApiToken
from entitlements.whose import account_of
from runtimes.actions.receipts import PLACE, Found, ReceiptFilter, find_receipts, receipt_of, receipts_of_trace
from runtimes.display import VISIBLE_DEPLOYMENTS
from runtimes.models import Agent, Deployment, ToolUse
from runtimes.pages.frame import Refused
from telemetry.models import Report
from telemetry.pages.filters import agents_to_choose, chosen_agent, instant_of, texts_of
from telemetry.pages.receipt_lines import ReportLine, charge_lines, charge_of, limit_lines
from telemetry.receipt_words import why_charged
from webhost.api import validated
from webhost.errors import InvalidRequestError, NotFoundError
from webhost.ids import Prefix, parse_id, public_id
from webhost.paging import PageQuery, paginate

_A_PAGE: Final = 25
_MOST_BESIDE: Final = 50
_FIELDS: Final = ("q", "agent", "outcome", "from", "to")


@dataclass(frozen=True)
class InvocationLine:
    """A call as the list shows it."""

    receipt: Admission
    agent: Agent | None

    @property
    def public_id(self) -> str:
        """The id that the API shows."""
        return public_id(Prefix.INVOCATION, self.receipt.pk)


@never_cache
@login_required
@require_GET
def show_invocations(request: HttpRequest) -> HttpResponse:
    """List the account's calls, newest first, by filters; an id that is searched for opens its receipt."""
    account = account_of(request)
    given = texts_of(request, _FIELDS)
    own = _named(account.pk, given["q"])
    if own is not None:
        return HttpResponseRedirect(f"/invocations/{public_id(Prefix.INVOCATION, own.pk)}/")
    refused, chosen = None, None
    try:
        agent, chosen = _filter_of(account.pk, given)
    except InvalidRequestError as error:
        refused, agent = Refused("filters", error), None
    found = _find(request, account.pk, given["q"], chosen) if chosen else Found([], None)
    names = {a.pk: a for a in Agent.objects.filter(account_id=account.pk, pk__in={r.agent_id for r in found.items})}
    kept = {name: text for name, text in given.items() if text}
    context = {
        "lines": [InvocationLine(r, names.get(r.agent_id)) for r in found.items],
        "found": found,
        "given": given,
        "agents": agents_to_choose(account.pk, agent),
        "outcomes": [o.value for o in Outcome],
        "is_first": not request.GET.get("cursor"),
        "is_filtered": bool(kept),
        "newest": f"?{urlencode(kept)}" if kept else "",
        "older": f"?{urlencode(kept | {'cursor': found.next_cursor})}" if found.next_cursor else "",
        "refused": refused,
    }
    status = int(refused.error.status) if refused else 200
    return render(request, "telemetry/invocations.html", context, status=status)


def _named(account_id: UUID, text: str) -> Admission | None:
    """Return the call whose id was searched for, if it is one's own."""
    try:
        return receipt_of(account_id, parse_id(Prefix.INVOCATION, text))
    except NotFoundError:
        return None


def _filter_of(account_id: UUID, given: dict[str, str]) -> tuple[Agent | None, ReceiptFilter]:
    agent = chosen_agent(account_id, given["agent"])
    since, until = instant_of("from", given["from"]), instant_of("to", given["to"])
    if since and until and until <= since:
        raise InvalidRequestError("`to` is after `from`.", path="to")
    outcome = Outcome(given["outcome"]) if given["outcome"] in list(Outcome) else None
    return agent, ReceiptFilter(agent.pk if agent else None, outcome, since, until)


def _find(request: HttpRequest, account_id: UUID, sought: str, chosen: ReceiptFilter) -> Found:
    """Return the page that the address names; an address that is none of ours is 404."""
    try:
        query = validated(PageQuery, {"limit": _A_PAGE, "cursor": request.GET.get("cursor", "")})
        if not sought:
            return find_receipts(account_id, chosen, query)
        page = paginate(receipts_of_trace(account_id, sought), query, by=PLACE)
        return Found(page.items, page.next_cursor)
    except (InvalidRequestError, ValidationError) as error:
        raise Http404 from error


@never_cache
@login_required
@require_GET
def show_receipt(request: HttpRequest, invocation: str) -> HttpResponse:
    """Show why a call passed, what it used and was charged, and why; nobody's and somebody else's are both 404."""
    account = account_of(request)
    try:
        receipt = receipt_of(account.pk, parse_id(Prefix.INVOCATION, invocation))
    except NotFoundError as error:
        raise Http404 from error
    # Somebody else's deployment may have named this call: its report is theirs, and refused.
    reports = [
        ReportLine(r)
        for r in Report.objects.filter(invocation_id=receipt.pk, account_id=account.pk)
        .defer("body", "signature")
        .order_by("id")[:_MOST_BESIDE]
    ]
    tools = list(ToolUse.objects.filter(invocation_id=receipt.pk, account_id=account.pk).order_by("id")[:_MOST_BESIDE])
    charge = charge_of(receipt, [r.facts for r in reports if r.report.status == "accepted"], tools)
    kept = Deployment.objects.filter(VISIBLE_DEPLOYMENTS, pk=receipt.deployment_id, account_id=account.pk)
    context: dict[str, Any] = {
        "r": receipt,
        "public_id": public_id(Prefix.INVOCATION, receipt.pk),
        "agent_id": public_id(Prefix.AGENT, receipt.agent_id),
        "deployment_id": public_id(Prefix.DEPLOYMENT, receipt.deployment_id),
        "deployment": kept.first(),
        "agent": Agent.objects.filter(pk=receipt.agent_id, account_id=account.pk).first(),
        "runtime": RUNTIME_NAMES[Runtime(receipt.runtime)],
        "caller": _caller(receipt),
        "why": why_charged(charge),
        "charges": charge_lines(charge, receipt.charged_requests),
        "limits": limit_lines(receipt),
        "reports": reports,
        "more_reports": max(receipt.reports - sum(r.report.status == "accepted" for r in reports), 0),
        "tools": tools,
        "is_overdue": receipt.outcome == Outcome.OPEN and receipt.expires_at < timezone.now(),
    }
    return render(request, "telemetry/receipt.html", context)


def _caller(receipt: Admission) -> str:
    """Say who called: a trusted backend, a token by its name, or the page; a report tells nothing of it."""
    if receipt.source == "report":
        return "not known: only a signed report told of it"
    if receipt.delegated_by:
        return f"the trusted backend {receipt.delegated_by}, for this account"
    if receipt.token_id is None:
        return "a page, signed in"
    token = ApiToken.objects.filter(id=receipt.token_id, user_id=receipt.account_id).first()
    name = token.name if token else "deleted since"
    return f"API token {public_id(Prefix.TOKEN, receipt.token_id)} ({name})"


urlpatterns = [
    path("invocations/", show_invocations, name="invocations_page"),
    path("invocations/<str:invocation>/", show_receipt, name="receipt_page"),
]
