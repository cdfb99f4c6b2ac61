"""What every provider does, and the last door: each call that may cost money asks the entitlements again."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import ClassVar, Protocol, Self, final
from uuid import UUID

from entitlements.actions import gates
from entitlements.enums import Capability, Runtime
from runtimes.bundle import Bundle
from webhost.ids import Prefix, public_id


@dataclass(frozen=True)
class Target:
    """One deployment of one agent, as the adapters know it.

    `capabilities` are those it asks for while it is deployed, and those it was granted when it is invoked;
    `remote` is what the provider called the things that deploying made.
    """

    account_id: UUID
    agent_id: UUID
    deployment_id: UUID
    version: int
    runtime: str
    root_key_id: str
    capabilities: frozenset[str]
    timeout_seconds: int
    remote: Mapping[str, str] = field(default_factory=dict)

    @property
    def public_deployment_id(self) -> str:
        """The deployment's id as the outside world sees it."""
        return public_id(Prefix.DEPLOYMENT, self.deployment_id)


@dataclass(frozen=True)
class AgentRef:
    """One agent of one account, whatever is deployed of it."""

    account_id: UUID
    agent_id: UUID


@dataclass(frozen=True)
class Invocation:
    """One call: its id, its trace, the JSON that the runtime receives, and the session as its caller names it."""

    invocation_id: UUID
    trace_id: str
    body: bytes
    session_id: str = ""


@dataclass(frozen=True)
class Usage:
    """What the runtime says a call used. Whole numbers, never negative; code execution in milliseconds."""

    tokens: int
    compute_ms: int
    tool_calls: int = 0
    code_ms: int = 0
    browser_sessions: int = 0
    tokens_estimated: bool = False


@dataclass(frozen=True)
class ToolSession:
    """A session of a deployment's own code interpreter or browser, as the provider lists it.

    `name` is what its starter called it: our shim the invocation, other code anything.
    """

    kind: Capability
    remote_id: str
    name: str
    started_at: datetime
    ended_at: datetime | None


@dataclass(frozen=True)
class Answer:
    """A whole answer, and what the agent printed."""

    text: str
    usage: Usage
    logs: tuple[str, ...] = ()


@dataclass(frozen=True)
class Delta:
    """A piece of a streamed answer."""

    text: str


@dataclass(frozen=True)
class Final:
    """The good end of a stream."""

    usage: Usage
    logs: tuple[str, ...] = ()


@dataclass(frozen=True)
class Failure:
    """The bad end of a stream, as the runtime tells it."""

    error_class: str
    message: str
    usage: Usage | None = None
    logs: tuple[str, ...] = ()


StreamEvent = Delta | Final | Failure


class Stream(Protocol):
    """Events as they come. Ends with Final or Failure; raises RuntimeFailedError when it breaks off."""

    def __iter__(self) -> Self:
        """Return itself."""

    def __next__(self) -> StreamEvent:
        """Wait for the next event."""

    def close(self) -> None:
        """Stop the upstream; harmless when it has ended."""


class Provider(ABC):
    """A runtime. Its public methods are final.

    What may cost money asks the entitlements again, fresh from the database and independent of the caller;
    what only takes away or looks never asks.
    """

    runtime: ClassVar[Runtime]
    # How many deployments that served once may stay beside the one that serves; None is all of them.
    keeps: ClassVar[int | None] = None
    # Whether a session is a machine of one deployment's own, which costs money while it lives: each is recorded, and
    # ended with what it belongs to. Otherwise a session is the agent's, outlives its versions, and idles for nothing.
    has_machines: ClassVar[bool] = False

    @final
    def deploy(self, target: Target, bundle: Bundle) -> Mapping[str, str]:
        """Bring a bundle to the provider and return what it called the parts; a repeat adopts what it made.

        Raises DeploymentFailedError.
        """
        self._ask(target)
        return self._deploy(target, bundle)

    @final
    def activate(self, target: Target) -> None:
        """Make sure that a deployment can serve, before the agent's pointer moves to it."""
        self._ask(target)
        self._activate(target)

    @final
    def invoke(self, target: Target, invocation: Invocation) -> Answer:
        """Call the agent, once. Raises NotReachedError (nothing ran) or RuntimeFailedError (it counts)."""
        self._ask(target)
        return self._invoke(target, invocation)

    @final
    def stream(self, target: Target, invocation: Invocation) -> Stream:
        """Call the agent, once, and return its answer as it comes; raises as `invoke` does."""
        self._ask(target)
        return self._stream(target, invocation)

    @final
    def put_secrets(self, agent: AgentRef, values: Mapping[str, str | None]) -> None:
        """Send secrets through, or delete those whose value is None. They are kept by the provider alone."""
        if any(value is not None for value in values.values()):
            gates.require_runtime(agent.account_id, self.runtime, agent_id=agent.agent_id)
        self._put_secrets(agent, values)

    @final
    def grant(self, target: Target, capabilities: frozenset[str]) -> None:
        """Give a deployment capabilities that were withdrawn from it; given already is success."""
        self._ask(replace(target, capabilities=capabilities))
        self._grant(target, capabilities)

    @final
    def withdraw(self, target: Target, capabilities: frozenset[str]) -> None:
        """Take capabilities from a deployment, end their use, and see that they are gone; gone already is success.

        Raises DeploymentFailedError where that could not be done or seen.
        """
        self._withdraw(target, capabilities)

    @final
    def tool_sessions(self, target: Target) -> Sequence[ToolSession]:
        """Return every session of the deployment's own tools that the provider still lists, ended ones included.

        Raises DeploymentFailedError where it cannot be seen.
        """
        return self._tool_sessions(target)

    @final
    def stop_session(self, target: Target, session_id: str) -> None:
        """End a session and forget what it kept; one that never was is success. Raises as `invoke` does."""
        self._stop_session(target, session_id)

    @final
    def remove(self, target: Target) -> None:
        """Remove a deployment; one that is gone already is success."""
        self._remove(target)

    @final
    def remove_agent(self, agent: AgentRef) -> None:
        """Remove what belongs to an agent and no deployment; gone already is success."""
        self._remove_agent(agent)

    @final
    def health(self) -> bool:
        """Say whether the provider's management API answers."""
        return self._health()

    @staticmethod
    def _ask(target: Target) -> None:
        # Called through its module, so that a test which switches the other layers off meets this one.
        gates.require_runtime(target.account_id, target.runtime, target.capabilities, agent_id=target.agent_id)

    @abstractmethod
    def _deploy(self, target: Target, bundle: Bundle) -> Mapping[str, str]: ...

    @abstractmethod
    def _activate(self, target: Target) -> None: ...

    @abstractmethod
    def _invoke(self, target: Target, invocation: Invocation) -> Answer: ...

    @abstractmethod
    def _stream(self, target: Target, invocation: Invocation) -> Stream: ...

    @abstractmethod
    def _put_secrets(self, agent: AgentRef, values: Mapping[str, str | None]) -> None: ...

    def _grant(self, target: Target, capabilities: frozenset[str]) -> None:  # noqa: B027 - a runtime may lend nothing
        """Override where capabilities are lent."""

    def _withdraw(self, target: Target, capabilities: frozenset[str]) -> None:  # noqa: B027 - as above
        """Override where capabilities are lent."""

    def _tool_sessions(self, target: Target) -> Sequence[ToolSession]:  # noqa: ARG002 - nothing to look at
        """Override where tools are lent."""
        return ()

    def _stop_session(self, target: Target, session_id: str) -> None:  # noqa: B027 - a runtime may keep no sessions
        """Override where sessions are kept."""

    @abstractmethod
    def _remove(self, target: Target) -> None: ...

    @abstractmethod
    def _remove_agent(self, agent: AgentRef) -> None: ...

    @abstractmethod
    def _health(self) -> bool: ...
