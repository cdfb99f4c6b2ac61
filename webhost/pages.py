"""The dashboard's home: the only page that composes all apps."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from http import HTTPStatus
from typing import Any
from uuid import UUID

from django.conf import settings
from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.core.exceptions import ValidationError
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import render
from django.urls import path
from django.utils import timezone
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET, require_POST

import billing.pages
import entitlements.pages
import runtimes.pages
from entitlements.actions.refused import last_refusals
from entitlements.actions.standing import AccountStanding, read_standing
from entitlements.display import LABELS, RUNTIME_NAMES, refusal_line, shown, use_line
from entitlements.enums import LimitType, Runtime
from entitlements.models import Account
from runtimes.actions.agents import agents_of, create_agent
from runtimes.models import AGENT_NAME, Agent
from runtimes.pages import offers_of, page_offers
from telemetry import rules as money
from telemetry.actions.usage import PeriodUse, usage_of
from webhost.errors import WebhostError
from webhost.ids import Prefix, new_id, public_id
from webhost.period import period_of

_MOST_AGENTS = 10
_SOURCES = {"support": "set by support", "billing": "paid for", "default": "the default"}


@dataclass(frozen=True)
class RuntimeLine:
    """What one runtime did in the period, as it is shown."""

    name: str
    requests: int
    errors: int
    tokens: int
    compute_ms: int
    cost: str


def dollars(amount: Decimal) -> str:
    """Return an estimated cost in cents; what is less than one is not shown as nothing."""
    text = money.shown(amount)
    return "under $0.01" if amount and text == "0.00" else f"${text}"


@never_cache
@login_required
@require_GET
def overview(request: HttpRequest) -> HttpResponse:
    """Show the tier, what is used and left of it, what was refused, and the agents."""
    return _render(request)


@never_cache
@login_required
@require_POST
def new_agent(request: HttpRequest) -> HttpResponse:
    """Create an agent from the overview's form; what is refused is said beside it."""
    name, runtime = request.POST.get("name", "").strip(), request.POST.get("runtimeProvider", Runtime.CLOUDFLARE)
    account = _account(request)
    allowed = [offer.value for offer in page_offers(read_standing(account.pk).entitlements)]
    if runtime not in allowed:
        message = "This runtime is not in your tier."
        return _render(request, said=message, name=name, status=HTTPStatus.PAYMENT_REQUIRED)
    try:
        AGENT_NAME(name)
        agent = create_agent(account.pk, new_id(), name=name, description="", runtime=runtime)
    except ValidationError as error:
        said = f"A name takes {' '.join(error.messages)}"
        return _render(request, said=said, name=name, status=HTTPStatus.BAD_REQUEST)
    except WebhostError as error:
        return _render(request, said=error.message, name=name, status=int(error.status))
    messages.success(request, f"{agent.name} is created. Deploy a bundle to {public_id(Prefix.AGENT, agent.pk)} next.")
    return HttpResponseRedirect("/")


def _account(request: HttpRequest) -> Account:
    if not isinstance(request.user, Account):
        raise TypeError("A page for an account was reached without one.")
    return request.user


def _render(request: HttpRequest, *, said: str = "", name: str = "", status: int = HTTPStatus.OK) -> HttpResponse:
    account = _account(request)
    use = usage_of(account.pk, period_of(timezone.now()))
    agents = agents_of(account.pk)
    context: dict[str, Any] = {
        "use": use,
        "look": use.account,
        "tier_source": _SOURCES.get(use.account.tier_source, use.account.tier_source),
        "lines": [use_line(use.account.entitlements, m.measure, m.used, m.held) for m in use.measures],
        "running": use.in_flight,
        "running_limit": shown(use.account.entitlements.limit(LimitType.CONCURRENCY)),
        "runtimes": _runtime_lines(use),
        "cost": dollars(use.cost),
        "refusals": _refusals(account.pk, use.account),
        "agents": agents[:_MOST_AGENTS],
        "agent_count": agents.count(),
        "agent_limit": shown(use.account.entitlements.limit(LimitType.AGENTS)),
        "offers": offers_of(use.account, page_offers(use.account.entitlements)),
        "said": said,
        "name": name,
        "public_url": settings.PUBLIC_URL,
        "labels": LABELS,
    }
    return render(request, "webhost/overview.html", context, status=status)


def _runtime_lines(use: PeriodUse) -> list[RuntimeLine]:
    return [
        RuntimeLine(
            RUNTIME_NAMES.get(Runtime(r.runtime), r.runtime), r.quantities.requests, r.errors,
            r.quantities.tokens, r.quantities.compute_ms, dollars(r.cost),
        )
        for r in use.by_runtime
    ]  # fmt: skip


def _refusals(account_id: UUID, look: AccountStanding) -> list[Any]:
    denied = last_refusals(account_id, most=8)
    ids = {d.agent_id for d in denied if d.agent_id}
    # The account's own agents only: a name of somebody else's never shows.
    names = dict(Agent.objects.filter(account_id=account_id, pk__in=ids).values_list("pk", "name"))
    return [refusal_line(look, d, names.get(d.agent_id, "-") if d.agent_id else "-") for d in denied]


urlpatterns = [
    path("", overview, name="overview"),
    path("agents/", new_agent, name="new_agent"),
    *runtimes.pages.urlpatterns,
    *billing.pages.urlpatterns,
    *entitlements.pages.urlpatterns,
]
