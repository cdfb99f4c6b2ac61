"""Around every request: its trace id; and around pages alone, what pages need.

Sessions, messages, CSRF and history cost more than the rest of an invocation's HTTP together
(performance.md, pitfall 7), and a program that sends a token has no use for them.
"""

from __future__ import annotations

from collections.abc import Callable
from http import HTTPStatus
from typing import Any, cast

from django.conf import settings
from django.core.handlers.exception import convert_exception_to_response
from django.http import HttpRequest, HttpResponseBase
from django.http.response import HttpResponse
from django.utils.module_loading import import_string
from pghistory.middleware import HistoryMiddleware as PgHistoryMiddleware

from webhost.tracing import TRACE_HEADER, bind_trace_id, current_trace_id, trace_id_of
from webhost.wire import client_address, error_of_status, error_response, is_api

GetResponse = Callable[[HttpRequest], HttpResponseBase]
# Under its WSGI name: `request.headers` would read all of them to find one.
_TRACE_KEY = f"HTTP_{TRACE_HEADER.upper().replace('-', '_')}"


class TraceMiddleware:
    """Bind the request's trace id, return it on every answer, and leave no API error without its envelope."""

    def __init__(self, get_response: GetResponse) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        """Answer one request."""
        with bind_trace_id(trace_id_of(request.META.get(_TRACE_KEY))) as trace_id:
            response = self.get_response(request)
            # Django itself answers what reaches no view: an unknown address, a bad host, DEBUG's own pages.
            if response.status_code >= HTTPStatus.BAD_REQUEST and is_api(request) and not _is_json(response):
                refused = response
                response = error_response(error_of_status(refused.status_code))
                refused.close()
            response.headers[TRACE_HEADER] = trace_id
            return response


def _is_json(response: HttpResponseBase) -> bool:
    return response.headers.get("Content-Type", "").startswith("application/json")


class PagesMiddleware:
    """Run settings.PAGES_MIDDLEWARE for everything but API calls that have nothing to do with a browser.

    Those are calls with a token (their cookies are not looked at), and calls without a session cookie.
    """

    def __init__(self, get_response: GetResponse) -> None:
        self.direct = get_response
        self.checks: list[Callable[..., HttpResponse | None]] = []
        handler = _answering(get_response)
        for name in reversed(settings.PAGES_MIDDLEWARE):
            middleware = import_string(name)(handler)
            # Django calls these only for middleware that it loads itself; CSRF is checked in one.
            if hasattr(middleware, "process_view"):
                self.checks.insert(0, middleware.process_view)
            handler = _answering(middleware)
        self.through_pages = handler

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        """Answer one request, with or without what pages need."""
        if _needs_no_pages(request):
            return self.direct(request)
        return self.through_pages(request)

    def process_view(
        self, request: HttpRequest, view: Callable[..., Any], args: list[Any], kwargs: dict[str, Any]
    ) -> HttpResponse | None:
        """Run the checks of the middleware that the request went through."""
        if _needs_no_pages(request):
            return None
        for check in self.checks:
            response = check(request, view, args, kwargs)
            if response is not None:
                return response
        return None


def _answering(get_response: GetResponse) -> GetResponse:
    """Turn what a middleware raises into an answer, as Django does around those that it loads itself."""
    return cast("GetResponse", convert_exception_to_response(get_response))


def _needs_no_pages(request: HttpRequest) -> bool:
    return is_api(request) and (
        "HTTP_AUTHORIZATION" in request.META or settings.SESSION_COOKIE_NAME not in request.COOKIES
    )


class HistoryMiddleware(PgHistoryMiddleware):
    """Tell the audit log who changes something from a browser, from which address, under which trace id."""

    def get_context(self, request: HttpRequest) -> dict[str, Any]:
        """Return what every audited change of this request is recorded with."""
        user = getattr(request, "user", None)
        signed_in = user is not None and user.is_authenticated
        return {
            "user": str(user.pk) if signed_in and user is not None else None,
            "actor": user.get_username() if signed_in and user is not None else None,
            "source": "page",
            "url": request.path,
            "address": client_address(request),
            "trace": current_trace_id(),
        }
