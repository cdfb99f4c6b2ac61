"""The envelope of Cloudflare's API, and the codes its errors carry."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from enum import IntEnum
from http import HTTPStatus
from typing import Any


class Code(IntEnum):
    """Error codes, as documented or seen (developers.cloudflare.com, Workers, error codes)."""

    NOT_FOUND = 10007
    BAD_NAME = 10016
    INVALID_SCRIPT = 10021
    BAD_BODY = 10026
    TOO_LARGE = 10027
    ENVIRONMENT_TOO_MANY = 10054
    ENVIRONMENT_TOO_LARGE = 10055
    BINDING_MISSING = 10056
    INHERITANCE = 10057
    NAMESPACE_EXISTS = 100121  # as above
    NAMESPACE_NOT_FOUND = 100119  # not seen from the real service; the adapter goes by the status
    AUTHENTICATION = 10000
    NO_ROUTE = 7003
    RATE_LIMITED = 971


@dataclass(frozen=True)
class Reply:
    """An answer of the API before it becomes bytes."""

    status: int
    body: bytes
    content_type: str = "application/json"
    headers: tuple[tuple[str, str], ...] = field(default=())


class ApiError(Exception):
    """A request that is refused, with the code and words of the API."""

    def __init__(self, code: Code, message: str, status: int = HTTPStatus.BAD_REQUEST) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.status = status


def succeeded(result: Any = None) -> Reply:
    """Return a result in its envelope."""
    return _reply(HTTPStatus.OK, success=True, errors=[], result=result)


def failed(error: ApiError, **headers: str) -> Reply:
    """Return an error in its envelope."""
    found = [{"code": int(error.code), "message": error.message}]
    names = tuple((name.replace("_", "-"), value) for name, value in headers.items())
    return _reply(error.status, success=False, errors=found, result=None, headers=names)


def _reply(
    status: int, *, success: bool, errors: list[dict[str, Any]], result: Any, headers: tuple[tuple[str, str], ...] = ()
) -> Reply:
    body = {"success": success, "errors": errors, "messages": [], "result": result}
    return Reply(status, json.dumps(body).encode(), headers=headers)
