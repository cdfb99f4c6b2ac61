"""Periodic work of the ledger. Each calls one action and is safe to run twice, also at once."""

from __future__ import annotations

import logging

from celery import shared_task
from django.utils import timezone

from entitlements import ledger
from entitlements.actions import send_notices as notices
from entitlements.actions import unsigned
from entitlements.models import IdempotencyRecord
from entitlements.sign_in import sessions
from webhost.period import period_of, previous_period

logger = logging.getLogger(__name__)
_BATCH = 500


@shared_task(name="entitlements.close_overdue")
def close_overdue() -> int:
    """Close admissions that nobody settled in time; return how many."""
    total = 0
    while closed := ledger.close_overdue(batch=_BATCH):
        total += closed
        if closed < _BATCH:
            break
    return total


@shared_task(name="entitlements.verify_recent")
def verify_recent() -> int:
    """Check the counters of this and the last month; each that is off raises an alert in the log."""
    differences = ledger.verify(since=previous_period(period_of(timezone.now())))
    for difference in differences:
        logger.error(
            "Ledger differs for account %s in %s: counter %s, admissions %s, adjustments %s.",
            difference.account_id,
            difference.period,
            difference.counter,
            difference.admissions,
            difference.adjustments,
        )
    return len(differences)


@shared_task(name="entitlements.forget_answers")
def forget_answers() -> int:
    """Delete kept answers of requests whose Idempotency-Key has expired; return how many."""
    deleted, _ = IdempotencyRecord.objects.filter(expires_at__lt=timezone.now()).delete()
    return deleted


@shared_task(name="entitlements.report_unsigned")
def report_unsigned() -> int:
    """Tell support of changes that nobody signed; return how many transactions those are."""
    return unsigned.report_unsigned(timezone.now())


@shared_task(name="entitlements.send_notices")
def send_notices() -> int:
    """Send the mails to people that are due; return how many were sent."""
    return notices.send_notices()


@shared_task(name="entitlements.forget_sessions")
def forget_sessions() -> int:
    """Delete browser sessions that ran out; return how many."""
    return sessions.forget_sessions()
