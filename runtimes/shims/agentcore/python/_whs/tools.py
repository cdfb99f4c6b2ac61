"""The tools and the memory of AgentCore, as one invocation may use them.

IAM has the last word on what is allowed; what is not allowed now is refused here already, without a call.
"""

from __future__ import annotations

import json
import math
import re
import threading
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from urllib.parse import quote

from .aws import Aws, AwsError
from .eventstream import messages

_SERVICE = "bedrock-agentcore"
_LANGUAGES = ("python", "javascript", "typescript")
_ROLES = ("USER", "ASSISTANT", "TOOL", "OTHER")
_LONGEST_MEMORY = 100_000
_MOST_MEMORIES = 100
_MOST_PAGES = 10
_START_SECONDS = 30
_STOP_SECONDS = 5
# A session that nobody stops, because this machine died, ends this long after its invocation had to.
_GRACE_SECONDS = 60
_WORDS = {"codeInterpreter": "code interpreter", "browser": "browser", "memory": "memory"}
_FOLDERS = {"codeInterpreter": "code-interpreters", "browser": "browsers"}


class ToolError(Exception):
    """A tool that was asked and did not do it; `code` is the service's word for why."""

    def __init__(self, message: str, code: str | None = None) -> None:
        super().__init__(message)
        self.code = code


class ToolUnavailableError(ToolError):
    """A tool that this invocation may not use."""

    def __init__(self, capability: str, why: str) -> None:
        super().__init__(f"The {_WORDS[capability]} is not available: {why}.", "Unavailable")
        self.capability = capability


@dataclass(frozen=True)
class CodeResult:
    """What running code said, and whether it failed."""

    text: str
    isError: bool


@dataclass
class _Started:
    """A session that was asked for; once `known` is set, either `answer` or `refusal` is there."""

    kind: str
    known: threading.Event = field(default_factory=threading.Event)
    answer: dict[str, Any] | None = None
    refusal: ToolError | None = None


def allowed_in(request: Mapping[str, Any], ids: Mapping[str, str | None]) -> dict[str, bool]:
    """Return what a request allows, of what the deployment has. Pure."""
    capabilities, options = request.get("capabilities") or {}, request.get("options") or {}
    allowed = {name: capabilities.get(name) is True and bool(ids.get(name)) for name in _WORDS}
    if options.get("tools") == "off":
        allowed |= {"codeInterpreter": False, "browser": False}
    return allowed


def result_of(data: bytes) -> CodeResult:
    """Return what a code interpreter answered; raises ToolError for an exception in it. Pure."""
    texts = []
    is_error = False
    for headers, payload in messages(data):
        if headers.get(":message-type") != "event":
            code = headers.get(":exception-type") or headers.get(":error-code") or "Unknown"
            told = headers.get(":error-message") or json.loads(payload or b"{}").get("message") or code
            raise ToolError(f"The code interpreter failed: {told}", code)
        if headers.get(":event-type") != "result":
            continue
        result = json.loads(payload)
        parts = [part.get("text") or (part.get("resource") or {}).get("text") for part in result.get("content") or []]
        said = [part for part in parts if isinstance(part, str)]
        structured = result.get("structuredContent") or {}
        texts.append("\n".join(said) if said else f"{structured.get('stdout', '')}{structured.get('stderr', '')}")
        is_error = is_error or result.get("isError") is True
    return CodeResult("".join(texts), is_error)


class Tools:
    """The tools of one invocation: starts what is asked for, counts it, and stops it at the end."""

    def __init__(
        self,
        aws: Aws,
        *,
        ids: Mapping[str, str | None],
        allowed: Mapping[str, bool],
        name: str,
        seconds: float,
        memory_session: str,
    ) -> None:
        self._aws = aws
        self._ids = ids
        self.allowed = allowed
        self._name = name
        self._seconds = seconds
        self._ends_at = time.monotonic() + seconds
        self._memory_session = memory_session
        self._sessions: list[_Started] = []
        self._interpreter: dict[str, Any] | None = None
        self._closed = False
        self._lock = threading.Lock()
        self._one_interpreter = threading.Lock()
        self.usage = {"toolCalls": 0, "codeExecutionMs": 0, "browserSessions": 0}

    def run_code(self, code: str, language: str) -> CodeResult:
        """Run code in this invocation's own session, which its first call starts."""
        self._require("codeInterpreter")
        if not isinstance(code, str):
            raise ToolError("Code is text.")
        if language not in _LANGUAGES:
            raise ToolError(f"The languages are {', '.join(_LANGUAGES)}.")
        self._count("toolCalls")
        with self._one_interpreter:
            if self._interpreter is None:
                self._interpreter = self._start("codeInterpreter")
        headers = {
            "accept": "application/vnd.amazon.eventstream",
            "x-amzn-code-interpreter-session-id": self._interpreter["sessionId"],
        }
        path = f"/code-interpreters/{self._id('codeInterpreter')}/tools/invoke"
        wanted = {"name": "executeCode", "arguments": {"code": code, "language": language}}
        began = time.monotonic()
        try:
            seconds = max(1, self._ends_at - began)
            answer = self._asked("codeInterpreter", "POST", path, wanted, headers=headers, seconds=seconds)
        finally:
            self._count("codeExecutionMs", round((time.monotonic() - began) * 1000))
        return result_of(answer)

    def open_browser(self) -> dict[str, Any]:
        """Start a browser; return its sessionId, and the url and the headers to reach it over a WebSocket."""
        self._require("browser")
        self._count("toolCalls")
        session = self._start("browser")
        self._count("browserSessions")
        url = session["streams"]["automationStream"]["streamEndpoint"]
        headers = self._aws.sign(_SERVICE, "GET", re.sub("^ws", "http", url))
        return {"sessionId": session["sessionId"], "url": url, "headers": headers}

    def close_browser(self, session_id: str) -> None:
        """Stop a browser of this invocation; one that is not, or not any more, is left alone."""
        with self._lock:
            found = [
                s for s in self._sessions if s.kind == "browser" and (s.answer or {}).get("sessionId") == session_id
            ]
            self._sessions = [started for started in self._sessions if started not in found]
        for started in found:
            self._end(started)

    def remember(self, text: str, role: str) -> None:
        """Remember a text beyond this session's machine."""
        self._require("memory")
        if not isinstance(text, str) or not 1 <= len(text) <= _LONGEST_MEMORY:
            raise ToolError(f"A memory is text of 1 to {_LONGEST_MEMORY} characters.")
        if str(role).upper() not in _ROLES:
            raise ToolError("A memory's role is user, assistant, tool or other.")
        event = {
            "actorId": "agent",
            "sessionId": self._memory_session,
            "eventTimestamp": time.time(),
            "payload": [{"conversational": {"content": {"text": text}, "role": str(role).upper()}}],
            "clientToken": str(uuid.uuid4()),
        }
        self._asked("memory", "POST", f"/memories/{self._id('memory')}/events", event)

    def recall(self, count: int) -> list[dict[str, str]]:
        """Return the newest memories of this session, the oldest of them first, as text and role."""
        self._require("memory")
        if type(count) is not int or not 1 <= count <= _MOST_MEMORIES:
            raise ToolError(f"1 to {_MOST_MEMORIES} memories can be read at once.")
        path = f"/memories/{self._id('memory')}/actor/agent/sessions/{quote(self._memory_session, safe='')}"
        events: list[dict[str, Any]] = []
        asked: dict[str, Any] = {"includePayloads": True, "maxResults": _MOST_MEMORIES}
        # Their order is not documented, so all are read, up to a bound, and sorted.
        for _ in range(_MOST_PAGES):
            answer = json.loads(self._asked("memory", "POST", path, asked))
            events += answer["events"]
            if not answer.get("nextToken"):
                break
            asked["nextToken"] = answer["nextToken"]
        events.sort(key=lambda event: (_time_of(event["eventTimestamp"]), event["eventId"]))
        told = [part["conversational"] for event in events for part in event["payload"] if "conversational" in part]
        return [{"text": one["content"]["text"], "role": one["role"].lower()} for one in told[-count:]]

    def close(self) -> None:
        """Refuse further use, and stop every session that was started; waits a few seconds at most."""
        with self._lock:
            self._closed = True
            sessions, self._sessions = self._sessions, []
        enders = [threading.Thread(target=self._end_quietly, args=[started], daemon=True) for started in sessions]
        for ender in enders:
            ender.start()
        patience = time.monotonic() + _STOP_SECONDS
        for ender in enders:
            ender.join(max(0, patience - time.monotonic()))

    def _require(self, capability: str) -> None:
        if self._closed:
            raise ToolUnavailableError(capability, "the invocation is over")
        if not self.allowed[capability]:
            raise ToolUnavailableError(capability, "this invocation may not use it")

    def _count(self, what: str, by: int = 1) -> None:
        with self._lock:
            self.usage[what] += by

    def _id(self, capability: str) -> str:
        return quote(str(self._ids[capability]), safe="")

    def _start(self, kind: str) -> dict[str, Any]:
        started = _Started(kind)
        with self._lock:
            self._require(kind)
            self._sessions.append(started)
        # In a thread of its own, which the end of the invocation does not interrupt: what it starts must be
        # known, to be stopped.
        threading.Thread(target=self._ask_to_start, args=[started], daemon=True).start()
        started.known.wait()
        if started.answer is None:
            raise started.refusal or ToolError(f"The {_WORDS[kind]} did not start.")
        return started.answer

    def _ask_to_start(self, started: _Started) -> None:
        wanted = {"name": self._name, "sessionTimeoutSeconds": math.ceil(self._seconds) + _GRACE_SECONDS}
        path = f"/{_FOLDERS[started.kind]}/{self._id(started.kind)}/sessions/start"
        try:
            started.answer = json.loads(self._asked(started.kind, "PUT", path, wanted, seconds=_START_SECONDS))
        except ToolError as error:
            started.refusal = error
        finally:
            started.known.set()

    def _end(self, started: _Started) -> None:
        """Stop a session, once it is known whether it was started."""
        if started.known.wait(_START_SECONDS) and started.answer is not None:
            query = f"sessionId={quote(started.answer['sessionId'], safe='')}"
            path = f"/{_FOLDERS[started.kind]}/{self._id(started.kind)}/sessions/stop?{query}"
            self._asked(started.kind, "PUT", path, {}, seconds=_STOP_SECONDS)

    def _end_quietly(self, started: _Started) -> None:
        try:
            self._end(started)
        except ToolError as error:
            print(f"A session of the {_WORDS[started.kind]} was not stopped: {error}")  # noqa: T201 - the machine's log

    def _asked(self, capability: str, method: str, path: str, value: Any, **options: Any) -> bytes:
        """Call the service; raises ToolError, and ToolUnavailableError where the role may not (any more)."""
        try:
            return self._aws.call(_SERVICE, method, path, value, **options)
        except AwsError as error:
            if error.status == 403:
                raise ToolUnavailableError(capability, "access is denied") from None
            raise ToolError(f"The {_WORDS[capability]} failed: {error}", error.code) from None
        except Exception as error:  # noqa: BLE001 - the network, or what it answered
            raise ToolError(f"The {_WORDS[capability]} could not be reached.", type(error).__name__) from None


def _time_of(value: float | str) -> float:
    if isinstance(value, (int, float)):
        return value
    # What FURB162 does not know: fromisoformat reads no Z before Python 3.11.
    return datetime.fromisoformat(value.replace("Z", "+00:00")).timestamp()
