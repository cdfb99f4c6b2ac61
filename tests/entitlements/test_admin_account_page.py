"""The account's page, for somebody with an angry customer on the phone: the answer first, and what it rests on."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from uuid import uuid4

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from entitlements.actions.accounts import set_active
from entitlements.models import Account, Override
from entitlements.rules import Key
from tests.desk import HOSTILE, busy_account
from tests.entitlements.admin_pages import Staff, said
from tests.entitlements.callers import Caller
from tests.entitlements.test_groups import member
from tests.factories import make_account, make_tier, make_token
from webhost import db

pytestmark = pytest.mark.usefixtures("live_db")


@pytest.fixture
def stella() -> Staff:
    return Staff()


@contextmanager
def _hot_queries(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Note what goes past Django, through the pool of the hot path."""
    asked: list[str] = []
    with monkeypatch.context() as patch:
        rows = db._rows
        patch.setattr(db, "_rows", lambda c, query, given: (asked.append(query), rows(c, query, given))[1])
        yield asked


def page_of(staff: Staff, account: Account) -> str:
    return said(staff.client.get(staff.url(account)))


class TestWhyIsThisAccountBlocked:
    def test_nothing_blocks_who_has_room(self, stella: Staff) -> None:
        text = page_of(stella, make_account("alice", make_tier(max_requests_per_period=5)))
        assert "Nothing blocks this account now, and nothing was refused in the last 7 days" in text
        assert "A call on Cloudflare Workers would pass" in text

    def test_a_spent_budget_is_named_with_the_sentence_that_the_customer_reads_and_when_it_ends(
        self, stella: Staff
    ) -> None:
        tier = make_tier(max_requests_per_period=1)
        account = make_account("alice", tier)
        alice = Caller(account.pk, uuid4(), uuid4())
        alice.call()
        refusal = alice.refusal()
        assert refusal is not None
        text = page_of(stella, account)
        assert "Blocked: Requests" in text
        assert refusal.message in text
        assert re.search(r"Ends: \d{4}-\d\d-01 00:00, in ", text)
        assert "Raise it to 110 until the period ends" in text
        assert "Give usage back" in text

    def test_the_link_that_raises_a_limit_lets_the_next_call_pass(self, stella: Staff) -> None:
        account = make_account("alice", make_tier(max_requests_per_period=1))
        alice = Caller(account.pk, uuid4(), uuid4())
        alice.call()
        page = stella.client.get(stella.url(account)).content.decode()
        link = re.search(r'href="(/admin/entitlements/override/add/\?[^"]*value=[^"]*)"', page)
        assert link is not None
        url = link[1].replace("&amp;", "&")
        assert alice.refusal() is not None
        assert stella.send(url, stella.open(url) | {"reason": "Ticket 7"}).status_code == 302
        assert alice.refusal() is None
        override = Override.objects.get(account=account)
        assert (override.key, override.ends_at and override.ends_at.day) == (Key.MAX_REQUESTS, 1)

    def test_a_disabled_account_is_blocked_whatever_room_it_has(self, stella: Staff) -> None:
        account = make_account("alice", make_tier())
        set_active(account.pk, False, by=stella.account, reason="Abuse, ticket 9")
        text = page_of(stella, account)
        assert "Blocked: this account is disabled" in text
        assert "This account is disabled. Please contact support." in text
        assert f"by {stella.account.email}: Abuse, ticket 9" in text

    def test_what_the_tier_does_not_have_is_no_block_for_who_does_not_use_it(self, stella: Staff) -> None:
        text = page_of(stella, make_account("alice", make_tier()))
        assert "Nothing blocks this account now" in text
        assert "A call on AWS AgentCore not in its tier AgentCore" in text

    def test_what_was_refused_before_and_would_pass_now_is_said(self, stella: Staff) -> None:
        account = make_account("alice", make_tier(max_requests_per_period=0))
        alice = Caller(account.pk, uuid4(), uuid4())
        assert alice.refusal() is not None
        stella.add(Override, account=str(account.pk), key="maxRequestsPerPeriod", value="5", reason="A trial")
        text = page_of(stella, account)
        assert "Nothing blocks this account now" in text
        assert "by Requests. The budget of requests was used up then. It has room now: try again." in text

    def test_asking_consumes_nothing(self, stella: Staff) -> None:
        account = make_account("alice", make_tier(max_requests_per_period=1))
        page_of(stella, account)
        alice = Caller(account.pk, uuid4(), uuid4())
        assert alice.counter().used_requests == 0
        assert alice.refusal() is None


class TestTheHead:
    def test_a_tier_of_support_says_by_whom_since_when_until_when_and_why(self, stella: Staff) -> None:
        tier, account = make_tier(), make_account("alice", make_tier())
        until = timezone.now() + timedelta(days=3)
        stella.change(
            account, support_tier=str(tier.pk), why="Goodwill", support_tier_until_0=f"{until:%Y-%m-%d}",
            support_tier_until_1="00:00:00",
        )  # fmt: skip
        Account.objects.filter(pk=account.pk).update(name="Alicia")  # does not hide who set the tier
        text = page_of(stella, account)
        assert f"Tier in force {tier.name} set by support Because Goodwill Since" in text
        assert f"by {stella.account.email}" in text
        assert f"Until {until:%Y-%m-%d} 00:00" in text

    def test_a_running_call_is_shown_with_what_it_holds(self, stella: Staff) -> None:
        account = make_account("alice", make_tier())
        alice = Caller(account.pk, uuid4(), uuid4())
        invocation = alice.admit(tokens=2_000, compute_ms=90_000)
        text = page_of(stella, account)
        assert f"inv_{invocation.hex}" in text
        assert "2,000 tokens, 1 min 30 s compute" in text
        assert "1 running now" in text

    def test_amounts_are_said_in_words_beside_the_exact_number(self, stella: Staff) -> None:
        account = make_account(
            "alice", make_tier(max_tokens_per_period=2_500_000, max_compute_ms_per_period=36_000_000)
        )
        Caller(account.pk, uuid4(), uuid4()).call(tokens=1_234_567, compute_ms=7_500_000)
        text = page_of(stella, account)
        assert "Tokens 1,234,567 1.2 million 0 2,500,000 2.5 million 1,265,433 49 %" in text
        assert "7,500,000 2 h 5 min 0 36,000,000 10 h 0 min" in text


class TestWhatItNeverShows:
    def test_no_token_no_hash_and_no_markup_of_anybodys(self, stella: Staff) -> None:
        account = busy_account(2, name=HOSTILE)
        account.set_password("a-long-enough-secret")
        account.save(update_fields=["password"])
        token = make_token(account)
        for url in (stella.url(account), stella.url(account, "timeline")):
            raw = stella.client.get(url).content.decode()
            assert "<img src=x" not in raw
            assert "&lt;img src=x" in raw
            for secret in (token, token[:12], account.password):
                assert secret not in raw


class TestItsCost:
    @pytest.mark.parametrize("who", ["superuser", "support"])
    def test_it_asks_as_many_questions_of_one_of_everything_as_of_fifty(
        self, who: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        staff = Staff() if who == "superuser" else member("support")
        asked = []
        for much in (1, 50):
            account = busy_account(much)
            staff.client.get(staff.url(account))
            with CaptureQueriesContext(connection) as captured, _hot_queries(monkeypatch) as hot:
                page = staff.client.get(staff.url(account))
            assert "weather-bot" in page.content.decode()
            asked.append(len(captured) + len(hot))
        assert asked[0] == asked[1]
        assert asked[1] <= 27  # two of them: whether this session, and this account, has a second factor


class TestWhoMayDoWhat:
    def test_an_auditor_sees_it_and_no_control(self) -> None:
        anna = member("auditor")
        account = busy_account()
        raw = anna.client.get(anna.url(account)).content.decode()
        assert "Why" in raw
        for control in ("disable/", "adjust/", "/end/", "override/add/"):
            assert control not in raw

    @pytest.mark.parametrize("group", ["auditor", "pricing"])
    @pytest.mark.parametrize("page", ["disable", "enable", "adjust"])
    @pytest.mark.parametrize("method", ["get", "post"])
    def test_who_may_only_look_is_refused_by_each_page_that_writes(self, group: str, page: str, method: str) -> None:
        staff, account = member(group), make_account("alice")
        answer = getattr(staff.client, method)(staff.url(account, page), {"why": "Mine"})
        assert answer.status_code == 403
        assert Account.objects.get(pk=account.pk).is_active

    @pytest.mark.parametrize(("group", "status"), [("support", 200), ("auditor", 200), ("pricing", 403)])
    def test_the_timeline_is_for_who_sees_accounts(self, group: str, status: int) -> None:
        staff = member(group)
        assert staff.client.get(staff.url(make_account("alice"), "timeline")).status_code == status

    def test_a_stranger_and_a_customer_see_none_of_it(self) -> None:
        alice = Staff(make_account("alice"))
        for page in ("change", "disable", "adjust", "timeline"):
            assert alice.client.get(alice.url(alice.account, page)).status_code == 302
