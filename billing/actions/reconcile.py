"""Compare every customer with Stripe, and say what nobody told us: the proof that no event was lost for good."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from django.db import OperationalError
from django.utils import timezone

from billing import rules, stripe_api
from billing.actions.apply import Convergence, converge, grace, held_by, priced_tiers, said
from billing.models import Customer, Reconciliation
from webhost.errors import WebhostError
from webhost.ids import Prefix, public_id

logger = logging.getLogger(__name__)


def reconcile() -> Reconciliation:
    """Compare all customers with Stripe and write the report; what had drifted is right afterwards. Safe to run twice.

    All subscriptions are listed once; only customers who are not as that list says are read by themselves, as an
    event would have it. So what changed in between is no drift.
    """
    report = Reconciliation.objects.create()
    try:
        at_stripe = stripe_api.all_subscriptions()
    except WebhostError as error:
        report.unread.append({"customer": "all of them", "why": type(error).__name__})
    else:
        _compare(report, at_stripe)
    report.finished_at = timezone.now()
    report.save()
    if report.drifted or report.unread or report.strangers:
        logger.error(
            "Reconciliation %d: %d of %d customers had drifted, %d could not be read, %d subscriptions are nobody's.",
            report.pk, len(report.drifted), report.customers, len(report.unread), len(report.strangers),
        )  # fmt: skip
    return report


def _compare(report: Reconciliation, at_stripe: dict[str, list[rules.Subscription]]) -> None:
    source = f"task billing.reconcile {report.pk}"
    prices = priced_tiers()
    customers = Customer.objects.select_related("account__billing_tier").prefetch_related("subscriptions", "problems")
    for customer in customers.order_by("pk").iterator(chunk_size=500):
        report.customers += 1
        if _agrees(customer, at_stripe.pop(customer.customer_id, []), prices):
            continue
        try:
            done = converge(customer.customer_id, source=source, reason="Found by the nightly comparison with Stripe")
        except (WebhostError, OperationalError) as error:
            report.unread.append({"customer": customer.customer_id, "why": type(error).__name__})
            continue
        if done.changed or done.noted_anew:
            report.drifted.append(_line(customer.customer_id, done))
    report.strangers = [
        {"customer": customer_id, "subscription": subscription.id}
        for customer_id, subscriptions in at_stripe.items()
        for subscription in subscriptions
    ]


def _agrees(customer: Customer, there: Sequence[rules.Subscription], prices: rules.Prices) -> bool:
    """Say whether tier, subscriptions and open problems are as Stripe says."""
    held = held_by(customer.account)
    verdict = rules.decide(there, prices, held, now=timezone.now(), grace=grace())
    here = {
        s.pk: (s.status, s.price_ids, s.period_end, s.ends_on)
        for s in customer.subscriptions.all()
        if s.status not in rules.OVER
    }
    said_there = {s.id: (s.status[:40], [i.price for i in s.items], s.period_end, s.ends_on) for s in there}
    problems = {(p.kind, p.detail) for p in customer.problems.all() if p.closed_at is None}
    said_to_be = {(p.kind.value, p.detail) for p in verdict.problems}
    return verdict.held == held and here == said_there and problems == said_to_be


def _line(customer_id: str, done: Convergence) -> dict[str, Any]:
    return {
        "account": public_id(Prefix.ACCOUNT, done.account.pk),
        "customer": customer_id,
        "before": said(done.before),
        "after": said(done.after),
        "subscriptions": list(done.noted_anew),
    }
