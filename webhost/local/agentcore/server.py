"""The address of the local AWS: signatures, permissions, and the way to who answers."""

from __future__ import annotations

import json
import socket
import struct
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException, HTTPResponse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

from webhost.local.agentcore.access import Access, Wire
from webhost.local.agentcore.calls import ANSWERS, Call, Calls, Fault, Faults, Planned
from webhost.local.agentcore.control import Control
from webhost.local.agentcore.errors import AwsError, Kind, named
from webhost.local.agentcore.model import Request, read_request
from webhost.local.agentcore.moto import Moto, operation_of
from webhost.local.agentcore.signatures import read_signature
from webhost.local.agentcore.state import Sort, Store
from webhost.local.agentcore.tools import ABOUT, Tools
from webhost.local.agentcore.vms import Vm, Vms, metadata

_SESSION: Final = "X-Amzn-Bedrock-AgentCore-Runtime-Session-Id"
_PASSED: Final = ("accept", "content-type", "traceparent", _SESSION.lower())
_LONGEST_CALL: Final = 3600
_OTHERS: Final = frozenset({"s3", "iam", "sts", "secretsmanager"})


@dataclass
class Aws:
    """Everything behind the address."""

    store: Store
    control: Control
    vms: Vms
    tools: Tools
    moto: Moto
    access: Access
    calls: Calls = field(default_factory=Calls)
    faults: Faults = field(default_factory=Faults)
    away_seconds: float = 0.0


class Front(ThreadingHTTPServer):
    """The server, with everything its handlers share."""

    daemon_threads = True
    request_queue_size = 1024
    allow_reuse_address = True

    def __init__(self, port: int, aws: Aws) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self.aws = aws
        self._open: set[socket.socket] = set()
        self._open_lock = threading.Lock()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Remember the connection while it lasts, so that all can be dropped at once."""
        with self._open_lock:
            self._open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """Forget a connection and close it."""
        with self._open_lock:
            self._open.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of callers that hung up; anything else is shown."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)

    def go_away(self) -> None:
        """Stop listening and drop every connection."""
        self.shutdown()
        self.socket.close()
        with self._open_lock:
            for connection in self._open:
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)


class Handler(BaseHTTPRequestHandler):
    """One connection, one thread."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: Front

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class calls it that
        """Stay silent; the calls say what was called."""

    def do_GET(self) -> None:
        """Answer any request, by its path and by the service that it was signed for."""
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        if self.path.startswith("/local/"):
            self._inspect(body)
        elif self.path.startswith("/mmds/"):
            self._metadata()
        else:
            self._serve({name.lower(): value for name, value in self.headers.items()}, body)

    do_POST = do_PUT = do_PATCH = do_DELETE = do_HEAD = do_GET

    # --- what tests look at and ask for -------------------------------------------------------------

    def _inspect(self, body: bytes) -> None:
        aws = self.server.aws
        if self.path == "/local/calls":
            self._send(200, aws.calls.shown() | {"processes": aws.vms.pids()})
        elif self.path == "/local/faults":
            try:
                aws.faults.clear() if self.command == "DELETE" else aws.faults.plan(json.loads(body))
            except (ValueError, TypeError) as error:
                self._send(HTTPStatus.BAD_REQUEST, {"message": str(error)})
                return
            self._send(200, {})
        else:
            self._send(HTTPStatus.NOT_FOUND, {})

    def _metadata(self) -> None:
        _, _, key, path = self.path.split("/", 3)
        vm = self.server.aws.vms.by_key(key)
        if vm is None:
            self._send(HTTPStatus.NOT_FOUND, {})
            return
        token = self.headers.get("X-aws-ec2-metadata-token")
        status, said = metadata(self.server.aws.vms, vm, self.command, f"/{path}", token)
        data = said.encode() if isinstance(said, str) else json.dumps(said).encode()
        self._reply(status, [("Content-Type", "text/plain")], data)

    # --- AWS ------------------------------------------------------------------------------------------

    def _serve(self, headers: dict[str, str], body: bytes) -> None:
        aws = self.server.aws
        wire = Wire(self.command, self.path, headers, body)
        signature = read_signature(headers.get("authorization"))
        service = signature.service if signature else "unknown"
        request: Request | None = None
        refused: AwsError | None = None
        if service in _OTHERS:
            operation = operation_of(service, self.command, self.path, headers, body)
        else:
            try:
                request = read_request(self.command, self.path, headers, body)
            except AwsError as error:
                refused = error
            operation = request.operation if request else "Unknown"
        caller = aws.access.caller(wire)
        text = self.path + ("" if service == "s3" else body[:20_000].decode("utf-8", "replace"))
        call = aws.calls.begin(service, operation, caller.name if caller else "nobody", text)
        planned = aws.faults.take(operation)
        try:
            if refused is not None and caller is not None:
                raise refused
            aws.access.require(caller, wire, service, operation, request)
            if planned is not None and self._fails(planned):
                return
            if request is None:
                self._pass_on(call, headers, body, planned)
            else:
                self._answer(call, request, headers, planned)
        except AwsError as error:
            call.allowed = error.kind is not Kind.ACCESS_DENIED
            self._refuse(call, service, error)

    def _fails(self, planned: Planned) -> bool:
        """Fail as a test asked for, before anything happened; say whether the call is over."""
        if planned.fault in ANSWERS:
            raise AwsError(ANSWERS[planned.fault], "A fault that a test asked for.")
        if planned.fault is Fault.SLOW:
            time.sleep(planned.seconds)
        elif planned.fault is Fault.RESET:
            self._break_off()
            return True
        elif planned.fault is Fault.REFUSE:
            self.server.aws.away_seconds = planned.seconds
            self.server.go_away()
            self._break_off()
            return True
        return False

    def _pass_on(self, call: Call, headers: dict[str, str], body: bytes, planned: Planned | None) -> None:
        moto = self.server.aws.moto
        call.status, passed, data = moto.send(self.command, self.path, dict(self.headers.items()), body)
        if call.status < HTTPStatus.BAD_REQUEST:
            request = {"method": self.command, "target": self.path, "headers": headers}
            moto.remember(call.service, call.operation, request, body, data)
        if planned is not None and planned.fault is Fault.RESET_AFTER:
            self._break_off()
            return
        self._reply(call.status, passed, data)

    def _answer(self, call: Call, request: Request, headers: dict[str, str], planned: Planned | None) -> None:
        aws = self.server.aws
        if request.operation == "InvokeAgentRuntime":
            self._invoke(call, request, headers, planned)
            return
        extra: dict[str, str] = {}
        if request.operation == "InvokeCodeInterpreter":
            data, session = aws.tools.run_code(request)
            call.status = 200
            kind = ("Content-Type", "application/vnd.amazon.eventstream")
            self._reply(200, [kind, ("x-amzn-code-interpreter-session-id", session)], data)
            return
        if aws.control.knows(request.operation):
            if planned is not None and planned.fault is Fault.CREATE_FAILED:
                found = aws.control.answer(request)
                aws.store.get(Sort.RUNTIME, found["agentRuntimeId"]).failure = "A fault that a test asked for."
            else:
                found = aws.control.answer(request)
            if request.operation == "DeleteAgentRuntime":
                aws.vms.stop_all(aws.store.get(Sort.RUNTIME, request["agentRuntimeId"]))
        elif request.operation == "StopRuntimeSession":
            aws.vms.stop(aws.store.get(Sort.RUNTIME, request["agentRuntimeArn"]), request["runtimeSessionId"])
            found, extra = {}, {_SESSION: request["runtimeSessionId"]}
        elif request.operation in ABOUT:
            found, extra = aws.tools.answer(request)
        else:
            raise AwsError(Kind.SERVER, f"{request.operation} is not known here.")
        call.status = 200
        if planned is not None and planned.fault is Fault.RESET_AFTER:
            self._break_off()
            return
        self._send(200, found, extra)

    # --- invocations ----------------------------------------------------------------------------------

    def _invoke(self, call: Call, request: Request, headers: dict[str, str], planned: Planned | None) -> None:
        aws = self.server.aws
        runtime = aws.store.get(Sort.RUNTIME, request["agentRuntimeArn"])
        if runtime.status != "READY":
            raise AwsError(Kind.VALIDATION, f"The runtime is {runtime.status}.")
        session = request.get("runtimeSessionId") or ""
        if not session:
            raise AwsError(Kind.VALIDATION, "runtimeSessionId: missing")
        vm = aws.vms.of(runtime, session)
        connection = HTTPConnection("127.0.0.1", vm.port, timeout=_LONGEST_CALL)
        try:
            passed = {name: headers[name] for name in _PASSED if name in headers}
            connection.request("POST", "/invocations", request["payload"], passed | {"WorkloadAccessToken": "local"})
            answer = connection.getresponse()
            if answer.status >= HTTPStatus.BAD_REQUEST:
                answer.read()
                raise AwsError(Kind.CLIENT, f"Received error ({answer.status}) from runtime.")
            call.status = 200
            if planned is not None and planned.fault is Fault.RESET_AFTER:
                answer.read()
                self._break_off()
                return
            self._stream(answer, session, vm, is_cut=planned is not None and planned.fault is Fault.TRUNCATED)
        except (OSError, HTTPException):
            if call.status == 0:
                raise AwsError(Kind.CLIENT, "The runtime ended while it answered.") from None
            self._break_off()
        finally:
            vm.last_used = time.monotonic()
            connection.close()

    def _stream(self, answer: HTTPResponse, session: str, vm: Vm, *, is_cut: bool) -> None:
        """Pass an answer on as it comes; where the process breaks off, or a test wants it, so does this."""
        self.send_response(200)
        self.send_header("Content-Type", answer.headers.get("content-type", "application/json"))
        self.send_header(_SESSION, session)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        try:
            while chunk := answer.read1(65_536):
                if is_cut:
                    half = chunk[: len(chunk) // 2]
                    self.wfile.write(b"%x\r\n%s\r\n" % (len(half), half) if half else b"")
                    self.wfile.flush()
                    break
                self.wfile.write(b"%x\r\n%s\r\n" % (len(chunk), chunk))
                self.wfile.flush()
                vm.last_used = time.monotonic()
            whole = not is_cut and (answer.isclosed() or answer.length in (None, 0))
        except HTTPException:
            whole = False
        if whole:
            self.wfile.write(b"0\r\n\r\n")
        else:
            self._break_off()

    # --- answers --------------------------------------------------------------------------------------

    def _refuse(self, call: Call, service: str, error: AwsError) -> None:
        name, status = named(error.kind, service, call.operation)
        call.status = status
        if service in ("iam", "sts", "s3"):
            inner = f"<Error><Code>{name}</Code><Message>{error.message}</Message></Error>"
            text = inner if service == "s3" else f"<ErrorResponse>{inner}<RequestId>-</RequestId></ErrorResponse>"
            self._reply(status, [("Content-Type", "text/xml")], text.encode())
            return
        extra = {"x-amzn-ErrorType": name, **({"Retry-After": "1"} if error.kind is Kind.THROTTLED else {})}
        self._send(status, {"__type": name, "message": error.message}, extra)

    def _send(self, status: int, found: Any, extra: dict[str, str] | None = None) -> None:
        headers = [("Content-Type", "application/json"), *(extra or {}).items()]
        self._reply(status, headers, json.dumps(found).encode())

    def _reply(self, status: int, headers: list[tuple[str, str]], data: bytes) -> None:
        self.send_response_only(status)
        for name, value in headers:
            self.send_header(name, value)
        if self.command != "HEAD":
            self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def _break_off(self) -> None:
        """Reset the connection, as a machine that dies does."""
        self.close_connection = True
        with suppress(OSError):
            self.wfile.flush()
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.shutdown(socket.SHUT_RD)
            self.connection.close()
