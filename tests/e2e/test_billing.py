"""Billing on the running product: a real browser, real deliveries, a real worker; and what happens while parts are away."""

from __future__ import annotations

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import requests
from playwright.sync_api import Page, expect

from entitlements.models import Account
from tests.e2e.customers import Customer, until
from tests.e2e.story import Books, operate, uuid_of
from tests.factories import make_account
from webhost.local.product import Part, Product

PASSWORD = "a-long-enough-secret"
_PAID = {"card": "4242424242424242"}


class Billing:
    """The local Stripe of a product, as a test sees it."""

    def __init__(self, product: Product) -> None:
        self._url = product.stripe_url

    def local(self, method: str, where: str, **given: Any) -> Any:
        """Call a route below /local/."""
        answer = requests.request(method, f"{self._url}/local{where}", json=given, timeout=10)
        answer.raise_for_status()
        return answer.json()

    def buy(self, who: Customer, tier: str) -> None:
        """Buy a tier as a person would, but for the browser."""
        opened = who.call("POST", "/v1/billing/checkout", json={"tier": tier})
        assert opened.status_code == 200, opened.text
        assert requests.post(opened.json()["url"], data=_PAID, allow_redirects=False, timeout=10).status_code == 303

    def end(self, who: Customer) -> None:
        """End what was bought, at once."""
        url = who.call("POST", "/v1/billing/portal").json()["url"]
        found = re.findall(r'name="subscription" value="(sub_\w+)"', requests.get(url, timeout=10).text)
        requests.post(url, data={"do": "cancel", "subscription": found[0]}, timeout=10).raise_for_status()


def tier_of(who: Customer) -> str:
    return str(who.call("GET", "/v1/me").json()["tier"]["slug"])


def changes_of(books: Books, who: Customer) -> list[dict[str, Any]]:
    """Return every change of what is paid for, with who said so."""
    return books.rows(
        "SELECT e.billing_tier_id, c.metadata FROM entitlements_accountevent e "
        "LEFT JOIN pghistory_context c ON c.id = e.pgh_context_id "
        "WHERE e.pgh_obj_id = %s AND e.pgh_label = 'update' ORDER BY e.pgh_id",
        uuid_of(who),
    )


@pytest.fixture(scope="module")
def stripe(own: Product) -> Iterator[Billing]:
    found = Billing(own)
    yield found
    found.local("DELETE", "/faults")


@pytest.mark.browser
@pytest.mark.usefixtures("live_db")
class TestInABrowser:
    def test_a_person_meets_a_limit_buys_the_next_tier_and_ends_it_again(self, product: Product, page: Page) -> None:
        alice = make_account("alice", password=PASSWORD)
        page.goto(f"{product.url}/sign-in/?next=/billing/?tier=starter")
        page.get_by_label("E-mail address").fill(alice.email)
        page.get_by_label("Password").fill(PASSWORD)
        page.get_by_role("button", name="Sign in").click()
        expect(page.get_by_role("heading", name="Billing")).to_be_visible()
        expect(page.locator("#tier-free")).to_contain_text("yours")
        expect(page.locator("#tier-starter")).to_contain_text("suggested")

        page.get_by_role("button", name="Starter, monthly").click()
        expect(page.get_by_text("Starter: $19.00 a month")).to_be_visible()
        page.get_by_label("Card number").fill("4000 0000 0000 0002")
        page.get_by_role("button", name="Subscribe").click()
        expect(page.get_by_text("Your card was declined.")).to_be_visible()
        page.get_by_label("Card number").fill("4242 4242 4242 4242")
        page.get_by_role("button", name="Subscribe").click()
        expect(page.get_by_text("Thank you.")).to_be_visible()
        self.reload_until(page, "Your tier now: Starter")
        expect(page.get_by_text("renews on")).to_be_visible()
        expect(page.locator("#tier-starter")).to_contain_text("yours")

        page.get_by_role("button", name="Pro, monthly").click()
        expect(page.get_by_text("You change to")).to_be_visible()
        page.get_by_role("button", name="Confirm").click()
        expect(page.get_by_role("heading", name="Billing")).to_be_visible()
        self.reload_until(page, "Your tier now: Pro")

        page.get_by_role("button", name="Card, invoices, change or end").click()
        page.get_by_role("button", name="End it after this period").click()
        expect(page.get_by_text("then it ends")).to_be_visible()
        page.get_by_role("link", name="Back to webhost.systems").click()
        self.reload_until(page, "Pro ends on")
        assert Account.objects.get(pk=alice.pk).billing_tier_until is not None

    @staticmethod
    def reload_until(page: Page, text: str) -> None:
        """Reload as somebody impatient would."""

        def seen() -> bool:
            page.goto(re.sub(r"\?.*", "", page.url))
            return text in " ".join(page.locator("main").inner_text().split())

        assert until(seen, 10), page.locator("main").inner_text()

    def test_the_policy_of_our_pages_lets_the_form_lead_to_stripe_and_nowhere_else(self, product: Product) -> None:
        policy = requests.get(f"{product.url}/sign-in/", timeout=10).headers["Content-Security-Policy"]
        (form,) = [d for d in policy.split("; ") if d.startswith("form-action")]
        assert form == f"form-action 'self' {product.stripe_url} https://billing.stripe.com"


class TestOnTheWire:
    def test_an_upgrade_and_its_end_are_in_force_on_the_next_request(
        self, own: Product, stripe: Billing, books: Books
    ) -> None:
        alice = newcomer(own)
        stripe.buy(alice, "pro")
        assert until(lambda: tier_of(alice) == "pro", 10)
        stripe.end(alice)
        assert until(lambda: tier_of(alice) == "free", 10)
        changes = changes_of(books, alice)
        assert len(changes) == 2
        assert all(re.fullmatch(r"stripe evt_\w+", c["metadata"]["source"]) for c in changes)

    def test_a_limit_is_reached_and_the_same_call_passes_after_the_upgrade(self, own: Product, stripe: Billing) -> None:
        alice = newcomer(own)
        for n in range(3):
            alice.create(f"agent-{n}")
        refused = alice.call("POST", "/v1/agents", json={"name": "one-more"})
        assert refused.status_code == 402
        action = refused.json()["error"]["details"]["suggestedAction"]
        assert (action["type"], action["tier"]) == ("upgrade_tier", "starter")
        stripe.buy(alice, action["tier"])
        assert until(lambda: tier_of(alice) == "starter", 10)
        assert alice.call("POST", "/v1/agents", json={"name": "one-more"}).status_code == 201

    def test_events_that_arrive_turned_round_and_three_times_are_one_change_each(
        self, own: Product, stripe: Billing, books: Books
    ) -> None:
        alice = newcomer(own)
        stripe.local("POST", "/faults", fault="hold_webhooks")
        stripe.buy(alice, "pro")
        assert tier_of(alice) == "free"
        stripe.local("POST", "/release", order="reversed", times=3)
        assert until(lambda: tier_of(alice) == "pro", 10)
        assert until(lambda: not books.rows("SELECT 1 FROM billing_stripeevent WHERE state = 'pending'"), 10)
        assert len(changes_of(books, alice)) == 1

    def test_a_worker_that_was_killed_loses_nothing(self, own: Product, stripe: Billing, books: Books) -> None:
        alice = newcomer(own)
        own.kill(Part.WORKER)
        try:
            stripe.buy(alice, "pro")
            assert until(lambda: kept_for(books, alice) >= 3, 10)
            assert tier_of(alice) == "free"
        finally:
            own.start_part(Part.WORKER)
        assert until(lambda: tier_of(alice) == "pro", 40)
        assert len(changes_of(books, alice)) == 1

    def test_while_the_broker_is_away_events_are_kept_and_applied_by_the_sweep(
        self, own: Product, stripe: Billing, books: Books
    ) -> None:
        alice = newcomer(own)
        own.kill(Part.REDIS)
        try:
            stripe.buy(alice, "pro")
            assert until(lambda: kept_for(books, alice) >= 3, 15)
            assert until(lambda: tier_of(alice) == "pro", 60)
        finally:
            own.start_part(Part.REDIS)
        assert len(changes_of(books, alice)) == 1

    def test_while_stripe_is_away_an_event_waits_and_is_applied_when_it_is_back(
        self, own: Product, stripe: Billing, books: Books
    ) -> None:
        alice = newcomer(own)
        stripe.local("POST", "/faults", fault="hold_webhooks")
        stripe.buy(alice, "pro")
        stripe.local("POST", "/faults", fault="status", status=503, path="/v1/subscriptions", count=4)
        stripe.local("POST", "/release")
        assert until(lambda: tier_of(alice) == "pro", 60)
        stripe.local("DELETE", "/faults")
        assert len(changes_of(books, alice)) == 1

    def test_stripe_repeats_what_a_web_server_that_was_killed_did_not_take(self, own: Product, stripe: Billing) -> None:
        alice = newcomer(own)
        stripe.local("POST", "/faults", fault="hold_webhooks")
        stripe.buy(alice, "pro")
        own.kill(Part.WEB)
        try:
            stripe.local("POST", "/release")
        finally:
            own.start_part(Part.WEB)
        assert until(lambda: tier_of(alice) == "pro", 40)

    def test_many_customers_at_once_each_get_their_own(self, own: Product, stripe: Billing, books: Books) -> None:
        crowd = [newcomer(own) for _ in range(8)]
        tiers = ["starter", "pro", "enterprise", "pro"] * 2

        def one(pair: tuple[Customer, str]) -> None:
            stripe.buy(*pair)

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(one, zip(crowd, tiers, strict=True)))
        assert until(lambda: [tier_of(c) for c in crowd] == tiers, 20)
        assert [len(changes_of(books, c)) for c in crowd] == [1] * 8


_NEWCOMER = """
import json
from tests.factories import make_account, make_token
account = make_account("alice")
print(json.dumps([account.public_id, make_token(account)]))
"""


def newcomer(own: Product) -> Customer:
    """Make a customer of the default tier."""
    return Customer(own.url, *operate(own, _NEWCOMER))


def kept_for(books: Books, who: Customer) -> int:
    """Count the events that were kept for a customer."""
    rows = books.rows(
        "SELECT count(*) AS n FROM billing_stripeevent e JOIN billing_customer c USING (customer_id) WHERE c.account_id = %s",
        uuid_of(who),
    )
    return int(rows[0]["n"])
