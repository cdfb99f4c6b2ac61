"""Every answer of the API that is not a success is the envelope, with a trace id; pages get a page."""

from __future__ import annotations

import json
import logging
from typing import Any

import psycopg_pool
import pytest
from django.conf import settings
from django.db import OperationalError
from django.test import Client

from entitlements import api as entitlements_api
from entitlements.authentication import Caller
from tests.api import Answer, Api
from tests.factories import make_account, make_agent
from webhost import db
from webhost.errors import WebhostError

pytestmark = pytest.mark.usefixtures("live_db")
ENVELOPE = {"error", "traceId"}


@pytest.fixture
def alice() -> Api:
    return Api(make_account("alice"))


def is_envelope(answer: Answer, status: int, code: str) -> None:
    assert (answer.status, answer.code) == (status, code)
    assert set(answer.json) == ENVELOPE
    assert set(answer.json["error"]) == {"code", "message", "details", "retryable"}
    anchor = code.lower().replace("_", "-")
    assert answer.json["error"]["details"]["docs"] == f"{settings.PUBLIC_URL}/docs/errors/#{anchor}"
    assert answer.json["traceId"] == answer.headers["X-Trace-Id"]
    assert answer.headers["Content-Type"] == "application/json"


class TestWhatCannotBeUnderstood:
    def test_an_unknown_address_is_404(self, alice: Api) -> None:
        for path in ("/v1/", "/v1/nothing", "/v1/agents/x/y/z", "/v1/agents/"):
            is_envelope(alice.call("GET", path, check=False), 404, "NOT_FOUND")

    def test_an_unknown_address_is_the_envelope_with_debug_on_too(self, alice: Api, settings: Any) -> None:
        settings.DEBUG = True
        is_envelope(alice.call("GET", "/v1/nothing", check=False), 404, "NOT_FOUND")

    @pytest.mark.parametrize(("method", "path"), [
        ("DELETE", "/v1/agents"), ("PUT", "/v1/me"), ("POST", "/v1/tiers"), ("GET", "/v1/limits/check"),
        ("OPTIONS", "/v1/agents"), ("TRACE", "/v1/agents"), ("BREW", "/v1/agents"),
    ])  # fmt: skip
    def test_a_method_that_is_not_allowed_is_405(self, alice: Api, method: str, path: str) -> None:
        answer = alice.call(method, path)
        is_envelope(answer, 405, "INVALID_REQUEST")
        assert answer.headers["Allow"]

    @pytest.mark.parametrize("body", [b"{", b"nope", b'{"name": NaN}', b'{"name": "a", "name": "b"}', b"\xff", b'{"a":1e999}',
                                      b"[" * 50_000, b'{"name": "\\ud800abc"}'])  # fmt: skip
    def test_malformed_json_is_400_with_an_issue(self, alice: Api, body: bytes) -> None:
        answer = alice.post("/v1/agents", body)
        is_envelope(answer, 400, "INVALID_REQUEST")
        assert len(answer.details["issues"]) == 1

    @pytest.mark.parametrize("body", [b"[]", b'"text"', b"1", b"null", b"true"])
    def test_a_body_that_is_no_object_is_400(self, alice: Api, body: bytes) -> None:
        for path in ("/v1/agents", "/v1/tokens", "/v1/limits/check"):
            is_envelope(alice.post(path, body), 400, "INVALID_REQUEST")

    @pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x",
                                      "multipart/form-data", "", "application/xml", "*/*", "garbage"])  # fmt: skip
    def test_another_content_type_is_415(self, alice: Api, kind: str) -> None:
        is_envelope(alice.post("/v1/agents", b'{"name": "abc"}', content_type=kind), 415, "INVALID_REQUEST")

    def test_a_compressed_body_is_415_before_anybody_is_asked_who_it_is(self) -> None:
        answer = Api().post("/v1/agents", b"\x1f\x8b", content_encoding="gzip")
        is_envelope(answer, 415, "INVALID_REQUEST")

    def test_a_body_that_is_too_large_is_413_before_it_is_read(self, alice: Api) -> None:
        is_envelope(alice.post("/v1/agents", b" " * (1024 * 1024 + 1)), 413, "INVALID_REQUEST")

    def test_a_nul_in_the_address_is_400(self, alice: Api) -> None:
        for path in ("/v1/invoke/a%00b", "/v1/agents/agt_%00", "/v1/agents?cursor=%00", "/v1/agents/%00/secrets"):
            is_envelope(alice.call("GET", path, check=False), 400, "INVALID_REQUEST")

    def test_no_accept_header_makes_the_answer_something_else(self, alice: Api) -> None:
        for accept in ("text/html", "text/event-stream", "image/png", "nonsense", ""):
            assert alice.get("/v1/tiers", accept=accept).status == 200
            is_envelope(alice.get("/v1/agents/x", accept=accept), 404, "NOT_FOUND")

    def test_a_wrong_host_is_400(self, alice: Api) -> None:
        is_envelope(alice.call("GET", "/v1/me", check=False, host="evil.example"), 400, "INVALID_REQUEST")


class TestTraceIds:
    def test_a_well_formed_trace_id_is_accepted_and_returned(self, alice: Api) -> None:
        mine = "trc_" + "a" * 32
        for path in ("/v1/me", "/v1/agents/x", "/healthz"):
            assert alice.call("GET", path, check=False, x_trace_id=mine).headers["X-Trace-Id"] == mine
        assert alice.get("/v1/agents/x", x_trace_id=mine).json["traceId"] == mine

    def test_any_other_is_replaced(self, alice: Api) -> None:
        for given in ("x", "trc_", "trc_" + "A" * 32, "é" * 10):
            assert alice.get("/v1/me", x_trace_id=given).headers["X-Trace-Id"] != given

    def test_two_calls_have_two_trace_ids(self, alice: Api) -> None:
        assert alice.get("/v1/me").headers["X-Trace-Id"] != alice.get("/v1/me").headers["X-Trace-Id"]


class TestWhatNobodyExpected:
    SECRET = "postgresql://webhost:hunter2@db"

    def test_an_unexpected_error_is_internal_says_nothing_and_is_logged_once_under_its_trace_id(
        self, alice: Api, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        def broken(*args: object) -> None:
            raise RuntimeError(self.SECRET)

        monkeypatch.setattr(entitlements_api, "read_standing", broken)
        answer = alice.get("/v1/me")
        is_envelope(answer, 500, "INTERNAL")
        assert "hunter2" not in json.dumps(answer.json) + json.dumps(dict(answer.headers))
        assert not answer.json["error"]["retryable"]
        errors = [record for record in caplog.records if record.levelno >= logging.ERROR]
        assert len(errors) == 1
        assert errors[0].exc_info

    def test_a_refusal_keeps_what_it_says(self, alice: Api, monkeypatch: pytest.MonkeyPatch) -> None:
        def refused(*args: object) -> None:
            raise WebhostError("Said so.", details={"why": "x"}, status=503, retryable=True, retry_after=7)

        monkeypatch.setattr(entitlements_api, "read_standing", refused)
        answer = alice.get("/v1/me")
        assert (answer.status, answer.json["error"]["message"], answer.details) == (503, "Said so.", {"why": "x"})
        assert answer.headers["Retry-After"] == "7"

    @pytest.mark.parametrize("error", [OperationalError("connection refused to db.internal"),
                                       psycopg_pool.PoolTimeout("db.internal")])  # fmt: skip
    def test_a_database_that_is_away_is_503_and_worth_trying_again(
        self, alice: Api, monkeypatch: pytest.MonkeyPatch, error: Exception
    ) -> None:
        def away(*args: object, **kwargs: object) -> None:
            raise error

        monkeypatch.setattr(
            entitlements_api, "account_of" if isinstance(error, OperationalError) else "read_standing", away
        )
        if isinstance(error, psycopg_pool.PoolTimeout):
            monkeypatch.undo()
            monkeypatch.setattr(db.hot_pool(), "getconn", away)
        answer = alice.get("/v1/me")
        is_envelope(answer, 503, "INTERNAL")
        assert answer.json["error"]["retryable"]
        assert int(answer.headers["Retry-After"]) > 0
        assert "db.internal" not in json.dumps(answer.json)


class TestSessions:
    @pytest.fixture
    def signed_in(self) -> Client:
        account = make_account("alice", password="long enough password")
        client = Client(enforce_csrf_checks=True, raise_request_exception=False)
        client.force_login(account)
        return client

    def test_a_session_may_read(self, signed_in: Client) -> None:
        response = signed_in.get("/v1/me")
        assert response.status_code == 200
        assert response.json()["email"].startswith("alice-")

    def test_a_change_without_the_csrf_token_is_403_in_the_envelope(self, signed_in: Client) -> None:
        response = signed_in.post("/v1/agents", data="{}", content_type="application/json")
        is_envelope(Answer(response), 403, "UNAUTHORIZED")

    def test_a_change_with_the_csrf_token_passes(self, signed_in: Client) -> None:
        signed_in.cookies["csrftoken"] = "a" * 32
        response = signed_in.post(
            "/v1/agents",
            data='{"name": "from-a-page"}',
            content_type="application/json",
            headers={"X-CSRFToken": "a" * 32},
        )
        assert response.status_code == 201

    def test_a_token_beside_a_session_is_what_counts(self, signed_in: Client) -> None:
        charlie = Api(make_account("charlie"))
        response = signed_in.get("/v1/me", headers={"Authorization": f"Bearer {charlie.token}"})
        assert response.json()["email"].startswith("charlie-")
        response = signed_in.post("/v1/agents", data='{"name": "by-token"}', content_type="application/json",
                                  headers={"Authorization": f"Bearer {charlie.token}"})  # fmt: skip
        assert response.status_code == 201
        assert signed_in.get("/v1/me", headers={"Authorization": "Bearer whs_wrong"}).status_code == 401

    def test_api_calls_with_a_token_touch_no_session_and_set_no_cookie(self) -> None:
        alice = Api(make_account("alice"))
        alice.client.cookies["sessionid"] = "x" * 32
        answer = alice.get("/v1/me")
        assert answer.status == 200
        assert not answer.response.cookies

    def test_a_disabled_account_is_403_by_token(self) -> None:
        account = make_account("alice")
        alice = Api(account)
        account.is_active = False
        account.save()
        is_envelope(alice.get("/v1/me"), 403, "UNAUTHORIZED")


class TestPages:
    def test_an_unknown_page_is_a_page_with_its_trace_id(self) -> None:
        response = Client(raise_request_exception=False).get("/nothing-here")
        assert response.status_code == 404
        assert response.headers["Content-Type"].startswith("text/html")
        assert response.headers["X-Trace-Id"] in response.content.decode()

    def test_a_form_without_its_csrf_token_is_a_page_that_says_what_to_do(self) -> None:
        response = Client(enforce_csrf_checks=True).post("/sign-in/", {"username": "x", "password": "y"})
        assert response.status_code == 403
        assert "reload the page" in response.content.decode()


def test_an_audited_change_by_token_is_recorded_with_its_caller_and_trace() -> None:
    alice = Api(make_account("alice"))
    agent = make_agent(alice.account)  # type: ignore[arg-type]
    answer = alice.patch(f"/v1/agents/{agent.public_id}", {"description": "New."})
    event = type(agent).pgh_event_model.objects.filter(pgh_obj_id=agent.pk).latest("pgh_id")  # type: ignore[attr-defined]
    context = event.pgh_context.metadata
    assert context["source"] == "api"
    assert context["trace"] == answer.headers["X-Trace-Id"]
    assert context["user"] == str(alice.account_id)


def test_a_caller_holds_nothing_but_what_the_hot_path_needs() -> None:
    assert Caller.__slots__ == ("account_id", "token_id", "scopes", "is_session", "delegated_by")
