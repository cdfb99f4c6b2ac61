"""What every API view shares: strict bodies, bounded reading, one envelope for refusals."""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from http import HTTPStatus
from typing import Any, NoReturn, cast
from uuid import UUID

from django.core.exceptions import PermissionDenied, RequestDataTooBig, SuspiciousOperation
from django.db import InterfaceError, OperationalError
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase, UnreadablePostError
from django.http.multipartparser import MultiPartParserError
from django.template.loader import render_to_string
from rest_framework import exceptions, serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from webhost.errors import (
    ForbiddenError,
    InternalError,
    InvalidRequestError,
    Issue,
    NotFoundError,
    UnauthenticatedError,
    UnavailableError,
    WebhostError,
)
from webhost.history import note, noted
from webhost.ids import Prefix, parse_id, public_id
from webhost.openapi import ApiSchema
from webhost.parsing import OnlyJson
from webhost.tracing import current_trace_id
from webhost.wire import (
    client_address,
    envelope_of,
    error_headers,
    error_of_status,
    error_response,
    is_api,
    refuse_unreadable,
)

logger = logging.getLogger(__name__)

_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
_DEFAULT_BODY_LIMIT = 1024 * 1024


# --- Reading --------------------------------------------------------------------------------------


class StrictSerializer(serializers.Serializer[Any]):
    """An input whose unknown fields are refused: nobody sets owner, tier or limits by naming them."""

    def to_internal_value(self, data: Any) -> Any:
        """Return validated data; raises with every unknown field by its name."""
        if isinstance(data, Mapping):
            writable = {name for name, field in self.fields.items() if not field.read_only}
            unknown = sorted(str(name) for name in data.keys() - writable)
            if unknown:
                raise serializers.ValidationError({name: ["Unknown field."] for name in unknown})
        return super().to_internal_value(data)


class PublicId(serializers.Field[UUID, str, str, Any]):
    """An id as the outside world sees it; read back, a malformed one is an id that does not exist."""

    def __init__(self, prefix: Prefix, **options: Any) -> None:
        super().__init__(**options)
        self.prefix = prefix

    def to_representation(self, value: UUID) -> str:
        """Return the prefixed id."""
        return public_id(self.prefix, value)

    def to_internal_value(self, data: str) -> UUID:
        """Return the id; raises NotFoundError."""
        return parse_id(self.prefix, data)


# --- Refusing -------------------------------------------------------------------------------------


def issues_of(detail: Any, path: str = "") -> list[Issue]:
    """Flatten what serializers find into issues with a path each."""
    if isinstance(detail, Mapping):
        found: list[Issue] = []
        for key, value in detail.items():
            found += issues_of(value, _inner_path(path, key))
        return found
    if isinstance(detail, list):
        if all(isinstance(item, str) for item in detail):
            return [{"path": path, "message": str(item)} for item in detail]
        return [issue for n, item in enumerate(detail) for issue in issues_of(item, f"{path}[{n}]")]
    return [{"path": path, "message": str(detail)}]


def _inner_path(path: str, key: str | int) -> str:
    if key == "non_field_errors":
        return path
    if isinstance(key, int):
        return f"{path}[{key}]"
    return f"{path}.{key}" if path else key


def _from_rest_framework(error: exceptions.APIException) -> WebhostError:
    match error:
        case exceptions.ValidationError():
            return InvalidRequestError("The request is not valid.", issues=issues_of(error.detail))
        case exceptions.NotAuthenticated() | exceptions.AuthenticationFailed():
            return UnauthenticatedError()
        case exceptions.PermissionDenied():
            return ForbiddenError(str(error.detail))
        case exceptions.UnsupportedMediaType():
            return InvalidRequestError(
                "Send this as application/json, or as the documentation of this call says.",
                status=HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
                path="Content-Type",
            )
        case exceptions.MethodNotAllowed():
            return InvalidRequestError(str(error.detail), status=HTTPStatus.METHOD_NOT_ALLOWED)
        case exceptions.ParseError():
            return InvalidRequestError("The body could not be read.", path="")
        case _:
            return error_of_status(error.status_code)


def as_webhost_error(error: BaseException) -> WebhostError:
    """Return what an exception means to a caller; only what nobody expected is INTERNAL."""
    match error:
        case WebhostError():
            return error
        case exceptions.APIException():
            return _from_rest_framework(error)
        case Http404():
            return NotFoundError()
        case PermissionDenied():
            return ForbiddenError("This is not allowed.")
        case RequestDataTooBig():
            return InvalidRequestError("The body is too large.", status=HTTPStatus.REQUEST_ENTITY_TOO_LARGE, path="")
        case SuspiciousOperation() | MultiPartParserError() | UnreadablePostError():
            return InvalidRequestError("The body could not be read.", path="")
        case OperationalError() | InterfaceError():
            return UnavailableError("The database is not available at the moment.")
        case _:
            return InternalError()


def exception_handler(error: Exception, context: Mapping[str, Any]) -> Response:  # noqa: ARG001 - DRF's signature
    """Answer every exception of an API view with the envelope; log the unexpected ones, once."""
    refusal = as_webhost_error(error)
    response = Response(
        envelope_of(refusal, current_trace_id()), status=int(refusal.status), headers=error_headers(refusal)
    )
    if isinstance(refusal, InternalError | UnavailableError) and refusal is not error:
        logger.error("%s: %s", type(error).__name__, refusal.message, exc_info=error)
    # Django would log every answer from 500 up again, without the reason.
    response._has_been_logged = True  # type: ignore[attr-defined]  # noqa: SLF001
    return response


# --- Views ----------------------------------------------------------------------------------------


class ApiView(APIView):
    """Base of every API view: bounded bodies, JSON only, the envelope for all refusals, an audit context.

    `required_scope` is what a token needs (see entitlements.authentication.HasScope); `body_limit` is in bytes.
    """

    schema = ApiSchema()
    content_negotiation_class = OnlyJson
    metadata_class = None
    required_scope: Any = None
    body_limit: int = _DEFAULT_BODY_LIMIT
    # False on paths that write nothing of what the audit log follows.
    is_audited: bool = True

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:  # noqa: ARG002 - DRF's signature
        """Refuse what can be refused before the body is read: size, encoding, identity, scope, rate."""
        refuse_unreadable(request._request, self.body_limit)  # noqa: SLF001 - headers only
        try:
            self.perform_authentication(request)
            self.check_permissions(request)
        except (UnauthenticatedError, exceptions.NotAuthenticated, exceptions.AuthenticationFailed):
            # Guessing tokens is paced like any other call without one.
            request.user, request.auth = None, None  # type: ignore[assignment]  # UNAUTHENTICATED_USER is None
            self.check_throttles(request)
            raise
        self.check_throttles(request)
        if self.is_audited and request.method not in _SAFE_METHODS and request.auth is not None:
            user = request.user
            note(user=str(user.pk), actor=user.get_username())
            token_id = getattr(request.auth, "token_id", None)
            if token_id is not None:
                note(token=public_id(Prefix.TOKEN, token_id))

    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        """Run the request, with everything it changes recorded under its caller."""
        with self._audit_context(request):
            return super().dispatch(request, *args, **kwargs)

    def _audit_context(self, request: HttpRequest) -> AbstractContextManager[Any]:
        if not self.is_audited or request.method in _SAFE_METHODS:
            return nullcontext()
        return noted(source="api", url=request.path, address=client_address(request), trace=current_trace_id())

    def permission_denied(self, request: Request, message: str | None = None, code: str | None = None) -> NoReturn:
        """Refuse a caller: 401 where nobody is known, 403 otherwise."""
        if request.auth is None:
            raise UnauthenticatedError
        super().permission_denied(request, message=message, code=code)

    def finalize_response(self, request: Request, response: Response, *args: Any, **kwargs: Any) -> Response:
        """Let no cache keep an answer."""
        final = super().finalize_response(request, response, *args, **kwargs)
        final.headers.setdefault("Cache-Control", "no-store")
        return final


def validated(serializer: type[serializers.Serializer[Any]], data: Any) -> dict[str, Any]:
    """Return the data that a serializer accepts; raises with every issue's path otherwise."""
    if not isinstance(data, Mapping):
        raise InvalidRequestError("The body must be a JSON object.", path="")
    checked = serializer(data=data)
    checked.is_valid(raise_exception=True)
    return cast("dict[str, Any]", checked.validated_data)


# --- Where no view is at hand ---------------------------------------------------------------------


def _answer(request: HttpRequest, error: WebhostError, title: str) -> HttpResponse:
    if is_api(request):
        return error_response(error)
    context = {"title": title, "message": error.message, "trace_id": current_trace_id()}
    # Without the request: its context asks for the user, and so for the database that may be away.
    return HttpResponse(render_to_string("error.html", context), status=int(error.status), headers=error_headers(error))


def bad_request(request: HttpRequest, exception: Exception) -> HttpResponse:  # noqa: ARG001 - Django's signature
    """Answer what Django calls suspicious."""
    return _answer(request, InvalidRequestError("The request could not be understood."), "That did not work")


def permission_denied(request: HttpRequest, exception: Exception) -> HttpResponse:  # noqa: ARG001 - Django's signature
    """Answer what a page does not allow."""
    return _answer(request, ForbiddenError("You may not do this."), "Not allowed")


def not_found(request: HttpRequest, exception: Exception) -> HttpResponse:  # noqa: ARG001 - Django's signature
    """Answer an unknown address."""
    return _answer(request, NotFoundError(), "Nothing here")


def csrf_failure(request: HttpRequest, reason: str = "") -> HttpResponse:  # noqa: ARG001 - would tell an attacker more
    """Answer a form that does not prove that it came from our own page."""
    message = "This form is out of date. Please go back, reload the page, and send it again."
    return _answer(request, ForbiddenError(message), "Please try again")


def server_error(request: HttpRequest) -> HttpResponse:
    """Answer an exception that nobody expected, or a database that is away; say nothing but the trace id."""
    error = sys.exc_info()[1]
    refusal = as_webhost_error(error) if error is not None else InternalError()
    title = "Back in a moment" if refusal.retryable else "Something went wrong"
    return _answer(request, refusal, title)
