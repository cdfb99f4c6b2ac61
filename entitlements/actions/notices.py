"""Mails to owners about their second factor: a row each, sent by a worker, tried again until it worked."""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import Final

from django.conf import settings
from django.core.mail import EmailMessage
from django.db import transaction
from django.utils import timezone

from entitlements.models import Notice

logger = logging.getLogger(__name__)
_LEASE: Final = timedelta(minutes=5)
_GIVEN_UP_AFTER: Final = timedelta(days=3)

_SUBJECTS: Final = {
    Notice.Kind.SET_UP: "An authenticator app was set up",
    Notice.Kind.REMOVED: "Your authenticator app was removed",
    Notice.Kind.RESET: "Your second factor was reset by support",
    Notice.Kind.NEW_RECOVERY_CODES: "New recovery codes were made",
}
_TEXTS: Final = {
    Notice.Kind.SET_UP: "From now on signing in asks for a code of your authenticator app.",
    Notice.Kind.REMOVED: "Signing in asks for your password only from now on.",
    Notice.Kind.RESET: "Support removed your authenticator app and your recovery codes.",
    Notice.Kind.NEW_RECOVERY_CODES: "The recovery codes that you had before are no longer taken.",
}


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
    kind = Notice.Kind(notice.kind)
    mail = EmailMessage(
        f"webhost.systems: {_SUBJECTS[kind]}",
        f"{_SUBJECTS[kind]}: {notice.account.email}, {notice.happened_at:%Y-%m-%d %H:%M} UTC.\n\n{_TEXTS[kind]}\n\n"
        f"If this was not you, write to {settings.SUPPORT_EMAIL} at once.\n\n"
        f"{settings.PUBLIC_URL}/settings/security/\n",
        to=[notice.account.email],
        headers={"Auto-Submitted": "auto-generated"},
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
