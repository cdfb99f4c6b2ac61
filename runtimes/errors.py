"""This app's kinds of failure: of a deployment, and of an invocation at its provider."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING

from webhost.errors import ErrorCode, WebhostError

if TYPE_CHECKING:
    from runtimes.providers.base import Usage


class DeploymentFailedError(WebhostError):
    """A provider did not take a deployment. The message is ours: never the provider's text."""

    code = ErrorCode.DEPLOYMENT_FAILED
    status = HTTPStatus.BAD_GATEWAY

    def __init__(self, message: str, *, error_class: str, retryable: bool = False) -> None:
        super().__init__(message, details={"errorClass": error_class}, retryable=retryable)
        self.error_class = error_class


class NotReachedError(WebhostError):
    """The provider was certainly not reached, so nothing ran: the request is given back.

    503 with a Retry-After of its own (`retry_after` seconds) where the provider has no room at the moment.
    """

    code = ErrorCode.RUNTIME_ERROR
    status = HTTPStatus.BAD_GATEWAY
    retryable = True

    def __init__(
        self, message: str, *, error_class: str, retryable: bool = True, retry_after: int | None = None
    ) -> None:
        super().__init__(
            message,
            details={"errorClass": error_class},
            status=HTTPStatus.BAD_GATEWAY if retry_after is None else HTTPStatus.SERVICE_UNAVAILABLE,
            retryable=retryable,
            retry_after=1 if retry_after is None else retry_after,
        )
        self.error_class = error_class


class SessionEndedError(WebhostError):
    """The session was stopped, or idle or alive for longer than it may be: nothing was sent, nothing counts."""

    code = ErrorCode.RUNTIME_ERROR
    status = HTTPStatus.BAD_GATEWAY

    def __init__(self) -> None:
        super().__init__(
            "This session has ended. Start a new one with another sessionId, or with none.",
            details={"errorClass": "SessionEnded"},
        )


class RuntimeFailedError(WebhostError):
    """The agent failed, or nobody knows what it did: the request counts. 504 when it timed out."""

    code = ErrorCode.RUNTIME_ERROR
    status = HTTPStatus.BAD_GATEWAY

    def __init__(
        self,
        message: str,
        *,
        error_class: str,
        usage: Usage | None = None,
        logs: tuple[str, ...] = (),
        retryable: bool = False,
    ) -> None:
        timed_out = error_class == "Timeout"
        super().__init__(
            message,
            details={"errorClass": error_class},
            status=HTTPStatus.GATEWAY_TIMEOUT if timed_out else HTTPStatus.BAD_GATEWAY,
            retryable=retryable,
        )
        self.error_class = error_class
        self.usage = usage
        self.logs = logs
