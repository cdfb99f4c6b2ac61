"""This app's refusals: over a limit, or too fast."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from webhost.errors import ErrorCode, WebhostError


class LimitExceededError(WebhostError):
    """A budget is spent, a cap is reached, or a gate is closed; details name it (contracts.md)."""

    code = ErrorCode.LIMIT_EXCEEDED
    status = HTTPStatus.PAYMENT_REQUIRED


class RateLimitedError(WebhostError):
    """Too many at the same time or in this minute; worth trying again after `retry_after` seconds."""

    code = ErrorCode.RATE_LIMITED
    status = HTTPStatus.TOO_MANY_REQUESTS
    retryable = True

    def __init__(self, message: str, *, details: Mapping[str, Any] | None = None, retry_after: int = 1) -> None:
        super().__init__(message, details=details, retry_after=retry_after)
