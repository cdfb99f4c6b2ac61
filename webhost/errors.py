"""The kinds of refusal that every app shares, and the one envelope in which the API tells them.

An expected refusal is a WebhostError: it knows its code, status and whether trying again can help.
Anything else that is raised becomes INTERNAL once, at the edge (webhost/api.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from http import HTTPStatus
from typing import Any, ClassVar, TypedDict


class ErrorCode(StrEnum):
    """What went wrong, as programs read it. The list is closed: a new code is a new API version."""

    UNAUTHENTICATED = "UNAUTHENTICATED"
    UNAUTHORIZED = "UNAUTHORIZED"
    NOT_FOUND = "NOT_FOUND"
    INVALID_REQUEST = "INVALID_REQUEST"
    CONFLICT = "CONFLICT"
    LIMIT_EXCEEDED = "LIMIT_EXCEEDED"
    RATE_LIMITED = "RATE_LIMITED"
    DEPLOYMENT_FAILED = "DEPLOYMENT_FAILED"
    RUNTIME_ERROR = "RUNTIME_ERROR"
    INTERNAL = "INTERNAL"


def anchor_of(word: str) -> str:
    """Return the anchor of a code or a limit on the errors page, as the site's builder makes it from the heading."""
    return word.lower().replace("_", "-")


class Issue(TypedDict):
    """One thing that is wrong with a request: where, and what would be right."""

    path: str
    message: str


class WebhostError(Exception):
    """An expected refusal. Message and details are shown to the caller, so neither may hold a secret.

    A kind sets code, status and retryable; a single error may say otherwise about status, retryable
    and retry_after (seconds, sent as Retry-After).
    """

    code: ClassVar[ErrorCode] = ErrorCode.INTERNAL
    status: int = HTTPStatus.INTERNAL_SERVER_ERROR
    retryable: bool = False
    retry_after: int | None = None

    def __init__(
        self,
        message: str,
        *,
        details: Mapping[str, Any] | None = None,
        status: int | None = None,
        retryable: bool | None = None,
        retry_after: int | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.details: dict[str, Any] = dict(details or {})
        if status is not None:
            self.status = int(status)
        if retryable is not None:
            self.retryable = retryable
        if retry_after is not None:
            self.retry_after = retry_after

    @property
    def anchor(self) -> str:
        """Where the errors page explains this: at the limit's heading where there is one, else at the code's."""
        return anchor_of(self.details.get("limitType") or self.code)

    def envelope(self, trace_id: str) -> dict[str, Any]:
        """Return the body of the answer, in the shape of contracts: error and traceId.

        What is sent goes through webhost.wire.envelope_of, which adds the address of its explanation.
        """
        return {
            "error": {
                "code": self.code.value,
                "message": self.message,
                "details": self.details,
                "retryable": self.retryable,
            },
            "traceId": trace_id,
        }


class UnauthenticatedError(WebhostError):
    """Nobody, or nobody we know: no credentials, unknown, expired or revoked ones."""

    code = ErrorCode.UNAUTHENTICATED
    status = HTTPStatus.UNAUTHORIZED

    def __init__(self, message: str = "Sign in, or send an API token as: Authorization: Bearer whs_...") -> None:
        super().__init__(message)


class ForbiddenError(WebhostError):
    """Known, but not allowed: a missing scope, a disabled account, a failed CSRF check."""

    code = ErrorCode.UNAUTHORIZED
    status = HTTPStatus.FORBIDDEN


class NotFoundError(WebhostError):
    """No such thing, or somebody else's: the two are answered alike."""

    code = ErrorCode.NOT_FOUND
    status = HTTPStatus.NOT_FOUND

    def __init__(self, message: str = "There is nothing here.") -> None:
        super().__init__(message)


class InvalidRequestError(WebhostError):
    """The request itself is wrong; sending it again unchanged cannot help."""

    code = ErrorCode.INVALID_REQUEST
    status = HTTPStatus.BAD_REQUEST

    def __init__(
        self, message: str, *, issues: Sequence[Issue] = (), status: int | None = None, path: str | None = None
    ) -> None:
        found = list(issues)
        if path is not None:
            found.append({"path": path, "message": message})
        super().__init__(message, details={"issues": found}, status=status)


class ConflictError(WebhostError):
    """Right in itself, but not in this state: a name taken, a deployment under way, a used key."""

    code = ErrorCode.CONFLICT
    status = HTTPStatus.CONFLICT


class InternalError(WebhostError):
    """Ours, and unexpected. Says nothing but the trace id; the log says the rest."""

    def __init__(self, message: str = "Something went wrong on our side. Please quote the trace id.") -> None:
        super().__init__(message)


class UnavailableError(WebhostError):
    """A dependency is away, so nothing was done: never served uncounted, worth trying again."""

    status = HTTPStatus.SERVICE_UNAVAILABLE
    retryable = True
    retry_after = 5

    def __init__(self, message: str = "A part of the service is away at the moment.", *, retry_after: int = 5) -> None:
        super().__init__(message, retry_after=retry_after)
