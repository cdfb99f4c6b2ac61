"""How DRF reads a body and chooses a format. Apart from webhost/api.py, which DRF's own views load before."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import IO, Any

from rest_framework.negotiation import BaseContentNegotiation
from rest_framework.parsers import BaseParser
from rest_framework.renderers import BaseRenderer
from rest_framework.request import Request

from webhost.errors import InvalidRequestError
from webhost.strict_json import StrictJsonError, parse_strict


class StrictJSONParser(BaseParser):
    """Reads a JSON body strictly; an empty one is an empty object. The raw bytes stay in `HttpRequest.body`."""

    media_type = "application/json"

    def parse(
        self,
        stream: IO[Any],
        media_type: str | None = None,  # noqa: ARG002 - DRF's signature
        parser_context: Mapping[str, Any] | None = None,
    ) -> Any:
        """Return the body's value; raises InvalidRequestError."""
        context = parser_context or {}
        request = context.get("request")
        raw: bytes = request._request.body if request is not None else stream.read()  # noqa: SLF001 - DRF's own access
        if not raw.strip():
            return {}
        try:
            return parse_strict(raw)
        except StrictJsonError as error:
            raise InvalidRequestError(str(error), path="") from error


class OnlyJson(BaseContentNegotiation):
    """Answers in the one format there is, whatever `Accept` says, so that even a refusal can be told."""

    def select_parser(self, request: Request, parsers: Iterable[BaseParser]) -> BaseParser | None:
        """Return the parser for the body's type. A body without a type is not guessed at."""
        given = (request.content_type or "").partition(";")[0].strip().lower()
        return next((parser for parser in parsers if parser.media_type == given), None)

    def select_renderer(
        self,
        request: Request,  # noqa: ARG002 - DRF's signature
        renderers: Iterable[BaseRenderer],
        format_suffix: str | None = None,  # noqa: ARG002
    ) -> tuple[BaseRenderer, str]:
        """Return the first renderer."""
        first = next(iter(renderers))
        return first, first.media_type or ""
