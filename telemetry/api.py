"""The edge for signed usage reports, and what an account used."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from django.conf import settings
from django.urls import path
from django.utils import timezone
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from entitlements.authentication import caller_of
from entitlements.enums import LimitType, Runtime, Scope
from telemetry import alerts_api, metrics_api, rules
from telemetry.actions.pace import run_outs_of
from telemetry.actions.receive import Item, ItemStatus, note_refusal, receive_reports
from telemetry.actions.usage import MeasureUse, PeriodUse, usage_of
from telemetry.events import MOST, MOST_EVENTS
from webhost.api import ApiView
from webhost.errors import InvalidRequestError, WebhostError
from webhost.period import key_of, parse_key, period_of

DEPLOYMENT_HEADER = "X-Telemetry-Deployment-Id"
SIGNATURE_HEADER = "X-Telemetry-Signature"


# --- Reports -----------------------------------------------------------------------------------------


def _count() -> serializers.IntegerField:
    return serializers.IntegerField(min_value=0, max_value=MOST, required=False, default=0)


class EventInput(serializers.Serializer[Any]):
    """What one workload says about one invocation. Documents it; telemetry/events.py reads it, more strictly."""

    eventId = serializers.CharField(max_length=200, help_text="Yours, unique per deployment, compared byte for byte.")
    invocationId = serializers.CharField(help_text="inv_...")
    deploymentId = serializers.CharField(help_text="dep_..., the one in the header.")
    accountId = serializers.CharField(required=False, help_text="acc_...; must be the deployment's own.")
    agentId = serializers.CharField(required=False, help_text="agt_...; must be the deployment's own.")
    runtimeProvider = serializers.ChoiceField(choices=[r.value for r in Runtime], required=False)
    timestamp = serializers.DateTimeField(help_text="RFC 3339 with a zone; at most 5 minutes ahead, 72 hours old.")
    requests = serializers.IntegerField(min_value=0, max_value=1, required=False, default=1)
    tokens = serializers.IntegerField(min_value=0, max_value=MOST)
    computeMs = serializers.IntegerField(min_value=0, max_value=MOST)
    toolCalls = _count()
    codeExecutionMs = _count()
    browserSessions = _count()
    errors = _count()  # type: ignore[assignment]  # the public name, also of a serializer's own
    errorClass = serializers.CharField(max_length=80, required=False, allow_null=True)
    provider = serializers.DictField(required=False, allow_null=True)
    traceId = serializers.CharField(required=False, allow_null=True)


class BatchInput(serializers.Serializer[Any]):
    """Several events of one deployment under one signature."""

    events = serializers.ListField(child=EventInput(), min_length=1, max_length=MOST_EVENTS)


class ItemIssue(serializers.Serializer[Any]):
    """What is wrong with one event, and where."""

    path = serializers.CharField(allow_blank=True)
    message = serializers.CharField()


class ItemOutput(serializers.Serializer[Any]):
    """What became of one event of a batch."""

    index = serializers.IntegerField()
    eventId = serializers.CharField(allow_null=True)
    status = serializers.ChoiceField(choices=[s.value for s in ItemStatus])
    issues = ItemIssue(many=True, required=False)


class ReportOutput(serializers.Serializer[Any]):
    """Kept. For a batch, every item in its place: drop what is accepted or duplicate, mend what is invalid."""

    accepted = serializers.BooleanField(help_text="One event: true. A batch: whether every item is kept or known.")
    items = ItemOutput(many=True, required=False)


class ReportView(ApiView):
    """Takes signed usage from workloads. No user is known here: the signature says which deployment speaks."""

    authentication_classes = ()
    permission_classes = ()
    throttle_classes = ()
    # Nothing parses the body before its bytes were verified, whatever its Content-Type claims.
    parser_classes = ()
    is_audited = False
    body_limit = settings.REPORT_BODY_LIMIT

    @extend_schema(
        operation_id="reportUsage",
        tags=["telemetry"],
        auth=[],
        parameters=[
            OpenApiParameter(DEPLOYMENT_HEADER, str, OpenApiParameter.HEADER, required=True, description="dep_..."),
            OpenApiParameter(
                SIGNATURE_HEADER,
                str,
                OpenApiParameter.HEADER,
                required=True,
                description="`v1=` and the hex HMAC-SHA256 of the raw body; several may be listed, by commas.",
            ),
        ],
        request={"application/json": EventInput},
        responses={202: ReportOutput},
    )
    def post(self, request: Request) -> Response:
        """Keep one event, or `{"events": [...]}`, and answer before it is counted."""
        header = request.headers.get(DEPLOYMENT_HEADER)
        try:
            kept = receive_reports(
                deployment_header=header,
                signature=request.headers.get(SIGNATURE_HEADER),
                body=request._request.body,  # noqa: SLF001 - the raw bytes, which are what is signed
                at=timezone.now(),
            )
        except WebhostError as error:
            if not error.retryable:
                note_refusal(f"{error.status} {error.code}", header)
            raise
        if kept.is_single:
            return Response({"accepted": True}, status=202)
        accepted = all(item.status is not ItemStatus.INVALID for item in kept.items)
        return Response({"accepted": accepted, "items": [_item(item) for item in kept.items]}, status=202)


def _item(item: Item) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "index": item.index,
        "eventId": None if item.event_id is None else item.event_id.decode(),
        "status": item.status.value,
    }
    return {**shown, "issues": list(item.issues)} if item.issues else shown


# --- Usage -------------------------------------------------------------------------------------------


class MeasureOutput(serializers.Serializer[Any]):
    """One measure: used and held, of how much, and where the limit comes from."""

    limitType = serializers.ChoiceField(choices=[t.value for t in LimitType])
    used = serializers.IntegerField()
    held = serializers.IntegerField(help_text="Set aside for invocations that still run.")
    limit = serializers.IntegerField(allow_null=True, help_text="Null is unlimited, 0 is none.")
    percent = serializers.IntegerField(allow_null=True, help_text="Of the limit, used and held, rounded down.")
    source = serializers.CharField(help_text="tier:... or override:...")  # type: ignore[assignment]  # as above
    runsOutAt = serializers.DateTimeField(
        allow_null=True,
        help_text="The hour by which the limit is reached at the pace of the last seven days. Null: not in this "
        "period, unlimited, reached already, or less than a day of use to tell by.",
    )


class RuntimeUseOutput(serializers.Serializer[Any]):
    """What one runtime used."""

    runtimeProvider = serializers.ChoiceField(choices=[r.value for r in Runtime])
    requests = serializers.IntegerField()
    tokens = serializers.IntegerField()
    computeMs = serializers.IntegerField()
    toolCalls = serializers.IntegerField()
    codeExecutionMs = serializers.IntegerField()
    browserSessions = serializers.IntegerField()
    errors = serializers.IntegerField()  # type: ignore[assignment]  # as above
    estimatedCost = serializers.CharField(help_text="US dollars with all digits, so that the lines add up.")


class TotalsOutput(serializers.Serializer[Any]):
    """What all runtimes used together, as the ledger counts it."""

    requests = serializers.IntegerField()
    tokens = serializers.IntegerField()
    computeMs = serializers.IntegerField()
    toolCalls = serializers.IntegerField()
    codeExecutionMs = serializers.IntegerField()
    browserSessions = serializers.IntegerField()


class UsageOutput(serializers.Serializer[Any]):
    """An account's use of one calendar month (UTC). Costs are estimates."""

    periodKey = serializers.CharField()
    startsAt = serializers.DateTimeField()
    resetsAt = serializers.DateTimeField()
    tier = serializers.CharField()
    totals = TotalsOutput()
    held = TotalsOutput(help_text="Set aside for invocations that still run; a request is counted at once.")
    limits = MeasureOutput(many=True)
    inFlight = serializers.IntegerField()
    byRuntime = RuntimeUseOutput(many=True)
    adjusted = serializers.DictField(child=serializers.IntegerField(), help_text="Corrections by staff, in the totals.")
    estimatedCost = serializers.CharField(help_text="US dollars and cents, half-up, rounded once.")
    estimatedCostExact = serializers.CharField(help_text="The same with all digits: the sum of byRuntime.")
    currency = serializers.CharField()
    costIsEstimated = serializers.BooleanField()


class UsageView(ApiView):
    """Used and held, of how much, by runtime, at what estimated cost."""

    required_scope = Scope.READ

    @extend_schema(
        operation_id="getUsage",
        tags=["billing"],
        parameters=[OpenApiParameter("period", str, description="YYYY-MM, a month in UTC; default: the present one.")],
        responses={200: UsageOutput},
    )
    def get(self, request: Request) -> Response:
        """Return the account's use of a period."""
        unknown = sorted(set(request.query_params) - {"period"})
        if unknown:
            raise InvalidRequestError("This parameter is not known.", path=unknown[0])
        text = request.query_params.get("period")
        now = timezone.now()
        period = period_of(now) if text is None else parse_key(text)
        account_id = caller_of(request).account_id
        use = usage_of(account_id, period)
        return Response(usage_output(use, run_outs_of(account_id, use, now)))


_NAMES = {
    "requests": "requests",
    "tokens": "tokens",
    "compute_ms": "computeMs",
    "tool_calls": "toolCalls",
    "code_ms": "codeExecutionMs",
    "browser_sessions": "browserSessions",
}


def usage_output(use: PeriodUse, run_outs: Mapping[LimitType, datetime | None]) -> dict[str, Any]:
    """Return a period's use in public names."""
    return {
        "periodKey": key_of(use.period),
        "startsAt": _instant(use.starts_at),
        "resetsAt": _instant(use.resets_at),
        "tier": use.account.tier.slug,
        "totals": _quantities(use.totals),
        "held": _quantities(use.held),
        "limits": [_measure(m, run_outs.get(m.measure)) for m in use.measures],
        "inFlight": use.in_flight,
        "byRuntime": [
            {
                "runtimeProvider": r.runtime,
                **_quantities(r.quantities),
                "errors": r.errors,
                "estimatedCost": rules.exact(r.cost),
            }
            for r in use.by_runtime
        ],
        "adjusted": {_NAMES[m]: n for m, n in use.adjusted.items()},
        "estimatedCost": rules.shown(use.cost),
        "estimatedCostExact": rules.exact(use.cost),
        "currency": "USD",
        "costIsEstimated": True,
    }


def _instant(at: Any) -> str:
    return f"{at:%Y-%m-%dT%H:%M:%SZ}"


def _quantities(quantities: rules.Quantities) -> dict[str, int]:
    return {public: getattr(quantities, name) for name, public in _NAMES.items()}


def _measure(use: MeasureUse, runs_out_at: datetime | None) -> dict[str, Any]:
    return {
        "limitType": use.measure.value,
        "used": use.used,
        "held": use.held,
        "limit": use.limit,
        "percent": use.percent,
        "source": use.source,
        "runsOutAt": None if runs_out_at is None else _instant(runs_out_at),
    }


urlpatterns = [
    path("telemetry/report", ReportView.as_view(), name="report"),
    path("billing/usage", UsageView.as_view(), name="usage"),
    *alerts_api.urlpatterns,
    *metrics_api.urlpatterns,
]
