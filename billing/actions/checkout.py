"""Where a customer pays: Stripe's checkout for the first subscription, its portal for everything after.

A request names a tier, never a price, an amount or an account. Nothing here changes a tier.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Final

from django.conf import settings
from django.db import connection, transaction
from django.db.models import DateTimeField, ExpressionWrapper, Q
from django.db.models.functions import Now

from billing import rules, stripe_api
from billing.actions.apply import priced_tiers
from billing.models import Customer
from entitlements.enums import Interval
from entitlements.models import Account, TierPrice
from webhost.errors import ConflictError, InvalidRequestError

_BACK: Final = "/billing/"
_WAIT_SECONDS: Final = 10
_LEASE_SECONDS: Final = 60


def _let_go() -> None:
    """Give the database's connection back before Stripe is asked: nobody waits for it meanwhile."""
    if not connection.in_atomic_block:
        connection.close()


def price_for(tier: str, interval: Interval) -> TierPrice:
    """Return the sold price of a public tier. Raises InvalidRequestError for one that nobody can buy."""
    price = TierPrice.objects.filter(
        tier__slug=tier, tier__is_public=True, tier__retired_at__isnull=True, interval=interval, is_sold=True
    ).select_related("tier").first()  # fmt: skip
    if price is None:
        raise InvalidRequestError("This tier cannot be bought for this interval.", path="tier")
    return price


def customer_of(account: Account) -> str:
    """Return the account's customer at Stripe, made the first time. Of two at once both get the same one."""
    found = Customer.objects.filter(account=account).first()
    if found is not None:
        return found.customer_id
    _let_go()
    made = stripe_api.create_customer(account.public_id, account.email, account.name)
    with transaction.atomic():
        customer, _ = Customer.objects.get_or_create(account=account, defaults={"customer_id": made})
    return customer.customer_id


def open_checkout(account: Account, tier: str, interval: Interval) -> str:
    """Return the address at which the account buys a tier: checkout, or to confirm the change of what it has.

    What is there is read from Stripe now, so nobody pays for two plans. Raises InvalidRequestError for what is
    not sold, ConflictError for what the account pays for already, StripeAwayError.
    """
    price = price_for(tier, interval)
    customer = customer_of(account)
    prices = priced_tiers()
    back = f"{settings.PUBLIC_URL}{_BACK}"
    with _alone_with(customer):
        stripe_api.close_checkouts(customer)
        going_on = [s for s in stripe_api.subscriptions_of(customer) if s.status not in rules.OVER]
        if not going_on:
            done, left = f"{back}?checkout=done", f"{back}?checkout=left"
            return stripe_api.open_checkout(
                customer, account.public_id, price.price_id, success_url=done, cancel_url=left
            )
        if any(item.price == price.price_id for s in going_on for item in s.items):
            name = price.tier.name
            raise ConflictError(f"You have {name} already. Its card, invoices and end are in the billing portal.")
        return stripe_api.open_portal(customer, back, change=_change(going_on, prices, price.price_id))


@contextmanager
def _alone_with(customer: str) -> Iterator[None]:
    """Open pages for a customer one after the other, without a connection on loan meanwhile.

    A lease, because a lock would hold one for as long as Stripe takes; who died holding it is waited out.
    """
    mine = Customer.objects.filter(customer_id=customer)
    give_up_at = time.monotonic() + _WAIT_SECONDS
    until = ExpressionWrapper(Now() + timedelta(seconds=_LEASE_SECONDS), output_field=DateTimeField())
    while not mine.filter(Q(opening_until=None) | Q(opening_until__lt=Now())).update(opening_until=until):
        _let_go()
        if time.monotonic() > give_up_at:
            raise ConflictError("Another checkout is being opened. Please try again.", retryable=True, retry_after=5)
        time.sleep(0.05)
    _let_go()
    try:
        yield
    finally:
        mine.update(opening_until=None)


def _change(subscriptions: list[rules.Subscription], prices: rules.Prices, price: str) -> tuple[str, str, str] | None:
    """Return what the portal shall ask to confirm; None, so that it shows everything, where that is not plain."""
    plans = [(s, item) for s in subscriptions for item in s.items if item.price in prices]
    if len(plans) != 1 or plans[0][0].status not in rules.PAID:
        return None
    subscription, item = plans[0]
    return subscription.id, item.id, price


def open_portal(account: Account) -> str:
    """Return the address of the account's portal: card, invoices, change, end. Raises ConflictError without one."""
    customer = Customer.objects.filter(account=account).first()
    if customer is None:
        raise ConflictError("There is nothing to manage yet: you have not bought a tier.")
    _let_go()
    return stripe_api.open_portal(customer.customer_id, f"{settings.PUBLIC_URL}{_BACK}")
