"""What the tests of the AgentCore shims stand on: an AWS of their own that checks signatures, and real processes."""

from __future__ import annotations

import binascii
import http.client
import json
import os
import secrets
import shutil
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from webhost.local.node import node_binary
from webhost.local.processes import Child, free_port, wait_for_port

SHIMS = Path(__file__).resolve().parents[2] / "runtimes" / "shims" / "agentcore"
REGION = "us-east-1"
ROLE = {"AccessKeyId": "ASIATEST", "SecretAccessKey": "a/test+key", "Token": "a-session/token=="}
SECRET_ARN = f"arn:aws:secretsmanager:{REGION}:123456789012:secret:whs/a/b-AbCdEf"
IDS = {"WHS_CODE_INTERPRETER_ID": "c1-abcdefghij", "WHS_BROWSER_ID": "b1-abcdefghij", "WHS_MEMORY_ID": "m1-abcdefghij"}
SESSION = "s" + "0123456789abcdef" * 4


def signature_is_right(method: str, url: str, headers: Mapping[str, str], body: bytes) -> bool:
    """Sign what was sent once more, by botocore, and compare."""
    sent = {name.lower(): value for name, value in headers.items()}
    scheme, _, parts = sent.get("authorization", "").partition(" ")
    if scheme != "AWS4-HMAC-SHA256":
        return False
    told = dict(part.strip().split("=", 1) for part in parts.split(","))
    _, _, region, service, _ = told["Credential"].split("/")
    signer = SigV4Auth(Credentials(ROLE["AccessKeyId"], ROLE["SecretAccessKey"], ROLE["Token"]), service, region)
    wanted = {name: sent[name] for name in told["SignedHeaders"].split(";") if name != "host"}
    request = AWSRequest(method=method, url=url, headers=wanted, data=body)
    request.context["timestamp"] = sent["x-amz-date"]
    text = signer.string_to_sign(request, signer.canonical_request(request))
    age = datetime.now(UTC) - datetime.strptime(sent["x-amz-date"], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
    return (
        told["Signature"] == signer.signature(text, request)
        and sent["x-amz-security-token"] == ROLE["Token"]
        and abs(age) < timedelta(seconds=60)
    )


def event(headers: Mapping[str, str], payload: Any) -> bytes:
    """One message of application/vnd.amazon.eventstream, with its checksums."""
    packed = b"".join(
        struct.pack(f"!B{len(name)}sBH", len(name), name.encode(), 7, len(value.encode())) + value.encode()
        for name, value in headers.items()
    )
    data = json.dumps(payload).encode()
    prelude = struct.pack("!II", 16 + len(packed) + len(data), len(packed))
    message = prelude + struct.pack("!I", binascii.crc32(prelude)) + packed + data
    return message + struct.pack("!I", binascii.crc32(message))


def result(**value: Any) -> bytes:
    """What a code interpreter answers."""
    headers = {":message-type": "event", ":event-type": "result", ":content-type": "application/json"}
    return event(headers, value)


@dataclass(frozen=True)
class Call:
    """A request as it arrived."""

    method: str
    path: str
    query: dict[str, list[str]]
    headers: dict[str, str]
    value: Any


@dataclass
class FakeAws:
    """Metadata, secrets, a code interpreter, browsers and a memory; says 403 to every wrong signature."""

    port: int = field(default_factory=free_port)
    calls: list[Call] = field(default_factory=list)
    secret: dict[str, str] = field(default_factory=dict)
    lifetime: timedelta = timedelta(hours=6)
    credentials_given: int = 0
    answers: list[tuple[str, Callable[[], tuple[int, bytes]]]] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)

    def reset(self) -> None:
        self.calls, self.secret, self.answers, self.events = [], {}, [], []
        self.lifetime = timedelta(hours=6)

    def answer_once(self, part: str, status: int, body: Any, seconds: float = 0) -> None:
        """Answer the next call whose path or target holds `part` in this way, and late."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.answers.append((part, lambda: (time.sleep(seconds), (status, data))[1]))  # type: ignore[func-returns-value]

    def paths(self) -> list[str]:
        return [call.path for call in self.calls]

    @contextmanager
    def listening(self) -> Iterator[FakeAws]:
        aws = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_any(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length") or 0))
                headers = {name.lower(): value for name, value in self.headers.items()}
                status, data = aws.answered(self.command, self.path, headers, body)
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_PUT = do_POST = handle_any

            def log_message(self, *args: Any) -> None: ...

        with ThreadingHTTPServer(("127.0.0.1", self.port), Handler) as server:
            server.daemon_threads = True
            threading.Thread(target=server.serve_forever, daemon=True).start()
            yield self
            server.shutdown()

    def answered(self, method: str, target: str, headers: dict[str, str], body: bytes) -> tuple[int, bytes]:
        if target.startswith("/mmds/"):
            return self._metadata(method, target.removeprefix("/mmds"), headers)
        parts = urlsplit(target)
        value = json.loads(body) if body else None
        self.calls.append(Call(method, parts.path, parse_qs(parts.query), headers, value))
        if not signature_is_right(method, f"http://127.0.0.1:{self.port}{target}", headers, body):
            return 403, json.dumps({"__type": "InvalidSignatureException", "message": "wrong"}).encode()
        for prepared in self.answers:
            if prepared[0] in parts.path:
                self.answers.remove(prepared)
                return prepared[1]()
        return self._service(parts.path, headers, value)

    def _metadata(self, method: str, path: str, headers: dict[str, str]) -> tuple[int, bytes]:
        folder = "/latest/meta-data/iam/security-credentials/"
        if (method, path) == ("PUT", "/latest/api/token") and headers.get("x-aws-ec2-metadata-token-ttl-seconds"):
            return 200, b"a-metadata-token"
        if headers.get("x-aws-ec2-metadata-token") != "a-metadata-token":
            return 401, b""
        if path == folder:
            return 200, b"whs-role"
        if path == f"{folder}whs-role":
            self.credentials_given += 1
            ends = (datetime.now(UTC) + self.lifetime).strftime("%Y-%m-%dT%H:%M:%SZ")
            return 200, json.dumps(ROLE | {"Code": "Success", "Expiration": ends}).encode()
        return 404, b""

    def _service(self, path: str, headers: dict[str, str], value: Any) -> tuple[int, bytes]:
        if headers.get("x-amz-target") == "secretsmanager.GetSecretValue":
            assert headers["content-type"] == "application/x-amz-json-1.1"
            assert value == {"SecretId": SECRET_ARN}
            text = json.dumps({"keys": sorted(self.secret), "values": self.secret})
            return 200, json.dumps({"ARN": SECRET_ARN, "SecretString": text}).encode()
        kind = path.split("/")[1]
        if path.endswith("/sessions/start"):
            session = {"sessionId": f"01{secrets.token_hex(8)}", "createdAt": "2026-11-30T00:00:00Z"}
            if kind == "browsers":
                stream = f"wss://127.0.0.1:{self.port}/browser-streams/b1/sessions/{session['sessionId']}/automation"
                session["streams"] = {"automationStream": {"streamEndpoint": stream, "streamStatus": "ENABLED"}}  # type: ignore[assignment]
            return 200, json.dumps(session).encode()
        if path.endswith("/tools/invoke"):
            return 200, result(content=[{"type": "text", "text": "42"}], isError=False)
        if path.endswith("/sessions/stop"):
            return 200, b'{"lastUpdatedAt": "2026-11-30T00:00:00Z"}'
        if path.endswith("/events"):
            self.events.append(value | {"eventId": f"{len(self.events):04}#ab"})
            return 201, json.dumps({"event": self.events[-1]}).encode()
        return self._listed(value)

    def _listed(self, value: Any) -> tuple[int, bytes]:
        """Two events on a page, the newest first."""
        start = int(value.get("nextToken") or 0)
        newest_first = self.events[::-1]
        page: dict[str, Any] = {"events": newest_first[start : start + 2]}
        if start + 2 < len(newest_first):
            page["nextToken"] = str(start + 2)
        return 200, json.dumps(page).encode()


@dataclass
class Shim:
    """One machine of AgentCore: a shim with an agent behind it, as a process."""

    language: str
    port: int
    child: Child

    def post(self, body: Any, *, accept: str = "application/json", session: str = SESSION) -> http.client.HTTPResponse:
        """POST /invocations, as the service does; the answer may be read as it comes."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        headers = {
            "accept": accept, "content-type": "application/json", "workloadaccesstoken": "a-workload-token",
            "x-amzn-bedrock-agentcore-runtime-session-id": session,
        }  # fmt: skip
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        connection.request("POST", "/invocations", body=data, headers=headers)
        answer = connection.getresponse()
        answer.connection = connection  # type: ignore[attr-defined]  # kept open for as long as the answer
        assert answer.status == 200
        return answer

    def invoke(self, prompt: str, **changes: Any) -> dict[str, Any]:
        """Invoke the agent and return the whole answer."""
        answer: dict[str, Any] = json.loads(self.post(call(prompt, **changes)).read())
        return answer

    def stream(self, prompt: str, **changes: Any) -> Iterator[tuple[str, dict[str, Any]]]:
        """Invoke the agent and yield events as they come."""
        answer = self.post(call(prompt, **changes), accept="text/event-stream")
        assert answer.headers["content-type"].startswith("text/event-stream")
        name = ""
        while line := answer.readline().decode():
            if line.startswith("event: "):
                name = line.removeprefix("event: ").strip()
            elif line.startswith("data: "):
                yield name, json.loads(line.removeprefix("data: "))

    def ping(self) -> Any:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
        connection.request("GET", "/ping")
        return json.loads(connection.getresponse().read())

    def hang_up_after(self, prompt: str, size: int, **changes: Any) -> None:
        """Stream, read some bytes, and break the connection off."""
        answer = self.post(call(prompt, **changes), accept="text/event-stream")
        answer.read(size)
        answer.connection.sock.shutdown(socket.SHUT_RDWR)  # type: ignore[attr-defined]
        answer.close()


def call(prompt: str, *, request_id: str = "", timeout: float = 20, **request: Any) -> dict[str, Any]:
    """What the control plane sends."""
    body = {
        "input": {"messages": [{"role": "user", "content": prompt}]}, "sessionId": "mine", "options": {},
        "metadata": {}, "capabilities": {"memory": True, "codeInterpreter": True, "browser": True},
        "limits": {"remaining": {"requests": 7}},
    }  # fmt: skip
    return {
        "requestId": request_id or f"inv_{secrets.token_hex(16)}", "traceId": "trc_" + "1" * 32,
        "timeoutSeconds": timeout, "request": body | request,
    }  # fmt: skip


@contextmanager
def running(
    language: str, files: Mapping[str, str | bytes], entrypoint: str, folder: Path, aws: FakeAws, **environment: str
) -> Iterator[Shim]:
    """Lay out a deployment's zip as the adapter does, and run it."""
    place = folder / f"{language}-{secrets.token_hex(4)}"
    shutil.copytree(SHIMS / language, place, ignore=shutil.ignore_patterns("__pycache__"))
    for name, content in files.items():
        path = place / "bundle" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    port = free_port()
    env = {
        "HOST": "127.0.0.1", "PORT": str(port), "AWS_REGION": REGION, "WHS_ENTRYPOINT": entrypoint, **IDS,
        "AWS_EC2_METADATA_SERVICE_ENDPOINT": f"http://127.0.0.1:{aws.port}/mmds",
        "AWS_ENDPOINT_URL_SECRETS_MANAGER": f"http://127.0.0.1:{aws.port}",
        "AWS_ENDPOINT_URL_BEDROCK_AGENTCORE": f"http://127.0.0.1:{aws.port}/",
        **environment,
    }  # fmt: skip
    command = [str(node_binary()), "main.js"] if language == "node" else [sys.executable, "-B", "main.py"]
    child = Child(f"shim-{language}", command, place / "shim.log", environment=env, directory=place, patience=2)
    child.start()
    try:
        wait_for_port(port, child.name, 15, child)
        yield Shim(language, port, child)
    finally:
        if os.environ.get("KEEP_LOGS"):
            print(child.tail(60))  # noqa: T201
        child.stop()
