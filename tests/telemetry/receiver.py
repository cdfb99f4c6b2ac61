"""A customer's server for tests: real TLS on loopback, under certificates made on the spot, at any name."""

from __future__ import annotations

import datetime as dt
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from telemetry.webhook import Internet, WebhookError

HOST = "hooks.example.com"
PUBLIC = "93.184.215.14"


@dataclass(frozen=True)
class Request:
    """What came in."""

    path: str
    headers: dict[str, str]
    body: bytes


@dataclass
class Receiver:
    """A server, what it was sent, and how it answers."""

    port: int = 0
    requests: list[Request] = field(default_factory=list)
    status: int = 200
    location: str | None = None
    answer: Callable[[BaseHTTPRequestHandler], None] | None = None


@dataclass(frozen=True)
class Pretended(Internet):
    """An internet in which names have the addresses that a test says, and public ones lead to loopback.

    Each look-up takes the next of `answers`; the last stays.
    """

    port: int = 0
    answers: list[list[str]] = field(default_factory=lambda: [[PUBLIC]])
    asked: list[str] = field(default_factory=list)
    reached: list[str] = field(default_factory=list)

    def resolve(self, host: str) -> list[str]:
        self.asked.append(host)
        found = self.answers[min(len(self.asked), len(self.answers)) - 1]
        if not found:
            raise WebhookError("NameNotFound")
        return found

    def reach(self, address: str) -> socket.socket:
        self.reached.append(address)
        return socket.create_connection(("127.0.0.1", self.port), timeout=3)


def certificate(folder: Path, name: str) -> Path:
    """Make a self-signed certificate for a name, and its key, in one file."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = dt.datetime.now(dt.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(subject).issuer_name(subject).public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(hours=1)).not_valid_after(now + dt.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )  # fmt: skip
    file = folder / f"{name}.pem"
    file.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        + made.public_bytes(serialization.Encoding.PEM)
    )
    return file


@contextmanager
def listening(pem: Path) -> Iterator[Receiver]:
    """Serve https with a certificate."""
    receiver = Receiver()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            receiver.requests.append(Request(self.path, dict(self.headers.items()), body))
            if receiver.answer is not None:
                receiver.answer(self)
                return
            self.send_response(receiver.status)
            if receiver.location:
                self.send_header("Location", receiver.location)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the library's name
            return

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem)

    class Server(ThreadingHTTPServer):
        def finish_request(self, request: socket.socket, client_address: object) -> None:  # type: ignore[override]
            try:
                with context.wrap_socket(request, server_side=True) as secure:
                    super().finish_request(secure, client_address)  # type: ignore[arg-type]
            except OSError:
                return  # a client that does not believe us

    server = Server(("127.0.0.1", 0), Handler)
    receiver.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, args=[0.05], daemon=True)
    thread.start()
    try:
        yield receiver
    finally:
        server.shutdown()
        server.server_close()


def drip(handler: BaseHTTPRequestHandler) -> None:
    """Answer a byte now and then, without end."""
    try:
        handler.wfile.write(b"HTTP/1.1 200 OK\r\n")
        for n in range(1000):
            handler.wfile.write(f"X-{n}: 1\r\n".encode())
            handler.wfile.flush()
            time.sleep(0.1)
    except OSError:
        return
