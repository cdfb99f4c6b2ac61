"""The worker's half of mails to people: take what is due, write it, try again later what was not taken."""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import Final

from django.core.mail import EmailMessage
from django.db import transaction
from django.utils import timezone

from entitlements.letters import letter_of
from entitlements.models import Notice

logger = logging.getLogger(__name__)
_LEASE: Final = timedelta(minutes=5)
_GIVEN_UP_AFTER: Final = timedelta(days=3)


def send_notices() -> int:
    """Send every notice that is due; return how many were sent."""
    sent = 0
    while (notice := _take()) is not None:
        sent += _sent(notice)
    return sent


def _take() -> Notice | None:
    """Take the next notice that is due, for as long as the lease: two workers never send the same."""
    now = timezone.now()
    with transaction.atomic():
        due = Notice.objects.filter(due_at__lte=now).select_for_update(skip_locked=True, of=("self",))
        notice = due.select_related("account").first()
        if notice is not None:
            notice.due_at = now + _LEASE
            notice.save(update_fields=["due_at"])
    return notice


def _sent(notice: Notice) -> bool:
    letter = letter_of(notice)
    if letter is None:  # there is nobody to tell, or nothing any more
        notice.delete()
        return False
    mail = EmailMessage(
        f"webhost.systems: {letter.subject}", letter.text, to=[letter.to], headers={"Auto-Submitted": "auto-generated"}
    )
    try:
        mail.send()
    except (OSError, ValueError) as error:  # smtplib's are OSErrors; ValueError: an address that is none
        given_up = timezone.now() - notice.happened_at > _GIVEN_UP_AFTER
        log = logger.error if given_up else logger.warning
        log("A notice to account %s was not sent: %s.", notice.account_id, type(error).__name__)
        if given_up:
            notice.delete()
        return False
    notice.delete()
    return True
