"""POST /v1/invoke/{agent} and /stream: the door to every provider."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from django.http import HttpResponseBase, StreamingHttpResponse
from django.urls import path
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from entitlements.authentication import caller_of
from entitlements.enums import Scope
from entitlements.idempotency import IDEMPOTENCY_PARAMETER, Memory, Replay, remembered
from entitlements.throttles import StrangerThrottle
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


def _start(request: Request, agent: str, parsed: rules.InvokeRequest, memory: Memory) -> invoke.Started:
    """Resolve and admit; from here on a repeat must not run again."""
    caller = caller_of(request)
    started = invoke.start(
        caller.account_id,
        agent,
        parsed,
        token_id=caller.token_id,
        trace_id=current_trace_id(),
        invocation_id=memory.effect_id,
        delegated_by=caller.delegated_by,
    )
    memory.took_effect()
    return started


def answered(request: Request, agent: str, parsed: rules.InvokeRequest, memory: Memory | Replay) -> Response:
    """Refuse before the provider costs money, call it once, settle, answer; or answer as the first time."""
    if isinstance(memory, Replay):
        return memory.response()
    started = _start(request, agent, parsed, memory)
    return memory.keep(Response(invoke.finish(started), headers=started.headers()))


class InvokeView(ApiView):
    """Invoke an agent and wait for its answer."""

    required_scope = Scope.INVOKE
    # The rate of invocations is exact and part of the admission; guessing tokens is paced.
    throttle_classes = (StrangerThrottle,)
    is_audited = False

    @extend_schema(
        operation_id="invoke", request=InvokeInput, responses={200: InvokeOutput}, parameters=[IDEMPOTENCY_PARAMETER]
    )
    def post(self, request: Request, agent: str) -> HttpResponseBase:
        """Refuse before the provider costs money, call it once, settle, answer."""
        parsed = rules.parse_invoke(request.data)
        with remembered(request, f"invoke {agent}", new_id()) as memory:
            return answered(request, agent, parsed, memory)


class StreamView(ApiView):
    """Invoke an agent and read its answer as it comes."""

    required_scope = Scope.INVOKE
    throttle_classes = (StrangerThrottle,)
    is_audited = False

    @extend_schema(
        operation_id="invokeStream",
        request=InvokeInput,
        responses={(200, "text/event-stream"): OpenApiTypes.STR},
        parameters=[IDEMPOTENCY_PARAMETER],
    )
    def post(self, request: Request, agent: str) -> HttpResponseBase:
        """Send meta, delta, usage and done (or error) as server-sent events, never buffered."""
        parsed = rules.parse_invoke(request.data)
        with remembered(request, f"stream {agent}", new_id()) as memory:
            if isinstance(memory, Replay):
                return memory.response()
            started = _start(request, agent, parsed, memory)
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
