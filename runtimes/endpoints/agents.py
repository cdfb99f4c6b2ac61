"""/v1/agents: create, list, show, change, disable, enable, delete."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from entitlements.authentication import caller_of
from entitlements.enums import Runtime
from entitlements.idempotency import IDEMPOTENCY_PARAMETER, Fate, Found, Replay, remembered
from runtimes.actions import agents
from runtimes.enums import AgentStatus
from runtimes.models import Agent
from webhost.api import ApiView, PublicId, StrictSerializer, validated
from webhost.errors import NotFoundError
from webhost.ids import Prefix, new_id, parse_id
from webhost.paging import PageQuery, page_of, page_response, paginate

_RUNTIMES = [runtime.value for runtime in Runtime]
_NAME = r"^[A-Za-z0-9_-]{3,64}\Z"
_NAME_RULE = "3 to 64 of letters, digits, _ and -; unique in the account."


def _name(**options: Any) -> serializers.RegexField:
    return serializers.RegexField(
        _NAME, trim_whitespace=False, help_text=_NAME_RULE, error_messages={"invalid": _NAME_RULE}, **options
    )


class AgentInput(StrictSerializer):
    """An agent to create."""

    name = _name()
    description = serializers.CharField(required=False, default="", allow_blank=True, max_length=200)
    runtimeProvider = serializers.ChoiceField(
        source="runtime_provider", choices=_RUNTIMES, required=False, default=Runtime.CLOUDFLARE.value
    )


class AgentChangeInput(StrictSerializer):
    """What to change of an agent; what is not named stays."""

    name = _name(required=False)
    description = serializers.CharField(required=False, allow_blank=True, max_length=200)
    runtimeProvider = serializers.ChoiceField(source="runtime_provider", choices=_RUNTIMES, required=False)


class AgentOutput(serializers.Serializer[Any]):
    """An agent."""

    id = PublicId(Prefix.AGENT)
    name = serializers.CharField()
    description = serializers.CharField(allow_blank=True)
    runtimeProvider = serializers.ChoiceField(source="runtime_provider", choices=_RUNTIMES)
    status = serializers.ChoiceField(choices=[status.value for status in AgentStatus])
    activeDeploymentId = PublicId(Prefix.DEPLOYMENT, source="active_deployment_id", allow_null=True)
    activeVersion = serializers.IntegerField(source="active_deployment.version", allow_null=True, default=None)
    lastError = serializers.CharField(
        source="last_error", allow_blank=True, help_text="Why the last deployment failed."
    )
    createdAt = serializers.DateTimeField(source="created_at")
    disabledAt = serializers.DateTimeField(source="disabled_at", allow_null=True)


def _agent_made(account_id: UUID) -> Callable[[UUID], Found]:
    def outcome_of(agent_id: UUID) -> Found:
        try:
            agent = agents.get_agent(account_id, agent_id)
        except NotFoundError:
            # Created and deleted since: creating it again would do it twice.
            gone = Agent.objects.filter(pk=agent_id).exists()
            return Found(Fate.OVER, NotFoundError("The agent was deleted since.")) if gone else Found(Fate.NOTHING_YET)
        return Found(Fate.OVER, Response(AgentOutput(agent).data, status=201))

    return outcome_of


class AgentsView(ApiView):
    """One's agents."""

    @extend_schema(
        operation_id="listAgents", tags=["agents"], parameters=[PageQuery], responses={200: page_of(AgentOutput)}
    )
    def get(self, request: Request) -> Response:
        """List one's agents, newest first."""
        query = validated(PageQuery, request.query_params.dict())
        return page_response(paginate(agents.agents_of(caller_of(request).account_id), query, by="id"), AgentOutput)

    @extend_schema(
        operation_id="createAgent",
        tags=["agents"],
        request=AgentInput,
        responses={201: AgentOutput},
        parameters=[IDEMPOTENCY_PARAMETER],
    )
    def post(self, request: Request) -> Response:
        """Create an agent; refused where its runtime is not in the tier, or the cap is reached."""
        account_id = caller_of(request).account_id
        given = validated(AgentInput, request.data)
        with remembered(request, "agents.create", new_id(), outcome_of=_agent_made(account_id)) as memory:
            if isinstance(memory, Replay):
                return memory.response()
            agent = agents.create_agent(
                account_id,
                memory.effect_id,
                name=given["name"],
                description=given["description"],
                runtime=given["runtime_provider"],
            )
            return memory.keep(Response(AgentOutput(agent).data, status=201))


class AgentView(ApiView):
    """One agent."""

    @extend_schema(operation_id="getAgent", tags=["agents"], responses={200: AgentOutput})
    def get(self, request: Request, agent: str) -> Response:
        """Show an agent."""
        found = agents.get_agent(caller_of(request).account_id, parse_id(Prefix.AGENT, agent))
        return Response(AgentOutput(found).data)

    @extend_schema(operation_id="changeAgent", tags=["agents"], request=AgentChangeInput, responses={200: AgentOutput})
    def patch(self, request: Request, agent: str) -> Response:
        """Change name, description or runtime; switching is refused where the runtime is not in the tier."""
        agent_id = parse_id(Prefix.AGENT, agent)
        changes = validated(AgentChangeInput, request.data)
        return Response(AgentOutput(agents.change_agent(caller_of(request).account_id, agent_id, changes)).data)

    @extend_schema(operation_id="deleteAgent", tags=["agents"], responses={204: None})
    def delete(self, request: Request, agent: str) -> Response:
        """Delete an agent: no more invocations from now on; its receipts stay."""
        agents.delete_agent(caller_of(request).account_id, parse_id(Prefix.AGENT, agent))
        return Response(status=204)


class AgentSwitchView(ApiView):
    """Takes an agent out of service, or back into it."""

    disabled: bool = False

    @extend_schema(tags=["agents"], request=None, responses={200: AgentOutput})
    def post(self, request: Request, agent: str) -> Response:
        """Refuse its invocations from now on (409), or take them again. Doing it twice changes nothing."""
        agent_id = parse_id(Prefix.AGENT, agent)
        found = agents.set_disabled(caller_of(request).account_id, agent_id, disabled=self.disabled)
        return Response(AgentOutput(found).data)
