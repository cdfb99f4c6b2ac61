"""What AWS refuses with: a name that boto3 turns into an exception, a status, a message."""

from __future__ import annotations

from enum import Enum
from http import HTTPStatus


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


class AwsError(Exception):
    """A refusal."""

    def __init__(self, kind: Kind, message: str) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
