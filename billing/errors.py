"""This app's refusals: Stripe is away, or says no."""

from __future__ import annotations

from http import HTTPStatus

from webhost.errors import ErrorCode, UnavailableError, WebhostError


class StripeAwayError(UnavailableError):
    """Stripe cannot be reached, or asks for patience. Nothing was changed; worth trying again."""

    def __init__(self, message: str = "Our payment provider is away at the moment. Nothing was changed.") -> None:
        super().__init__(message, retry_after=10)


class StripeRefusedError(WebhostError):
    """Stripe understood, and refused: our configuration or our request is wrong. The log says what."""

    code = ErrorCode.INTERNAL
    status = HTTPStatus.INTERNAL_SERVER_ERROR

    def __init__(self) -> None:
        super().__init__("Our payment provider refused this. Nothing was changed. Please quote the trace id.")


class CustomerGoneError(WebhostError):
    """Stripe does not know the customer any more: somebody deleted it there."""

    code = ErrorCode.CONFLICT
    status = HTTPStatus.CONFLICT

    def __init__(self) -> None:
        super().__init__("Your customer record at our payment provider is gone. Please contact support.")
