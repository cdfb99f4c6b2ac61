"""Which Stripe price buys which tier: added only as Stripe knows it, so that a typing error sells nothing."""

from __future__ import annotations

from django.db import IntegrityError

from billing import stripe_api
from billing.models import BillingProblem, Customer
from billing.rules import ProblemKind
from entitlements.actions.authorship import ChangeSource, changed_fields, problems_as_issues, written_by
from entitlements.enums import Interval
from entitlements.models import Tier, TierPrice
from webhost.errors import ConflictError, InvalidRequestError, NotFoundError
from webhost.queue import send_on_commit


def add_price(
    tier: Tier,
    price_id: str,
    *,
    is_sold: bool = True,
    actor: str,
    reason: str,
    source: ChangeSource = ChangeSource.ADMIN,
) -> TierPrice:
    """Let a price buy a tier; interval and amount are read from Stripe. Raises InvalidRequestError, ConflictError.

    Customers who pay it already, and were an open problem, are read again.
    """
    found = stripe_api.price_of(price_id)
    if found is None:
        raise InvalidRequestError(f"Stripe knows no price {price_id}.", path="price_id")
    return _add(tier, found, is_sold=is_sold, actor=actor, reason=reason, source=source)


def _add(
    tier: Tier, found: stripe_api.Price, *, is_sold: bool, actor: str, reason: str, source: ChangeSource
) -> TierPrice:
    if found.interval not in set(Interval) or found.every != 1:
        raise InvalidRequestError("A tier is paid by the month or by the year.", path="price_id")
    if found.amount_cents is None:
        raise InvalidRequestError("This price has no fixed amount in whole cents.", path="price_id")
    with written_by(actor, reason, source):
        price = TierPrice(
            tier=tier, price_id=found.id, interval=found.interval, amount_cents=found.amount_cents,
            currency=found.currency, is_sold=is_sold and found.active,
        )  # fmt: skip
        with problems_as_issues():
            price.full_clean()
        try:
            price.save()
        except IntegrityError as error:
            raise ConflictError("This price, or another one of this interval, was added just now.") from error
        for customer_id in _waiting_for(found.id):
            send_on_commit("billing.read_customer", customer_id, f"price {found.id}")
    return price


def _waiting_for(price_id: str) -> list[str]:
    problems = BillingProblem.objects.filter(
        kind=ProblemKind.UNMAPPED_PRICE, closed_at__isnull=True, detail__contains=price_id
    )
    return list(Customer.objects.filter(problems__in=problems).distinct().values_list("customer_id", flat=True))


def sell_price(pk: int, *, sold: bool, actor: str, reason: str) -> TierPrice:
    """Sell a price, or stop selling it; who pays it keeps the tier either way."""
    with written_by(actor, reason):
        price = TierPrice.objects.select_for_update(no_key=True).filter(pk=pk).first()
        if price is None:
            raise NotFoundError("This price was removed meanwhile.")
        if changed_fields(price, {"is_sold": sold}):
            with problems_as_issues():
                price.full_clean()
            price.save(update_fields=["is_sold"])
    return price


def import_prices(*, actor: str, reason: str, source: ChangeSource) -> list[TierPrice]:
    """Add every active price at Stripe whose metadata, or whose product's, names a tier of ours; return the new ones.

    One that a tier has already is left as it is, and so is one that is here already.
    """
    tiers = {tier.slug: tier for tier in Tier.objects.all()}
    known = set(TierPrice.objects.values_list("price_id", flat=True))
    sold = set(TierPrice.objects.filter(is_sold=True).values_list("tier__slug", "interval"))
    added = []
    for price in stripe_api.recurring_prices():
        if price.id in known or price.tier not in tiers or price.interval not in set(Interval) or price.every != 1:
            continue
        if price.amount_cents is None:
            continue
        is_sold = (price.tier, price.interval) not in sold
        added.append(_add(tiers[price.tier], price, is_sold=is_sold, actor=actor, reason=reason, source=source))
        sold.add((price.tier, price.interval))
    return added
