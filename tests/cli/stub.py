"""A service that answers as a test says, and remembers what it was asked."""

from __future__ import annotations

import json
import socket
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self


@dataclass(frozen=True)
class Asked:
    """A request as it came."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


@dataclass
class Reply:
    """An answer: JSON, or raw bytes; `cut` breaks the connection after them, `hang_up` before anything."""

    status: int = 200
    body: Any = None
    headers: dict[str, str] = field(default_factory=dict)
    cut: bool = False
    hang_up: bool = False


def envelope(code: str, message: str = "No.", *, retryable: bool = False, **details: Any) -> dict[str, Any]:
    """The error envelope of the API."""
    error = {"code": code, "message": message, "details": details, "retryable": retryable}
    return {"error": error, "traceId": "trc_" + "0" * 32}


class Stub:
    """It listens while it is entered."""

    def __init__(self) -> None:
        self.asked: list[Asked] = []
        self.replies: list[Reply] = []
        stub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: Any) -> None:
                pass

            def do_GET(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                stub.asked.append(Asked(self.command, self.path, dict(self.headers), body))
                self._answer(stub.replies.pop(0) if stub.replies else Reply(500, envelope("INTERNAL")))

            do_POST = do_PUT = do_PATCH = do_DELETE = do_GET

            def _answer(self, reply: Reply) -> None:
                if reply.hang_up:
                    self._break()
                    return
                raw = reply.body if isinstance(reply.body, bytes) else json.dumps(reply.body).encode()
                self.send_response(reply.status)
                for name, value in reply.headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(raw) + (1000 if reply.cut else 0)))
                self.end_headers()
                self.wfile.write(raw)
                self.wfile.flush()
                if reply.cut:
                    self._break()

            def _break(self) -> None:
                self.close_connection = True
                self.connection.shutdown(socket.SHUT_RDWR)

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self._server.server_port}"

    def will(self, *replies: Reply) -> None:
        """Say what the next requests are answered."""
        self.replies += replies

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
