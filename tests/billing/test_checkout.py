"""Buying a tier: the request names a tier and nothing else, and nobody pays for two."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import requests
from django.conf import settings as live_settings
from django.test import Client

from billing.actions.apply import converge
from billing.models import Customer
from entitlements.models import Account, Tier, TierPrice
from tests.api import Api, at_once
from tests.billing.conftest import Payer
from tests.billing.local_stripe import LocalStripe
from tests.factories import make_account, make_tier, make_token

PASSWORD = "a-long-enough-secret"


@pytest.fixture
def api(local_stripe: LocalStripe) -> Api:
    return Api(make_account("alice"))


def buy(url: str, card: str = "4242424242424242") -> requests.Response:
    """Fill in the checkout page as a person would."""
    assert "Card number" in requests.get(url, timeout=10).text
    return requests.post(url, data={"card": card}, allow_redirects=False, timeout=10)


class TestCheckout:
    def test_leads_to_a_page_and_what_is_paid_there_is_the_tier(self, api: Api, local_stripe: LocalStripe) -> None:
        answer = api.post("/v1/billing/checkout", {"tier": "starter", "interval": "month"})
        assert answer.status == 200
        assert "Starter: $19.00 a month" in requests.get(answer.json["url"], timeout=10).text
        paid = buy(answer.json["url"])
        assert paid.status_code == 303
        assert paid.headers["Location"].endswith("/billing/?checkout=done")
        customer = Customer.objects.get(account=api.account)
        converge(customer.customer_id, source="test", reason="test")
        assert Account.objects.get(pk=api.account.pk).billing_tier == Tier.objects.get(slug="starter")
        (subscription,) = local_stripe.client().v1.subscriptions.list({"customer": customer.customer_id}).data
        assert subscription.metadata["account"] == api.account.public_id

    def test_a_card_that_is_declined_buys_nothing(self, api: Api) -> None:
        url = api.post("/v1/billing/checkout", {"tier": "starter"}).json["url"]
        declined = buy(url, "4000000000000002")
        assert declined.status_code == 402
        assert "declined" in declined.text
        assert buy(url).status_code == 303

    @pytest.mark.parametrize(
        ("body", "path"),
        [
            ({"tier": "free"}, "tier"),
            ({"tier": "nothing"}, "tier"),
            ({}, "tier"),
            ({"tier": "pro", "interval": "week"}, "interval"),
            ({"tier": "pro", "price": "price_local_starter_month"}, "price"),
            ({"tier": "pro", "amount": 1}, "amount"),
            ({"tier": "pro", "account": "acc_1"}, "account"),
            ({"tier": 7}, "tier"),
        ],
    )
    def test_what_is_not_sold_or_not_the_clients_to_say_is_refused(
        self, api: Api, body: dict[str, object], path: str
    ) -> None:
        answer = api.post("/v1/billing/checkout", body)
        assert (answer.status, answer.code) == (400, "INVALID_REQUEST")
        assert answer.details["issues"][0]["path"] == path

    def test_a_hidden_tier_is_not_sold_to_who_guesses_its_name(self, api: Api) -> None:
        tier = make_tier()
        TierPrice.objects.create(tier=tier, price_id=f"price_{tier.slug}", amount_cents=100)
        assert api.post("/v1/billing/checkout", {"tier": tier.slug}).status == 400

    def test_the_customer_is_made_once_however_many_ask_at_once(self, api: Api, local_stripe: LocalStripe) -> None:
        token = make_token(api.account)

        def one(_: int) -> int:
            return Api(api.account, token=token).post("/v1/billing/checkout", {"tier": "pro"}).status

        assert at_once(one, 6) == [200] * 6
        found = local_stripe.client().v1.customers.list({"email": api.account.email}).data
        assert [c.id for c in found] == [Customer.objects.get(account=api.account).customer_id]

    def test_of_two_tabs_only_the_last_can_be_paid(self, api: Api) -> None:
        first = api.post("/v1/billing/checkout", {"tier": "starter"}).json["url"]
        second = api.post("/v1/billing/checkout", {"tier": "pro"}).json["url"]
        assert requests.post(first, data={"card": "4242424242424242"}, timeout=10).status_code == 410
        assert buy(second).status_code == 303

    def test_a_repeat_with_its_key_gets_the_same_page_and_closes_nothing(self, api: Api) -> None:
        first = api.post("/v1/billing/checkout", {"tier": "pro"}, idempotency_key="once")
        again = api.post("/v1/billing/checkout", {"tier": "pro"}, idempotency_key="once")
        assert first.json == again.json
        assert again.headers["Idempotency-Replayed"] == "true"
        assert buy(again.json["url"]).status_code == 303

    def test_who_pays_already_is_led_to_confirm_the_change(self, api: Api, local_stripe: LocalStripe) -> None:
        buy(api.post("/v1/billing/checkout", {"tier": "starter"}).json["url"])
        answer = api.post("/v1/billing/checkout", {"tier": "pro"})
        assert "/p/session/" in answer.json["url"]
        assert "You change to <strong>Pro: $99.00 a month" in requests.get(answer.json["url"], timeout=10).text
        requests.post(answer.json["url"], data={"do": "confirm"}, allow_redirects=False, timeout=10)
        customer = Customer.objects.get(account=api.account).customer_id
        (subscription,) = local_stripe.client().v1.subscriptions.list({"customer": customer}).data
        assert [i["price"]["id"] for i in subscription.to_dict()["items"]["data"]] == ["price_local_pro_month"]

    def test_who_pays_for_it_already_is_told_so(self, api: Api) -> None:
        buy(api.post("/v1/billing/checkout", {"tier": "starter"}).json["url"])
        answer = api.post("/v1/billing/checkout", {"tier": "starter"})
        assert (answer.status, answer.code) == (409, "CONFLICT")

    def test_while_stripe_is_away_it_says_so_and_nothing_is_half_done(
        self, api: Api, local_stripe: LocalStripe
    ) -> None:
        local_stripe.fail(500, "/v1/customers", count=2)
        answer = api.post("/v1/billing/checkout", {"tier": "starter"})
        assert (answer.status, answer.json["error"]["retryable"]) == (503, True)
        assert not Customer.objects.filter(account=api.account).exists()
        assert api.post("/v1/billing/checkout", {"tier": "starter"}).status == 200

    def test_a_token_without_the_scope_buys_nothing(self, api: Api) -> None:
        from entitlements.enums import Scope

        reader = Api(api.account, token=make_token(api.account, scopes=[Scope.READ]))
        assert reader.post("/v1/billing/checkout", {"tier": "starter"}).status == 403


class TestPortal:
    def test_is_nothing_for_who_bought_nothing(self, api: Api) -> None:
        assert api.post("/v1/billing/portal").status == 409

    def test_ends_and_keeps_a_plan(self, api: Api, local_stripe: LocalStripe) -> None:
        buy(api.post("/v1/billing/checkout", {"tier": "pro"}).json["url"])
        customer = Customer.objects.get(account=api.account).customer_id
        (subscription,) = local_stripe.client().v1.subscriptions.list({"customer": customer}).data
        url = api.post("/v1/billing/portal").json["url"]
        requests.post(url, data={"do": "end", "subscription": subscription.id}, timeout=10)
        converge(customer, source="test", reason="test")
        assert Account.objects.get(pk=api.account.pk).billing_tier_until is not None
        requests.post(url, data={"do": "keep", "subscription": subscription.id}, timeout=10)
        converge(customer, source="test", reason="test")
        account = Account.objects.get(pk=api.account.pk)
        assert (account.billing_tier, account.billing_tier_until) == (Tier.objects.get(slug="pro"), None)


class TestThePriceList:
    def test_says_what_a_tier_costs(self, local_stripe: LocalStripe) -> None:
        items = {item["slug"]: item["prices"] for item in Api().get("/v1/tiers").json["items"]}
        assert items["pro"] == [
            {"interval": "month", "amountCents": 9900, "currency": "usd"},
            {"interval": "year", "amountCents": 99000, "currency": "usd"},
        ]
        assert items["free"] == []


class TestThePage:
    @pytest.fixture
    def browser(self, local_stripe: LocalStripe) -> tuple[Client, Account]:
        account = make_account("alice", password=PASSWORD)
        client = Client()
        assert client.login(username=account.email, password=PASSWORD)
        return client, account

    def test_shows_the_tiers_side_by_side_with_prices_and_marks_ones_own(self, browser: tuple[Client, Account]) -> None:
        text = browser[0].get("/billing/?tier=pro").content.decode()
        assert "$19 a month" in text
        assert "$990 a year" in text
        assert re.search(r'id="tier-free" class="marked">Free <span class="lock">yours', text)
        assert re.search(r'id="tier-pro" class="marked">Pro <span class="lock">suggested', text)

    def test_its_button_leads_to_stripe(self, browser: tuple[Client, Account], local_stripe: LocalStripe) -> None:
        answer = browser[0].post("/billing/checkout/", {"tier": "pro", "interval": "year"})
        assert answer.status_code == 302
        assert answer.headers["Location"].startswith(f"{local_stripe.url}/c/pay/")
        policy = browser[0].get("/billing/").headers["Content-Security-Policy"]
        assert f"form-action 'self' {' '.join(live_settings.STRIPE_PAGES)}" in policy.split("; ")

    def test_says_beside_the_tiers_what_was_refused(self, browser: tuple[Client, Account]) -> None:
        answer = browser[0].post("/billing/checkout/", {"tier": "free", "interval": "month"})
        assert answer.status_code == 400
        assert b"This tier cannot be bought" in answer.content

    def test_says_when_a_plan_ends_and_when_a_payment_failed(
        self, payer: Callable[[], Payer], local_stripe: LocalStripe
    ) -> None:
        alice = payer()
        alice.account.set_password(PASSWORD)
        alice.account.save(update_fields=["password"])
        client = Client()
        client.login(username=alice.account.email, password=PASSWORD)
        subscription = local_stripe.force(
            alice.customer, "active", ("price_local_pro_month",), event=None, cancel_at_period_end=True
        )
        converge(alice.customer, source="test", reason="test")
        assert b"Pro ends on" in client.get("/billing/").content
        local_stripe.change(subscription, cancel_at_period_end=False, status="past_due", event=None)
        converge(alice.customer, source="test", reason="test")
        assert b"Your last payment failed. Pro ends on" in client.get("/billing/").content
        local_stripe.change(subscription, status="active", event=None)
        converge(alice.customer, source="test", reason="test")
        text = client.get("/billing/").content
        assert b"ends on" not in text
        assert b"renews on" in text

    def test_needs_somebody_who_is_signed_in(self, local_stripe: LocalStripe) -> None:
        for path in ("/billing/", "/billing/checkout/", "/billing/portal/"):
            assert Client().post(path).status_code in {302, 403, 405}
        assert Client().get("/billing/").headers["Location"].startswith("/sign-in/")

    def test_takes_no_form_of_another_site(self, browser: tuple[Client, Account]) -> None:
        strict = Client(enforce_csrf_checks=True)
        strict.force_login(browser[1])
        assert strict.post("/billing/checkout/", {"tier": "pro"}).status_code == 403
