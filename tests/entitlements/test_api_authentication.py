"""Who calls: tokens that are known, expired, revoked, too weak; and when they were last used."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from entitlements import authentication
from entitlements.enums import Scope
from entitlements.models import ApiToken
from tests.api import Api
from tests.factories import make_account, make_agent
from webhost import db

pytestmark = pytest.mark.usefixtures("live_db")


@pytest.fixture
def alice() -> Api:
    return Api(make_account("alice"))


class TestTokens:
    def test_a_token_is_its_accounts(self, alice: Api) -> None:
        assert alice.get("/v1/me").json["id"] == alice.account.public_id  # type: ignore[union-attr]

    def test_the_scheme_is_read_in_any_case(self, alice: Api) -> None:
        for scheme in ("Bearer", "bearer", "BEARER"):
            assert alice.get("/v1/me", authorization=f"{scheme} {alice.token}").status == 200

    @pytest.mark.parametrize("header", [
        "", "Bearer", "Bearer ", "Bearer whs_", "Bearer " + "a" * 68, "Bearer whs_" + "0" * 64, "Bearer whs_" + "g" * 64,
        "Basic dXNlcjpwYXNz", "Token whs_" + "0" * 64, "whs_" + "0" * 64, "Bearer whs_" + "0" * 10_000,
        "Bearer whs_" + "\xe9" * 64, "Bearer a b c", "Bearer whs_" + "0" * 64 + " x",
    ])  # fmt: skip
    def test_anything_else_is_401_and_says_how_to_sign_in(self, alice: Api, header: str) -> None:
        answer = alice.get("/v1/me", authorization=header)
        assert (answer.status, answer.code) == (401, "UNAUTHENTICATED")
        assert answer.headers["WWW-Authenticate"] == "Bearer"

    def test_nobody_is_401(self) -> None:
        for path in ("/v1/me", "/v1/agents", "/v1/tokens", "/v1/invocations"):
            assert Api().get(path).status == 401

    def test_an_expired_token_is_401(self, alice: Api) -> None:
        ApiToken.objects.filter(user=alice.account).update(expiry=timezone.now() - timedelta(seconds=1))
        assert alice.get("/v1/me").status == 401

    def test_a_token_that_will_expire_works_until_then(self, alice: Api) -> None:
        ApiToken.objects.filter(user=alice.account).update(expiry=timezone.now() + timedelta(seconds=60))
        assert alice.get("/v1/me").status == 200

    def test_a_bad_token_does_not_fall_back_to_public(self) -> None:
        assert Api(token="whs_" + "0" * 64).get("/v1/tiers").status == 401

    def test_authentication_is_one_query_and_loads_no_account(
        self, alice: Api, django_assert_num_queries: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        seen: list[str] = []
        run = db.run
        monkeypatch.setattr(db, "run", lambda query, parameters: seen.append(query) or run(query, parameters))
        agent = make_agent(alice.account)  # type: ignore[arg-type]
        monkeypatch.setattr(authentication, "note_use", lambda token_id: None)
        with django_assert_num_queries(0):
            answer = alice.post("/v1/limits/check", {"agentId": agent.public_id})
        assert answer.status == 200
        assert sum("entitlements_apitoken" in query for query in seen) == 1


class TestScopes:
    CASES = (
        ("GET", "/v1/me", Scope.READ), ("GET", "/v1/agents", Scope.READ), ("POST", "/v1/agents", Scope.DEPLOY),
        ("POST", "/v1/limits/check", Scope.READ), ("GET", "/v1/invocations", Scope.READ),
        ("POST", "/v1/invoke/x", Scope.INVOKE), ("POST", "/v1/invoke/x/stream", Scope.INVOKE),
        ("POST", "/v1/tokens", Scope.DEPLOY), ("GET", "/v1/billing/usage", Scope.READ),
    )  # fmt: skip

    @pytest.mark.parametrize(("method", "path", "needed"), CASES)
    def test_a_token_without_the_scope_is_403_naming_it(self, method: str, path: str, needed: Scope) -> None:
        account = make_account("alice")
        others = Api(account, scopes=[scope for scope in Scope if scope is not needed])
        answer = others.call(method, path, {})
        assert (answer.status, answer.code) == (403, "UNAUTHORIZED")
        assert answer.details == {"missingScope": needed.value}
        assert Api(account, scopes=[needed]).call(method, path, {}).status != 403


class TestLastUse:
    def test_the_first_use_is_written_and_the_next_ones_wait_a_minute(
        self, alice: Api, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(authentication, "_flush_at", 0.0)
        written: list[int] = []
        run = db.run
        monkeypatch.setattr(
            db, "run", lambda q, p: (written.append(len(p["ids"])) if "unnest" in q else None) or run(q, p)
        )
        for _ in range(20):
            alice.get("/v1/me")
        assert len(written) == 1
        assert ApiToken.objects.get(user=alice.account).last_used_at is not None
        monkeypatch.setattr(authentication, "_flush_at", 0.0)
        before = ApiToken.objects.get(user=alice.account).last_used_at
        alice.get("/v1/me")
        after = ApiToken.objects.get(user=alice.account).last_used_at
        assert before is not None
        assert after is not None
        assert after > before
        assert len(written) == 2
