"""The overview: the tier, what is used and left of it, what was refused."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import Any
from uuid import UUID

from django.conf import settings
from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET

from entitlements.actions.refused import last_refusals
from entitlements.actions.standing import AccountStanding
from entitlements.display import RUNTIME_NAMES, refusal_line, shown, use_line
from entitlements.enums import LimitType, Runtime
from entitlements.whose import account_of
from runtimes.actions.agents import agents_of
from runtimes.models import Agent
from telemetry import rules as money
from telemetry.actions.usage import PeriodUse, usage_of
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
def show_overview(request: HttpRequest) -> HttpResponse:
    """Show the tier, what is used and left of it, what was refused, and the agents."""
    account = account_of(request)
    use = usage_of(account.pk, period_of(timezone.now()))
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
        "has_agents": agents_of(account.pk).exists(),
        "public_url": settings.PUBLIC_URL,
    }
    return render(request, "webhost/overview.html", context)


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
