"""What can be said about a request before its body is read, and the plainest way to refuse one."""

from __future__ import annotations

import ipaddress
from http import HTTPStatus
from typing import Any

from django.conf import settings
from django.http import HttpRequest, JsonResponse

from webhost.errors import (
    ConflictError,
    ForbiddenError,
    InternalError,
    InvalidRequestError,
    NotFoundError,
    UnauthenticatedError,
    UnavailableError,
    WebhostError,
)
from webhost.tracing import current_trace_id

API_PREFIX = "/v1/"
_MOST_LENGTH_DIGITS = 15


def is_api(request: HttpRequest) -> bool:
    """Say whether a program asks, which gets the envelope, or a browser, which gets a page."""
    return request.path_info.startswith(API_PREFIX)


def client_address(request: HttpRequest) -> str:
    """Return the caller's address, believing only as many X-Forwarded-For entries as we have proxies.

    What is left of those, anybody can write; so without a proxy of ours the header says nothing.
    """
    peer = str(request.META.get("REMOTE_ADDR", ""))
    proxies: int = settings.TRUSTED_PROXY_COUNT
    if proxies:
        entries: list[str] = [entry.strip() for entry in request.META.get("HTTP_X_FORWARDED_FOR", "").split(",")]
        if len(entries) >= proxies and _is_address(entries[-proxies]):
            return entries[-proxies]
    return peer


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def refuse_unreadable(request: HttpRequest, limit: int) -> None:
    """Refuse a body by its headers alone, before a byte of it is read or inflated.

    Raises InvalidRequestError: 413 over `limit` bytes, 415 for a compressed body (130 KB can inflate to
    128 MB), 400 without a length that can be believed, or with NUL in the address.
    """
    if "\x00" in request.path_info or "%00" in request.META.get("QUERY_STRING", ""):
        raise InvalidRequestError("The address holds a NUL character.", path="")
    encoding = request.META.get("HTTP_CONTENT_ENCODING", "").strip().lower()
    if encoding not in ("", "identity"):
        raise InvalidRequestError(
            "Send the body uncompressed: Content-Encoding is not supported.",
            status=HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
            path="Content-Encoding",
        )
    length = str(request.META.get("CONTENT_LENGTH") or "")
    if not length:
        if request.META.get("HTTP_TRANSFER_ENCODING"):
            raise InvalidRequestError("Send the body with a Content-Length.", path="Content-Length")
        return
    if not (length.isascii() and length.isdigit() and len(length) <= _MOST_LENGTH_DIGITS):
        raise InvalidRequestError("Content-Length is not a number.", path="Content-Length")
    if int(length) > limit:
        raise InvalidRequestError(
            f"The body is larger than {limit:,} bytes.", status=HTTPStatus.REQUEST_ENTITY_TOO_LARGE, path=""
        )


def error_of_status(status: int) -> WebhostError:
    """Return the error that says what a bare status says, for answers that did not come from a view of ours."""
    match status:
        case HTTPStatus.UNAUTHORIZED:
            return UnauthenticatedError()
        case HTTPStatus.FORBIDDEN:
            return ForbiddenError("This is not allowed.")
        case HTTPStatus.NOT_FOUND:
            return NotFoundError()
        case HTTPStatus.METHOD_NOT_ALLOWED:
            return InvalidRequestError("This method is not allowed here.", status=status)
        case HTTPStatus.CONFLICT:
            return ConflictError("This does not fit the present state.")
        case HTTPStatus.SERVICE_UNAVAILABLE:
            return UnavailableError()
        case _ if status < HTTPStatus.INTERNAL_SERVER_ERROR:
            return InvalidRequestError("The request could not be understood.", status=status)
        case _:
            return InternalError()


def error_headers(error: WebhostError) -> dict[str, str]:
    """Return the header fields that belong to an error: when to try again, how to sign in."""
    headers = {"Cache-Control": "no-store"}
    if error.retry_after is not None:
        headers["Retry-After"] = str(error.retry_after)
    if error.status == HTTPStatus.UNAUTHORIZED:
        headers["WWW-Authenticate"] = "Bearer"
    return headers


def envelope_of(error: WebhostError, trace_id: str) -> dict[str, Any]:
    """Return the envelope as it is sent: with the address of what explains it, in details.docs."""
    body = error.envelope(trace_id)
    body["error"]["details"] = {**error.details, "docs": f"{settings.PUBLIC_URL}/docs/errors/#{error.anchor}"}
    return body


def error_response(error: WebhostError) -> JsonResponse:
    """Return the envelope as an answer, for where no view is at hand."""
    return JsonResponse(envelope_of(error, current_trace_id()), status=int(error.status), headers=error_headers(error))
