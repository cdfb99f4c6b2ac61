"""What every runtime answers in the same way, read strictly: figures, logs, events, and the words for failures."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, Self

import urllib3
from urllib3.exceptions import HTTPError, ReadTimeoutError

from runtimes.errors import RuntimeFailedError
from runtimes.providers.base import Delta, Failure, StreamEvent, Usage
from runtimes.providers.base import Final as FinalEvent

MOST_BYTES: Final = 16 * 1024 * 1024
TOO_SLOW: Final = "The agent did not finish in time."
_LARGEST_FIGURE: Final = 10**12
_MESSAGES: Final[Mapping[str, str]] = {
    "AgentCrashed": "The agent stopped unexpectedly.",
    "AgentError": "The agent failed with an error of its own; its log says more.",
    "AnswerTooLarge": "The agent's answer is too large.",
    "LoadError": "The agent does not start; its log says more.",
    "MissingSecrets": "The agent needs secrets that are not set; its log names them.",
    "Repeated": "This call was received before; it was not run again.",
    "Timeout": TOO_SLOW,
    "Truncated": "The agent's answer broke off.",
}

# Reads the figures beside an event, given the text that came before it.
UsageReader = Callable[[Any, str], Usage | None]


def message_of(error_class: str) -> str:
    """Return our own words for a class of failure."""
    return _MESSAGES.get(error_class, f"The agent failed ({error_class}).")


def failed(error_class: str, *, retryable: bool = False) -> RuntimeFailedError:
    """Return the failure of that class, in our own words and without figures."""
    return RuntimeFailedError(message_of(error_class), error_class=error_class, retryable=retryable)


def read_json(data: bytes) -> dict[str, Any]:
    """Read a JSON object; anything else is an empty one."""
    try:
        body = json.loads(data)
    except (ValueError, RecursionError):
        return {}
    return body if isinstance(body, dict) else {}


def read_figures(given: Any, *names: str) -> dict[str, int] | None:
    """Read whole numbers in range, 0 where there is none; one that is anything else and there are no figures."""
    if not isinstance(given, dict):
        return None
    figures = {name: given.get(name, 0) for name in names}
    if any(type(value) is not int or not 0 <= value <= _LARGEST_FIGURE for value in figures.values()):
        return None
    return figures


def read_logs(given: Any) -> tuple[str, ...]:
    """Read what the agent printed."""
    return tuple(str(line) for line in given) if isinstance(given, list) else ()


def read_error_class(given: Mapping[str, Any]) -> str:
    """Read how a failure is called, bounded."""
    return str(given.get("errorClass") or "Error")[:60]


class EventStream:
    """Server-sent events of a runtime, as they come. Broken off without its end: a failure.

    Read from the connection itself, whole chunks at a time and never waiting for more. `ends_at`, a reading of
    the monotonic clock, is when it is broken off, however often something still comes.
    """

    def __init__(self, answer: urllib3.BaseHTTPResponse, usage: UsageReader, *, ends_at: float | None = None) -> None:
        self._answer = answer
        self._usage = usage
        self._ends_at = ends_at
        self._text: list[str] = []
        self._events = self._read()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> StreamEvent:
        try:
            return next(self._events)
        except ReadTimeoutError as error:
            raise failed("Timeout") from error
        except (HTTPError, OSError, ValueError, AttributeError, RecursionError) as error:
            # ValueError and AttributeError: http.client's words for reading what was closed under it.
            raise failed("Truncated") from error

    def _read(self) -> Iterator[StreamEvent]:
        kind = ""
        for line in self._lines():
            if line.startswith(b"event: "):
                kind = line[7:].decode()
            elif line.startswith(b"data: ") and (event := self._event(kind, json.loads(line[6:]))) is not None:
                if isinstance(event, Delta):
                    self._text.append(event.text)
                    yield event
                    continue
                self._answer.drain_conn()  # read to its end, the connection may serve the next call
                yield event
                return
        raise failed("Truncated")

    def _event(self, kind: str, data: Any) -> StreamEvent | None:
        if not isinstance(data, dict):
            return None
        if kind == "delta" and isinstance(data.get("text"), str):
            return Delta(data["text"])
        if kind not in ("final", "failure"):
            return None
        usage = self._usage(data.get("usage"), "".join(self._text))
        if kind == "failure":
            error_class = read_error_class(data)
            return Failure(error_class, message_of(error_class), usage, read_logs(data.get("logs")))
        return None if usage is None else FinalEvent(usage, read_logs(data.get("logs")))

    def _lines(self) -> Iterator[bytes]:
        # Whole lines only: a chunk may end in the middle of a character.
        rest = b""
        for chunk in read_chunks(self._answer, self._ends_at):
            rest += chunk
            *whole, rest = rest.split(b"\n")
            yield from whole
            if len(rest) > MOST_BYTES:
                raise failed("AnswerTooLarge")

    def close(self) -> None:
        """Stop the upstream. A half-read connection is closed, never given back to the pool."""
        self._answer.close()


def read_chunks(answer: urllib3.BaseHTTPResponse, ends_at: float | None) -> Iterator[bytes]:
    """Read what comes as it comes; raises RuntimeFailedError once the time is up, also while something comes."""
    while True:
        if ends_at is not None:
            left = ends_at - time.monotonic()
            if left <= 0:
                raise failed("Timeout")
            socket = getattr(answer.connection, "sock", None)
            if socket is not None:  # else the connection ends with this answer; it keeps its own time limit
                socket.settimeout(left)
        chunk = answer.read1()
        if not chunk:
            return
        yield chunk
