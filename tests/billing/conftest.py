"""A Stripe of its own for these tests; the running product's worker looks at another one, so it is paused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings as live_settings
from django.test import Client

from billing import stripe_api
from billing.actions import checkout
from billing.actions.apply import apply_event
from billing.actions.prices import import_prices
from billing.models import Customer, EventState, StripeEvent
from entitlements.actions.authorship import ChangeSource
from entitlements.actions.standing import read_standing
from entitlements.models import Account
from tests.billing.local_stripe import LocalStripe, signature
from tests.factories import make_account

WEBHOOK = "/v1/billing/webhook"


@pytest.fixture(scope="session")
def stripe_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalStripe]:
    """A local Stripe whose events these tests deliver themselves."""
    folder: Path = tmp_path_factory.mktemp("stripe")
    # Nobody listens there: what is delivered is what a test posts.
    server = LocalStripe(
        folder,
        "http://127.0.0.1:9",
        key=live_settings.STRIPE_SECRET_KEY,
        secret=live_settings.STRIPE_WEBHOOK_SECRETS[0],
    )
    server.start()
    yield server
    server.stop()


@pytest.fixture
def local_stripe(stripe_server: LocalStripe, live_db: None, nobody_sweeps: None, settings: Any) -> LocalStripe:
    """That Stripe, in use, with its price list known to the tiers."""
    settings.STRIPE_API_URL = stripe_server.url
    stripe_api._away_until = 0.0
    stripe_server.hold()
    import_prices(actor="test", reason="For tests", source=ChangeSource.COMMAND)
    return stripe_server


@dataclass
class Payer:
    """An account that is a customer at Stripe."""

    account: Account
    customer: str

    @property
    def tier(self) -> str:
        """The tier in force."""
        return read_standing(self.account.pk).tier.slug

    def fresh(self) -> Account:
        """The account as it is in the database."""
        return Account.objects.get(pk=self.account.pk)

    def changes(self) -> list[Any]:
        """Every entry of history in which what is paid for became another."""
        events = (
            Account.pgh_event_models["update"]
            .objects.filter(pgh_obj_id=self.account.pk, pgh_label="update")
            .order_by("pgh_id")
        )  # type: ignore[attr-defined]
        found, before = [], (None, None)
        for event in events:
            now = (event.billing_tier_id, event.billing_tier_until)
            if now != before:
                found.append(event)
            before = now
        return found


@pytest.fixture
def payer(local_stripe: LocalStripe) -> Callable[[], Payer]:
    """Make accounts that are customers."""

    def make() -> Payer:
        account = make_account("alice")
        return Payer(account, checkout.customer_of(account))

    return make


@pytest.fixture
def alice(payer: Callable[[], Payer]) -> Payer:
    """A customer who has bought nothing."""
    return payer()


def post(body: bytes, header: str | None = None, *, secret: str | None = None, at: float | None = None) -> Any:
    """Deliver bytes to the webhook, signed as Stripe would."""
    given = signature(body, secret or live_settings.STRIPE_WEBHOOK_SECRETS[0], at=at) if header is None else header
    headers = {"Stripe-Signature": given} if given else {}
    return Client().post(WEBHOOK, body, content_type="application/json", headers=headers)


def deliver(stripe: LocalStripe, event: str | None) -> StripeEvent:
    """Deliver an event of the local Stripe, and apply it as the worker would."""
    assert event is not None
    assert post(stripe.body_of(event)).status_code == 200
    return applied(event)


def applied(event: str) -> StripeEvent:
    """Apply an event that was kept; return what became of it."""
    row = StripeEvent.objects.get(event_id=event)
    if row.state == EventState.PENDING:
        apply_event(row.pk)
    row.refresh_from_db()
    return row


def customer_row(payer: Payer) -> Customer:
    """Return the row of a customer."""
    return Customer.objects.get(customer_id=payer.customer)
