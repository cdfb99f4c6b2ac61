"""The address of the local Cloudflare: management API, invocations, and what tests look at and ask for."""

from __future__ import annotations

import hmac
import json
import socket
import struct
import sys
import threading
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from webhost.local.cloudflare.api import Api, Namespaces, parse_call
from webhost.local.cloudflare.faults import Fault, Faults, Planned, Side
from webhost.local.cloudflare.fleet import Settings
from webhost.local.cloudflare.replies import ApiError, Code, Reply, failed
from webhost.local.cloudflare.workerd import ScriptError, UnixConnection
from webhost.local.proxy import Answer, HangUps, UpstreamBrokeError, forward

_HTML = b"<!DOCTYPE html><html><head><title>%s</title></head><body><h1>Error %s</h1></body></html>"
_LARGEST = 80 * 1024 * 1024
_INVOKING = ("/invoke", "/invoke/stream")


@dataclass
class Calls:
    """How often what was called; tests that say "no provider call" look here."""

    api: Counter[str] = field(default_factory=Counter)
    invocations: Counter[str] = field(default_factory=Counter)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def count(self, which: Counter[str], key: str) -> None:
        """Count one call."""
        with self.lock:
            which[key] += 1


class Cloud(ThreadingHTTPServer):
    """The server, with everything its handlers share."""

    daemon_threads = True
    request_queue_size = 1024
    allow_reuse_address = True

    def __init__(self, port: int, token: str, cloud: State) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self.token = token
        self.state = cloud
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

    def drop_connections(self) -> None:
        """Close every open connection, as a machine that goes away does."""
        with self._open_lock:
            for connection in self._open:
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)


class State:
    """What outlives the listening socket."""

    def __init__(self, settings: Settings) -> None:
        self.namespaces = Namespaces(settings)
        self.api = Api(self.namespaces)
        self.calls = Calls()
        self.faults = Faults()
        self.hang_ups = HangUps()
        self.away_seconds = 0.0

    def seen(self) -> dict[str, Any]:
        """Return the counts, and the processes that run."""
        default = self.namespaces.default()
        with self.calls.lock:
            api, invocations = dict(self.calls.api), dict(self.calls.invocations)
        return {
            "api": {"total": sum(api.values()), "byKind": api},
            "invocations": {"total": sum(invocations.values()), "byScript": invocations},
            "processes": default[1].pids() if default else {},
        }


class Handler(BaseHTTPRequestHandler):
    """One connection, one thread."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: Cloud

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class calls it that
        """Stay silent; the counts say what was called."""

    def do_GET(self) -> None:
        """Answer any request, by its path."""
        self._handle()

    do_POST = do_PUT = do_PATCH = do_DELETE = do_GET

    def _handle(self) -> None:
        body = self._body()
        if self.path.startswith("/client/v4/"):
            self._manage(body)
        elif self.path == "/local/calls" and self.command == "GET":
            self._send(Reply(200, json.dumps(self.server.state.seen()).encode()))
        elif self.path == "/local/faults":
            self._plan(body)
        elif self.path == "/invoke" or self.path.startswith("/invoke/"):
            self._invoke(body)
        else:
            self._send(failed(ApiError(Code.NO_ROUTE, "Could not route to this path.", HTTPStatus.NOT_FOUND)))

    def _body(self) -> bytes:
        length = int(self.headers.get("content-length") or 0)
        if length > _LARGEST:
            self.close_connection = True
            return b""
        return self.rfile.read(length)

    def _plan(self, body: bytes) -> None:
        faults = self.server.state.faults
        try:
            faults.clear() if self.command == "DELETE" else faults.plan(json.loads(body))
        except (ValueError, TypeError) as error:
            self._send(Reply(HTTPStatus.BAD_REQUEST, str(error).encode(), "text/plain"))
            return
        self._send(Reply(200, b"{}"))

    # --- management -------------------------------------------------------------------------------

    def _manage(self, body: bytes) -> None:
        state = self.server.state
        given = self.headers.get("authorization", "").encode()
        if not hmac.compare_digest(given, f"Bearer {self.server.token}".encode()):
            self._send(failed(ApiError(Code.AUTHENTICATION, "Authentication error", HTTPStatus.FORBIDDEN)))
            return
        try:
            call = parse_call(self.command, self.path, self.headers.get("content-type", ""), body)
            state.calls.count(state.calls.api, call.kind)
            fault = state.faults.take(Side.API, self.command, call.path, call.script)
            if fault is not None and self._spoil(fault):
                return
            reply = state.api.answer(call)
        except ApiError as error:
            fault, reply = None, failed(error)
        if fault is not None and fault.fault == Fault.RESET_AFTER:
            self._reset()
        elif fault is not None and fault.fault == Fault.TRUNCATED:
            half = reply.body[: len(reply.body) // 2]
            self._send(Reply(reply.status, half, reply.content_type, reply.headers))
        else:
            self._send(reply)

    def _spoil(self, planned: Planned) -> bool:
        """Answer a call with its fault instead of doing it; False when it is to be done after all."""
        match planned.fault:
            case Fault.REFUSE:
                self.server.state.away_seconds = planned.seconds
                self.close_connection = True
                threading.Thread(target=self.server.shutdown, daemon=True).start()
            case Fault.HTTP_500:
                self._send(Reply(500, b""))
            case Fault.HTML_522 | Fault.HTML_403:
                number = planned.fault.value[-3:].encode()
                self._send(Reply(int(number), _HTML % (number, number), "text/html"))
            case Fault.NOT_SUCCESS:
                reply = failed(ApiError(Code.INVALID_SCRIPT, planned.message))
                body = json.loads(reply.body)
                body["errors"][0]["code"] = planned.code
                self._send(Reply(200, json.dumps(body).encode()))
            case Fault.TOO_MANY:
                limited = ApiError(Code.RATE_LIMITED, "Please wait.", HTTPStatus.TOO_MANY_REQUESTS)
                self._send(failed(limited, retry_after=str(int(planned.seconds))))
            case Fault.RESET:
                self._reset()
            case Fault.SLOW:
                time.sleep(planned.seconds)
                return False
            case Fault.TRUNCATED | Fault.RESET_AFTER:
                return False
        return True

    # --- invocations ------------------------------------------------------------------------------

    def _invoke(self, body: bytes) -> None:
        state = self.server.state
        script = "d-" + self.headers.get("x-whs-deployment", "").removeprefix("dep_")
        if self.path in _INVOKING:
            state.calls.count(state.calls.invocations, script)
        fault = state.faults.take(Side.INVOKE, self.command, self.path, script)
        if fault is not None and self._spoil(fault):
            return
        default = state.namespaces.default()
        if default is None:
            self._send(Reply(404, _HTML % (b"404", b"404"), "text/html"))
            return
        self._begun = False
        try:
            with default[1].serving(script) as address:
                forward(
                    UnixConnection(address), self.path, dict(self.headers.items()), body,
                    caller=self.connection, hang_ups=state.hang_ups,
                    answer=lambda answer: self._relay(answer, fault),
                )  # fmt: skip
        except (UpstreamBrokeError, ScriptError):
            if self._begun:
                self._reset()
            else:
                # What the edge answers when a Worker exceeds its limits.
                self._send(Reply(503, _HTML % (b"1102", b"1102"), "text/html"))

    def _relay(self, answer: Answer, fault: Planned | None) -> None:
        if fault is not None and fault.fault == Fault.RESET_AFTER:
            for _ in answer.pieces:
                pass
            self._reset()
            return
        self._begun = True
        self.send_response(answer.status)
        for name, value in answer.headers:
            self.send_header(name, value)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for piece in answer.pieces:
            kept = piece[: len(piece) // 2] if fault is not None and fault.fault == Fault.TRUNCATED else piece
            self.wfile.write(b"%x\r\n%b\r\n" % (len(kept), kept))
            if kept is not piece:
                break
        self.wfile.write(b"0\r\n\r\n")

    # --- answers ----------------------------------------------------------------------------------

    def _send(self, reply: Reply) -> None:
        self.send_response(reply.status)
        self.send_header("Content-Type", reply.content_type)
        self.send_header("Content-Length", str(len(reply.body)))
        for name, value in reply.headers:
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(reply.body)

    def _reset(self) -> None:
        """Break the connection, as a machine that crashes does."""
        self.close_connection = True
        self.rfile.close()  # which would keep the socket open
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()
