"""/v1/agents/{id}/deployments and /v1/deployments/{id}: deploy, follow, activate, give up."""

from __future__ import annotations

import hashlib
from typing import Any, BinaryIO, cast
from uuid import UUID

from django.conf import settings
from django.core.files.uploadedfile import UploadedFile
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.parsers import MultiPartParser
from rest_framework.request import Request
from rest_framework.response import Response

from entitlements.authentication import caller_of
from entitlements.enums import Capability, Runtime
from entitlements.idempotency import IDEMPOTENCY_PARAMETER, Fate, Found, Replay, remembered
from runtimes.actions.agents import get_agent
from runtimes.actions.deployments import accept_deployment, activate_deployment, remove_deployment
from runtimes.display import VISIBLE_DEPLOYMENTS
from runtimes.enums import DeploymentStatus
from runtimes.models import Agent, AgentLogLine, Deployment, DeploymentLogLine
from webhost.api import ApiView, PublicId, StrictSerializer, validated
from webhost.errors import NotFoundError
from webhost.ids import Prefix, new_id, parse_id
from webhost.paging import PageQuery, page_of, page_response, paginate

# What a multipart body holds beside the zip: boundaries, headers, a long file name.
_MULTIPART_MARGIN = 64 * 1024


class BundleInput(StrictSerializer):
    """A bundle to deploy, as multipart/form-data."""

    bundle = serializers.FileField(
        max_length=255, help_text="A zip with agent.config.json and the agent's modules.", use_url=False
    )


class DeploymentErrorOutput(serializers.Serializer[Any]):
    """Why a deployment failed."""

    code = serializers.CharField(source="error_code")
    message = serializers.CharField(source="error_message")


class DeploymentOutput(serializers.Serializer[Any]):
    """One version of an agent. What it is never changes; only its status does."""

    id = PublicId(Prefix.DEPLOYMENT)
    agentId = PublicId(Prefix.AGENT, source="agent_id")
    version = serializers.IntegerField()
    runtimeProvider = serializers.ChoiceField(source="runtime_provider", choices=[r.value for r in Runtime])
    status = serializers.ChoiceField(choices=[status.value for status in DeploymentStatus])
    sourceSha256 = serializers.CharField(source="artifact_id", help_text="Of the zip, as it was uploaded.")
    deployedSha256 = serializers.CharField(
        source="deployed_sha256", allow_blank=True, help_text="Of what is deployed: the same bundle, the same hash."
    )
    capabilities = serializers.ListField(child=serializers.ChoiceField(choices=[c.value for c in Capability]))
    timeoutSeconds = serializers.IntegerField(source="timeout_seconds")
    error = DeploymentErrorOutput(source="*", allow_null=True, help_text="Null unless it failed.")
    createdAt = serializers.DateTimeField(source="created_at")
    finishedAt = serializers.DateTimeField(source="finished_at", allow_null=True)

    def to_representation(self, instance: Deployment) -> dict[str, Any]:
        """Show an error only where there is one."""
        shown: dict[str, Any] = super().to_representation(instance)
        return shown if instance.error_code else shown | {"error": None}


class ActivateInput(StrictSerializer):
    """Why another version is to serve."""

    reason = serializers.CharField(max_length=500, help_text="Kept in the history.")


class LogQuery(PageQuery):
    """Which log, and how much of it."""

    source = serializers.ChoiceField(  # type: ignore[assignment]  # DRF takes fields off the class
        choices=["deploy", "agent"],
        required=False,
        default="deploy",
        help_text="`deploy`: how the deployment went. `agent`: what the agent printed, by invocation.",
    )


class LogLineOutput(serializers.Serializer[Any]):
    """A line of a deployment's log, or what an agent printed during one invocation."""

    at = serializers.DateTimeField()
    text = serializers.CharField()
    invocationId = PublicId(Prefix.INVOCATION, allow_null=True, help_text="Null in the log of the deployment itself.")


def _own_agent(request: Request, agent: str) -> Agent:
    return get_agent(caller_of(request).account_id, parse_id(Prefix.AGENT, agent))


def _own_deployment(request: Request, deployment: str, agent: Agent | None = None) -> Deployment:
    found = (
        Deployment.objects.select_related("agent")
        .filter(
            pk=parse_id(Prefix.DEPLOYMENT, deployment),
            account_id=caller_of(request).account_id,
            agent__deleted_at__isnull=True,
        )
        .filter(VISIBLE_DEPLOYMENTS)
    )
    one = (found if agent is None else found.filter(agent=agent)).first()
    if one is None:
        raise NotFoundError
    return one


def _deployment_made(deployment_id: UUID) -> Found:
    deployment = Deployment.objects.filter(pk=deployment_id).first()
    if deployment is None:
        return Found(Fate.NOTHING_YET)
    return Found(Fate.OVER, Response(DeploymentOutput(deployment).data, status=202))


class DeploymentsView(ApiView):
    """The versions of one agent."""

    parser_classes = (MultiPartParser,)
    body_limit = settings.BUNDLE_LIMIT + _MULTIPART_MARGIN

    @extend_schema(
        operation_id="listDeployments",
        tags=["deployments"],
        parameters=[PageQuery],
        responses={200: page_of(DeploymentOutput)},
    )
    def get(self, request: Request, agent: str) -> Response:
        """List an agent's versions, newest first."""
        query = validated(PageQuery, request.query_params.dict())
        found = Deployment.objects.filter(VISIBLE_DEPLOYMENTS, agent=_own_agent(request, agent))
        return page_response(paginate(found, query, by="version"), DeploymentOutput)

    @extend_schema(
        operation_id="deploy",
        tags=["deployments"],
        request={"multipart/form-data": BundleInput},
        responses={202: DeploymentOutput},
        parameters=[IDEMPOTENCY_PARAMETER],
    )
    def post(self, request: Request, agent: str) -> Response:
        """Check a bundle and deploy it; the answer comes before it serves, so follow its status."""
        own = _own_agent(request, agent)
        upload: UploadedFile[bytes] = validated(BundleInput, request.data)["bundle"]
        # The parts of a multipart body are split by chance, so what was uploaded is what is compared.
        body = _sha256(upload)
        operation = f"agents.{own.pk.hex}.deploy"
        with remembered(request, operation, new_id(), body_digest=body, outcome_of=_deployment_made) as memory:
            if isinstance(memory, Replay):
                return memory.response()
            deployment = accept_deployment(own, cast("BinaryIO", upload), deployment_id=memory.effect_id)
            return memory.keep(Response(DeploymentOutput(deployment).data, status=202))


def _sha256(upload: UploadedFile[bytes]) -> bytes:
    digest = hashlib.sha256()
    for chunk in upload.chunks():
        digest.update(chunk)
    return digest.digest()


class ActivateView(ApiView):
    """Lets another version serve."""

    @extend_schema(
        operation_id="activateDeployment",
        tags=["deployments"],
        request=ActivateInput,
        responses={200: DeploymentOutput},
    )
    def post(self, request: Request, agent: str, deployment: str) -> Response:
        """Move the agent to a version that was deployed before, after asking the entitlements again."""
        reason = validated(ActivateInput, request.data)["reason"]
        own = _own_agent(request, agent)
        chosen = _own_deployment(request, deployment, own)
        return Response(DeploymentOutput(activate_deployment(own, chosen, reason)).data)


class DeploymentView(ApiView):
    """One version of an agent."""

    @extend_schema(operation_id="getDeployment", tags=["deployments"], responses={200: DeploymentOutput})
    def get(self, request: Request, deployment: str) -> Response:
        """Show a version: its status, and why it failed where it did."""
        return Response(DeploymentOutput(_own_deployment(request, deployment)).data)

    @extend_schema(operation_id="removeDeployment", tags=["deployments"], responses={204: None})
    def delete(self, request: Request, deployment: str) -> Response:
        """Give up a version that does not serve, which makes room under the tier's cap."""
        own = _own_deployment(request, deployment)
        remove_deployment(own.agent, own)
        return Response(status=204)


class DeploymentLogsView(ApiView):
    """What a deployment did, and what its agent printed."""

    @extend_schema(
        operation_id="getDeploymentLogs",
        tags=["deployments"],
        parameters=[LogQuery],
        responses={200: page_of(LogLineOutput)},
    )
    def get(self, request: Request, deployment: str) -> Response:
        """List lines of log, newest first, for as long as the tier keeps them."""
        query = validated(LogQuery, request.query_params.dict())
        own = _own_deployment(request, deployment)
        if query["source"] == "agent":
            printed = paginate(AgentLogLine.objects.filter(deployment_id=own.pk), query, by="id")
            lines = [{"at": row.at, "text": row.text, "invocationId": row.invocation_id} for row in printed.items]
            next_cursor = printed.next_cursor
        else:
            told = paginate(DeploymentLogLine.objects.filter(deployment=own), query, by="id")
            lines = [{"at": row.at, "text": row.line, "invocationId": None} for row in told.items]
            next_cursor = told.next_cursor
        return Response({"items": LogLineOutput(lines, many=True).data, "nextCursor": next_cursor})
