"""Sign-in and the overview: what an account sees of its tier, and what a page offers of it."""

from __future__ import annotations

import re
from typing import Any
from uuid import uuid4

import pytest
from django.test import Client
from django.utils import timezone

from entitlements.enums import LimitType, Runtime
from entitlements.errors import LimitExceededError
from entitlements.models import Account, Denial
from entitlements.rules import entitlements_of
from runtimes.actions import agents
from runtimes.models import Agent
from runtimes.pages import offers
from tests.entitlements.admin_pages import said
from tests.entitlements.callers import Caller
from tests.entitlements.tiers import everything, tier
from tests.factories import make_account, make_agent, make_tier, make_token
from tests.pages import inline_of
from webhost.pages import overview
from webhost.period import period_of

pytestmark = pytest.mark.usefixtures("live_db")

PASSWORD = "a-long-enough-secret"


def signed_in(account: Account) -> Client:
    client = Client()
    client.force_login(account)
    return client


def caller(account: Account) -> Caller:
    return Caller(account.pk, uuid4(), uuid4())


def row(page: Any, measure: str) -> str:
    """Return one line of the table of measures, without its tags."""
    (line,) = re.findall(rf'<tr id="use-{measure}".*?</tr>', page.content.decode(), flags=re.DOTALL)
    return " ".join(re.sub(r"<[^>]+>", " ", line).split())


class TestSigningIn:
    def test_a_stranger_is_sent_to_the_sign_in_page_and_back(self) -> None:
        answer = Client().get("/billing/")
        assert (answer.status_code, answer["Location"]) == (302, "/sign-in/?next=/billing/")
        assert Client().post("/agents/", {"name": "mine"}).status_code == 302

    def test_alice_signs_in_with_her_address_in_any_case(self) -> None:
        alice, client = make_account("alice", password=PASSWORD), Client()
        answer = client.post("/sign-in/", {"username": alice.email.upper(), "password": PASSWORD})
        assert (answer.status_code, answer["Location"]) == (302, "/")
        assert alice.email in said(client.get("/"))

    def test_a_wrong_password_an_unknown_and_a_disabled_account_are_told_the_same(self) -> None:
        alice, gone = make_account("alice", password=PASSWORD), make_account("charlie", password=PASSWORD)
        Account.objects.filter(pk=gone.pk).update(is_active=False)
        attempts = [(alice.email, "wrong"), (f"{uuid4().hex}@example.com", PASSWORD), (gone.email, PASSWORD)]
        told = set()
        for address, password in attempts:
            page = Client().post("/sign-in/", {"username": address, "password": password})
            assert page.status_code == 200
            told.add(tuple(re.findall(r'role="alert">(.*?)</div>', page.content.decode(), flags=re.DOTALL)))
        assert len(told) == 1

    def test_nobody_is_sent_to_another_site(self) -> None:
        alice = make_account("alice", password=PASSWORD)
        data = {"username": alice.email, "password": PASSWORD, "next": "https://evil.example/"}
        assert Client().post("/sign-in/", data)["Location"] == "/"

    def test_a_link_signs_nobody_out(self) -> None:
        client = signed_in(make_account("alice"))
        assert client.get("/sign-out/").status_code == 405
        assert client.get("/").status_code == 200
        assert client.post("/sign-out/").status_code == 302
        assert client.get("/billing/").status_code == 302

    def test_a_disabled_account_is_out_at_once(self) -> None:
        alice = make_account("alice")
        client = signed_in(alice)
        Account.objects.filter(pk=alice.pk).update(is_active=False)
        assert client.get("/billing/").status_code == 302

    def test_a_form_from_elsewhere_is_refused(self) -> None:
        client = Client(enforce_csrf_checks=True)
        client.force_login(make_account("alice"))
        assert client.post("/agents/", {"name": "not-mine"}).status_code == 403
        assert client.post("/sign-out/").status_code == 403


class TestTheOverview:
    def test_it_names_the_tier_and_when_it_resets(self) -> None:
        own = make_tier(name=f"Gold {uuid4().hex[:6]}")
        page = said(signed_in(make_account("alice", own)).get("/"))
        assert f"{own.name} tier" in page
        assert "Paid for." in page
        assert re.search(r"resets on 1 \w+ \d{4}, 00:00 UTC", page)

    def test_used_limit_and_percent_follow_each_call(self) -> None:
        alice = make_account("alice", make_tier(max_requests_per_period=3))
        client, calls = signed_in(alice), caller(alice)
        assert row(client.get("/"), "requests") == "Requests 0 0 3 0 %"
        calls.admit()
        assert row(client.get("/"), "requests") == "Requests 1 0 3 33 %"

    def test_what_is_held_for_running_calls_is_shown(self) -> None:
        alice = make_account("alice", make_tier(max_tokens_per_period=1000))
        caller(alice).admit(tokens=250)
        assert row(signed_in(alice).get("/"), "tokens") == "Tokens 0 250 1,000 25 %"

    @pytest.mark.case("LIM-03")
    @pytest.mark.parametrize(
        ("limit", "served", "line", "in_the_api"),
        [
            (0, 0, "Requests 0 0 0 100 %", 0),
            (1, 1, "Requests 1 0 1 100 %", 1),
            (None, 3, "Requests 3 0 unlimited –", None),
        ],
    )
    def test_zero_one_and_unlimited_are_served_and_shown_alike(
        self, limit: int | None, served: int, line: str, in_the_api: int | None
    ) -> None:
        alice = make_account("alice", make_tier(max_requests_per_period=limit))
        calls = caller(alice)
        assert [calls.refusal() for _ in range(3)].count(None) == served
        assert row(signed_in(alice).get("/"), "requests") == line
        usage = Client().get("/v1/billing/usage", headers={"Authorization": f"Bearer {make_token(alice)}"}).json()
        (requests,) = [line for line in usage["limits"] if line["limitType"] == "requests"]
        assert (requests["used"], requests["limit"]) == (served, in_the_api)

    @pytest.mark.case("LIM-03")
    def test_a_token_budget_of_zero_is_zero(self) -> None:
        alice = make_account("alice", make_tier(max_tokens_per_period=0))
        assert row(signed_in(alice).get("/"), "tokens") == "Tokens 0 0 0 100 %"

    def test_tools_that_the_tier_does_not_lend_say_so(self) -> None:
        page = signed_in(make_account("alice", make_tier())).get("/")
        assert row(page, "toolCalls") == "Tool calls 0 0 not in this tier –"

    def test_a_new_limit_is_shown_at_once(self) -> None:
        own = make_tier(max_requests_per_period=3)
        client = signed_in(make_account("alice", own))
        client.get("/")
        own.max_requests_per_period = 4
        own.save()
        assert row(client.get("/"), "requests") == "Requests 0 0 4 0 %"

    def test_a_refusal_says_which_limit_why_and_what_to_do(self) -> None:
        alice = make_account("alice", make_tier(max_requests_per_period=1))
        agent = make_agent(alice, "my-bot")
        calls = Caller(alice.pk, agent.pk, uuid4())
        calls.admit()
        assert isinstance(calls.refusal(), LimitExceededError)
        page = said(signed_in(alice).get("/"))
        assert "Requests refused 1 time" in page
        assert "1 of 1 requests are used. Wait until 1 " in page
        assert "Agent my-bot" in page

    def test_a_refusal_carries_its_trace_id(self) -> None:
        alice = make_account("alice")
        now, trace = timezone.now(), f"trc_{uuid4().hex}"
        Denial.objects.create(
            account_id=alice.pk, limit_type=LimitType.TOKENS, period=period_of(now), count=3, trace_id=trace,
            minute=now.replace(second=0, microsecond=0),
        )  # fmt: skip
        assert trace in said(signed_in(alice).get("/"))

    def test_nothing_of_charlie_is_on_alices_page(self) -> None:
        alice, charlie = make_account("alice"), make_account("charlie")
        theirs = make_agent(charlie, "secret-plans")
        now = timezone.now()
        # Even if a refusal of alice's named it.
        Denial.objects.create(
            account_id=alice.pk, limit_type=LimitType.TOKENS, period=period_of(now), count=3, agent_id=theirs.pk,
            minute=now.replace(second=0, microsecond=0),
        )  # fmt: skip
        assert "secret-plans" not in said(signed_in(alice).get("/"))

    def test_an_empty_page_says_what_to_do_first(self) -> None:
        page = said(signed_in(make_account("alice")).get("/"))
        assert "Create an agent , deploy a bundle to it, and invoke it." in page
        assert "Nothing was refused." in page


class TestCreatingAnAgent:
    def test_alice_creates_one_and_sees_it(self) -> None:
        alice = make_account("alice")
        page = signed_in(alice).post("/agents/", {"name": "my-bot", "runtimeProvider": "cloudflare"}, follow=True)
        agent = Agent.objects.get(account=alice)
        assert "my-bot is created. Deploy a bundle to it next." in said(page)
        assert page.redirect_chain == [(f"/agents/{agent.public_id}/", 302)]

    @pytest.mark.parametrize("name", ["", "no", "has space", "x" * 65, "<b>bold</b>"])
    def test_a_name_that_is_none_is_refused_in_words(self, name: str) -> None:
        alice = make_account("alice")
        page = signed_in(alice).post("/agents/", {"name": name})
        assert page.status_code == 400
        assert "A name takes 3 to 64" in said(page)
        assert "<b>bold" not in page.content.decode()
        assert not Agent.objects.filter(account=alice).exists()

    def test_a_name_in_use_is_refused_in_words(self) -> None:
        alice = make_account("alice")
        make_agent(alice, "my-bot")
        page = signed_in(alice).post("/agents/", {"name": "my-bot"})
        assert page.status_code == 409
        assert "You already have an agent named my-bot." in said(page)

    def test_a_full_tier_is_explained(self) -> None:
        alice = make_account("alice", make_tier(max_agents=1))
        make_agent(alice)
        page = signed_in(alice).post("/agents/", {"name": "one-more"})
        assert page.status_code == 402
        assert "allows 1 agents, and you have 1." in said(page)

    def test_an_unknown_runtime_is_refused(self) -> None:
        alice = make_account("alice")
        assert signed_in(alice).post("/agents/", {"name": "my-bot", "runtimeProvider": "mars"}).status_code == 402
        assert not Agent.objects.filter(account=alice).exists()


class TestTheGateOfThePage:
    """The first of three layers, each of which refuses with the others switched off."""

    def test_a_runtime_that_is_not_entitled_is_locked_and_its_control_is_absent(self) -> None:
        page = signed_in(make_account("alice", make_tier())).get("/agents/")
        assert "AWS AgentCore locked unlocked by the Pro tier" in said(page)
        assert 'value="agentcore"' not in page.content.decode()

    def test_a_runtime_that_is_entitled_can_be_chosen(self) -> None:
        alice = make_account("alice", make_tier(agentcore_enabled=True))
        client = signed_in(alice)
        page = client.get("/agents/").content.decode()
        assert 'value="agentcore"' in page
        assert "locked" not in said(client.get("/agents/"))
        assert client.post("/agents/", {"name": "my-bot", "runtimeProvider": "agentcore"}).status_code == 302

    def test_it_refuses_by_itself_with_the_layers_behind_it_switched_off(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(agents, "require_runtime", lambda *_, **__: None)
        alice = make_account("alice", make_tier())
        answer = signed_in(alice).post("/agents/", {"name": "my-bot", "runtimeProvider": "agentcore"})
        assert answer.status_code == 402
        assert not Agent.objects.filter(account=alice).exists()

    def test_with_the_page_switched_off_the_layer_behind_it_refuses(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(offers, "page_offers", lambda _: list(Runtime))
        alice = make_account("alice", make_tier())
        client = signed_in(alice)
        assert 'value="agentcore"' in client.get("/agents/").content.decode()
        answer = client.post("/agents/", {"name": "my-bot", "runtimeProvider": "agentcore"})
        assert answer.status_code == 402
        assert "AgentCore is not included" in said(answer)
        assert not Agent.objects.filter(account=alice).exists()

    def test_it_offers_what_the_rules_allow(self) -> None:
        assert offers.page_offers(entitlements_of(tier(), (), None)) == [Runtime.CLOUDFLARE]
        assert offers.page_offers(entitlements_of(everything(), (), None)) == list(Runtime)


class TestEveryPage:
    def test_it_runs_under_a_strict_policy_and_carries_nothing_inline(self) -> None:
        alice = signed_in(make_account("alice"))
        for page in (Client().get("/sign-in/"), alice.get("/"), alice.get("/nowhere")):
            policy = page.headers["Content-Security-Policy"]
            assert "default-src 'self'" in policy
            assert "unsafe" not in policy
            assert inline_of(page) == []

    def test_an_address_that_does_not_exist_carries_its_trace_id(self) -> None:
        page = Client().get("/nowhere")
        assert page.status_code == 404
        assert page.headers["X-Trace-Id"] in said(page)

    def test_what_breaks_says_nothing_but_the_trace_id(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def break_down(*_: Any) -> None:
            raise ZeroDivisionError("the secret of the house")

        monkeypatch.setattr(overview, "usage_of", break_down)
        client = signed_in(make_account("alice"))
        client.raise_request_exception = False
        page = client.get("/")
        assert page.status_code == 500
        assert page.headers["X-Trace-Id"] in said(page)
        assert "secret of the house" not in page.content.decode()

    def test_every_control_has_a_label_and_every_page_its_landmarks(self) -> None:
        for page in (Client().get("/sign-in/"), signed_in(make_account("alice")).get("/")):
            html = page.content.decode()
            assert '<html lang="en">' in html
            assert html.count("<main") == 1
            assert html.count("<h1") == 1
            for control in re.findall(r"<input[^>]*>", html):
                if 'type="hidden"' not in control and 'type="radio"' not in control:
                    (name,) = re.findall(r'\sid="([^"]+)"', control)
                    assert f'<label for="{name}"' in html
            assert all("aria-label=" in bar for bar in re.findall(r"<progress[^>]*>", html))

    def test_a_page_with_an_account_on_it_is_not_kept_by_caches(self) -> None:
        assert "no-store" in signed_in(make_account("alice")).get("/").headers["Cache-Control"]
