"""/v1/agents/{id}/sessions: the conversations with an agent, listed and stopped."""

from __future__ import annotations

from typing import Any

from django.utils import timezone
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema, extend_schema_field
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from entitlements.authentication import caller_of
from entitlements.enums import Runtime
from runtimes.actions.agents import get_agent
from runtimes.actions.sessions import list_sessions, stop_session
from runtimes.display import session_status
from runtimes.enums import SessionStatus
from runtimes.models import AgentSession
from webhost.api import ApiView, PublicId, validated
from webhost.ids import Prefix, parse_id
from webhost.paging import PageQuery, page_of, page_response, paginate

_STOPPED_BY_API = "stopped by its owner, by API"


class SessionOutput(serializers.Serializer[Any]):
    """A conversation with an agent."""

    sessionId = serializers.CharField(source="session_id", help_text="As its caller names it.")
    runtimeProvider = serializers.ChoiceField(source="runtime", choices=[runtime.value for runtime in Runtime])
    deploymentId = PublicId(Prefix.DEPLOYMENT, source="deployment_id", help_text="The version that answered last.")
    status = serializers.SerializerMethodField(help_text="`expired`: unused, or alive, for as long as it may be.")
    invocations = serializers.IntegerField()
    startedAt = serializers.DateTimeField(source="started_at")
    lastUsedAt = serializers.DateTimeField(source="last_used_at")
    endsAt = serializers.DateTimeField(
        source="ends_at", help_text="When it ends, or would have, if nobody uses or stops it."
    )
    stoppedAt = serializers.DateTimeField(source="stopped_at", allow_null=True)

    @extend_schema_field(serializers.ChoiceField(choices=[status.value for status in SessionStatus]))
    def get_status(self, session: AgentSession) -> str:
        """Return where it stands now."""
        return session_status(session, timezone.now()).value


class SessionsView(ApiView):
    """An agent's sessions."""

    @extend_schema(
        operation_id="listSessions", tags=["sessions"], parameters=[PageQuery], responses={200: page_of(SessionOutput)}
    )
    def get(self, request: Request, agent: str) -> Response:
        """List an agent's sessions, the last used first."""
        query = validated(PageQuery, request.query_params.dict())
        own = get_agent(caller_of(request).account_id, parse_id(Prefix.AGENT, agent))
        return page_response(paginate(list_sessions(own), query, by=("last_used_at", "id")), SessionOutput)


class SessionView(ApiView):
    """One session."""

    @extend_schema(
        operation_id="stopSession",
        tags=["sessions"],
        parameters=[
            OpenApiParameter(
                "session",
                OpenApiTypes.STR,
                OpenApiParameter.PATH,
                description="The sessionId, URL-encoded, its slashes included.",
            )
        ],
        responses={204: None},
    )
    def delete(self, request: Request, agent: str, session: str) -> Response:
        """Stop a session: what it keeps is gone, and a call that names it is refused. Stopping twice is success."""
        own = get_agent(caller_of(request).account_id, parse_id(Prefix.AGENT, agent))
        stop_session(own, session, because=_STOPPED_BY_API)
        return Response(status=204)
