"""The Python side of AgentCore's HTTP contract: GET /ping, POST /invocations.

What calls us is the service, for whoever may invoke the runtime; headers it adds (a workload token among
them) end here. It turns every 4xx and 5xx into one without a body, so failures are told in answers of 200.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from _whs.agent import Agent
from _whs.aws import Aws
from _whs.failure import FailureError
from _whs.invocations import Invocations, Run, parsed
from _whs.printing import divert

_LARGEST_BODY = 16 * 1024 * 1024
_NOTHING = {
    "usage": {"tokens": 0, "toolCalls": 0, "codeExecutionMs": 0, "browserSessions": 0},
    "logs": [],
}  # fmt: skip


class Handler(BaseHTTPRequestHandler):
    """One connection of the service."""

    protocol_version = "HTTP/1.1"
    invocations: Invocations

    def log_message(self, *_args: Any) -> None:
        """Say nothing about each request."""

    def do_GET(self) -> None:
        """GET /ping. No time_of_last_update: one that moves would keep an idle session alive."""
        if self.path.split("?")[0] == "/ping":
            self._answer(200, {"status": "HealthyBusy" if self.invocations.is_busy else "Healthy"})
        else:
            self._answer(404, {"message": "Not found."})

    def do_POST(self) -> None:
        """POST /invocations."""
        if self.path.split("?")[0] != "/invocations":
            self._answer(404, {"message": "Not found."})
            return
        with self.invocations.busy():
            self._invoke()

    def _invoke(self) -> None:
        streams = "text/event-stream" in self.headers.get("accept", "")
        call = parsed(self._body())
        if call is None:
            self._refuse(FailureError("BadRequest", "The request cannot be read."), streams=streams)
        elif call.get("probe") is True:
            self._probe()
        else:
            session = self.headers.get("x-amzn-bedrock-agentcore-runtime-session-id")
            try:
                run = self.invocations.take(call, session)
            except FailureError as failure:
                self._refuse(failure, streams=streams)
            else:
                self._stream(run) if streams else self._whole(run)

    def _body(self) -> bytes:
        """Return the body; nothing when it is too large."""
        if "chunked" in self.headers.get("transfer-encoding", ""):
            return self._chunks()
        length = int(self.headers.get("content-length") or 0)
        if length > _LARGEST_BODY:
            self.close_connection = True
            return b""
        return self.rfile.read(length)

    def _chunks(self) -> bytes:
        body = b""
        while length := int(self.rfile.readline(64).split(b";")[0], 16):
            if len(body) + length > _LARGEST_BODY:
                self.close_connection = True
                return b""
            body += self.rfile.read(length)
            self.rfile.readline(4)
        while self.rfile.readline(8192).strip():
            pass
        return body

    def _probe(self) -> None:
        try:
            self.invocations.probe()
        except FailureError as failure:
            self._answer(200, {"error": _error_of(failure), "logs": list(failure.logs)})
        else:
            self._answer(200, {"ok": True})

    def _whole(self, run: Run) -> None:
        text = "".join(run.text(self._is_gone))
        told = {"error": _error_of(run.failure)} if run.failure else {"text": text}
        self._answer(200, told | run.ending())

    def _stream(self, run: Run) -> None:
        self._open_stream()
        text = run.text(self._is_gone)
        try:
            for piece in text:
                # A reader that does not read holds the agent up, until its time is up.
                self.connection.settimeout(max(1.0, run.ends_at - time.monotonic()))
                self._event("delta", {"text": piece})
            failed = run.failure and _error_of(run.failure)
            self._event("failure" if failed else "final", {**(failed or {}), **run.ending()})
            self.wfile.write(b"0\r\n\r\n")
            self.connection.settimeout(None)
        except OSError:
            self.close_connection = True
        finally:
            text.close()

    def _refuse(self, failure: FailureError, *, streams: bool) -> None:
        if not streams:
            self._answer(200, {"error": _error_of(failure), **_NOTHING})
            return
        self._open_stream()
        self._event("failure", {**_error_of(failure), **_NOTHING})
        self.wfile.write(b"0\r\n\r\n")

    def _open_stream(self) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("cache-control", "no-store")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()

    def _event(self, name: str, data: dict[str, Any]) -> None:
        event = f"event: {name}\ndata: {json.dumps(data)}\n\n".encode()
        self.wfile.write(b"%x\r\n%s\r\n" % (len(event), event))

    def _answer(self, status: int, body: dict[str, Any]) -> None:
        data = json.dumps(body).encode()
        try:
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)
        except OSError:  # the caller hung up
            self.close_connection = True

    def _is_gone(self) -> bool:
        """Say whether the caller hung up: then there is something to read, and it is the end."""
        readable, _, _ = select.select([self.connection], [], [], 0)
        try:
            return bool(readable) and not self.connection.recv(1, socket.MSG_PEEK)
        except OSError:
            return True


class Server(ThreadingHTTPServer):
    """As many callers at once as come."""

    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, *_args: Any) -> None:
        """Say in the machine's log what went wrong, unless the caller just hung up."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(*_args)


def _error_of(failure: FailureError) -> dict[str, str]:
    return {"errorClass": failure.error_class, "message": failure.message}


def main() -> None:
    """Serve until told to stop."""
    divert()
    Handler.invocations = Invocations(Agent(os.environ.get("WHS_ENTRYPOINT", "")), Aws(os.environ), os.environ)
    address = os.environ.get("HOST", "0.0.0.0"), int(os.environ.get("PORT", "8080"))  # noqa: S104 - the contract
    server = Server(address, Handler)
    signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=server.shutdown, daemon=True).start())
    server.serve_forever()
    os._exit(0)  # an agent's own threads do not hold us


if __name__ == "__main__":
    main()
