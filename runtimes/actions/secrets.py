"""Secrets of an agent: sent through to the provider, never kept, never shown, never logged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from django.db import transaction
from django.db.models import F, QuerySet
from django.utils import timezone

from runtimes import rules
from runtimes.models import Agent, SecretName
from runtimes.providers import PROVIDERS
from runtimes.providers.base import AgentRef, Provider
from webhost.errors import ConflictError, InvalidRequestError, Issue, NotFoundError

# What Cloudflare takes as one secret, and as bindings of one script with room to spare.
LARGEST_VALUE_BYTES = 5 * 1024
MOST_SECRETS = 64


@dataclass(frozen=True)
class SecretState:
    """A secret by its name: whether it is set, when it was first and last, and whether the agent needs it."""

    name: str
    is_set: bool
    is_required: bool
    set_at: datetime | None = None
    rotated_at: datetime | None = None


def put_secrets(agent: Agent, values: Mapping[str, str]) -> list[SecretState]:
    """Set or rotate secrets; the running agent sees them with its next invocation.

    Raises InvalidRequestError naming what is wrong with which name, ConflictError where there is no room.
    """
    issues: list[Issue] = []
    for name, value in values.items():
        if not rules.valid_secret_name(name):
            issues.append({"path": name[:80], "message": "A letter or _, then letters, digits and _; at most 64."})
        elif not 1 <= len(value.encode()) <= LARGEST_VALUE_BYTES or "\x00" in value:
            issues.append({"path": name, "message": f"Text of 1 to {LARGEST_VALUE_BYTES:,} bytes, without NUL."})
    if issues or not values:
        raise InvalidRequestError("The secrets are not valid.", issues=issues, path=None if issues else "secrets")
    known = set(_names_of(agent).values_list("name", flat=True))
    if len(known | values.keys()) > MOST_SECRETS:
        raise ConflictError(f"An agent has at most {MOST_SECRETS} secrets.")
    # The provider first, so that a name never claims a value that is nowhere. No transaction is open meanwhile.
    _provider_of(agent).put_secrets(AgentRef(agent.account_id, agent.pk), values)
    row = {"agent": agent, "account_id": agent.account_id, "runtime": agent.runtime_provider, "set_at": timezone.now()}
    with transaction.atomic():
        SecretName.objects.bulk_create(
            [SecretName(name=name, **row) for name in sorted(values.keys() - known)], ignore_conflicts=True
        )
        _names_of(agent).filter(name__in=values.keys() & known).update(rotated_at=row["set_at"])
    return list_secrets(agent)


def list_secrets(agent: Agent) -> list[SecretState]:
    """Return the names that are set where the agent runs, and those that the active deployment asks for."""
    required, optional = _declared(agent)
    rows = {row.name: row for row in _names_of(agent).order_by(F("name"))}
    return [
        SecretState(
            name=name,
            is_set=name in rows,
            is_required=name in required,
            set_at=rows[name].set_at if name in rows else None,
            rotated_at=rows[name].rotated_at if name in rows else None,
        )
        for name in sorted(rows.keys() | required | optional)
    ]


def delete_secret(agent: Agent, name: str) -> None:
    """Delete a secret; later deployments and rollbacks do not bring it back. Raises NotFoundError."""
    if not _names_of(agent).filter(name=name).exists():
        raise NotFoundError
    _provider_of(agent).put_secrets(AgentRef(agent.account_id, agent.pk), {name: None})
    _names_of(agent).filter(name=name).delete()


def _names_of(agent: Agent) -> QuerySet[SecretName]:
    """Return the names at the provider of the agent's runtime: another one has none of their values."""
    return SecretName.objects.filter(agent=agent, runtime=agent.runtime_provider)


def _provider_of(agent: Agent) -> Provider:
    provider = PROVIDERS.get(agent.runtime_provider)
    if provider is None:
        raise ConflictError(f"The runtime {agent.runtime_provider} takes no secrets yet.")
    return provider


def _declared(agent: Agent) -> tuple[frozenset[str], frozenset[str]]:
    config = agent.active_deployment.config if agent.active_deployment else {}
    env = config.get("env") or {}
    return frozenset(env.get("requiredKeys") or ()), frozenset(env.get("optionalKeys") or ())
