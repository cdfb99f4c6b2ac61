"""A caller of the API in tests: every answer it gets is compared with the OpenAPI document."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from threading import Barrier
from typing import Any, TypeVar
from uuid import UUID

from django.core.files.uploadedfile import SimpleUploadedFile
from django.db import connections
from django.test import Client
from django.urls import resolve
from drf_spectacular.generators import SchemaGenerator
from jsonschema import Draft202012Validator

from entitlements.enums import Scope
from entitlements.models import Account
from tests.factories import make_token

T = TypeVar("T")


@cache
def document() -> dict[str, Any]:
    """The OpenAPI document, as it is generated now."""
    made: dict[str, Any] = json.loads(json.dumps(SchemaGenerator().get_schema(request=None, public=True), default=str))
    return made


def at_once(work: Callable[[int], T], many: int) -> list[T]:
    """Do something in many threads at the same time; return what each returned, in order."""
    barrier = Barrier(many)

    def one(n: int) -> T:
        try:
            barrier.wait()
            return work(n)
        finally:
            connections.close_all()  # as the server does after each request, and Django's test client does not

    with ThreadPoolExecutor(many) as crowd:
        return list(crowd.map(one, range(many)))


def _strictly(node: Any) -> Any:
    """Turn an OpenAPI 3.0 schema into a JSON schema that also refuses what is not documented."""
    if isinstance(node, list):
        return [_strictly(item) for item in node]
    if not isinstance(node, dict):
        return node
    strict = {key: _strictly(value) for key, value in node.items() if key != "nullable"}
    if isinstance(strict.get("properties"), dict) and "additionalProperties" not in strict:
        strict["additionalProperties"] = False
    return {"anyOf": [strict, {"type": "null"}]} if node.get("nullable") is True else strict


@cache
def _components() -> Any:
    return _strictly(document()["components"])


def documented(method: str, path: str, status: int, body: Any) -> None:
    """Fail unless the document says that this operation may answer this."""
    route = "/" + re.sub(r"<\w+:(\w+)>", r"{\1}", resolve(path).route)
    operations = document()["paths"].get(route)
    assert operations is not None, f"{route} is not documented"
    operation = operations.get(method.lower())
    if operation is None:
        assert status == 405, f"{method} {route} is not documented"
        return
    responses = operation["responses"]
    assert status >= 400 or str(status) in responses, f"{method} {route} answered {status}, which is not documented"
    content = responses.get(str(status), responses["default"]).get("content")
    if content is None:
        assert body is None
        return
    schema = _strictly(content["application/json"]["schema"]) | {"components": _components()}
    errors = [f"{error.json_path}: {error.message}" for error in Draft202012Validator(schema).iter_errors(body)]
    assert not errors, f"{method} {route} {status}: {errors}\n{json.dumps(body, indent=1)}"


class Answer:
    """What came back."""

    def __init__(self, response: Any) -> None:
        self.response = response
        self.status: int = response.status_code
        self.headers: Mapping[str, str] = response.headers
        self.json: Any = json.loads(response.content) if response.content else None

    @property
    def code(self) -> str:
        """The error's code."""
        return str(self.json["error"]["code"])

    @property
    def details(self) -> dict[str, Any]:
        """The error's details, but for the address of their explanation, which all have (test_envelope)."""
        found: dict[str, Any] = dict(self.json["error"]["details"])
        found.pop("docs")
        return found

    @property
    def issues(self) -> dict[str, str]:
        """The error's issues by path."""
        return {issue["path"]: issue["message"] for issue in self.details["issues"]}


class Api:
    """Somebody who calls the API: with a token of an account, with any header, or with nothing."""

    def __init__(
        self, account: Account | None = None, *, scopes: Iterable[Scope] = Scope, token: str | None = None
    ) -> None:
        self.client = Client(raise_request_exception=False)
        self.account = account
        self.token = token if token is not None else make_token(account, scopes=scopes) if account else None

    @property
    def account_id(self) -> UUID:
        """The caller's account."""
        assert self.account is not None
        return self.account.pk

    def call(self, method: str, path: str, body: Any = None, *, check: bool = True, **headers: str) -> Answer:
        """Send a request; a header is given as `idempotency_key="..."`."""
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        if self.token is not None and "authorization" not in given:
            given["Authorization"] = f"Bearer {self.token}"
        if isinstance(body, bytes):
            raw = body
        else:
            raw = b"" if body is None else json.dumps(body).encode()
        content_type = given.pop("content-type", "application/json")
        response = self.client.generic(method, path, raw, content_type=content_type, headers=given)
        answer = Answer(response)
        assert answer.headers["X-Trace-Id"].startswith("trc_")
        if check:
            documented(method, path.partition("?")[0], answer.status, answer.json)
        return answer

    def get(self, path: str, **headers: str) -> Answer:
        """GET."""
        return self.call("GET", path, **headers)

    def post(self, path: str, body: Any = None, **headers: str) -> Answer:
        """POST JSON."""
        return self.call("POST", path, body, **headers)

    def put(self, path: str, body: Any = None, **headers: str) -> Answer:
        """PUT JSON."""
        return self.call("PUT", path, body, **headers)

    def patch(self, path: str, body: Any = None, **headers: str) -> Answer:
        """PATCH JSON."""
        return self.call("PATCH", path, body, **headers)

    def delete(self, path: str, **headers: str) -> Answer:
        """DELETE."""
        return self.call("DELETE", path, **headers)

    def upload(
        self, path: str, content: bytes, *, field: str = "bundle", name: str = "agent.zip", **headers: str
    ) -> Answer:
        """POST a file as multipart/form-data."""
        given = {header.replace("_", "-"): value for header, value in headers.items()}
        if self.token is not None:
            given["Authorization"] = f"Bearer {self.token}"
        response = self.client.post(path, {field: SimpleUploadedFile(name, content, "application/zip")}, headers=given)
        answer = Answer(response)
        documented("POST", path, answer.status, answer.json)
        return answer
