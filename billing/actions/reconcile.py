"""Compare every customer with Stripe, and say what nobody told us: the proof that no event was lost for good."""

from __future__ import annotations

import logging
from typing import Any

from django.db import OperationalError
from django.utils import timezone

from billing import stripe_api
from billing.actions.apply import Convergence, converge, said
from billing.models import Customer, Reconciliation
from webhost.errors import WebhostError
from webhost.ids import Prefix, public_id

logger = logging.getLogger(__name__)


def reconcile() -> Reconciliation:
    """Converge all customers and write the report; what drifted is right afterwards. Safe to run twice."""
    report = Reconciliation.objects.create()
    source = f"task billing.reconcile {report.pk}"
    for customer_id in list(Customer.objects.order_by("pk").values_list("customer_id", flat=True)):
        try:
            done = converge(customer_id, source=source, reason="Found by the nightly comparison with Stripe")
        except (WebhostError, OperationalError) as error:
            report.unread.append({"customer": customer_id, "why": type(error).__name__})
            continue
        report.customers += 1
        if done.changed or done.noted_anew:
            report.drifted.append(_line(customer_id, done))
    report.strangers = _strangers()
    report.finished_at = timezone.now()
    report.save()
    if report.drifted or report.unread or report.strangers:
        logger.error(
            "Reconciliation %d: %d of %d customers had drifted, %d could not be read, %d subscriptions are nobody's.",
            report.pk, len(report.drifted), report.customers, len(report.unread), len(report.strangers),
        )  # fmt: skip
    return report


def _line(customer_id: str, done: Convergence) -> dict[str, Any]:
    return {
        "account": public_id(Prefix.ACCOUNT, done.account.pk),
        "customer": customer_id,
        "before": said(done.before),
        "after": said(done.after),
        "subscriptions": list(done.noted_anew),
    }


def _strangers() -> list[dict[str, str]]:
    known = set(Customer.objects.values_list("customer_id", flat=True))
    try:
        return [
            {"customer": customer, "subscription": subscription}
            for customer, subscription in stripe_api.live_subscriptions()
            if customer not in known
        ]
    except WebhostError:
        return []
