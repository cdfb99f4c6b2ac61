"""/v1/agents/{id}/secrets: set, list by name, delete. A value goes in and never comes out."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from entitlements.authentication import caller_of
from runtimes.actions.agents import get_agent
from runtimes.actions.secrets import MOST_SECRETS, SecretState, delete_secret, list_secrets, put_secrets
from runtimes.models import Agent
from webhost.api import ApiView, StrictSerializer, validated
from webhost.errors import InvalidRequestError
from webhost.ids import Prefix, parse_id


class SecretsInput(StrictSerializer):
    """Secrets to set or rotate; those not named stay as they are."""

    # Not trimmed: a key may end in a newline. Names and sizes are checked with the values unseen in the answer.
    secrets = serializers.DictField(
        child=serializers.CharField(trim_whitespace=False, allow_blank=True),
        help_text=f"Name to value; at most {MOST_SECRETS} per agent, each of 1 to 5,120 bytes.",
    )


class SecretOutput(serializers.Serializer[Any]):
    """A secret, without its value."""

    name = serializers.CharField()
    isSet = serializers.BooleanField(source="is_set")
    isRequired = serializers.BooleanField(source="is_required", help_text="The active deployment asks for it.")
    setAt = serializers.DateTimeField(source="set_at", allow_null=True)
    rotatedAt = serializers.DateTimeField(source="rotated_at", allow_null=True)


class SecretsOutput(serializers.Serializer[Any]):
    """An agent's secrets by name."""

    items = SecretOutput(many=True)


def _own_agent(request: Request, agent: str) -> Agent:
    return get_agent(caller_of(request).account_id, parse_id(Prefix.AGENT, agent))


def _shown(states: list[SecretState]) -> Response:
    return Response(SecretsOutput({"items": states}).data)


class SecretsView(ApiView):
    """An agent's secrets."""

    @extend_schema(operation_id="listSecrets", tags=["secrets"], responses={200: SecretsOutput})
    def get(self, request: Request, agent: str) -> Response:
        """List the names that are set, and those that the active deployment asks for."""
        return _shown(list_secrets(_own_agent(request, agent)))

    @extend_schema(operation_id="putSecrets", tags=["secrets"], request=SecretsInput, responses={200: SecretsOutput})
    def put(self, request: Request, agent: str) -> Response:
        """Set or rotate secrets; the agent sees them with its next invocation."""
        own = _own_agent(request, agent)
        given = validated(SecretsInput, request.data)["secrets"]
        if not given:
            raise InvalidRequestError("Name at least one secret.", path="secrets")
        return _shown(put_secrets(own, given))


class SecretView(ApiView):
    """One secret."""

    @extend_schema(operation_id="deleteSecret", tags=["secrets"], responses={204: None})
    def delete(self, request: Request, agent: str, name: str) -> Response:
        """Delete a secret; later deployments and rollbacks do not bring it back."""
        delete_secret(_own_agent(request, agent), name)
        return Response(status=204)
