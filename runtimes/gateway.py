"""POST /v1/invoke/{agent} and /stream: the door to every provider."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from django.http import HttpResponseBase, StreamingHttpResponse
from django.urls import path
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from entitlements.authentication import caller_of
from entitlements.enums import Scope
from entitlements.idempotency import Replay, remembered
from runtimes import rules
from runtimes.actions import invoke
from webhost.api import ApiView
from webhost.ids import new_id
from webhost.tracing import current_trace_id


class MessageInput(serializers.Serializer[Any]):
    """One message of a conversation."""

    role = serializers.ChoiceField(choices=sorted(rules.ROLES))
    content = serializers.CharField(max_length=rules.LONGEST_TEXT, allow_blank=True)


class PromptInput(serializers.Serializer[Any]):
    """Either a prompt or messages."""

    prompt = serializers.CharField(required=False, max_length=rules.LONGEST_TEXT)
    messages = MessageInput(many=True, required=False)


class InvokeOptions(serializers.Serializer[Any]):
    """What a caller may ask of the agent."""

    maxSteps = serializers.IntegerField(required=False, min_value=1)
    maxTokens = serializers.IntegerField(required=False, min_value=1)
    temperature = serializers.FloatField(required=False, min_value=0, max_value=2)
    tools = serializers.ChoiceField(choices=["auto", "off"], required=False)


class InvokeInput(serializers.Serializer[Any]):
    """invoke/v1: what a request says. Read by runtimes.rules.parse_invoke, which names every issue."""

    input = PromptInput()
    sessionId = serializers.CharField(required=False, max_length=rules.LONGEST_SESSION_ID)
    options = InvokeOptions(required=False)
    metadata = serializers.DictField(required=False)


class TextOutput(serializers.Serializer[Any]):
    """What the agent said."""

    text = serializers.CharField()


class InvocationUsageOutput(serializers.Serializer[Any]):
    """What one invocation used."""

    tokens = serializers.IntegerField()
    computeMs = serializers.IntegerField()
    toolCalls = serializers.IntegerField()
    tokensEstimated = serializers.BooleanField(
        required=False, help_text="Nobody reported tokens: counted from the text in and out."
    )


class InvokeOutput(serializers.Serializer[Any]):
    """invoke/v1: the answer."""

    output = TextOutput()
    sessionId = serializers.CharField()
    usage = InvocationUsageOutput()
    invocationId = serializers.CharField()
    traceId = serializers.CharField()


_IDEMPOTENCY = OpenApiParameter(
    "Idempotency-Key", OpenApiTypes.STR, OpenApiParameter.HEADER, description="Makes a retry safe for 24 hours."
)


class InvokeView(ApiView):
    """Invoke an agent and wait for its answer."""

    required_scope = Scope.INVOKE
    # The rate of invocations is exact and part of the admission.
    throttle_classes = ()
    is_audited = False

    @extend_schema(operation_id="invoke", request=InvokeInput, responses={200: InvokeOutput}, parameters=[_IDEMPOTENCY])
    def post(self, request: Request, agent: str) -> HttpResponseBase:
        """Refuse before the provider costs money, call it once, settle, answer."""
        caller = caller_of(request)
        parsed = rules.parse_invoke(request.data)
        invocation_id = new_id()
        with remembered(request, f"invoke {agent}", invocation_id) as memory:
            if isinstance(memory, Replay):
                return memory.response()
            started = invoke.start(
                caller.account_id,
                agent,
                parsed,
                token_id=caller.token_id,
                trace_id=current_trace_id(),
                invocation_id=invocation_id,
            )
            memory.took_effect()
            return memory.keep(Response(invoke.finish(started), headers=started.headers()))


class StreamView(ApiView):
    """Invoke an agent and read its answer as it comes."""

    required_scope = Scope.INVOKE
    throttle_classes = ()
    is_audited = False

    @extend_schema(
        operation_id="invokeStream",
        request=InvokeInput,
        responses={(200, "text/event-stream"): OpenApiTypes.STR},
        parameters=[_IDEMPOTENCY],
    )
    def post(self, request: Request, agent: str) -> HttpResponseBase:
        """Send meta, delta, usage and done (or error) as server-sent events, never buffered."""
        caller = caller_of(request)
        parsed = rules.parse_invoke(request.data)
        invocation_id = new_id()
        with remembered(request, f"stream {agent}", invocation_id) as memory:
            if isinstance(memory, Replay):
                return memory.response()
            started = invoke.start(
                caller.account_id,
                agent,
                parsed,
                token_id=caller.token_id,
                trace_id=current_trace_id(),
                invocation_id=invocation_id,
            )
            memory.took_effect()
            answer = invoke.open_stream(started)
            memory.keep_streamed()
            return StreamingHttpResponse(
                ServerSentEvents(answer),
                content_type="text/event-stream; charset=utf-8",
                headers={"Cache-Control": "no-store, no-transform", "X-Accel-Buffering": "no", **started.headers()},
            )


class ServerSentEvents:
    """A streamed answer as bytes; `close()` reaches it even when not one chunk was read."""

    def __init__(self, answer: invoke.StreamedAnswer) -> None:
        self._answer = answer

    def __iter__(self) -> Iterator[bytes]:
        for event, data in self._answer:
            yield encode_event(event, data)

    def close(self) -> None:
        """Tell the answer that its reader is done, or gone."""
        self._answer.close()


def encode_event(event: str, data: Mapping[str, Any]) -> bytes:
    """Write one server-sent event; its data is one line of JSON, so nothing in it can end it early."""
    return f"event: {event}\ndata: {json.dumps(data, ensure_ascii=False, separators=(',', ':'))}\n\n".encode()


urlpatterns = [
    path("invoke/<str:agent>", InvokeView.as_view(), name="invoke"),
    path("invoke/<str:agent>/stream", StreamView.as_view(), name="invoke-stream"),
]
