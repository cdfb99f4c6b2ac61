"""The overview: the tier, what is used and left of it, what was refused."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
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
from entitlements.display import RUNTIME_NAMES, RefusalLine, UseLine, docs_of, refusal_line, shown, use_line
from entitlements.enums import LimitType, Runtime
from entitlements.whose import account_of
from runtimes.actions.agents import agents_of
from runtimes.models import Agent
from telemetry.actions.metrics import last_errors
from telemetry.actions.pace import forecasts_of, pace_of
from telemetry.actions.usage import DayUse, PeriodUse, usage_of
from telemetry.display import dollars, forecast_text
from telemetry.forecast import Answer, Forecast
from webhost.charts import Chart, Series
from webhost.period import period_of

_MOST_ERRORS = 8
_CHART_DAYS = 30
_FEW = 20
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


@dataclass(frozen=True)
class BudgetLine:
    """One budget with when it runs out, as it is shown."""

    use: UseLine
    forecast: Forecast

    @property
    def runs_out(self) -> str:
        """When it runs out, in words; a dash where there is nothing to run out of."""
        return forecast_text(self.forecast) if self.use.included else forecast_text(Forecast(Answer.UNLIMITED))

    @property
    def is_date(self) -> bool:
        """Say whether it runs out before the reset."""
        return self.use.included and self.forecast.at is not None


@dataclass(frozen=True)
class Refused:
    """A refusal, with where its limit is explained."""

    line: RefusalLine
    docs: str


@dataclass(frozen=True)
class Step:
    """A first step of a new account, and whether it is done."""

    text: str
    href: str
    is_done: bool


@never_cache
@login_required
@require_GET
def show_overview(request: HttpRequest) -> HttpResponse:
    """Show the tier, what is used and left of it and until when, what failed and was refused; first steps where new."""
    account, now = account_of(request), timezone.now()
    times = _last_days(now)
    use = usage_of(account.pk, period_of(now), days_since=times[0])
    pace = pace_of(account.pk, now)
    forecasts = forecasts_of(use, pace)
    entitlements = use.account.entitlements
    # In flight counts too: the first call may be running.
    is_new = pace.since is None and not use.totals.requests
    context: dict[str, Any] = {
        "use": use,
        "look": use.account,
        "tier_source": _SOURCES.get(use.account.tier_source, use.account.tier_source),
        "lines": [
            BudgetLine(use_line(entitlements, m.measure, m.used, m.held), forecasts[m.measure]) for m in use.measures
        ],
        "running": use.in_flight,
        "running_limit": shown(entitlements.limit(LimitType.CONCURRENCY)),
        "runtimes": _runtime_lines(use),
        "cost": dollars(use.cost),
        "refusals": _refusals(account.pk, use.account),
        "errors": [] if is_new else last_errors(account.pk, _MOST_ERRORS),
        "charts": [] if is_new else _charts(use, times),
        "steps": _steps(account.pk) if is_new else [],
        "public_url": settings.PUBLIC_URL,
    }
    return render(request, "webhost/overview.html", context)


def _steps(account_id: UUID) -> list[Step]:
    agents = list(agents_of(account_id)[:_FEW])
    deployed = any(agent.active_deployment_id for agent in agents)
    agent = f"/agents/{agents[0].public_id}/" if len(agents) == 1 else "/agents/"
    return [
        Step("Create an agent", "/agents/", bool(agents)),
        Step("Deploy a bundle to it", agent if agents else "/docs/", deployed),
        Step("Invoke it", f"{agent}playground/" if len(agents) == 1 else agent, is_done=False),
    ]


def _last_days(now: datetime) -> list[datetime]:
    """Return the beginnings of the last days, today's included."""
    today = now.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    return [today - timedelta(days=n) for n in reversed(range(_CHART_DAYS))]


def _charts(use: PeriodUse, times: list[datetime]) -> list[Chart]:
    days = [use.by_day.get(at.date(), DayUse()) for at in times]
    return [
        Chart("requests", "Requests and errors by day", times, [
            Series("Requests", [day.requests for day in days]), Series("Errors", [day.errors for day in days]),
        ]),
        Chart("tokens", "Tokens by day", times, [Series("Tokens", [day.tokens for day in days])]),
    ]  # fmt: skip


def _runtime_lines(use: PeriodUse) -> list[RuntimeLine]:
    return [
        RuntimeLine(
            RUNTIME_NAMES.get(Runtime(r.runtime), r.runtime), r.quantities.requests, r.errors,
            r.quantities.tokens, r.quantities.compute_ms, dollars(r.cost),
        )
        for r in use.by_runtime
    ]  # fmt: skip


def _refusals(account_id: UUID, look: AccountStanding) -> list[Refused]:
    denied = last_refusals(account_id, most=8)
    ids = {d.agent_id for d in denied if d.agent_id}
    # The account's own agents only: a name of somebody else's never shows.
    names = dict(Agent.objects.filter(account_id=account_id, pk__in=ids).values_list("pk", "name"))
    return [
        Refused(refusal_line(look, d, names.get(d.agent_id, "-") if d.agent_id else "-"), docs_of(d.limit_type))
        for d in denied
    ]
