"""One call of an agent on AgentCore: sent once, read without waiting, and told truthfully when it fails.

Whatever the virtual machine says is a claim: our own clock says how long it took, tokens that nobody reported are
estimated from the text, and tools are measured by the control plane.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final

import urllib3
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectTimeoutError,
    EndpointConnectionError,
    HTTPClientError,
    ReadTimeoutError,
)
from botocore.parsers import ResponseParserError

from runtimes.errors import NotReachedError, RuntimeFailedError
from runtimes.providers.agentcore_clients import Clients
from runtimes.providers.agentcore_names import runtime_session_id
from runtimes.providers.answers import (
    MOST_BYTES,
    TOO_SLOW,
    EventStream,
    failed,
    message_of,
    read_chunks,
    read_error_class,
    read_figures,
    read_json,
    read_logs,
)
from runtimes.providers.base import Answer, Invocation, Target, Usage
from runtimes.rules import estimate_tokens
from webhost.ids import Prefix, public_id

# A machine may have to be started first, and the shim's own time limit is the deployment's; ours only catches one
# that never answers. Less than OVERDUE_GRACE_SECONDS, so that the call is settled before it counts as overdue.
READ_GRACE_SECONDS: Final = 20
JSON: Final = "application/json"
EVENTS: Final = "text/event-stream"
# By hand, and only what AgentCore turned away at its door.
_WAITS: Final = (0.1, 0.3, 0.6)
_RETRIED: Final = frozenset({"ThrottlingException", "RetryableConflictException"})
_BUSY_SECONDS: Final = 2
_AGENT_FAILED: Final = 424


@dataclass(frozen=True)
class _Refusal:
    """Why AgentCore did not take a call, and after how many seconds it may take it; None is never."""

    message: str
    error_class: str
    retry_after: int | None = None


_REFUSED: Final = _Refusal("The runtime refused the call.", "Refused")
_THROTTLED: Final = _Refusal("The runtime takes no more calls at the moment.", "Throttled", _BUSY_SECONDS)
_BUSY: Final = _Refusal("The runtime is changing this session.", "Busy", _BUSY_SECONDS)
# Answers that prove that nothing ran. By code, else by status; what is in neither may have run.
_BY_CODE: Final[Mapping[str, _Refusal]] = {
    "ThrottlingException": _THROTTLED,
    "RetryableConflictException": _BUSY,
    "ConflictException": _BUSY,
    "ServiceQuotaExceededException": _Refusal("The runtime has no room at the moment.", "NoRoom", _BUSY_SECONDS),
    "AccessDeniedException": _Refusal("The runtime refused the call.", "AccessDenied"),
    "ValidationException": _Refusal("The runtime did not understand the call.", "Invalid"),
    "ResourceNotFoundException": _Refusal(
        "This deployment is not at its runtime any more. Please deploy again.", "NotFound"
    ),
}
_BY_STATUS: Final[Mapping[int, _Refusal]] = {
    HTTPStatus.BAD_REQUEST: _REFUSED,
    HTTPStatus.UNAUTHORIZED: _REFUSED,
    HTTPStatus.FORBIDDEN: _REFUSED,
    HTTPStatus.NOT_FOUND: _REFUSED,
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: _REFUSED,
    HTTPStatus.TOO_MANY_REQUESTS: _THROTTLED,
}


def payload_of(target: Target, invocation: Invocation) -> bytes:
    """Return what the shim receives: what it must know, around the request exactly as it was given."""
    ours: dict[str, Any] = {
        "requestId": public_id(Prefix.INVOCATION, invocation.invocation_id),
        "traceId": invocation.trace_id,
        "timeoutSeconds": target.timeout_seconds,
    }
    return json.dumps(ours, separators=(",", ":"))[:-1].encode() + b',"request":' + invocation.body + b"}"


def refusal_of(response: Mapping[str, Any]) -> NotReachedError | RuntimeFailedError:
    """Say what an error answer of AgentCore means: nothing ran, the agent failed, or nobody knows."""
    code = str(response.get("Error", {}).get("Code", ""))
    status = int(response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    if status == _AGENT_FAILED:
        return failed("AgentError")
    refusal = _BY_CODE.get(code) or _BY_STATUS.get(status)
    if refusal is None:
        return RuntimeFailedError(
            "The runtime failed; nobody knows what the agent did.", error_class=f"Runtime{status}", retryable=True
        )
    return NotReachedError(
        refusal.message,
        error_class=refusal.error_class,
        retryable=refusal.retry_after is not None,
        retry_after=refusal.retry_after,
    )


def breakdown_of(error: BotoCoreError | ResponseParserError) -> NotReachedError | RuntimeFailedError:
    """Say what it means that no answer came."""
    if isinstance(error, EndpointConnectionError | ConnectTimeoutError):
        return NotReachedError("The runtime could not be reached.", error_class="NotReached")
    if isinstance(error, ReadTimeoutError):
        return RuntimeFailedError(TOO_SLOW, error_class="Timeout")
    if isinstance(error, HTTPClientError | ResponseParserError):
        return RuntimeFailedError("The runtime broke the connection.", error_class="Broken", retryable=True)
    # What is left is ours: no credentials, or arguments that boto3 itself does not send.
    return NotReachedError("The runtime is not set up.", error_class=type(error).__name__[:60], retryable=False)


def send(operation: Callable[..., Any], /, **arguments: Any) -> Any:
    """Call AgentCore's data plane, once; again only where it was turned away at the door, and not for long.

    Raises NotReachedError where nothing ran, else RuntimeFailedError.
    """
    for wait in (*_WAITS, None):
        try:
            return operation(**arguments)
        except ClientError as error:
            if wait is not None and error.response.get("Error", {}).get("Code") in _RETRIED:
                time.sleep(wait)
                continue
            raise refusal_of(error.response) from None
        except (BotoCoreError, ResponseParserError) as error:
            raise breakdown_of(error) from None
    raise AssertionError  # pragma: no cover - the loop returns or raises


class Reading:
    """One call's figures: our own clock, the text that went in, and what the machine claims."""

    def __init__(self, body: bytes) -> None:
        self._body = body
        self._began = time.monotonic()

    def usage(self, given: Any, text: str) -> Usage | None:
        """Read the claims beside an answer; None where they are none. A claim of 0 tokens stays 0."""
        figures = read_figures(given, "toolCalls", "codeExecutionMs", "browserSessions")
        if figures is None:
            return None
        tokens = given.get("tokens")
        if tokens is not None and read_figures(given, "tokens") is None:
            return None
        return Usage(
            tokens=estimate_tokens(_text_of(self._body), text) if tokens is None else tokens,
            compute_ms=int((time.monotonic() - self._began) * 1000),
            tool_calls=figures["toolCalls"],
            code_ms=figures["codeExecutionMs"],
            browser_sessions=figures["browserSessions"],
            tokens_estimated=tokens is None,
        )

    def answer(self, data: bytes) -> Answer:
        """Read a whole answer; raises RuntimeFailedError, with the figures where there are some."""
        body = read_json(data)
        text, error = body.get("text"), body.get("error")
        usage = self.usage(body.get("usage"), text if isinstance(text, str) else "")
        if isinstance(text, str) and usage is not None:
            return Answer(text, usage, read_logs(body.get("logs")))
        if not isinstance(error, dict):
            raise RuntimeFailedError("The agent answered something unexpected.", error_class="BadAnswer")
        error_class = read_error_class(error)
        raise RuntimeFailedError(
            message_of(error_class),
            error_class=error_class,
            usage=usage,
            logs=read_logs(body.get("logs")),
            retryable=error_class == "AgentCrashed",
        )


def _text_of(body: bytes) -> str:
    messages = read_json(body).get("input", {}).get("messages", ())
    return "\n".join(message["content"] for message in messages)


def open_answer(
    clients: Clients,
    arn: str,
    session: str,
    payload: bytes,
    *,
    accept: str,
    seconds: float,
) -> tuple[str, urllib3.BaseHTTPResponse]:
    """Send a payload to a runtime's session; return the type of what it answers, and the answer, unread."""
    answer = send(
        clients.once(seconds).invoke_agent_runtime,
        agentRuntimeArn=arn,
        runtimeSessionId=session,
        contentType=JSON,
        accept=accept,
        payload=payload,
    )
    # The connection's own answer: botocore's reader waits for whole blocks, or reads byte by byte.
    return str(answer["contentType"]).partition(";")[0], answer["response"]._raw_stream  # noqa: SLF001 - as said


def read_whole(answer: urllib3.BaseHTTPResponse, ends_at: float) -> bytes:
    """Read an answer to its end, in bounded time and memory; raises RuntimeFailedError."""
    pieces: list[bytes] = []
    size = 0
    try:
        for chunk in read_chunks(answer, ends_at):
            pieces.append(chunk)
            size += len(chunk)
            if size > MOST_BYTES:
                raise failed("AnswerTooLarge")
        answer.drain_conn()
    except urllib3.exceptions.ReadTimeoutError:
        raise failed("Timeout") from None
    except (urllib3.exceptions.HTTPError, OSError):
        raise failed("Truncated") from None
    finally:
        answer.close()
    return b"".join(pieces)


def invoke(clients: Clients, target: Target, arn: str, invocation: Invocation) -> Answer:
    """Call an agent and wait for its whole answer."""
    reading, seconds = Reading(invocation.body), target.timeout_seconds + READ_GRACE_SECONDS
    ends_at = time.monotonic() + seconds
    _, answer = open_answer(
        clients,
        arn,
        runtime_session_id(target, invocation.session_id),
        payload_of(target, invocation),
        accept=JSON,
        seconds=seconds,
    )
    return reading.answer(read_whole(answer, ends_at))


def stream(clients: Clients, target: Target, arn: str, invocation: Invocation) -> EventStream:
    """Call an agent and return its answer as it comes."""
    reading, seconds = Reading(invocation.body), target.timeout_seconds + READ_GRACE_SECONDS
    ends_at = time.monotonic() + seconds
    kind, answer = open_answer(
        clients,
        arn,
        runtime_session_id(target, invocation.session_id),
        payload_of(target, invocation),
        accept=EVENTS,
        seconds=seconds,
    )
    if kind == EVENTS:
        return EventStream(answer, reading.usage, ends_at=ends_at)
    reading.answer(read_whole(answer, ends_at))  # raises, but for an answer in one piece, which nobody asked for
    raise RuntimeFailedError("The agent did not stream.", error_class="NoStream")
