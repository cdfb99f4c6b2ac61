"""Passes invocations to a process and its answer back, piece by piece; whoever hangs up, both ends close."""

from __future__ import annotations

import select
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path

from webhost.local.cloudflare.workerd import UnixConnection

_HOP_BY_HOP = frozenset({"connection", "keep-alive", "transfer-encoding", "host", "content-length", "te", "upgrade"})
_PIECE = 65_536


class HangUps:
    """Watches the callers of calls under way; one thread for all of them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._upstreams: dict[int, socket.socket] = {}
        self._poll = select.poll()
        self._wake, self._woken = socket.socketpair()
        self._poll.register(self._woken, select.POLLIN)
        threading.Thread(target=self._watch, name="hang-ups", daemon=True).start()

    @contextmanager
    def watch(self, caller: socket.socket, upstream: socket.socket) -> Iterator[None]:
        """Shut the upstream down as soon as the caller is gone."""
        number = caller.fileno()
        with self._lock:
            self._upstreams[number] = upstream
            self._poll.register(number, select.POLLIN | select.POLLHUP | select.POLLERR)
        self._wake.send(b"x")
        try:
            yield
        finally:
            with self._lock:
                if self._upstreams.pop(number, None) is not None:
                    self._poll.unregister(number)

    def _watch(self) -> None:
        while True:
            for number, _ in self._poll.poll():
                if number == self._woken.fileno():
                    self._woken.recv(4096)
                    continue
                with self._lock:
                    upstream = self._upstreams.pop(number, None)
                    if upstream is None:
                        continue
                    # Readable in the middle of a call: its end, or a second call, which nobody sends.
                    self._poll.unregister(number)
                with suppress(OSError):
                    upstream.shutdown(socket.SHUT_RDWR)


@dataclass(frozen=True)
class Answer:
    """The head of an upstream's answer, and its body as it comes."""

    status: int
    headers: tuple[tuple[str, str], ...]
    pieces: Iterator[bytes]


class UpstreamBroke(Exception):
    """The process ended, or closed, before its answer was complete."""


def forward(
    address: Path,
    path: str,
    headers: Mapping[str, str],
    body: bytes,
    *,
    caller: socket.socket,
    hang_ups: HangUps,
    answer: Callable[[Answer], None],
) -> None:
    """Send one call, once, and hand the answer to `answer`. Raises UpstreamBroke."""
    kept = {name: value for name, value in headers.items() if name.lower() not in _HOP_BY_HOP}
    connection = UnixConnection(address)
    try:
        connection.connect()
        with hang_ups.watch(caller, connection.sock):
            connection.request("POST", path, body, kept)
            response = connection.getresponse()
            passed = tuple((n, v) for n, v in response.getheaders() if n.lower() not in _HOP_BY_HOP)
            answer(Answer(response.status, passed, _pieces(response.read1)))
    except (OSError, HTTPException) as error:
        raise UpstreamBroke from error
    finally:
        connection.close()


def _pieces(read: Callable[[int], bytes]) -> Iterator[bytes]:
    try:
        while piece := read(_PIECE):
            yield piece
    except (OSError, HTTPException) as error:
        raise UpstreamBroke from error
