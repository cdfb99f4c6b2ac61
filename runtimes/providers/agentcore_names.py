"""What everything of ours is called at AWS, from ids alone: pure, so that what was made is found again.

Hyphens are not allowed in AgentCore's names and 48 characters are the most, so a name is a letter and an id.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Final

from django.conf import settings

from entitlements.enums import Capability
from runtimes.errors import DeploymentFailedError
from runtimes.providers.base import AgentRef, Target
from webhost.ids import Prefix, public_id

ROLE_PATH: Final = "/agents/"
BASE_POLICY: Final = "base"


@dataclass(frozen=True)
class Place:
    """Where in AWS the platform keeps its agents, from the settings."""

    region: str
    bucket: str
    prefix: str
    boundary_arn: str

    @property
    def partition(self) -> str:
        """The AWS partition, as the boundary's ARN has it."""
        return self.boundary_arn.split(":")[1]

    @property
    def account(self) -> str:
        """The platform's own AWS account, as the boundary's ARN has it."""
        return self.boundary_arn.split(":")[4]

    def arn(self, service: str, resource: str) -> str:
        """Return the ARN of a resource of ours in this region; `*` stands for any, as in policies."""
        return f"arn:{self.partition}:{service}:{self.region}:{self.account}:{resource}"


def place() -> Place:
    """Return where agents are kept; raises DeploymentFailedError where the operator has not said."""
    boundary = settings.AGENTCORE_BOUNDARY_ARN
    if not settings.AGENTCORE_BUCKET or boundary.count(":") < 5:
        raise DeploymentFailedError("The runtime agentcore is not set up here.", error_class="NotConfigured")
    return Place(settings.AWS_REGION, settings.AGENTCORE_BUCKET, settings.AGENTCORE_PREFIX, boundary)


def runtime_name(target: Target) -> str:
    """Return the name of a deployment's runtime."""
    return f"d{target.deployment_id.hex}"


def role_name(target: Target) -> str:
    """Return the name of a deployment's role."""
    return f"{settings.AGENTCORE_PREFIX}-{target.deployment_id.hex}"


def policy_name(capability: str) -> str:
    """Return the name of the inline policy that is the grant of a capability."""
    return f"cap-{capability}"


def tool_name(capability: str, target: Target) -> str:
    """Return the name of what serves a capability: the deployment's own, but for memory, which is the agent's."""
    if capability == Capability.MEMORY:
        return memory_name(target)
    return f"{'c' if capability == Capability.CODE_INTERPRETER else 'b'}{target.deployment_id.hex}"


def memory_name(agent: AgentRef | Target) -> str:
    """Return the name of an agent's memory, which outlives its versions."""
    return f"m{agent.agent_id.hex}"


def object_key(target: Target) -> str:
    """Return where in the bucket a deployment's zip lies."""
    return f"{settings.AGENTCORE_PREFIX}/{target.agent_id.hex}/{target.deployment_id.hex}.zip"


def secrets_prefix(agent: AgentRef | Target) -> str:
    """Return how the names of all secrets of an agent begin."""
    return f"{settings.AGENTCORE_PREFIX}/{agent.agent_id.hex}/"


def master_secret_name(agent: AgentRef | Target) -> str:
    """Return the name of the secret with all of an agent's values; no role may read it."""
    return f"{secrets_prefix(agent)}agent"


def secret_name(target: Target) -> str:
    """Return the name of a deployment's own copy, which its role may read."""
    return f"{secrets_prefix(target)}{target.deployment_id.hex}"


def tags_of(agent: AgentRef | Target) -> dict[str, str]:
    """Return the tags that name whose something is, under public ids."""
    tags = {
        "whs:account": public_id(Prefix.ACCOUNT, agent.account_id),
        "whs:agent": public_id(Prefix.AGENT, agent.agent_id),
    }
    if isinstance(agent, Target):
        tags["whs:deployment"] = agent.public_deployment_id
        tags["whs:version"] = str(agent.version)
    return tags


def token_of(*parts: str) -> str:
    """Return the clientToken of one intention, so that a repeat of it makes nothing twice: 64 characters."""
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def runtime_session_id(target: Target, session_id: str) -> str:
    """Return the session id that AgentCore knows: 65 characters of [0-9a-f] after an `s`, whatever was given.

    AgentCore asks for 33 to 256 characters in, but a pattern of at most 100 out. Ids of different accounts,
    agents or sessions never meet: JSON has one way to write a list.
    """
    return _session("session", target.account_id.hex, target.agent_id.hex, session_id)


def probe_session_id(target: Target, probe: str) -> str:
    """Return the session id of one probe, which no caller can name."""
    return _session("probe", target.deployment_id.hex, probe)


def _session(*parts: str) -> str:
    return f"s{hashlib.sha256(json.dumps(parts).encode()).hexdigest()}"
