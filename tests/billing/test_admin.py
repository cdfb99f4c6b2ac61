"""Support looks at billing: prices with a reason, events replayed, everything else only read."""

from __future__ import annotations

import pytest
from django.test import Client

from billing.actions.apply import converge
from billing.models import StripeEvent
from entitlements.models import TierPrice
from tests.billing.conftest import Payer, deliver
from tests.billing.local_stripe import LocalStripe
from tests.factories import make_account, make_tier

PASSWORD = "a-long-enough-secret"
PAGES = ("customer", "subscription", "stripeevent", "billingproblem", "refuseddelivery", "reconciliation")


@pytest.fixture
def stella(local_stripe: LocalStripe) -> Client:
    client = Client()
    assert client.login(username=make_account("stella", staff=True, password=PASSWORD).email, password=PASSWORD)
    return client


@pytest.mark.parametrize("page", PAGES)
def test_every_list_opens_and_finds_an_account_by_its_address(
    stella: Client, alice: Payer, local_stripe: LocalStripe, page: str
) -> None:
    local_stripe.force(alice.customer, "active", ("price_unmapped",), event=None)
    converge(alice.customer, source="test", reason="test")
    for term in (alice.account.email, alice.customer, ""):
        assert stella.get(f"/admin/billing/{page}/", {"q": term} if term else {}).status_code == 200
    if page in {"customer", "subscription", "billingproblem"}:
        assert alice.account.email in stella.get(f"/admin/billing/{page}/?q={alice.customer}").content.decode()


@pytest.mark.parametrize("page", PAGES)
def test_nobody_adds_by_hand(stella: Client, page: str) -> None:
    assert stella.get(f"/admin/billing/{page}/add/").status_code == 403


def test_an_event_is_shown_without_what_it_says_of_a_person_and_is_never_edited(
    stella: Client, alice: Payer, local_stripe: LocalStripe
) -> None:
    subscription = local_stripe.force(alice.customer, "incomplete", event=None)
    row = deliver(local_stripe, local_stripe.change(subscription, status="active"))
    url = f"/admin/billing/stripeevent/{row.pk}/change/"
    text = stella.get(url).content.decode()
    assert "no paid tier → Pro" in text
    assert f"id: {subscription}" in text
    assert stella.post(url, {"outcome": "nothing"}).status_code == 403


def test_an_event_is_replayed_only_with_a_reason(stella: Client, alice: Payer, local_stripe: LocalStripe) -> None:
    subscription = local_stripe.force(alice.customer, "incomplete", event=None)
    row = deliver(local_stripe, local_stripe.change(subscription, status="active"))
    local_stripe.change(subscription, status="canceled", event=None)
    sent = {"action": "replay_selected", "_selected_action": [row.pk]}
    assert b"needs a reason" in stella.post("/admin/billing/stripeevent/", sent, follow=True).content
    assert alice.tier == "pro"
    answer = stella.post("/admin/billing/stripeevent/", {**sent, "why": "A lost event"}, follow=True)
    assert b"was replayed and changed the account" in answer.content
    assert alice.tier == "free"
    assert StripeEvent.objects.get(pk=row.pk).outcome.startswith("replayed by stella")


def test_a_price_is_added_as_stripe_knows_it_and_withdrawn_not_deleted(
    stella: Client, local_stripe: LocalStripe
) -> None:
    tier = make_tier()
    made = local_stripe.client().v1.prices.create({
        "product": "prod_local_pro", "unit_amount": 4250, "currency": "usd", "recurring": {"interval": "year"},
    })  # fmt: skip
    sent = {"tier": tier.pk, "price_id": made.id, "is_sold": "on", "why": "A new price"}
    assert stella.post("/admin/entitlements/tierprice/add/", sent).status_code == 302
    price = TierPrice.objects.get(price_id=made.id)
    assert (price.interval, price.amount_cents, price.is_sold) == ("year", 4250, True)
    url = f"/admin/entitlements/tierprice/{price.pk}"
    assert stella.get(f"{url}/delete/").status_code == 403
    assert stella.post(f"{url}/change/", {"why": "Too dear"}).status_code == 302
    price.refresh_from_db()
    assert price.is_sold is False
    events = TierPrice.pgh_event_models["update"].objects.filter(pgh_obj_id=price.pk, pgh_label="update")  # type: ignore[attr-defined]
    assert [e.pgh_context.metadata["reason"] for e in events] == ["Too dear"]


def test_a_price_that_stripe_does_not_know_is_refused_in_words(stella: Client) -> None:
    sent = {"tier": make_tier().pk, "price_id": "price_typo", "is_sold": "on", "why": "A new price"}
    answer = stella.post("/admin/entitlements/tierprice/add/", sent, follow=True)
    assert b"Stripe knows no price price_typo" in answer.content


def test_an_account_that_is_a_customer_is_not_deleted(stella: Client, alice: Payer) -> None:
    answer = stella.post(f"/admin/entitlements/account/{alice.account.pk}/delete/", {"post": "yes"}, follow=True)
    assert b"is a customer at Stripe" in answer.content
    assert alice.fresh() is not None
