"""What Stripe says, on an account's page: the customer, what it pays for, and what somebody has to look at."""

from __future__ import annotations

import pytest

from billing.actions.apply import converge
from tests.billing.conftest import Payer, deliver
from tests.billing.local_stripe import LocalStripe
from tests.entitlements.admin_pages import Staff, said
from tests.factories import make_account

pytestmark = pytest.mark.usefixtures("local_stripe")


@pytest.fixture
def stella() -> Staff:
    return Staff()


def test_a_customer_shows_its_id_its_subscription_and_its_open_problems(
    stella: Staff, alice: Payer, local_stripe: LocalStripe
) -> None:
    subscription = local_stripe.force(alice.customer, "active", event=None)
    local_stripe.force(alice.customer, "active", ("price_unmapped",), event=None)
    converge(alice.customer, source="test", reason="test")
    text = said(stella.client.get(stella.url(alice.account)))
    assert f"Customer {alice.customer}" in text
    assert "Subscription active, Pro, paid until" in text
    assert "Problem unmapped price: " in text
    assert subscription in stella.client.get(stella.url(alice.account)).content.decode()


def test_who_never_began_a_checkout_is_no_customer(stella: Staff) -> None:
    assert "Not a customer at Stripe" in said(stella.client.get(stella.url(make_account("bob"))))


def test_the_event_that_moved_the_tier_is_in_the_timeline_and_beside_the_tier(
    stella: Staff, alice: Payer, local_stripe: LocalStripe
) -> None:
    subscription = local_stripe.force(alice.customer, "incomplete", event=None)
    row = deliver(local_stripe, local_stripe.change(subscription, status="active"))
    text = said(stella.client.get(stella.url(alice.account, "timeline"), {"kind": "webhook"}))
    assert f"Stripe {row.type}: no paid tier → Pro" in text
    assert row.event_id in text
    assert f"(stripe {row.event_id})" in said(stella.client.get(stella.url(alice.account)))
