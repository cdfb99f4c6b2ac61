"""What happens at Stripe when somebody buys, pays, renews, changes or ends; each tells of it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Final

from localstripe import resources
from localstripe.resources import store

from webhost.local.stripe.delivery import Post
from webhost.local.stripe.objects import (
    CheckoutSession,
    Customer,
    Invoice,
    Price,
    Subscription,
    all_of,
    known,
    next_period,
    refused,
)

DECLINED: Final = "4000000000000002"
PAYS_ONCE: Final = "4000000000000341"
_NEVER: Final = 2**40
CARDS: Final = frozenset({"4242424242424242", DECLINED, PAYS_ONCE})
# The price list that an installation on a laptop starts with: tier, name, cents by the month.
_CATALOGUE: Final = (("starter", "Starter", 1900), ("pro", "Pro", 9900), ("enterprise", "Enterprise", 49900))


class Business:
    """All that changes, with its events."""

    def __init__(self, post: Post, address: str) -> None:
        self.post, self.address = post, address

    def stock(self) -> None:
        """Make the catalogue where it is missing; its ids are always the same."""
        for tier, name, cents in _CATALOGUE:
            if f"product:prod_local_{tier}" in store:
                continue
            resources.Product(id=f"prod_local_{tier}", name=name, metadata={"tier": tier})
            for interval, amount in (("month", cents), ("year", cents * 10)):
                Price(
                    f"price_local_{tier}_{interval}", product=f"prod_local_{tier}", unit_amount=amount, currency="usd",
                    recurring={"interval": interval}, metadata={"tier": tier},
                )  # fmt: skip
        if "product:prod_local_addon" not in store:
            resources.Product(id="prod_local_addon", name="Priority support")
            Price(
                "price_local_addon_month", product="prod_local_addon", unit_amount=500, currency="usd",
                recurring={"interval": "month"},
            )  # fmt: skip

    def subscribe(self, customer: str, prices: list[str], **given: Any) -> Subscription:
        """Start a subscription that is paid for, and tell of it."""
        made = Subscription(customer, prices, **given)
        invoice = Invoice(made, "paid")
        self.post.tell("customer.subscription.created", made)
        self.post.tell("invoice.paid", invoice)
        return made

    def complete(self, session: CheckoutSession, card: str) -> Subscription:
        """Take the payment of a checkout."""
        data = session.subscription_data or {}
        prices = [line["price"] for line in session._lines]
        made = self.subscribe(session.customer, prices, metadata=data.get("metadata"), card=card)
        session.status, session.payment_status, session.subscription = "complete", "paid", made.id
        self.post.tell("checkout.session.completed", session)
        return made

    def expire(self, session: CheckoutSession) -> None:
        """Close a checkout that nobody paid."""
        if session.status != "open":
            raise refused('Only Checkout Sessions with a status in ["open"] can be expired.')
        session.status = "expired"
        self.post.tell("checkout.session.expired", session)

    def change(self, subscription: Subscription, given: Mapping[str, Any], event: str | None = "") -> None:
        """Change a subscription and tell of it (`event`: another event, or None for silence)."""
        before = {name: getattr(subscription, name) for name in given if hasattr(subscription, name)}
        subscription._change(given)
        kind = "customer.subscription.updated" if event == "" else event
        if kind is not None:
            self.post.tell(kind, subscription, before)

    def cancel(self, subscription: Subscription) -> None:
        """End a subscription at once."""
        if subscription.status == "canceled":
            raise refused("This subscription is canceled already.")
        subscription._change({"status": "canceled"})
        self.post.tell("customer.subscription.deleted", subscription)

    def renew(self, subscription: Subscription) -> Invoice:
        """Begin the next period: end it where that was arranged, else take the payment, or fail to."""
        if subscription.cancel_at_period_end or (subscription.cancel_at or _NEVER) <= subscription._end:
            self.cancel(subscription)
            return known(Invoice, subscription.latest_invoice)  # type: ignore[no-any-return]  # of the store
        start = subscription._end
        fails = subscription._card == PAYS_ONCE
        subscription._change(
            {
                "current_period_start": start,
                "current_period_end": next_period(start, subscription._interval()),
                "status": "past_due" if fails else "active",
            }
        )
        invoice = Invoice(subscription, "open" if fails else "paid")
        self.post.tell("invoice.created", invoice)
        self.post.tell("invoice.payment_failed" if fails else "invoice.paid", invoice)
        self.post.tell("customer.subscription.updated", subscription)
        return invoice

    def pay(self, subscription: Subscription) -> None:
        """Pay what is open."""
        for invoice in all_of(Invoice):
            if invoice._subscription == subscription.id and invoice.status == "open":
                invoice.status = "paid"
                self.post.tell("invoice.paid", invoice)
        self.change(subscription, {"status": "active"})

    def checkout_of(self, given: Mapping[str, Any]) -> CheckoutSession:
        """Open a checkout as the API asks for one."""
        if given.get("mode") != "subscription":
            raise refused("Only mode=subscription is sold here.", "mode")
        for name in ("customer", "success_url", "line_items"):
            if not given.get(name):
                raise refused(f"Missing required param: {name}.", name)
        known(Customer, given["customer"], "customer")
        for line in given["line_items"]:
            if not known(Price, line.get("price"), "line_items[0][price]").active:
                raise refused("The price specified is inactive.", "line_items[0][price]")
        return CheckoutSession(
            self.address,
            mode="subscription",
            customer=given["customer"],
            client_reference_id=given.get("client_reference_id"),
            success_url=given["success_url"],
            cancel_url=given.get("cancel_url"),
            metadata=given.get("metadata") or {},
            subscription_data=given.get("subscription_data"),
            status="open",
            payment_status="unpaid",
            subscription=None,
            expires_at=int(time.time()) + 86_400,
            _lines=list(given["line_items"]),
        )
