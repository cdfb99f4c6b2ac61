"""The OpenAPI document: valid, kept, complete, and what real answers look like (tests/api.py compares each)."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from django.test import Client
from django.urls import URLPattern, URLResolver, get_resolver

from tests.api import Api, document, documented
from tests.factories import make_account

ROOT = Path(__file__).resolve().parents[2]


def test_the_kept_document_is_the_generated_one_and_valid(tmp_path: Path) -> None:
    made = tmp_path / "openapi.yaml"
    command = [sys.executable, "manage.py", "spectacular", "--validate", "--fail-on-warn", "--file", str(made)]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    kept = (ROOT / "docs" / "openapi.yaml").read_text()
    assert made.read_text() == kept, "run `make openapi`"


def _routes(patterns: list[Any], prefix: str = "/") -> list[str]:
    found: list[str] = []
    for pattern in patterns:
        route = prefix + str(pattern.pattern)
        if isinstance(pattern, URLResolver):
            found += _routes(pattern.url_patterns, route)
        elif isinstance(pattern, URLPattern):
            found.append(re.sub(r"<\w+:(\w+)>", r"{\1}", route))
    return found


def test_every_address_of_the_api_is_documented_and_nothing_else() -> None:
    ours = {route for route in _routes(get_resolver().url_patterns) if route.startswith("/v1/")}
    assert set(document()["paths"]) == ours - {"/v1/schema", "/v1/docs"}


def test_every_operation_has_a_name_of_its_own_and_documents_the_envelope() -> None:
    operations = [op for path in document()["paths"].values() for op in path.values()]
    names = [operation["operationId"] for operation in operations]
    assert len(set(names)) == len(names)
    for operation in operations:
        schema = operation["responses"]["default"]["content"]["application/json"]["schema"]
        assert schema == {"$ref": "#/components/schemas/ErrorOutput"}
        assert "X-Trace-Id" in {parameter["name"] for parameter in operation["parameters"]}


def test_only_what_is_for_everybody_needs_no_credentials() -> None:
    open_to_all = {
        operation["operationId"]
        for path in document()["paths"].values()
        for operation in path.values()
        if not any(operation.get("security", [])) or {} in operation["security"]
    }
    assert open_to_all == {"listTiers", "reportUsage", "receiveStripeEvent"}


@pytest.mark.usefixtures("live_db")
def test_schema_and_docs_are_served_without_another_host() -> None:
    client = Client()
    assert client.get("/v1/schema").status_code == 200
    page = client.get("/v1/docs")
    assert page.status_code == 200
    text = page.content.decode()
    assert "swagger-ui" in text
    assert "//cdn" not in text
    assert 'src="http' not in text
    assert 'href="http' not in text


@pytest.mark.usefixtures("live_db")
def test_the_comparison_itself_notices_a_field_that_is_not_documented_and_one_that_is_missing() -> None:
    me = Api(make_account("alice")).get("/v1/me").json
    with pytest.raises(AssertionError, match="secret"):
        documented("GET", "/v1/me", 200, me | {"secret": 1})
    with pytest.raises(AssertionError, match="email"):
        documented("GET", "/v1/me", 200, {key: value for key, value in me.items() if key != "email"})
    with pytest.raises(AssertionError, match="not documented"):
        documented("GET", "/v1/me", 202, me)
