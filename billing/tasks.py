"""Woken and periodic work of billing. Each calls one action and is safe to run twice, also at once."""

from __future__ import annotations

import logging

from celery import shared_task
from django.utils import timezone

from billing.actions import apply
from billing.actions import reconcile as reconciling
from webhost.errors import WebhostError

logger = logging.getLogger(__name__)


@shared_task(name="billing.apply_event")
def apply_event(event_pk: int) -> bool:
    """Apply one event; say whether it is over."""
    return apply.apply_event(event_pk)


@shared_task(name="billing.read_customer")
def read_customer(customer_id: str, because: str) -> None:
    """Read one customer's subscriptions again."""
    try:
        apply.converge(customer_id, source=f"task billing.read_customer, {because}", reason="Read again")
    except WebhostError:
        logger.warning("Stripe customer %s could not be read; the nightly comparison will.", customer_id)


@shared_task(name="billing.sweep")
def sweep() -> int:
    """Apply what is due; return how many events and customers were looked at."""
    return apply.sweep(timezone.now())


@shared_task(name="billing.reconcile")
def reconcile() -> int:
    """Compare every customer with Stripe; return how many had drifted."""
    return len(reconciling.reconcile().drifted)


@shared_task(name="billing.forget_old")
def forget_old() -> int:
    """Delete concluded events and refusals of long ago; return how many rows went."""
    return apply.forget_old(timezone.now())
