"""What the platform Worker answers, read strictly: whole answers, streams, and how either fails."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from http import HTTPStatus
from typing import Any, Final, Self

import urllib3
from urllib3.exceptions import HTTPError, ReadTimeoutError

from runtimes.errors import NotReachedError, RuntimeFailedError
from runtimes.providers.base import Answer, Delta, Failure, StreamEvent, Usage
from runtimes.providers.base import Final as FinalEvent

MOST_BYTES: Final = 16 * 1024 * 1024
# Answers that prove that nothing ran: the platform Worker refused, or the edge did not take the call.
_PROOF_OF_NOTHING: Final = frozenset({400, 401, 404, 405, 413, 429})
_LARGEST_FIGURE: Final = 10**12
_PLATFORM_FAILURES: Final = frozenset({"AgentCrashed", "Platform"})
_TOO_SLOW: Final = "The agent did not finish in time."
_MESSAGES: Final[Mapping[str, str]] = {
    "AgentCrashed": "The agent stopped unexpectedly.",
    "AgentError": "The agent failed with an error of its own; its log says more.",
    "AnswerTooLarge": "The agent's answer is too large.",
    "MissingSecrets": "The agent needs secrets that are not set; its log names them.",
    "Timeout": _TOO_SLOW,
    "Truncated": "The agent's answer broke off.",
}


def _message(error_class: str) -> str:
    return _MESSAGES.get(error_class, f"The agent failed ({error_class}).")


def read_usage(given: Any) -> Usage | None:
    """Read the platform Worker's figures; anything but whole numbers in range is no figure at all."""
    if not isinstance(given, dict):
        return None
    numbers = {}
    for name in ("tokens", "computeMs", "toolCalls", "codeExecutionMs", "browserSessions"):
        value = given.get(name, 0)
        if type(value) is not int or not 0 <= value <= _LARGEST_FIGURE:
            return None
        numbers[name] = value
    return Usage(
        tokens=numbers["tokens"],
        compute_ms=numbers["computeMs"],
        tool_calls=numbers["toolCalls"],
        code_ms=numbers["codeExecutionMs"],
        browser_sessions=numbers["browserSessions"],
        tokens_estimated=given.get("tokensEstimated") is True,
    )


def _logs(given: Any) -> tuple[str, ...]:
    return tuple(str(line) for line in given) if isinstance(given, list) else ()


def _error_class(given: Mapping[str, Any]) -> str:
    return str(given.get("errorClass") or "Error")[:60]


def read_answer(status: int, data: bytes) -> Answer:
    """Read a whole answer. Raises NotReachedError where it proves that nothing ran, else RuntimeFailedError."""
    try:
        body = json.loads(data)
    except ValueError:
        body = None
    if not isinstance(body, dict):
        body = {}
    usage = read_usage(body.get("usage"))
    if status == HTTPStatus.OK and isinstance(body.get("text"), str) and usage is not None:
        return Answer(body["text"], usage, _logs(body.get("logs")))
    error = body.get("error")
    if status in _PROOF_OF_NOTHING:
        error_class = _error_class(error) if isinstance(error, dict) else f"Runtime{status}"
        retryable = status == HTTPStatus.TOO_MANY_REQUESTS
        raise NotReachedError("The runtime did not take the call.", error_class=error_class, retryable=retryable)
    if not isinstance(error, dict):
        # Somebody between us and the agent answered: nobody knows whether it ran.
        raise RuntimeFailedError(
            "The runtime answered something unexpected.",
            error_class=f"Runtime{status}",
            retryable=status >= HTTPStatus.INTERNAL_SERVER_ERROR,
        )
    error_class = _error_class(error)
    raise RuntimeFailedError(
        _message(error_class),
        error_class=error_class,
        usage=usage,
        logs=_logs(body.get("logs")),
        retryable=error_class in _PLATFORM_FAILURES,
    )


class CloudflareStream:
    """Server-sent events of the platform Worker, as they come. Broken off without its end: a failure."""

    def __init__(self, answer: urllib3.BaseHTTPResponse) -> None:
        self._answer = answer
        self._events = self._read()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> StreamEvent:
        try:
            return next(self._events)
        except ReadTimeoutError as error:
            raise RuntimeFailedError(_TOO_SLOW, error_class="Timeout") from error
        except (HTTPError, OSError, ValueError, AttributeError) as error:
            # ValueError and AttributeError: http.client's words for reading what was closed under it.
            raise RuntimeFailedError(_message("Truncated"), error_class="Truncated") from error

    def _read(self) -> Iterator[StreamEvent]:
        kind = ""
        for line in self._lines():
            if line.startswith(b"event: "):
                kind = line[7:].decode()
            elif line.startswith(b"data: ") and (event := _event(kind, json.loads(line[6:]))) is not None:
                if isinstance(event, Delta):
                    yield event
                    continue
                self._answer.drain_conn()  # read to its end, the connection may serve the next call
                yield event
                return
        raise RuntimeFailedError(_message("Truncated"), error_class="Truncated")

    def _lines(self) -> Iterator[bytes]:
        # Whole lines only: a chunk may end in the middle of a character.
        rest = b""
        while chunk := self._answer.read1():
            rest += chunk
            *whole, rest = rest.split(b"\n")
            yield from whole
            if len(rest) > MOST_BYTES:
                raise RuntimeFailedError(_message("AnswerTooLarge"), error_class="AnswerTooLarge")

    def close(self) -> None:
        """Stop the upstream. A half-read connection is closed, never given back to the pool."""
        self._answer.close()


def _event(kind: str, data: Any) -> StreamEvent | None:
    if not isinstance(data, dict):
        return None
    if kind == "delta" and isinstance(data.get("text"), str):
        return Delta(data["text"])
    usage = read_usage(data.get("usage"))
    if kind == "final" and usage is not None:
        return FinalEvent(usage, _logs(data.get("logs")))
    if kind == "failure":
        error_class = _error_class(data)
        return Failure(error_class, _message(error_class), usage, _logs(data.get("logs")))
    return None
