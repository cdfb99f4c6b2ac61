"""What an agent gets beside its request."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType, SimpleNamespace
from typing import Any

from .session import Store
from .tools import CodeResult, ToolError, Tools, ToolUnavailableError


@dataclass(frozen=True)
class Session:
    """What is kept for the session: `get` and `put` take a key and any JSON."""

    id: str
    get: Callable[[str], Any]
    put: Callable[[str, Any], None]


class CodeInterpreter:
    """Runs code, in a machine of its own."""

    def __init__(self, tools: Tools) -> None:
        self._tools = tools

    def run(self, code: str, *, language: str = "python") -> CodeResult:
        """Run code and return its text; raises ToolUnavailableError, or ToolError."""
        return self._tools.run_code(code, language)


@dataclass(frozen=True)
class OpenBrowser:
    """A browser that is running: connect to `url` with `headers` over a WebSocket."""

    sessionId: str
    url: str
    headers: Mapping[str, str]
    close: Callable[[], None]


class Browser:
    """Lends a browser."""

    def __init__(self, tools: Tools) -> None:
        self._tools = tools

    def open(self) -> OpenBrowser:
        """Start a browser; raises ToolUnavailableError, or ToolError."""
        made = self._tools.open_browser()
        return OpenBrowser(**made, close=lambda: self._tools.close_browser(made["sessionId"]))


class Memory:
    """Remembers text beyond the life of the session's machine."""

    def __init__(self, tools: Tools) -> None:
        self._tools = tools

    def add(self, text: str, *, role: str = "user") -> None:
        """Remember a text; raises ToolUnavailableError, or ToolError."""
        self._tools.remember(text, role)

    def recent(self, count: int = 10) -> list[dict[str, str]]:
        """Return the newest memories of this session, the oldest of them first."""
        return self._tools.recall(count)


@dataclass(frozen=True)
class Context:
    """What an agent gets beside its request; the names are those of the other languages."""

    env: Mapping[str, str]
    session: Session
    traceId: str | None
    capabilities: SimpleNamespace
    limits: SimpleNamespace
    tools: SimpleNamespace
    memory: Memory


def context_of(
    request: Mapping[str, Any], trace_id: str | None, env: Mapping[str, str], store: Store, tools: Tools
) -> Context:
    """Make the context of one invocation."""
    return Context(
        env=MappingProxyType(dict(env)),
        session=Session(str(request.get("sessionId")), store.read, store.write),
        traceId=trace_id,
        capabilities=SimpleNamespace(**tools.allowed),
        limits=SimpleNamespace(remaining=(request.get("limits") or {}).get("remaining")),
        tools=SimpleNamespace(
            codeInterpreter=CodeInterpreter(tools),
            browser=Browser(tools),
            ToolError=ToolError,
            ToolUnavailableError=ToolUnavailableError,
        ),
        memory=Memory(tools),
    )
