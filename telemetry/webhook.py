"""Send one signed webhook: to the address that was checked, under the name that was given, and nowhere else."""

from __future__ import annotations

import http.client
import socket
import ssl
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

from requests.utils import DEFAULT_CA_BUNDLE_PATH

from telemetry.addresses import HTTPS_PORT, chosen, endpoint_of
from webhost.signing import signature_header

TIMESTAMP_HEADER: Final = "X-Whs-Timestamp"
SIGNATURE_HEADER: Final = "X-Whs-Signature"
EVENT_HEADER: Final = "X-Whs-Event-Id"
_CONNECT_SECONDS: Final = 3.0
_TOTAL_SECONDS: Final = 10.0


class WebhookError(Exception):
    """A webhook that was not taken: a short name for what happened, and the answer's status where there was one."""

    def __init__(self, reason: str, status: int | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.status = status


@dataclass(frozen=True)
class Internet:
    """What a webhook needs of the world: names to addresses, a way there, and whom to believe.

    A test puts a server of its own in its place; nothing in production can.
    """

    ca_certs: str | None = None

    def resolve(self, host: str) -> list[str]:
        """Return all addresses of a name; raises WebhookError where it has none."""
        try:
            found = socket.getaddrinfo(host, HTTPS_PORT, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            raise WebhookError("NameNotFound") from error
        return list(dict.fromkeys(str(entry[4][0]) for entry in found))

    def reach(self, address: str) -> socket.socket:
        """Connect to an address that was checked; a number, so nothing is looked up again."""
        return socket.create_connection((address, HTTPS_PORT), timeout=_CONNECT_SECONDS)


INTERNET: Final = Internet()


def public_address(host: str, internet: Internet) -> str:
    """Resolve a name, once; return the address to call. Raises WebhookError unless all of them are public."""
    address = chosen(internet.resolve(host))
    if address is None:
        raise WebhookError("AddressNotPublic")
    return address


def signed(secret: str, body: bytes, at: int) -> dict[str, str]:
    """Return the headers that prove a body: HMAC-SHA256 under the secret's own characters, of `timestamp.body`."""
    return {
        TIMESTAMP_HEADER: str(at),
        SIGNATURE_HEADER: signature_header(secret.encode(), f"{at}.".encode() + body),
    }


def send_webhook(url: str, body: bytes, headers: Mapping[str, str], internet: Internet = INTERNET) -> int:
    """POST once and return the 2xx status. Raises WebhookError for anything else, a redirect included.

    In ten seconds all told, and without reading what is answered.
    """
    endpoint = endpoint_of(url)
    if isinstance(endpoint, str):
        raise WebhookError("AddressNotAllowed")
    address = public_address(endpoint.host, internet)
    deadline = time.monotonic() + _TOTAL_SECONDS
    try:
        with internet.reach(address) as plain, _wrap(plain, endpoint.host, internet) as secure:
            # A peer that sends one byte now and then would outlast any timeout of a single read.
            watch = threading.Timer(max(deadline - time.monotonic(), 0), _cut, [secure])
            watch.start()
            try:
                status = _post(secure, endpoint.host, endpoint.path, body, headers)
            finally:
                watch.cancel()
    except (OSError, http.client.HTTPException) as error:
        raise WebhookError("Timeout" if time.monotonic() >= deadline else type(error).__name__) from error
    if time.monotonic() >= deadline:
        raise WebhookError("Timeout")  # what was cut off reads as an answer that ended
    if not HTTPStatus.OK <= status < HTTPStatus.MULTIPLE_CHOICES:
        raise WebhookError("Status", status)
    return status


def _wrap(plain: socket.socket, host: str, internet: Internet) -> ssl.SSLSocket:
    context = ssl.create_default_context(cafile=internet.ca_certs or DEFAULT_CA_BUNDLE_PATH)
    # The name is verified though a number is called: whoever answers there must hold its certificate.
    return context.wrap_socket(plain, server_hostname=host, do_handshake_on_connect=False)


def _cut(secure: ssl.SSLSocket) -> None:
    try:
        # Of the socket below: a TLS goodbye could wait for the peer again.
        socket.socket.shutdown(secure, socket.SHUT_RDWR)
    except OSError:
        return


def _post(secure: ssl.SSLSocket, host: str, path: str, body: bytes, headers: Mapping[str, str]) -> int:
    secure.settimeout(_TOTAL_SECONDS)
    secure.do_handshake()
    connection = http.client.HTTPConnection(host, HTTPS_PORT)
    connection.auto_open = 0  # a connection that breaks is not opened again, by name
    connection.sock = secure
    sent = {"Host": host, "Content-Type": "application/json", "User-Agent": "webhost.systems/1", "Connection": "close"}
    connection.request("POST", path, body, {**sent, **headers})
    return connection.getresponse().status
