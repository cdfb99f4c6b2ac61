"""Passes invocations to a process and its answer back, piece by piece; whoever hangs up, both ends close."""

from __future__ import annotations

import select
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException

_HOP_BY_HOP = frozenset({"connection", "keep-alive", "transfer-encoding", "host", "content-length", "te", "upgrade"})
_PIECE = 65_536


class HangUps:
    """Watches the callers of calls under way; one thread for all of them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pairs: dict[int, tuple[socket.socket, socket.socket]] = {}
        self._poll = select.poll()
        self._wake, self._woken = socket.socketpair()
        self._poll.register(self._woken, select.POLLIN)
        threading.Thread(target=self._watch, name="hang-ups", daemon=True).start()

    @contextmanager
    def watch(self, caller: socket.socket, upstream: socket.socket) -> Iterator[None]:
        """Shut the upstream down as soon as the caller is gone."""
        number = caller.fileno()
        with self._lock:
            self._pairs[number] = (caller, upstream)
            self._poll.register(number, select.POLLIN | select.POLLHUP | select.POLLERR)
        self._wake.send(b"x")
        try:
            yield
        finally:
            with self._lock:
                if self._pairs.pop(number, None) is not None:
                    self._poll.unregister(number)
            # A socket that is being polled is not closed before the poll returns, whoever closes it.
            self._wake.send(b"x")

    def _watch(self) -> None:
        while True:
            for number, _ in self._poll.poll():
                if number == self._woken.fileno():
                    self._woken.recv(4096)
                    continue
                with self._lock:
                    # By now the number may belong to another call: look at the connection itself.
                    caller, upstream = self._pairs.get(number, (None, None))
                    if caller is None or upstream is None or (waiting := _waiting(caller)) is None:
                        continue
                    # Its end, or already its next call; either way there is nothing more to watch for.
                    del self._pairs[number]
                    self._poll.unregister(number)
                    if not waiting:
                        with suppress(OSError):
                            upstream.shutdown(socket.SHUT_RDWR)


def _waiting(connection: socket.socket) -> bytes | None:
    """Return what waits to be read: nothing when the other end is closed, None while it is merely silent."""
    try:
        return connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return None
    except OSError:
        return b""


@dataclass(frozen=True)
class Answer:
    """The head of an upstream's answer, and its body as it comes."""

    status: int
    headers: tuple[tuple[str, str], ...]
    pieces: Iterator[bytes]


class UpstreamBrokeError(Exception):
    """The process ended, or closed, before its answer was complete."""


def forward(
    connection: HTTPConnection,
    path: str,
    headers: Mapping[str, str],
    body: bytes,
    *,
    caller: socket.socket,
    hang_ups: HangUps,
    answer: Callable[[Answer], None],
) -> None:
    """Send one call, once, and hand the answer to `answer`; closes the connection. Raises UpstreamBrokeError."""
    kept = {name: value for name, value in headers.items() if name.lower() not in _HOP_BY_HOP}
    try:
        connection.connect()
        with hang_ups.watch(caller, connection.sock):
            connection.request("POST", path, body, kept)
            response = connection.getresponse()
            passed = tuple((n, v) for n, v in response.getheaders() if n.lower() not in _HOP_BY_HOP)
            answer(Answer(response.status, passed, _pieces(response.read1)))
    except (OSError, HTTPException) as error:
        raise UpstreamBrokeError from error
    finally:
        connection.close()


def _pieces(read: Callable[[int], bytes]) -> Iterator[bytes]:
    try:
        while piece := read(_PIECE):
            yield piece
    except (OSError, HTTPException) as error:
        raise UpstreamBrokeError from error
