"""Who calls: one busy account, many quiet ones, and one whose budget is spent; each with an agent and a token."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final
from uuid import UUID

from django.db import transaction
from django.db.models import Max
from knox.models import get_digest_token
from knox.settings import CONSTANTS

from entitlements.enums import Runtime, Scope
from entitlements.models import Account, ApiToken, Tier
from entitlements.models.tiers import LIMIT_FIELDS
from runtimes.enums import DeploymentStatus
from runtimes.models import Agent, Artifact, Deployment
from webhost.history import noted
from webhost.ids import Prefix, public_id
from webhost.signing import current_root_key_id


@dataclass(frozen=True)
class Caller:
    """An account with the agent that it invokes."""

    account_id: UUID
    agent_id: UUID
    deployment_id: UUID
    token: str

    @property
    def path(self) -> str:
        """Where it invokes its agent."""
        return f"/v1/invoke/{public_id(Prefix.AGENT, self.agent_id)}"


@dataclass(frozen=True)
class Cast:
    """Everybody who takes part."""

    hot: Caller
    spent: Caller
    many: tuple[Caller, ...]


_PLENTY: Final = 10**12


@transaction.atomic
def make_premium_callers(count: int) -> list[Caller]:
    """Write accounts that may use AgentCore and its tools; every limit is set, and none is reached."""
    name = f"bench-{secrets.token_hex(4)}-premium"
    enabled = dict.fromkeys(["agentcore_enabled", "code_interpreter_enabled", "browser_enabled"], True)
    with noted(reason="bench", source="command bench"):
        return _callers(name, _tier(name, **dict.fromkeys(LIMIT_FIELDS, _PLENTY), **enabled), count)


@transaction.atomic
def make_cast(many: int) -> Cast:
    """Write the accounts, past the API: what they may do is unlimited, except for the spent one's."""
    name = f"bench-{secrets.token_hex(4)}"
    with noted(reason="bench", source="command bench"):
        # The quotas of tools that are off; every budget is left unlimited.
        unlimited = _tier(name, **_TOOLS_OFF)
        spent = _tier(f"{name}-spent", max_requests_per_period=1, **_TOOLS_OFF)
        callers = _callers(name, unlimited, many + 1)
        return Cast(callers[0], _callers(f"{name}-spent", spent, 1)[0], tuple(callers[1:]))


_TOOLS_OFF: Final = dict.fromkeys(
    ["max_tool_calls_per_period", "max_code_execution_seconds_per_period", "max_browser_sessions_per_period"], 0
)


def _tier(slug: str, **entitlements: int) -> Tier:
    highest = Tier.objects.aggregate(rank=Max("rank"))["rank"] or 0
    return Tier.objects.create(
        slug=slug,
        name=slug,
        rank=highest + 1,
        is_public=False,
        telemetry_retention_days=7,
        logs_retention_days=7,
        **entitlements,
    )


def _callers(name: str, tier: Tier, count: int) -> list[Caller]:
    accounts = [
        Account(email=f"{name}-{n}@example.com", password="!", support_tier=tier, support_tier_reason="bench")  # noqa: S106 - fits none
        for n in range(count)
    ]
    Account.objects.bulk_create(accounts)
    agents = [Agent(account=account, name="bench", runtime_provider=Runtime.CLOUDFLARE) for account in accounts]
    Agent.objects.bulk_create(agents)
    artifact, _ = Artifact.objects.get_or_create(sha256="0" * 64, defaults={"size": 1})
    deployments = [
        Deployment(
            agent=agent,
            account_id=agent.account_id,
            version=1,
            runtime_provider=agent.runtime_provider,
            artifact=artifact,
            config={},
            root_key_id=current_root_key_id(),
            status=DeploymentStatus.ACTIVE,
            deadline_at=datetime.now(UTC) + timedelta(days=1),
        )
        for agent in agents
    ]
    Deployment.objects.bulk_create(deployments)
    for agent, deployment in zip(agents, deployments, strict=True):
        agent.active_deployment = deployment
    Agent.objects.bulk_update(agents, ["active_deployment"])
    tokens = [get_digest_token("whs_") for _ in accounts]
    ApiToken.objects.bulk_create(
        ApiToken(
            digest=digest,
            token_key=token[: CONSTANTS.TOKEN_KEY_LENGTH],
            user=account,
            expiry=None,
            name="bench",
            scopes=[scope.value for scope in Scope],
        )
        for account, (digest, token) in zip(accounts, tokens, strict=True)
    )
    return [
        Caller(account.id, agent.id, deployment.id, token)
        for account, agent, deployment, (_, token) in zip(accounts, agents, deployments, tokens, strict=True)
    ]
