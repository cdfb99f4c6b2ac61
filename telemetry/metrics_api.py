"""/v1/agents/{id}/metrics: what one agent did, by minute, hour or day."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from django.urls import path
from django.utils import timezone
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from entitlements.authentication import caller_of
from entitlements.enums import Runtime, Scope
from runtimes.models import Agent, Deployment
from telemetry import rules
from telemetry.actions.metrics import Metrics, Point, metrics_of
from telemetry.metric_rules import MOST_BUCKETS, Bucket, span_of
from webhost.api import ApiView, PublicId, StrictSerializer, validated
from webhost.errors import NotFoundError
from webhost.ids import Prefix, parse_id, public_id


class MetricsQuery(StrictSerializer):
    """Which time, in which buckets, of what."""

    bucket = serializers.ChoiceField(
        choices=[b.value for b in Bucket],
        required=False,
        default=Bucket.HOUR.value,
        help_text=f"How wide; at most {MOST_BUCKETS:,} of them. Minutes are known for the last 35 days.",
    )
    runtime = serializers.ChoiceField(choices=[r.value for r in Runtime], required=False)
    deployment = serializers.CharField(required=False, help_text="dep_..., one of the agent's.")

    def get_fields(self) -> dict[str, Any]:
        """Add `from` and `to`, which are no names in Python."""
        fields = super().get_fields()
        fields["from"] = serializers.DateTimeField(
            required=False, help_text="Rounded down to a whole bucket. Default: 60 minutes, 24 hours or 30 days."
        )
        fields["to"] = serializers.DateTimeField(
            required=False, help_text="Rounded up to a whole bucket. Default: the end of the present one."
        )
        return fields


class LatencyOutput(serializers.Serializer[Any]):
    """Percentiles of how long calls took, in milliseconds; null where none ended."""

    p50 = serializers.IntegerField(allow_null=True)
    p95 = serializers.IntegerField(allow_null=True)


class MetricsTotalsOutput(serializers.Serializer[Any]):
    """What counts, as the ledger does."""

    requests = serializers.IntegerField()
    errors = serializers.IntegerField()  # type: ignore[assignment]  # the public name, also of a serializer's own
    tokens = serializers.IntegerField()
    computeMs = serializers.IntegerField()
    toolCalls = serializers.IntegerField()
    codeExecutionMs = serializers.IntegerField()
    browserSessions = serializers.IntegerField()
    estimatedCost = serializers.CharField(help_text="US dollars with all digits, so that buckets add up.")


class MetricsBucketOutput(MetricsTotalsOutput):
    """One bucket, by when calls were admitted."""

    at = serializers.DateTimeField(help_text="Its beginning (UTC).")
    latencyMs = LatencyOutput()


class MetricsOutput(serializers.Serializer[Any]):
    """Every bucket of the time, the empty ones too. Their sums are the agent's usage in it. Costs are estimates."""

    agentId = PublicId(Prefix.AGENT)
    bucket = serializers.ChoiceField(choices=[b.value for b in Bucket])
    latencyIsExact = serializers.BooleanField(
        help_text="False: latencies of hours and days are read from a histogram, exact to its step, 60,000 at most."
    )
    totals = MetricsTotalsOutput()
    buckets = MetricsBucketOutput(many=True)
    currency = serializers.CharField()
    costIsEstimated = serializers.BooleanField()

    def get_fields(self) -> dict[str, Any]:
        """Add `from` and `to`, which are no names in Python."""
        fields = super().get_fields()
        fields["from"] = serializers.DateTimeField(help_text="The first bucket's beginning.")
        fields["to"] = serializers.DateTimeField(help_text="The last bucket's end.")
        return fields


@dataclass(frozen=True)
class Subject:
    """Of which agent, and which of its deployments."""

    agent_id: UUID
    deployment_id: UUID | None


def subject_of(account_id: UUID, agent: str, deployment: str | None) -> Subject:
    """Return what is asked about; a deleted agent keeps its usage. Raises NotFoundError."""
    agent_id = parse_id(Prefix.AGENT, agent)
    if not Agent.objects.filter(pk=agent_id, account_id=account_id).exists():
        raise NotFoundError
    if deployment is None:
        return Subject(agent_id, None)
    deployment_id = parse_id(Prefix.DEPLOYMENT, deployment)
    if not Deployment.objects.filter(pk=deployment_id, agent_id=agent_id).exists():
        raise NotFoundError
    return Subject(agent_id, deployment_id)


class MetricsView(ApiView):
    """Requests, errors, usage and latency over time."""

    required_scope = Scope.READ

    @extend_schema(
        operation_id="getAgentMetrics", tags=["agents"], parameters=[MetricsQuery], responses={200: MetricsOutput}
    )
    def get(self, request: Request, agent: str) -> Response:
        """Show what an agent did, by minute, hour or day."""
        account_id = caller_of(request).account_id
        query = validated(MetricsQuery, request.query_params.dict())
        subject = subject_of(account_id, agent, query.get("deployment"))
        span = span_of(query.get("from"), query.get("to"), Bucket(query["bucket"]), timezone.now())
        found = metrics_of(
            account_id, subject.agent_id, span, runtime=query.get("runtime"), deployment_id=subject.deployment_id
        )
        return Response(metrics_output(subject.agent_id, found))


def metrics_output(agent_id: UUID, metrics: Metrics) -> dict[str, Any]:
    """Return metrics in public names."""
    return {
        "agentId": public_id(Prefix.AGENT, agent_id),
        "from": _instant(metrics.span.start),
        "to": _instant(metrics.span.end),
        "bucket": metrics.span.bucket.value,
        "latencyIsExact": metrics.latency_is_exact,
        "totals": _figures(metrics.totals, metrics.errors) | {"estimatedCost": rules.exact(metrics.cost)},
        "buckets": [_bucket(point) for point in metrics.points],
        "currency": "USD",
        "costIsEstimated": True,
    }


def _bucket(point: Point) -> dict[str, Any]:
    return {
        "at": _instant(point.at),
        **_figures(point.quantities, point.errors),
        "latencyMs": {"p50": point.p50, "p95": point.p95},
        "estimatedCost": rules.exact(point.cost),
    }


def _figures(quantities: rules.Quantities, errors: int) -> dict[str, int]:
    return {
        "requests": quantities.requests,
        "errors": errors,
        "tokens": quantities.tokens,
        "computeMs": quantities.compute_ms,
        "toolCalls": quantities.tool_calls,
        "codeExecutionMs": quantities.code_ms,
        "browserSessions": quantities.browser_sessions,
    }


def _instant(at: datetime) -> str:
    return f"{at:%Y-%m-%dT%H:%M:%SZ}"


urlpatterns = [path("agents/<str:agent>/metrics", MetricsView.as_view(), name="agent-metrics")]
