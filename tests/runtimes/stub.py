"""A provider in the test's own process: counts its calls and fails as it is told. For what HTTP cannot show."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from entitlements.enums import Runtime
from runtimes.providers.base import (
    AgentRef,
    Answer,
    Delta,
    Final,
    Invocation,
    Provider,
    StreamEvent,
    Target,
    Usage,
)

USED = Usage(tokens=3, compute_ms=5)


class Events:
    """Stream events that can be closed."""

    def __init__(self, events: Iterator[StreamEvent]) -> None:
        self.events = events
        self.closed = False

    def __iter__(self) -> Events:
        return self

    def __next__(self) -> StreamEvent:
        return next(self.events)

    def close(self) -> None:
        self.closed = True


@dataclass
class StubProvider(Provider):
    """Answers at once, unless `act` says otherwise; keeps what it was asked."""

    act: Callable[[Invocation], str] = lambda invocation: "hello"
    invocations: list[Invocation] = field(default_factory=list)
    secrets: dict[Any, dict[str, str]] = field(default_factory=dict)
    activated: list[Target] = field(default_factory=list)
    fail: Exception | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)

    def _call(self, invocation: Invocation) -> str:
        with self.lock:
            self.invocations.append(invocation)
        if self.fail is not None:
            raise self.fail
        return self.act(invocation)

    runtime = Runtime.CLOUDFLARE

    def _deploy(self, target: Target, bundle: Any) -> Mapping[str, str]:
        return {}

    def _activate(self, target: Target) -> None:
        self.activated.append(target)

    def _invoke(self, target: Target, invocation: Invocation) -> Answer:
        return Answer(self._call(invocation), USED)

    def _stream(self, target: Target, invocation: Invocation) -> Events:
        text = self._call(invocation)
        return Events(iter([Delta(text), Final(USED)]))

    def _put_secrets(self, agent: AgentRef, values: Mapping[str, str | None]) -> None:
        if self.fail is not None:
            raise self.fail
        kept = self.secrets.setdefault(agent.agent_id, {})
        for name, value in values.items():
            if value is None:
                kept.pop(name, None)
            else:
                kept[name] = value

    def _remove(self, target: Target) -> None: ...

    def _remove_agent(self, agent: AgentRef) -> None: ...

    def _health(self) -> bool:
        return True
