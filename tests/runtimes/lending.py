"""A provider in the test's own process that lends capabilities and keeps sessions, and can be told to fail."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from entitlements.enums import Runtime
from runtimes.errors import DeploymentFailedError
from runtimes.providers.base import AgentRef, Answer, Final, Invocation, Provider, Target, ToolSession, Usage
from tests.runtimes.stub import Events


@dataclass
class Lender(Provider):
    """An AgentCore that does as it is asked, behind the real base class, and writes down what that was."""

    runtime = Runtime.AGENTCORE
    keeps = 5
    has_machines = True

    asked: list[tuple[str, Any]] = field(default_factory=list)
    invocations: list[Invocation] = field(default_factory=list)
    listed: list[ToolSession] = field(default_factory=list)
    used: Usage = field(default_factory=lambda: Usage(tokens=3, compute_ms=5))
    blind: bool = False
    broken: frozenset[str] = frozenset()

    def _note(self, what: str, about: Any) -> None:
        self.asked.append((what, about))
        if what in self.broken:
            raise DeploymentFailedError("It did not work.", error_class="Broken", retryable=True)

    def of(self, what: str) -> list[Any]:
        return [about for kind, about in self.asked if kind == what]

    def about(self, what: str, deployment: Any) -> list[Any]:
        """Return what was asked about one deployment: sweeps look at everybody's."""
        return [about for about in self.of(what) if about[0] == deployment.pk]

    def _deploy(self, target: Target, bundle: Any) -> Mapping[str, str]:
        self._note("deploy", target)
        return {"runtimeId": target.deployment_id.hex}

    def _activate(self, target: Target) -> None:
        self._note("activate", target)

    def _invoke(self, target: Target, invocation: Invocation) -> Answer:
        self.invocations.append(invocation)
        self._note("invoke", target)
        return Answer("hello", self.used)

    def _stream(self, target: Target, invocation: Invocation) -> Events:
        self.invocations.append(invocation)
        self._note("stream", target)
        return Events(iter([Final(self.used)]))

    def _put_secrets(self, agent: AgentRef, values: Mapping[str, str | None]) -> None:
        self._note("secrets", dict(values))

    def _grant(self, target: Target, capabilities: frozenset[str]) -> None:
        self._note("grant", (target.deployment_id, capabilities))

    def _withdraw(self, target: Target, capabilities: frozenset[str]) -> None:
        self._note("withdraw", (target.deployment_id, capabilities))

    def _tool_sessions(self, target: Target) -> Sequence[ToolSession]:
        if self.blind:
            raise DeploymentFailedError("Nothing can be seen.", error_class="Blind", retryable=True)
        return list(self.listed)

    def _stop_session(self, target: Target, session_id: str) -> None:
        self._note("stop", (target.deployment_id, session_id))

    def _remove(self, target: Target) -> None:
        self._note("remove", target.deployment_id)

    def _remove_agent(self, agent: AgentRef) -> None:
        self._note("remove_agent", agent.agent_id)

    def _health(self) -> bool:
        return True
