"""The metrics of one agent: charts with their tables, for any time, and what went wrong in it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, Final

from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.urls import path
from django.utils import timezone
from django.utils.dateparse import parse_datetime
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET

from entitlements.display import RUNTIME_NAMES
from entitlements.enums import Runtime
from runtimes.display import VISIBLE_DEPLOYMENTS
from runtimes.models import Deployment
from runtimes.pages.frame import Refused, own_agent, render_tab
from telemetry.actions.metrics import Metrics, metrics_of, recent_errors
from telemetry.metric_rules import Bucket, Span, span_of
from webhost.charts import Chart, Series
from webhost.errors import InvalidRequestError

_MOST_ERRORS: Final = 20
_MOST_VERSIONS: Final = 50
_RANGES: Final = {"minute": "Last hour", "hour": "24 hours", "day": "30 days"}
_FEW_HOURS: Final = timedelta(hours=3)
_FEW_DAYS: Final = timedelta(days=7)


@never_cache
@login_required
@require_GET
def show_metrics(request: HttpRequest, agent: str) -> HttpResponse:
    """Show what the agent did in a time, of all its versions or one, and its newest errors."""
    own = own_agent(request, agent)
    deployments = list(Deployment.objects.filter(VISIBLE_DEPLOYMENTS, agent=own).order_by("-version")[:_MOST_VERSIONS])
    chosen = next((d for d in deployments if d.public_id == request.GET.get("deployment")), None)
    runtime = request.GET.get("runtime") if request.GET.get("runtime") in list(Runtime) else None
    refused = None
    try:
        span = _span(request)
    except InvalidRequestError as error:
        refused, span = Refused("range", error), span_of(None, None, Bucket.HOUR, timezone.now())
    filters: dict[str, Any] = {"runtime": runtime, "deployment_id": chosen.pk if chosen else None}
    found = metrics_of(own.account_id, own.pk, span, **filters)
    context: dict[str, Any] = {
        "span": span,
        "ranges": _RANGES.items(),
        "range": "custom" if request.GET.get("from") or request.GET.get("to") else span.bucket.value,
        "given": {name: request.GET.get(name, "")[:40] for name in ("from", "to")},
        "deployments": deployments,
        "chosen": chosen,
        "chosen_runtime": runtime,
        "runtimes": [(r.value, name) for r, name in RUNTIME_NAMES.items()],
        "metrics": found,
        "charts": _charts(found) if found.totals.requests or found.errors else [],
        "errors": recent_errors(own.account_id, own.pk, span, _MOST_ERRORS, **filters),
    }
    return render_tab(request, own, "metrics", context, template="telemetry/agent_metrics.html", refused=refused)


def _span(request: HttpRequest) -> Span:
    """Read the time of the form, its fields in UTC; a custom one has the buckets that its length can show."""
    now = timezone.now()
    given = {name: request.GET.get(name, "") for name in ("from", "to")}
    if not any(given.values()):
        name = request.GET.get("range", "")
        return span_of(None, None, Bucket(name) if name in _RANGES else Bucket.HOUR, now)
    since, until = (_instant(name, text) for name, text in given.items())
    since = since or (until or now) - timedelta(days=1)
    length = (until or now) - since
    bucket = Bucket.MINUTE if length <= _FEW_HOURS else Bucket.HOUR if length <= _FEW_DAYS else Bucket.DAY
    return span_of(since, until, bucket, now)


def _instant(name: str, text: str) -> datetime | None:
    if not text:
        return None
    try:
        found = parse_datetime(text)
    except ValueError:
        found = None
    if found is None:
        raise InvalidRequestError("A time reads 2026-11-30T14:00.", path=name)
    # Before a zone is looked at, which may lead out of the calendar.
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def _charts(metrics: Metrics) -> list[Chart]:
    points, bucket = metrics.points, metrics.span.bucket.value
    times = [p.at for p in points]

    def of(measure: str) -> list[int]:
        return [getattr(p.quantities, measure) for p in points]

    return [
        Chart("requests", "Requests and errors", times, [
            Series("Requests", of("requests")), Series("Errors", [p.errors for p in points]),
        ], bucket),
        Chart("latency", "Latency", times, [
            Series("p50", [p.p50 for p in points]), Series("p95", [p.p95 for p in points]),
        ], bucket, unit="ms", kind="lines"),
        Chart("tokens", "Tokens", times, [Series("Tokens", of("tokens"))], bucket),
        Chart("compute", "Compute", times, [Series("Compute", of("compute_ms"))], bucket, unit="ms"),
    ]  # fmt: skip


urlpatterns = [path("agents/<str:agent>/metrics/", show_metrics, name="agent_metrics_page")]
