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
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from webhost.local.agentcore.errors import AwsError, Kind
from webhost.local.agentcore.model import Request
from webhost.local.agentcore.state import Sort, Store, Thing, page, write_whole

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
    "GetEvent": (Sort.MEMORY, "memoryId"),
}


@dataclass
class ToolSession:
    """A session of an interpreter or a browser."""

    id: str
    name: str
    began: float
    lasts: int
    token: str
    ended: float | None = None

    @property
    def end(self) -> float | None:
        """When it ended, by being stopped or by its time."""
        if self.ended is not None:
            return self.ended
        over = self.began + self.lasts
        return over if over <= time.time() else None


class Tools:
    """Sessions of all interpreters and browsers, kept on disk as AWS goes on listing them, and memories' events."""

    def __init__(self, store: Store, directory: Path, region: str) -> None:
        self._store = store
        self._region = region
        self._file = directory / "tool-sessions.json"
        self._lock = threading.RLock()
        self._sessions: dict[str, list[ToolSession]] = {}
        if self._file.exists():
            kept = json.loads(self._file.read_text())
            self._sessions = {thing: [ToolSession(**one) for one in found] for thing, found in kept.items()}

    def _keep(self) -> None:
        found = {thing: [asdict(one) for one in sessions] for thing, sessions in self._sessions.items()}
        write_whole(self._file, json.dumps(found))

    def answer(self, request: Request) -> tuple[dict[str, Any], dict[str, str]]:
        """Carry out an operation that answers JSON; return body and headers."""
        sort, name = ABOUT[request.operation]
        thing = self._store.get(sort, request[name])
        noun = {Sort.CODE_INTERPRETER: "codeInterpreter", Sort.BROWSER: "browser"}.get(sort, "")
        verbs: Mapping[str, Callable[[], dict[str, Any]]] = {
            "Start": lambda: self._start(thing.id, noun, request),
            "Stop": lambda: self._stop(thing.id, noun, request),
            "Get": lambda: self._view(self._find(thing.id, request["sessionId"]), thing.id, noun),
            "List": lambda: self._list(thing.id, noun, request),
        }
        if request.operation == "CreateEvent":
            return self._create_event(thing, request), {}
        if request.operation == "ListEvents":
            found, rest = page(_events(thing, request)[::-1], request)
            return {"events": found} | rest, {}
        if request.operation == "GetEvent":
            events = [event for event in _events(thing, request) if event["eventId"] == request["eventId"]]
            if not events:
                raise AwsError(Kind.NOT_FOUND, "There is no such event.")
            return {"event": events[0]}, {}
        verb = next(v for v in verbs if request.operation.startswith(v))
        return verbs[verb](), {}

    def _start(self, thing_id: str, noun: str, request: Request) -> dict[str, Any]:
        token = request.get("clientToken", "")
        with self._lock:
            sessions = self._sessions.setdefault(thing_id, [])
            made = next((one for one in sessions if token and one.token == token), None)
            if made is None:
                made = ToolSession(
                    "".join(secrets.choice(_ALPHABET) for _ in range(26)),
                    request.get("name", ""),
                    time.time(),
                    request.get("sessionTimeoutSeconds") or (900 if noun == "codeInterpreter" else 3600),
                    token,
                )
                sessions.append(made)
                self._keep()
        answer: dict[str, Any] = {
            f"{noun}Identifier": thing_id,
            "sessionId": made.id,
            "createdAt": _written(made.began),
        }
        if noun == "browser":
            host = f"bedrock-agentcore.{self._region}.amazonaws.com"
            stream = f"wss://{host}/browser-streams/{thing_id}/sessions/{made.id}/automation"
            answer["streams"] = {"automationStream": {"streamEndpoint": stream, "streamStatus": "ENABLED"}}
        return answer

    def _find(self, thing_id: str, session_id: str) -> ToolSession:
        with self._lock:
            for session in self._sessions.get(thing_id, ()):
                if session.id == session_id:
                    return session
        raise AwsError(Kind.NOT_FOUND, "There is no such session.")

    def _stop(self, thing_id: str, noun: str, request: Request) -> dict[str, Any]:
        with self._lock:
            session = self._find(thing_id, request["sessionId"])
            if session.end is not None:
                raise AwsError(Kind.CONFLICT, "The session has ended.")
            session.ended = time.time()
            self._keep()
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
        with self._lock:
            views = [self._view(s, thing_id, noun) for s in reversed(self._sessions.get(thing_id, []))]
        found, rest = page([view for view in views if request.get("status") in (None, view["status"])], request)
        return {"items": found, **rest}

    def _create_event(self, thing: Thing, request: Request) -> dict[str, Any]:
        if thing.status != "ACTIVE":
            raise AwsError(Kind.VALIDATION, f"The memory is {thing.status}.")
        event = {
            "memoryId": thing.id,
            "actorId": request["actorId"],
            "sessionId": request.get("sessionId") or secrets.token_hex(8),
            "eventId": f"{int(time.time() * 1000):020d}#{secrets.token_hex(4)}",
            "eventTimestamp": request["eventTimestamp"],
            "payload": request["payload"],
        }
        with self._store.lock:
            thing.events.append(event)
            self._store.keep()
        return {"event": event}

    def run_code(self, request: Request) -> tuple[bytes, str]:
        """Run code in a session, as an event stream; return it with the session's id."""
        thing = self._store.get(Sort.CODE_INTERPRETER, request["codeInterpreterIdentifier"])
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


def _events(memory: Thing, request: Request) -> list[dict[str, Any]]:
    """Return the events of one actor's session, the oldest first."""
    wanted = (request["actorId"], request["sessionId"])
    return [event for event in memory.events if (event["actorId"], event["sessionId"]) == wanted]


def _execute(code: str) -> tuple[str, bool]:
    with tempfile.TemporaryDirectory(prefix="code-") as folder:
        try:
            done = subprocess.run(
                [str(Path(sys.executable).resolve()), "-I", "-S", "-c", code],
                cwd=folder, env={}, stdin=subprocess.DEVNULL,
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
