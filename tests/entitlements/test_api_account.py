"""/v1/me, /v1/tiers and /v1/tokens: what I may do and why, what is sold, my tokens."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest
from django.utils import timezone

from entitlements import rules
from entitlements.enums import Scope
from entitlements.models import ApiToken, Tier
from tests.api import Api
from tests.factories import make_account, make_tier, override

pytestmark = pytest.mark.usefixtures("live_db")


@pytest.fixture
def alice() -> Api:
    return Api(make_account("alice"))


class TestMe:
    def test_it_shows_the_default_tier_and_every_value_with_its_source(self, alice: Api) -> None:
        me = alice.get("/v1/me").json
        free = Tier.objects.get(is_default=True)
        assert me["tier"] == {
            "slug": free.slug, "name": free.name, "version": free.version, "setBy": "default", "until": None,
        }  # fmt: skip
        shown = {
            **me["entitlements"]["limits"],
            **me["entitlements"]["runtimeAccess"],
            **me["entitlements"]["retention"],
        }
        assert set(shown) == {key.value for key in rules.Key} == set(me["entitlements"]["sources"])
        assert set(me["entitlements"]["sources"].values()) == {f"tier:{free.slug}"}

    def test_an_override_shows_its_value_and_its_source_at_once(self, alice: Api) -> None:
        assert alice.account
        made = override(alice.account, "max_requests_per_period", 7)
        found = alice.get("/v1/me").json["entitlements"]
        assert found["limits"]["maxRequestsPerPeriod"] == 7
        assert found["sources"]["maxRequestsPerPeriod"] == f"override:{made.pk}"

    def test_null_is_unlimited_and_0_is_0(self) -> None:
        tier = make_tier(max_requests_per_period=None, max_tokens_per_period=0)
        limits = Api(make_account("alice", tier)).get("/v1/me").json["entitlements"]["limits"]
        assert limits["maxRequestsPerPeriod"] is None
        assert limits["maxTokensPerPeriod"] == 0

    def test_supports_tier_goes_before_billings_while_it_lasts(self, alice: Api) -> None:
        assert alice.account
        alice.account.billing_tier = Tier.objects.get(slug="starter")
        alice.account.support_tier = Tier.objects.get(slug="pro")
        alice.account.support_tier_reason = "Trial"
        alice.account.support_tier_until = timezone.now() + timedelta(days=1)
        alice.account.save()
        tier = alice.get("/v1/me").json["tier"]
        assert (tier["slug"], tier["setBy"]) == ("pro", "support")
        assert datetime.fromisoformat(tier["until"]) == alice.account.support_tier_until
        alice.account.support_tier_until = timezone.now() - timedelta(seconds=1)
        alice.account.save()
        assert alice.get("/v1/me").json["tier"] == alice.get("/v1/me").json["tier"] | {
            "slug": "starter",
            "setBy": "billing",
        }


class TestTiers:
    def test_everybody_sees_the_public_tiers_by_rank_and_no_others(self) -> None:
        make_tier()
        items = Api().get("/v1/tiers").json["items"]
        slugs = [tier["slug"] for tier in items]
        public = Tier.objects.filter(is_public=True, retired_at__isnull=True).order_by("rank")
        assert slugs == list(public.values_list("slug", flat=True))
        assert {"free", "starter", "pro", "enterprise"} <= set(slugs)
        assert [tier["slug"] for tier in items if tier["isDefault"]] == ["free"]


class TestTokens:
    def test_a_token_is_shown_once_and_works(self, alice: Api) -> None:
        made = alice.post("/v1/tokens", {"name": "laptop", "scopes": ["invoke", "read"]})
        assert made.status == 201
        laptop = Api(alice.account, token=made.json["token"])
        assert laptop.get("/v1/me").status == 200
        assert laptop.post("/v1/agents", {"name": "abc"}).status == 403
        listed = alice.get("/v1/tokens").json["items"]
        assert listed[0] == {key: value for key, value in made.json.items() if key != "token"} | {
            "lastUsedAt": listed[0]["lastUsedAt"]
        }
        assert made.json["token"].startswith(listed[0]["startsWith"])
        assert len(listed[0]["startsWith"]) < 20

    def test_only_its_hash_is_kept(self, alice: Api) -> None:
        made = alice.post("/v1/tokens", {"name": "laptop", "scopes": ["read"]}).json
        row = ApiToken.objects.filter(user=alice.account, name="laptop").values().get()
        assert all(made["token"] not in str(value) for value in row.values())

    def test_a_revoked_token_is_401_on_its_next_call(self, alice: Api) -> None:
        made = alice.post("/v1/tokens", {"name": "laptop", "scopes": ["read"]}).json
        laptop = Api(alice.account, token=made["token"])
        assert laptop.get("/v1/me").status == 200
        assert alice.delete(f"/v1/tokens/{made['id']}").status == 204
        assert laptop.get("/v1/me").status == 401
        assert alice.delete(f"/v1/tokens/{made['id']}").status == 404

    def test_a_stranger_neither_sees_nor_revokes_it(self, alice: Api) -> None:
        charlie = Api(make_account("charlie"))
        made = alice.post("/v1/tokens", {"name": "laptop", "scopes": ["read"]}).json
        assert made["id"] not in str(charlie.get("/v1/tokens").json)
        assert charlie.delete(f"/v1/tokens/{made['id']}").status == 404
        assert Api(alice.account, token=made["token"]).get("/v1/me").status == 200

    @pytest.mark.parametrize(("body", "path"), [
        ({"scopes": ["read"]}, "name"), ({"name": "", "scopes": ["read"]}, "name"),
        ({"name": "x" * 81, "scopes": ["read"]}, "name"), ({"name": "a\0b", "scopes": ["read"]}, "name"),
        ({"name": "x", "scopes": []}, "scopes"), ({"name": "x", "scopes": ["admin"]}, "scopes[0]"),
        ({"name": "x", "scopes": "read"}, "scopes"), ({"name": "x", "scopes": ["read"], "expiresAt": "x"}, "expiresAt"),
        ({"name": "x", "scopes": ["read"], "expiresAt": "2020-01-01T00:00:00Z"}, "expiresAt"),
        ({"name": "x", "scopes": ["read"], "account": "acc_x"}, "account"), ({"name": 1.5, "scopes": [1]}, "scopes[0]"),
        ({"name": {"a": 1}, "scopes": ["read"]}, "name"),
    ])  # fmt: skip
    def test_what_is_wrong_is_named(self, alice: Api, body: object, path: str) -> None:
        answer = alice.post("/v1/tokens", body)
        assert answer.status == 400
        assert path in {issue.partition(".")[0] for issue in answer.issues}

    def test_a_token_gives_away_no_scope_that_it_lacks(self) -> None:
        deployer = Api(make_account("alice"), scopes=[Scope.DEPLOY])
        assert deployer.post("/v1/tokens", {"name": "x", "scopes": ["deploy"]}).status == 201
        for scopes in (["invoke"], ["deploy", "read"]):
            assert deployer.post("/v1/tokens", {"name": "x", "scopes": scopes}).code == "UNAUTHORIZED"

    def test_a_token_that_expires_makes_none_that_outlives_it(self, alice: Api) -> None:
        soon = timezone.now() + timedelta(hours=1)
        short = Api(alice.account, token=alice.post(
            "/v1/tokens", {"name": "short", "scopes": ["deploy"], "expiresAt": soon.isoformat()}
        ).json["token"])  # fmt: skip
        longer = {"name": "x", "scopes": ["deploy"], "expiresAt": (soon + timedelta(seconds=1)).isoformat()}
        assert short.post("/v1/tokens", longer).status == 403
        assert short.post("/v1/tokens", {"name": "x", "scopes": ["deploy"]}).status == 403
        assert short.post("/v1/tokens", longer | {"expiresAt": soon.isoformat()}).status == 201

    def test_tokens_are_listed_in_pages(self, alice: Api) -> None:
        for n in range(5):
            alice.post("/v1/tokens", {"name": f"t{n}", "scopes": ["read"]})
        names, cursor = [], ""
        while cursor is not None:
            page = alice.get(f"/v1/tokens?limit=2&cursor={cursor}").json
            names += [token["name"] for token in page["items"]]
            cursor = page["nextCursor"]
        assert names == ["t4", "t3", "t2", "t1", "t0", "test"]


@pytest.mark.parametrize("query", ["limit=0", "limit=101", "limit=x", "limit=-1", "cursor=x", "cursor=!!", "cursor=WyJ4Il0",
                                   "cursor=" + "a" * 500, "cursor=W10", "cursor=bnVsbA", "cursor=WzFd"])  # fmt: skip
def test_a_page_that_cannot_be_is_400(query: str) -> None:
    alice = Api(make_account("alice"))
    for path in ("/v1/tokens", "/v1/agents", "/v1/invocations"):
        assert alice.get(f"{path}?{query}").status == 400
