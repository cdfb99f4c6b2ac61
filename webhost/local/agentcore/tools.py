"""The tools of AgentCore's data plane: code interpreter, browser, memory. Who may use them is asked before."""

from __future__ import annotations

import json
import secrets
import string
import struct
import subprocess
import sys
import tempfile
import threading
import time
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from webhost.local.agentcore.errors import AwsError, Kind
from webhost.local.agentcore.model import Request
from webhost.local.agentcore.state import Sort, Store

_ALPHABET: Final = string.ascii_uppercase + string.digits
_CODE_SECONDS: Final = 10
_LONGEST_OUTPUT: Final = 100_000
# By operation: what it is about, under which parameter, and what IAM calls it.
ABOUT: Final[Mapping[str, tuple[Sort, str]]] = {
    "StartCodeInterpreterSession": (Sort.CODE_INTERPRETER, "codeInterpreterIdentifier"),
    "InvokeCodeInterpreter": (Sort.CODE_INTERPRETER, "codeInterpreterIdentifier"),
    "StopCodeInterpreterSession": (Sort.CODE_INTERPRETER, "codeInterpreterIdentifier"),
    "GetCodeInterpreterSession": (Sort.CODE_INTERPRETER, "codeInterpreterIdentifier"),
    "ListCodeInterpreterSessions": (Sort.CODE_INTERPRETER, "codeInterpreterIdentifier"),
    "StartBrowserSession": (Sort.BROWSER, "browserIdentifier"),
    "StopBrowserSession": (Sort.BROWSER, "browserIdentifier"),
    "GetBrowserSession": (Sort.BROWSER, "browserIdentifier"),
    "ListBrowserSessions": (Sort.BROWSER, "browserIdentifier"),
    "CreateEvent": (Sort.MEMORY, "memoryId"),
    "ListEvents": (Sort.MEMORY, "memoryId"),
}


@dataclass
class ToolSession:
    """A session of an interpreter or a browser."""

    id: str
    name: str
    began: float
    lasts: int
    ended: float | None = None

    @property
    def end(self) -> float | None:
        """When it ended, by being stopped or by its time."""
        if self.ended is not None:
            return self.ended
        over = self.began + self.lasts
        return over if over <= time.time() else None


@dataclass
class Tools:
    """Sessions of all interpreters and browsers, and what memories keep."""

    store: Store
    region: str
    sessions: dict[str, list[ToolSession]] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def answer(self, request: Request) -> tuple[dict[str, Any], dict[str, str]]:
        """Carry out an operation that answers JSON; return body and headers."""
        sort, name = ABOUT[request.operation]
        thing = self.store.get(sort, request[name])
        noun = {Sort.CODE_INTERPRETER: "codeInterpreter", Sort.BROWSER: "browser"}.get(sort, "")
        verbs: Mapping[str, Callable[[], dict[str, Any]]] = {
            "Start": lambda: self._start(thing.id, noun, request),
            "Stop": lambda: self._stop(thing.id, noun, request),
            "Get": lambda: self._view(self._find(thing.id, request["sessionId"]), thing.id, noun),
            "List": lambda: self._list(thing.id, noun, request),
        }
        if request.operation == "CreateEvent":
            return self._create_event(thing.id, request), {}
        if request.operation == "ListEvents":
            wanted = (request["actorId"], request["sessionId"])
            events = [e for e in thing.events if (e["actorId"], e["sessionId"]) == wanted]
            return {"events": events[::-1][: request.get("maxResults") or 20]}, {}
        verb = next(v for v in verbs if request.operation.startswith(v))
        return verbs[verb](), {}

    def _start(self, thing_id: str, noun: str, request: Request) -> dict[str, Any]:
        made = ToolSession(
            "".join(secrets.choice(_ALPHABET) for _ in range(26)),
            request.get("name", ""),
            time.time(),
            request.get("sessionTimeoutSeconds") or (900 if noun == "codeInterpreter" else 3600),
        )
        with self.lock:
            self.sessions.setdefault(thing_id, []).append(made)
        answer: dict[str, Any] = {
            f"{noun}Identifier": thing_id,
            "sessionId": made.id,
            "createdAt": _written(made.began),
        }
        if noun == "browser":
            host = f"bedrock-agentcore.{self.region}.amazonaws.com"
            stream = f"wss://{host}/browser-streams/{thing_id}/sessions/{made.id}/automation"
            answer["streams"] = {"automationStream": {"streamEndpoint": stream, "streamStatus": "ENABLED"}}
        return answer

    def _find(self, thing_id: str, session_id: str) -> ToolSession:
        with self.lock:
            for session in self.sessions.get(thing_id, ()):
                if session.id == session_id:
                    return session
        raise AwsError(Kind.NOT_FOUND, "There is no such session.")

    def _stop(self, thing_id: str, noun: str, request: Request) -> dict[str, Any]:
        session = self._find(thing_id, request["sessionId"])
        if session.end is not None:
            raise AwsError(Kind.CONFLICT, "The session has ended.")
        session.ended = time.time()
        return {f"{noun}Identifier": thing_id, "sessionId": session.id, "lastUpdatedAt": _written(session.ended)}

    @staticmethod
    def _view(session: ToolSession, thing_id: str, noun: str) -> dict[str, Any]:
        ended = session.end
        return {
            f"{noun}Identifier": thing_id,
            "sessionId": session.id,
            "name": session.name or None,
            "status": "READY" if ended is None else "TERMINATED",
            "createdAt": _written(session.began),
            "lastUpdatedAt": _written(session.began if ended is None else ended),
        }

    def _list(self, thing_id: str, noun: str, request: Request) -> dict[str, Any]:
        with self.lock:
            views = [self._view(s, thing_id, noun) for s in reversed(self.sessions.get(thing_id, []))]
        found = [view for view in views if request.get("status") in (None, view["status"])]
        start, most = int(request.get("nextToken") or 0), request.get("maxResults") or 100
        rest = {"nextToken": str(start + most)} if start + most < len(found) else {}
        return {"items": found[start : start + most], **rest}

    def _create_event(self, thing_id: str, request: Request) -> dict[str, Any]:
        thing = self.store.get(Sort.MEMORY, thing_id)
        event = {
            "memoryId": thing.id,
            "actorId": request["actorId"],
            "sessionId": request.get("sessionId") or secrets.token_hex(8),
            "eventId": f"{int(time.time() * 1000):020d}#{secrets.token_hex(4)}",
            "eventTimestamp": request["eventTimestamp"],
            "payload": request["payload"],
        }
        with self.store.lock:
            thing.events.append(event)
            self.store.keep()
        return {"event": event}

    def run_code(self, request: Request) -> tuple[bytes, str]:
        """Run code in a session, as an event stream; return it with the session's id."""
        thing = self.store.get(Sort.CODE_INTERPRETER, request["codeInterpreterIdentifier"])
        session = self._find(thing.id, request.get("sessionId", ""))
        if session.end is not None:
            raise AwsError(Kind.NOT_FOUND, "The session has ended.")
        arguments = request.get("arguments") or {}
        if request["name"] != "executeCode" or arguments.get("language", "python") != "python":
            raise AwsError(Kind.VALIDATION, "Only executeCode with python is known here.")
        began = time.monotonic()
        text, failed = _execute(arguments.get("code", ""))
        result = {
            "content": [{"type": "text", "text": text}],
            "structuredContent": {
                "stdout": "" if failed else text,
                "stderr": text if failed else "",
                "exitCode": int(failed),
                "executionTime": time.monotonic() - began,
            },
            "isError": failed,
        }
        return event_message("result", json.dumps(result).encode()), session.id


def _execute(code: str) -> tuple[str, bool]:
    with tempfile.TemporaryDirectory(prefix="code-") as folder:
        try:
            done = subprocess.run(
                [sys.executable, "-I", "-c", code], cwd=folder, env={}, stdin=subprocess.DEVNULL,
                capture_output=True, text=True, timeout=_CODE_SECONDS, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return "The code took too long.", True
    return (done.stderr if done.returncode else done.stdout)[:_LONGEST_OUTPUT], done.returncode != 0


def event_message(kind: str, payload: bytes) -> bytes:
    """Write one event of application/vnd.amazon.eventstream."""
    headers = b"".join(
        struct.pack("!B", len(name)) + name + struct.pack("!BH", 7, len(value)) + value
        for name, value in (
            (b":message-type", b"event"), (b":event-type", kind.encode()), (b":content-type", b"application/json"),
        )
    )  # fmt: skip
    prelude = struct.pack("!II", 16 + len(headers) + len(payload), len(headers))
    message = prelude + struct.pack("!I", zlib.crc32(prelude)) + headers + payload
    return message + struct.pack("!I", zlib.crc32(message))


def _written(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat().replace("+00:00", "Z")
