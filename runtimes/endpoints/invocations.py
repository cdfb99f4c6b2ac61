"""/v1/invocations: receipts. /v1/limits/check: asking beforehand."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from drf_spectacular.utils import extend_schema, extend_schema_field
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from entitlements.authentication import caller_of
from entitlements.enums import Capability, LimitType, Outcome, Runtime, Scope, Source
from entitlements.models import Admission
from runtimes.actions.check import check_invocation, check_runtime
from runtimes.actions.receipts import ReceiptFilter, receipt_of, receipts_of
from webhost.api import ApiView, PublicId, StrictSerializer, validated
from webhost.errors import InvalidRequestError
from webhost.ids import Prefix, parse_id
from webhost.openapi import ErrorDetail
from webhost.paging import PageQuery, page_of, page_response, paginate
from webhost.period import key_of
from webhost.tracing import current_trace_id
from webhost.wire import envelope_of

_RUNTIMES = [runtime.value for runtime in Runtime]
_MEASURES: Mapping[str, str] = {
    "requests": "requests",
    "tokens": "tokens",
    "computeMs": "compute_ms",
    "toolCalls": "tool_calls",
    "codeExecutionMs": "code_ms",
    "browserSessions": "browser_sessions",
}


class ReceiptQuery(PageQuery):
    """Which receipts."""

    agent = serializers.CharField(required=False, help_text="agt_...")
    outcome = serializers.ChoiceField(choices=[outcome.value for outcome in Outcome], required=False)

    def get_fields(self) -> dict[str, Any]:
        """Add `from` and `to`, which are no names in Python."""
        fields = super().get_fields()
        fields["from"] = serializers.DateTimeField(required=False, help_text="Admitted then or later.")
        fields["to"] = serializers.DateTimeField(required=False, help_text="Admitted before then.")
        return fields


class MeasuresOutput(serializers.Serializer[Any]):
    """A number per measure; null is unlimited, or that the measure did not matter."""

    requests = serializers.IntegerField(allow_null=True)
    tokens = serializers.IntegerField(allow_null=True)
    computeMs = serializers.IntegerField(allow_null=True)
    toolCalls = serializers.IntegerField(allow_null=True)
    codeExecutionMs = serializers.IntegerField(allow_null=True)
    browserSessions = serializers.IntegerField(allow_null=True)


class StandingOutput(MeasuresOutput):
    """The same, invocations at once, and in the minute (null in receipts of before it was kept)."""

    concurrency = serializers.IntegerField(allow_null=True)
    requestsPerMinute = serializers.IntegerField(allow_null=True)


class ChargedOutput(serializers.Serializer[Any]):
    """What counts."""

    requests = serializers.IntegerField()
    tokens = serializers.IntegerField()
    computeMs = serializers.IntegerField()
    toolCalls = serializers.IntegerField()
    codeExecutionMs = serializers.IntegerField()
    browserSessions = serializers.IntegerField()
    tokensEstimated = serializers.BooleanField(help_text="Nobody reported tokens: counted from the text.")
    isEstimate = serializers.BooleanField(help_text="Charged at what was set aside; nobody observed it yet.")


class JudgedTierOutput(serializers.Serializer[Any]):
    """The tier, in the version, that the invocation was judged by."""

    slug = serializers.CharField(allow_blank=True)
    version = serializers.IntegerField(allow_null=True)


class ReceiptOutput(serializers.Serializer[Any]):
    """The receipt of one invocation: decision, limits and counters then, usage, outcome."""

    id = PublicId(Prefix.INVOCATION)
    agentId = PublicId(Prefix.AGENT, source="agent_id")
    deploymentId = PublicId(Prefix.DEPLOYMENT, source="deployment_id")
    tokenId = PublicId(Prefix.TOKEN, source="token_id", allow_null=True)
    delegatedBy = serializers.SerializerMethodField(help_text="The trusted backend that called; null: the account did.")
    runtimeProvider = serializers.ChoiceField(source="runtime", choices=_RUNTIMES)
    source = serializers.ChoiceField(  # type: ignore[assignment]  # DRF takes fields off the class
        choices=[source.value for source in Source]
    )
    traceId = serializers.CharField(source="trace_id", allow_blank=True)
    sessionId = serializers.CharField(source="session_id", allow_blank=True)
    periodKey = serializers.SerializerMethodField()
    admittedAt = serializers.DateTimeField(source="admitted_at")
    settledAt = serializers.DateTimeField(source="settled_at", allow_null=True)
    outcome = serializers.ChoiceField(choices=[outcome.value for outcome in Outcome])
    errorClass = serializers.CharField(source="error_class", allow_null=True)
    latencyMs = serializers.IntegerField(source="latency_ms", allow_null=True)
    tier = serializers.SerializerMethodField()
    overrides = serializers.SerializerMethodField()
    limits = serializers.SerializerMethodField()
    counters = serializers.SerializerMethodField()
    held = serializers.SerializerMethodField()
    usage = serializers.SerializerMethodField()
    reports = serializers.IntegerField(help_text="Signed reports that were folded in.")

    def get_delegatedBy(self, receipt: Admission) -> str | None:  # noqa: N802 - a public name
        """Return the source that called on the account's behalf."""
        return receipt.delegated_by or None

    def get_periodKey(self, receipt: Admission) -> str:  # noqa: N802 - a public name
        """Return the period that it counts in."""
        return key_of(receipt.period)

    @extend_schema_field(JudgedTierOutput)
    def get_tier(self, receipt: Admission) -> dict[str, Any]:
        """Return the tier that it was judged by."""
        return {"slug": receipt.tier, "version": receipt.tier_version}

    @extend_schema_field(serializers.DictField(child=serializers.IntegerField(allow_null=True)))
    def get_overrides(self, receipt: Admission) -> dict[str, Any]:
        """Return the overrides that were in force, by name."""
        return dict((receipt.overrides or {}).get("values") or {})

    @extend_schema_field(StandingOutput)
    def get_limits(self, receipt: Admission) -> dict[str, Any]:
        """Return the limits that it was judged by."""
        return _numbers(receipt, "limit") | _rates(receipt.limit_in_flight, receipt.limit_minute)

    @extend_schema_field(StandingOutput)
    def get_counters(self, receipt: Admission) -> dict[str, Any]:
        """Return what was used and held just after, this invocation included."""
        return _numbers(receipt, "then") | _rates(receipt.then_in_flight, receipt.then_minute)

    @extend_schema_field(MeasuresOutput)
    def get_held(self, receipt: Admission) -> dict[str, Any]:
        """Return what was set aside for it."""
        return _numbers(receipt, "held")

    @extend_schema_field(ChargedOutput)
    def get_usage(self, receipt: Admission) -> dict[str, Any]:
        """Return what counts."""
        return _numbers(receipt, "charged") | {
            "tokensEstimated": receipt.tokens_estimated,
            "isEstimate": receipt.estimate_stands,
        }


def _rates(at_once: int | None, a_minute: int | None) -> dict[str, Any]:
    return {LimitType.CONCURRENCY.value: at_once, LimitType.REQUESTS_PER_MINUTE.value: a_minute}


def _numbers(receipt: Admission, kind: str) -> dict[str, Any]:
    return {public: getattr(receipt, f"{kind}_{measure}", None) for public, measure in _MEASURES.items()}


class InvocationsView(ApiView):
    """The receipts of one's invocations."""

    @extend_schema(
        operation_id="listInvocations",
        tags=["invocations"],
        parameters=[ReceiptQuery],
        responses={200: page_of(ReceiptOutput)},
    )
    def get(self, request: Request) -> Response:
        """List receipts, newest first."""
        query = validated(ReceiptQuery, request.query_params.dict())
        chosen = ReceiptFilter(
            agent_id=parse_id(Prefix.AGENT, query["agent"]) if "agent" in query else None,
            outcome=Outcome(query["outcome"]) if "outcome" in query else None,
            since=query.get("from"),
            until=query.get("to"),
        )
        receipts = receipts_of(caller_of(request).account_id, chosen)
        return page_response(paginate(receipts, query, by=("period", "id")), ReceiptOutput)


class InvocationView(ApiView):
    """The receipt of one invocation."""

    @extend_schema(operation_id="getInvocation", tags=["invocations"], responses={200: ReceiptOutput})
    def get(self, request: Request, invocation: str) -> Response:
        """Show a receipt."""
        receipt = receipt_of(caller_of(request).account_id, parse_id(Prefix.INVOCATION, invocation))
        return Response(ReceiptOutput(receipt).data)


# --- Asking beforehand ----------------------------------------------------------------------------


class EstimateInput(StrictSerializer):
    """What the invocation is expected to use."""

    tokens = serializers.IntegerField(required=False, min_value=0, max_value=10**12)
    computeMs = serializers.IntegerField(required=False, min_value=0, max_value=10**12)
    toolCalls = serializers.IntegerField(required=False, min_value=0, max_value=10**12)
    codeExecutionSeconds = serializers.IntegerField(required=False, min_value=0, max_value=10**12)
    browserSessions = serializers.IntegerField(required=False, min_value=0, max_value=10**12)


class LimitsCheckInput(StrictSerializer):
    """Either an agent (and what a call is expected to use), or a runtime with capabilities."""

    agentId = serializers.CharField(required=False, help_text="agt_...")
    estimate = EstimateInput(required=False)
    runtimeProvider = serializers.ChoiceField(choices=_RUNTIMES, required=False)
    capabilities = serializers.ListField(
        child=serializers.ChoiceField(choices=[c.value for c in Capability]), required=False, max_length=len(Capability)
    )


class LimitsCheckOutput(serializers.Serializer[Any]):
    """Whether it would pass now; where not, the very refusal."""

    allowed = serializers.BooleanField()
    error = ErrorDetail(required=False)
    traceId = serializers.CharField()


class LimitsCheckView(ApiView):
    """Answers whether an invocation or a runtime would be allowed now. Consumes nothing."""

    required_scope = Scope.READ
    is_audited = False

    @extend_schema(
        operation_id="checkLimits", tags=["invocations"], request=LimitsCheckInput, responses={200: LimitsCheckOutput}
    )
    def post(self, request: Request) -> Response:
        """Ask the same rules as the invocation itself does."""
        account_id = caller_of(request).account_id
        given = validated(LimitsCheckInput, request.data)
        if ("agentId" in given) == ("runtimeProvider" in given):
            raise InvalidRequestError("Name either an agentId or a runtimeProvider.", path="agentId")
        if "agentId" in given:
            parse_id(Prefix.AGENT, given["agentId"])
            estimate = {LimitType(name): amount for name, amount in given.get("estimate", {}).items()}
            refusal = check_invocation(account_id, given["agentId"], estimate)
        else:
            refusal = check_runtime(account_id, given["runtimeProvider"], given.get("capabilities", ()))
        trace_id = current_trace_id()
        if refusal is None:
            return Response({"allowed": True, "traceId": trace_id})
        return Response({"allowed": False, **envelope_of(refusal, trace_id)})
