"""What the platform Worker answers: whole answers, streams, and how either fails."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any, Final

import urllib3

from runtimes.errors import NotReachedError, RuntimeFailedError
from runtimes.providers.answers import EventStream, message_of, read_error_class, read_figures, read_json, read_logs
from runtimes.providers.base import Answer, Usage

# Answers that prove that nothing ran: the platform Worker refused, or the edge did not take the call.
_PROOF_OF_NOTHING: Final = frozenset({400, 401, 404, 405, 413, 429})
_PLATFORM_FAILURES: Final = frozenset({"AgentCrashed", "Platform"})


def read_usage(given: Any) -> Usage | None:
    """Read the platform Worker's figures; anything but whole numbers in range is no figure at all."""
    figures = read_figures(given, "tokens", "computeMs", "toolCalls", "codeExecutionMs", "browserSessions")
    if figures is None:
        return None
    return Usage(
        tokens=figures["tokens"],
        compute_ms=figures["computeMs"],
        tool_calls=figures["toolCalls"],
        code_ms=figures["codeExecutionMs"],
        browser_sessions=figures["browserSessions"],
        tokens_estimated=given.get("tokensEstimated") is True,
    )


def read_answer(status: int, data: bytes) -> Answer:
    """Read a whole answer. Raises NotReachedError where it proves that nothing ran, else RuntimeFailedError."""
    body = read_json(data)
    usage = read_usage(body.get("usage"))
    if status == HTTPStatus.OK and isinstance(body.get("text"), str) and usage is not None:
        return Answer(body["text"], usage, read_logs(body.get("logs")))
    error = body.get("error")
    if status in _PROOF_OF_NOTHING:
        error_class = read_error_class(error) if isinstance(error, dict) else f"Runtime{status}"
        retryable = status == HTTPStatus.TOO_MANY_REQUESTS
        raise NotReachedError("The runtime did not take the call.", error_class=error_class, retryable=retryable)
    if not isinstance(error, dict):
        # Somebody between us and the agent answered: nobody knows whether it ran.
        raise RuntimeFailedError(
            "The runtime answered something unexpected.",
            error_class=f"Runtime{status}",
            retryable=status >= HTTPStatus.INTERNAL_SERVER_ERROR,
        )
    error_class = read_error_class(error)
    raise RuntimeFailedError(
        message_of(error_class),
        error_class=error_class,
        usage=usage,
        logs=read_logs(body.get("logs")),
        retryable=error_class in _PLATFORM_FAILURES,
    )


class CloudflareStream(EventStream):
    """Server-sent events of the platform Worker, whose own clock ends them."""

    def __init__(self, answer: urllib3.BaseHTTPResponse) -> None:
        super().__init__(answer, lambda given, _: read_usage(given))
