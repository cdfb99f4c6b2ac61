"""What happened to an account, newest first: each line once, however many pages, and only what its reader may see."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import pghistory
import pytest
from django.contrib.auth.models import Permission
from django.utils import timezone

from billing.models import Customer, EventState, StripeEvent
from entitlements.admin.sections import Before
from entitlements.enums import LimitType
from entitlements.models import Account, Denial, Override
from runtimes.admin.account import agent_moments
from tests.desk import busy_account
from tests.entitlements.admin_pages import Staff, said
from tests.entitlements.test_groups import member
from tests.factories import make_account, make_tier, override
from webhost.period import period_of

pytestmark = pytest.mark.usefixtures("live_db")


@pytest.fixture
def stella() -> Staff:
    return Staff()


def lines_of(page: Any) -> list[str]:
    raw = page.content.decode()
    items = re.findall(r'<ol class="desk-moments">(.*?)</ol>', raw, flags=re.DOTALL)
    return [
        " ".join(re.sub(r"<[^>]+>", " ", i).split()) for i in re.findall(r"<li>(.*?)</li>", "".join(items), re.DOTALL)
    ]


def pages_of(staff: Staff, account: Account, kind: str = "") -> list[list[str]]:
    """Walk through all pages by their links."""
    url, found = f"{staff.url(account, 'timeline')}?kind={kind}", []
    base = staff.url(account, "timeline")
    while url:
        page = staff.client.get(url)
        found.append(lines_of(page))
        older = re.search(r'href="(\?[^"]*)" rel="next"', page.content.decode())
        url = base + older[1].replace("&amp;", "&") if older else ""
    return found


class TestWhatItSays:
    def test_a_tier_change_says_old_new_who_and_why(self, stella: Staff) -> None:
        old, new = make_tier(), make_tier()
        account = make_account("alice", old)
        stella.change(account, support_tier=str(new.pk), why="Goodwill")
        with pghistory.context(actor="Stripe", reason="unpaid", source="stripe evt_9"):
            Account.objects.filter(pk=account.pk).update(billing_tier=None)
        newest, before, first = pages_of(stella, account, "account")[0]
        assert f"Paid tier: {old.name} → none Stripe · stripe evt_9 · “unpaid”" in newest
        assert f"Tier set by support: none → {new.name} {stella.account.email} · admin · “Goodwill”" in before
        assert "Account opened" in first

    def test_an_override_says_what_it_was_and_when_it_ended(self, stella: Staff) -> None:
        account = make_account("alice", make_tier())
        row = override(account, "max_agents", 3)
        stella.change(row, value="5", reason="More")
        stella.client.post(stella.url(row, "end"), {"why": "Over"})
        row.delete()
        texts = pages_of(stella, account, "override")[0]
        assert [t.split("Overrides ")[1].split(" · ")[0] for t in texts] == [
            "Override removed: Agents = 5 database role webhost",
            f"Override ended: Agents = 5 {stella.account.email}",
            f"Override: Agents 3 → 5 without end {stella.account.email}",
            "Override: Agents = 3 without end database role webhost",
        ]

    def test_of_refusals_it_tells_the_first_of_each_day_and_limit(self, stella: Staff) -> None:
        account = make_account("alice")
        day = timezone.now().replace(hour=0, minute=0, second=0, microsecond=0) - timedelta(days=3)
        for days, minute, limit in ((0, 5, "requests"), (0, 9, "requests"), (0, 7, "tokens"), (1, 3, "requests")):
            Denial.objects.create(
                account_id=account.pk, limit_type=LimitType(limit), period=period_of(day), count=4,
                minute=day + timedelta(days=days, minutes=minute),
            )  # fmt: skip
        times = [line.split(" Refusals ")[0][11:] for line in pages_of(stella, account, "refusal")[0]]
        assert times == ["00:03", "00:07", "00:05"]

    def test_everything_of_a_busy_account_is_there(self, stella: Staff) -> None:
        account = busy_account()
        text = " ".join(" ".join(p) for p in pages_of(stella, account))
        for words in (
            "Account opened", "Override: Tool calls", "Agent weather-bot-0 created for Cloudflare Workers",
            "Agent weather-bot-0 serves version 1 now", "Version 1 of weather-bot-0 is deployed",
            "Version 2 of weather-bot-0 failed: agent.ts:3: it does not parse", "Secret API_KEY_0 of weather-bot-0 set",
            "Session chat-0 stopped “It ran in circles (stella)”", "Alert: 80 % of Tokens reached, 80 of 100; 1 message",
            "Stripe customer.subscription.updated: no paid tier → Pro", "Refused for the first time that day: Requests",
        ):  # fmt: skip
            assert words in text, words

    def test_an_event_of_stripe_that_changed_nothing_is_left_out(self, stella: Staff) -> None:
        account = make_account("alice")
        customer = Customer.objects.create(account=account, customer_id=f"cus_{account.pk.hex}")
        StripeEvent.objects.create(
            event_id=f"evt_{account.pk.hex}", type="invoice.paid", customer_id=customer.customer_id,
            created_at=timezone.now(), body=b"{}", state=EventState.DONE, outcome="unchanged: Pro", next_try_at=None,
            finished_at=timezone.now(),
        )  # fmt: skip
        assert "invoice.paid" not in said(stella.client.get(stella.url(account, "timeline")))


class TestItsPages:
    def test_each_line_is_on_one_page_even_where_many_happened_at_one_instant(self, stella: Staff) -> None:
        account = make_account("alice", make_tier())
        rows = [
            Override(account=account, key="maxAgents", value=n, reason="Bulk", created_at=timezone.now())
            for n in range(120)
        ]
        Override.objects.bulk_create(rows)  # one statement: one instant
        pages = pages_of(stella, account)
        assert [len(page) for page in pages] == [50, 50, 21]
        lines = [line for page in pages for line in page]
        values = [int(m[1]) for line in lines if (m := re.search(r"Agents = (\d+)", line))]
        assert values == list(range(119, -1, -1))
        assert "Account opened" in lines[-1]

    def test_pages_of_many_kinds_hold_each_line_once(self, stella: Staff) -> None:
        account = busy_account(12)
        pages = pages_of(stella, account)
        assert all(len(page) == 50 for page in pages[:-1])
        by_kind = sum(
            sum(len(page) for page in pages_of(stella, account, source.kind))
            for source in stella.client.get(stella.url(account, "timeline")).context["kinds"]
        )
        assert sum(len(page) for page in pages) == by_kind
        times = [line[:16] for page in pages for line in page]
        assert times == sorted(times, reverse=True)

    @pytest.mark.parametrize(
        "after", ["x", "2026-11-30T09:00:00.000000Z~override~abc", "9999-99-99T00:00:00.0Z~account~1", "~~", "%00"]
    )
    def test_a_page_that_nobody_linked_to_breaks_nothing(self, stella: Staff, after: str) -> None:
        url = stella.url(make_account("alice"), "timeline")
        assert stella.client.get(url, {"after": after}).status_code == 200


class TestWhoSeesWhat:
    def test_who_has_no_right_to_a_kind_does_not_see_it(self) -> None:
        account = busy_account()
        staff = member()
        staff.account.user_permissions.add(Permission.objects.get(codename="view_account"))
        page = staff.client.get(staff.url(account, "timeline"))
        assert page.status_code == 200
        assert "Nothing." in said(page)
        assert "API_KEY" not in said(page)
        assert "cus_" not in said(staff.client.get(staff.url(account)))

    def test_another_accounts_past_is_not_in_it(self, stella: Staff) -> None:
        busy_account()
        assert len(pages_of(stella, make_account("charlie"))[0]) == 1


def test_a_source_reads_no_more_than_it_is_asked_for() -> None:

    account = busy_account(3)
    soon = Before(timezone.now() + timedelta(minutes=1))
    assert len(agent_moments(account.pk, soon, 2)) == 2
