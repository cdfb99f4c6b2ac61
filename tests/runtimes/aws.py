"""What the tests of the AgentCore adapter stand on: moto, and an AgentCore that answers what a test tells it to.

Real boto3 over real HTTP. Runtimes of `Aws` run nothing: a test says what they answer. Agents really run on
`LocalAgentCore`, which is webhost/local/agentcore in a process of its own.
"""

from __future__ import annotations

import http.client
import json
import logging
import os
import re
import secrets
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from unittest import mock
from urllib.parse import parse_qs, unquote, urlsplit

import boto3
import requests
from django.conf import settings
from django.test import override_settings
from moto.server import ThreadedMotoServer

from runtimes.providers.agentcore import AgentCoreProvider
from webhost.local.processes import Child, free_port, wait_for_port

ACCOUNT = "123456789012"
BUCKET = "whs-bundles"
_PLACE = f"arn:aws:bedrock-agentcore:us-east-1:{ACCOUNT}"
_SCOPE = re.compile(r"Credential=[^/]+/[^/]+/[^/]+/([^/]+)/")
_NOW = "2026-11-30T00:00:00Z"
_BOUNDARY = '{"Version":"2012-10-17","Statement":[{"Effect":"Allow","Action":"*","Resource":"*"}]}'
USAGE = {"tokens": 3, "toolCalls": 0, "codeExecutionMs": 0, "browserSessions": 0}


@dataclass
class Answer:
    """What a runtime says: JSON, or events one by one; `after` runs before the answer ends."""

    body: Any = field(default_factory=lambda: {"text": "hello", "usage": USAGE, "logs": []})
    events: list[bytes] | None = None
    status: int = 200
    error: str = ""
    kind: str = "application/json"
    between: Callable[[int], None] = lambda n: None
    break_off: bool = False


def event(name: str, data: Any) -> bytes:
    return f"event: {name}\ndata: {json.dumps(data, ensure_ascii=False)}\n\n".encode()


@dataclass
class Aws:
    """All of AWS that the adapter speaks to, behind one address."""

    port: int = 0
    moto_port: int = 0
    calls: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    things: dict[str, dict[str, Any]] = field(default_factory=dict)
    tokens: dict[str, str] = field(default_factory=dict)
    sessions: dict[str, dict[str, Any]] = field(default_factory=dict)
    faults: dict[str, list[tuple[int, str]]] = field(default_factory=dict)
    becomes: str = "READY"
    reason: str = ""
    safe: bool = True
    answer: Callable[[dict[str, Any]], Answer] = lambda payload: Answer()
    provider: AgentCoreProvider = field(default_factory=AgentCoreProvider)

    @contextmanager
    def running(self) -> Iterator[Aws]:
        moto = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
        moto.start()
        logging.getLogger("werkzeug").setLevel(logging.WARNING)
        self.moto_port = moto.get_host_and_port()[1]
        # Another module of tests in this process may have left its own things there.
        requests.post(f"http://127.0.0.1:{self.moto_port}/moto-api/reset", timeout=5)
        front = _front(self)
        with front as server:
            self.port = server.server_address[1]
            threading.Thread(target=server.serve_forever, daemon=True).start()
            environment = {
                "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.port}",
                "AWS_ACCESS_KEY_ID": "AKIATEST",
                "AWS_SECRET_ACCESS_KEY": secrets.token_hex(20),
                "NO_PROXY": "127.0.0.1",
            }
            place = override_settings(
                AWS_REGION="us-east-1",
                AGENTCORE_BUCKET=BUCKET,
                AGENTCORE_BOUNDARY_ARN=f"arn:aws:iam::{ACCOUNT}:policy/whs-boundary",
                AGENTCORE_PREFIX="whs",
            )
            with mock.patch.dict("os.environ", environment), place:
                self.client("s3").create_bucket(Bucket=BUCKET)
                self.client("s3").put_bucket_versioning(Bucket=BUCKET, VersioningConfiguration={"Status": "Enabled"})
                self.client("iam").create_policy(PolicyName="whs-boundary", PolicyDocument=_BOUNDARY)
                yield self
            server.shutdown()
        moto.stop()

    def client(self, service: str) -> Any:
        return boto3.session.Session().client(service, region_name="us-east-1")

    def reset(self) -> None:
        """Forget what a test told; what was made stays."""
        fresh = Aws()
        self.faults, self.becomes, self.reason, self.safe = {}, fresh.becomes, "", True
        self.answer = lambda payload: Answer()
        self.calls = []

    def fail(self, operation: str, status: int, code: str, times: int = 1) -> None:
        self.faults.setdefault(operation, []).extend([(status, code)] * times)

    def count(self, operation: str) -> int:
        return sum(name == operation for name, _ in self.calls)

    def seen(self, operation: str) -> dict[str, Any]:
        """Return the last request of an operation."""
        return next(given for name, given in reversed(self.calls) if name == operation)

    def start_session(self, remote_id: str, name: str, status: str = "READY") -> str:
        """Start a session of a tool, as code in a machine would."""
        session_id = secrets.token_hex(13)
        self.sessions[session_id] = {
            "tool": remote_id, "sessionId": session_id, "name": name, "status": status,
            "createdAt": datetime.now(UTC).isoformat(), "lastUpdatedAt": datetime.now(UTC).isoformat(),
        }  # fmt: skip
        return session_id

    # --- what AgentCore does ----------------------------------------------------------------------

    def control(self, operation: str, kind: str, given: dict[str, Any], thing: str) -> tuple[int, Any]:
        if operation.startswith("Create"):
            return self._create(kind, given)
        if operation.startswith("List") and "Sessions" in operation:
            found = [
                {k: v for k, v in s.items() if k != "tool"} | {_TOOLS[kind][1]: thing}
                for s in self.sessions.values()
                if s["tool"] == thing and s["status"] == given.get("status")
            ]
            return self._page("items", found, given)
        if operation.startswith("List"):
            return self._page(_ITEMS[kind], [self._view(t) for t in self.things.values() if t["kind"] == kind], given)
        if operation.startswith("Stop"):
            self.sessions[given["sessionId"]]["status"] = "TERMINATED"
            return 200, {_TOOLS[kind][1]: thing, "sessionId": given["sessionId"], "lastUpdatedAt": _NOW}
        if thing not in self.things:
            return 404, "ResourceNotFoundException"
        if operation.startswith("Delete"):
            del self.things[thing]
            return 202, {"status": "DELETING"} | ({"memoryId": thing} if kind == "memories" else {})
        view = self._view(self.things[thing])
        return 200, {"memory": view} if kind == "memories" else view

    def _page(self, items: str, found: list[Any], given: dict[str, Any]) -> tuple[int, Any]:
        # Pages of two, so that whoever forgets the second page forgets something.
        start = int(given.get("nextToken") or 0)
        more = {"nextToken": str(start + 2)} if len(found) > start + 2 else {}
        return 200, {items: found[start : start + 2], **more}

    def _create(self, kind: str, given: dict[str, Any]) -> tuple[int, Any]:
        name = given.get("agentRuntimeName") or given["name"]
        token = given.get("clientToken", "")
        known = self.tokens.get(token) if kind != "memories" else None
        if known is None:
            if any(thing["name"] == name for thing in self.things.values()):
                return (400, "ValidationException") if kind == "memories" else (409, "ConflictException")
            known = f"{name}-{secrets.token_hex(5)}"
            self.tokens[token] = known
            status = self.becomes if kind == "runtimes" else "ACTIVE" if kind == "memories" else "READY"
            self.things[known] = {"kind": kind, "id": known, "name": name, "status": status, "given": given}
        view = self._view(self.things[known]) if known in self.things else {"agentRuntimeId": known}
        return 202, {"memory": view} if kind == "memories" else view

    def _view(self, thing: dict[str, Any]) -> dict[str, Any]:
        kind, name, given = thing["kind"], thing["id"], thing["given"]
        common = {"status": thing["status"], "createdAt": _NOW, "lastUpdatedAt": _NOW, "name": thing["name"]}
        if kind == "runtimes":
            return common | {
                "agentRuntimeId": name, "agentRuntimeArn": f"{_PLACE}:runtime/{name}", "agentRuntimeVersion": "1",
                "agentRuntimeName": thing["name"], "agentRuntimeArtifact": given["agentRuntimeArtifact"],
                "roleArn": given["roleArn"], "description": "d", "failureReason": self.reason,
                "metadataConfiguration": {"requireMMDSV2": self.safe},
            }  # fmt: skip
        if kind == "memories":
            return {"id": name, "status": thing["status"], "createdAt": 1, "updatedAt": 1, "name": thing["name"]}
        return common | {_TOOLS[kind][0]: name}


_TOOLS = {
    "code-interpreters": ("codeInterpreterId", "codeInterpreterIdentifier"),
    "browsers": ("browserId", "browserIdentifier"),
    "runtimes": ("agentRuntimeId", ""),
    "memories": ("id", ""),
}
_ITEMS = {
    "code-interpreters": "codeInterpreterSummaries",
    "browsers": "browserSummaries",
    "runtimes": "agentRuntimes",
    "memories": "memories",
}
_SINGULAR = {
    "code-interpreters": "CodeInterpreter",
    "browsers": "Browser",
    "runtimes": "AgentRuntime",
    "memories": "Memory",
}


def _operation(method: str, parts: list[str]) -> tuple[str, str, str]:
    """Return operation, kind and thing of a request."""
    kind, rest = parts[0], [part for part in parts[1:] if part]
    one = _SINGULAR[kind]
    if kind == "memories" and rest == ["create"]:
        return "CreateMemory", kind, ""
    if not rest:
        return f"{'Create' if method == 'PUT' else 'List'}{one}{'s' if method != 'PUT' else ''}", kind, ""
    if rest[1:2] == ["sessions"]:
        return f"{'List' if rest[2] == 'list' else 'Stop'}{one}Session{'s' if rest[2] == 'list' else ''}", kind, rest[0]
    if rest[1:2] == ["invocations"]:
        return "InvokeAgentRuntime", kind, rest[0]
    if rest[1:2] == ["stopruntimesession"]:
        return "StopRuntimeSession", kind, rest[0]
    return f"{'Delete' if method == 'DELETE' else 'Get'}{one}", kind, rest[0]


def _front(aws: Aws) -> ThreadingHTTPServer:  # noqa: C901 - one handler, closed over what it serves
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def _serve(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            scope = _SCOPE.search(self.headers.get("authorization", ""))
            if scope is None or scope[1] != "bedrock-agentcore":
                self._to_moto(body, scope[1] if scope else "?")
                return
            url = urlsplit(self.path)
            parts = [unquote(part) for part in url.path.lstrip("/").split("/")]
            operation, kind, thing = _operation(self.command, parts)
            given = {k: v[0] for k, v in parse_qs(url.query).items()} | (json.loads(body) if body else {})
            session = self.headers.get("x-amzn-bedrock-agentcore-runtime-session-id")
            aws.calls.append((operation, given | {"session": session, "accept": self.headers.get("accept")}))
            if fault := (aws.faults.get(operation) or [None]).pop(0):
                self._fault(*fault)
            elif operation == "InvokeAgentRuntime":
                self._invoke(aws.answer(given))
            elif operation == "StopRuntimeSession":
                self._json(200, {})
            else:
                status, answer = aws.control(operation, kind, given, thing)
                self._json(status, answer) if status < 400 else self._fault(status, answer)

        do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _serve

        def _fault(self, status: int, code: str) -> None:
            if code == "reset":
                self.connection.close()
                self.close_connection = True
                return
            self._json(status, {"message": f"arn:aws:iam::{ACCOUNT}:role/secret-name"}, {"x-amzn-ErrorType": code})

        def _json(self, status: int, body: Any, headers: dict[str, str] | None = None) -> None:
            data = json.dumps(body).encode()
            self.send_response(status)
            for name, value in ({"Content-Type": "application/json"} | (headers or {})).items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def _invoke(self, answer: Answer) -> None:
            if answer.error:
                self._fault(answer.status, answer.error)
                return
            if answer.events is None:
                self._json(answer.status, answer.body)
                return
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for n, piece in enumerate(answer.events):
                answer.between(n)
                self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
                self.wfile.flush()
            answer.between(len(answer.events))
            if answer.break_off:
                self.close_connection = True
                self.connection.close()
            else:
                self.wfile.write(b"0\r\n\r\n")

        def _to_moto(self, body: bytes, service: str) -> None:
            target = self.headers.get("x-amz-target", "").rpartition(".")[2]
            action = parse_qs(body.decode(errors="replace")).get("Action", [""])[0] if service == "iam" else ""
            name = f"{service}.{target or action or self.command}"
            aws.calls.append((name, {}))
            if fault := (aws.faults.get(name) or [None]).pop(0):
                self._json(fault[0], {"__type": fault[1], "message": "no"})
                return
            connection = http.client.HTTPConnection("127.0.0.1", aws.moto_port, timeout=20)
            connection.request(self.command, self.path, body, dict(self.headers))
            answer = connection.getresponse()
            data = answer.read()
            self.send_response(answer.status)
            for key, value in answer.getheaders():
                if key.lower() not in ("transfer-encoding", "connection", "content-length", "server", "date"):
                    self.send_header(key, value)
            length = answer.headers.get("content-length", "0") if self.command == "HEAD" else str(len(data))
            self.send_header("Content-Length", length)
            self.end_headers()
            self.wfile.write(data)
            connection.close()

        def log_message(self, *args: Any) -> None: ...

    class Front(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, *args: Any) -> None: ...  # a client that hung up

    return Front(("127.0.0.1", 0), Handler)


class LocalAgentCore:
    """A local AgentCore of the tests' own, where agents really run, and the adapter that speaks to it."""

    def __init__(self, directory: Path) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.provider = AgentCoreProvider()
        self.environment = {
            "AWS_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": f"AKIA{secrets.token_hex(8).upper()}",
            "AWS_SECRET_ACCESS_KEY": secrets.token_urlsafe(30),
            "AWS_ENDPOINT_URL": self.url,
            "AGENTCORE_BUCKET": BUCKET,
            "AGENTCORE_BOUNDARY_ARN": f"arn:aws:iam::{ACCOUNT}:policy/whs-boundary",
            "AGENTCORE_PREFIX": "whs",
        }
        command = [sys.executable, "-m", "webhost.local.agentcore", "--port", str(self.port)]
        command += ["--directory", str(directory / "agentcore")]
        inherited = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(settings.BASE_DIR),
            "NODE_BINARY": settings.NODE_BINARY,
        }
        self.child = Child("agentcore", command, directory / "agentcore.log", environment=inherited | self.environment)

    @contextmanager
    def running(self) -> Iterator[LocalAgentCore]:
        names = ("AWS_REGION", "AGENTCORE_BUCKET", "AGENTCORE_BOUNDARY_ARN", "AGENTCORE_PREFIX")
        place = override_settings(**{name: self.environment[name] for name in names})
        with mock.patch.dict("os.environ", self.environment), place:
            self.child.start()
            wait_for_port(self.port, "agentcore", 30, self.child)
            try:
                yield self
            finally:
                self.child.stop()

    def calls(self) -> dict[str, Any]:
        seen: dict[str, Any] = requests.get(f"{self.url}/local/calls", timeout=5).json()
        return seen

    def plan(self, **fault: Any) -> None:
        answer = requests.post(f"{self.url}/local/faults", json=fault, timeout=5)
        assert answer.ok, answer.text

    def forget_faults(self) -> None:
        requests.delete(f"{self.url}/local/faults", timeout=5)
