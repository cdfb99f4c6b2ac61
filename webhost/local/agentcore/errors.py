"""What AWS refuses with: a name that boto3 turns into an exception, a status, a message."""

from __future__ import annotations

from enum import Enum
from http import HTTPStatus
from typing import Final


class Kind(Enum):
    """The exceptions of AgentCore, with their status."""

    VALIDATION = ("ValidationException", HTTPStatus.BAD_REQUEST)
    ACCESS_DENIED = ("AccessDeniedException", HTTPStatus.FORBIDDEN)
    NOT_FOUND = ("ResourceNotFoundException", HTTPStatus.NOT_FOUND)
    CONFLICT = ("ConflictException", HTTPStatus.CONFLICT)
    RETRYABLE_CONFLICT = ("RetryableConflictException", HTTPStatus.CONFLICT)
    QUOTA = ("ServiceQuotaExceededException", HTTPStatus.PAYMENT_REQUIRED)
    CLIENT = ("RuntimeClientError", HTTPStatus.FAILED_DEPENDENCY)
    THROTTLED = ("ThrottlingException", HTTPStatus.TOO_MANY_REQUESTS)
    SERVER = ("InternalServerException", HTTPStatus.INTERNAL_SERVER_ERROR)
    UNAVAILABLE = ("ServiceUnavailableException", HTTPStatus.SERVICE_UNAVAILABLE)


# Where other services have other names, or other statuses, for the same. What is not here is AgentCore's.
_ELSEWHERE: Final = {
    ("iam", Kind.ACCESS_DENIED): ("AccessDenied", HTTPStatus.FORBIDDEN),
    ("iam", Kind.NOT_FOUND): ("NoSuchEntity", HTTPStatus.NOT_FOUND),
    ("iam", Kind.CONFLICT): ("EntityAlreadyExists", HTTPStatus.CONFLICT),
    ("iam", Kind.QUOTA): ("LimitExceeded", HTTPStatus.CONFLICT),
    ("iam", Kind.THROTTLED): ("Throttling", HTTPStatus.BAD_REQUEST),
    ("iam", Kind.SERVER): ("ServiceFailure", HTTPStatus.INTERNAL_SERVER_ERROR),
    ("s3", Kind.ACCESS_DENIED): ("AccessDenied", HTTPStatus.FORBIDDEN),
    ("s3", Kind.NOT_FOUND): ("NoSuchKey", HTTPStatus.NOT_FOUND),
    ("s3", Kind.THROTTLED): ("SlowDown", HTTPStatus.SERVICE_UNAVAILABLE),
    ("s3", Kind.SERVER): ("InternalError", HTTPStatus.INTERNAL_SERVER_ERROR),
    ("secretsmanager", Kind.ACCESS_DENIED): ("AccessDeniedException", HTTPStatus.BAD_REQUEST),
    ("secretsmanager", Kind.NOT_FOUND): ("ResourceNotFoundException", HTTPStatus.BAD_REQUEST),
    ("secretsmanager", Kind.CONFLICT): ("ResourceExistsException", HTTPStatus.BAD_REQUEST),
    ("secretsmanager", Kind.QUOTA): ("LimitExceededException", HTTPStatus.BAD_REQUEST),
    ("secretsmanager", Kind.THROTTLED): ("ThrottlingException", HTTPStatus.BAD_REQUEST),
    ("secretsmanager", Kind.SERVER): ("InternalServiceError", HTTPStatus.INTERNAL_SERVER_ERROR),
    ("memory", Kind.THROTTLED): ("ThrottledException", HTTPStatus.TOO_MANY_REQUESTS),
    ("memory", Kind.SERVER): ("ServiceException", HTTPStatus.INTERNAL_SERVER_ERROR),
}


def named(kind: Kind, service: str, operation: str) -> tuple[str, int]:
    """Return what an operation's service calls a refusal, and its status."""
    about_memory = "Memor" in operation or operation.endswith(("Event", "Events"))
    name, status = _ELSEWHERE.get(("memory" if about_memory else service, kind), kind.value)
    return name, int(status)


class AwsError(Exception):
    """A refusal."""

    def __init__(self, kind: Kind, message: str) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
