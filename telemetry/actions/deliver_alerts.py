"""Send what is due, with retries: taken with a lease, sent without a database connection, written down then.

At least once: a worker that dies between sending and writing leaves a message that is sent again, under the same id.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final
from urllib.parse import urlsplit
from uuid import UUID

from django.conf import settings
from django.core.mail import EmailMessage, get_connection
from django.utils import timezone

from entitlements.enums import LimitType
from telemetry import alert_messages
from telemetry.actions.alert_targets import MAIL_SECONDS, secret_of
from telemetry.alert_messages import Told
from telemetry.alert_rules import wait_after
from telemetry.models import AlertKind, DeliveryStatus
from telemetry.webhook import EVENT_HEADER, INTERNET, Internet, WebhookError, send_webhook, signed
from webhost import db
from webhost.ids import Prefix, public_id

logger = logging.getLogger(__name__)

LEASE: Final = timedelta(minutes=2)
# Many at once and not for long: endpoints that are dead must not fill the worker, which has books to keep.
_AT_ONCE: Final = 8
_RUN_SECONDS: Final = 10.0
_LONGEST_REASON: Final = 80

# One statement takes one message: two workers pass over each other's rows, and who dies leaves one that is due again
# when the lease is over. The account's own address is a target without a row unless it was changed.
_TAKE: Final = """
WITH due AS (
    SELECT id FROM telemetry_alertdelivery
     WHERE next_try_at <= %(at)s::timestamptz AND (%(only)s::uuid[] IS NULL OR id = ANY(%(only)s::uuid[]))
     ORDER BY next_try_at LIMIT 1 FOR UPDATE SKIP LOCKED
), taken AS (
    UPDATE telemetry_alertdelivery d SET attempts = d.attempts + 1, next_try_at = %(at)s::timestamptz + %(lease)s
      FROM due WHERE d.id = due.id
    RETURNING d.*
)
SELECT d.id, d.kind, d.attempts, d.target_id, e.id AS event_id, e.account_id, e.period, e.limit_type, e.threshold,
       e.used, e."limit", e.fired_at, coalesce(t.root_key_id, '') AS root_key_id,
       CASE WHEN d.target_id = e.account_id THEN a.email ELSE t.address END AS address,
       a.is_active AND CASE WHEN d.target_id = e.account_id THEN coalesce(t.enabled, true)
                            ELSE coalesce(t.enabled, false) END AS wanted
  FROM taken d JOIN telemetry_alertevent e ON e.id = d.event_id
  LEFT JOIN telemetry_alerttarget t ON t.id = d.target_id AND t.account_id = e.account_id
  LEFT JOIN entitlements_account a ON a.id = e.account_id
"""
# Only who holds it still: a worker that was slower than its lease has nothing to say any more, unless it was sent.
_FINISH: Final = """
UPDATE telemetry_alertdelivery SET status = %(status)s, next_try_at = %(next)s::timestamptz, last_error = %(error)s,
       last_status = %(answered)s::smallint, sent_at = %(sent)s::timestamptz
 WHERE id = %(id)s AND next_try_at IS NOT NULL AND (attempts = %(attempts)s OR %(sent)s::timestamptz IS NOT NULL)
RETURNING id
"""


@dataclass(frozen=True)
class Result:
    """How one try ended. `final`: trying again cannot help."""

    error: str = ""
    status: int | None = None
    final: bool = False


def deliver_alerts(*, internet: Internet = INTERNET, at: datetime | None = None, only: list[UUID] | None = None) -> int:
    """Send everything that is due, several at a time, for some seconds; return how many tries were made.

    `only` narrows it to some deliveries. Safe to run twice and at once.
    """
    ends = time.monotonic() + _RUN_SECONDS

    def work(_: int) -> int:
        tries = 0
        while time.monotonic() < ends and deliver_next(internet=internet, at=at, only=only):
            tries += 1
        return tries

    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="alerts") as pool:
        return sum(pool.map(work, range(_AT_ONCE)))


def deliver_next(*, internet: Internet = INTERNET, at: datetime | None = None, only: list[UUID] | None = None) -> bool:
    """Take the next message that is due, send it, write down what came of it. False: nothing is due."""
    row = take_next(at=at, only=only)
    if row is None:
        return False
    _finish(row, _try(row, internet), at or timezone.now())
    return True


def take_next(*, at: datetime | None = None, only: list[UUID] | None = None) -> Mapping[str, Any] | None:
    """Take the next message that is due, for as long as the lease; None: nothing is due."""
    rows = db.run(_TAKE, {"at": at or timezone.now(), "lease": LEASE, "only": only})
    return rows[0] if rows else None


def _try(row: Mapping[str, Any], internet: Internet) -> Result:
    if not row["wanted"]:
        return Result("TargetGone", final=True)
    told = Told(
        row["event_id"], row["account_id"], row["period"], LimitType(row["limit_type"]), row["threshold"],
        row["used"], row["limit"], row["fired_at"],
    )  # fmt: skip
    if row["kind"] == AlertKind.EMAIL:
        return _mail(row["id"], row["address"], told)
    secret = secret_of(row["target_id"], row["root_key_id"])
    if secret is None:
        return Result("SecretGone", final=True)
    body = alert_messages.payload(told)
    headers = {EVENT_HEADER: told.public_id, **signed(secret, body, int(time.time()))}
    try:
        return Result(status=send_webhook(row["address"], body, headers, internet))
    except WebhookError as error:
        return Result(error.reason, error.status)


def _mail(delivery_id: UUID, address: str, told: Told) -> Result:
    # The same id on each try, so that a mailbox can tell a message that came twice.
    message_id = f"<{delivery_id.hex}@{urlsplit(settings.PUBLIC_URL).hostname}>"
    mail = EmailMessage(
        alert_messages.subject(told),
        alert_messages.text(told, settings.PUBLIC_URL),
        to=[address],
        headers={"Message-ID": message_id, "Auto-Submitted": "auto-generated"},
        connection=get_connection(timeout=MAIL_SECONDS),
    )
    try:
        mail.send()
    except (OSError, ValueError) as error:  # smtplib's are OSErrors; ValueError: an address that is none
        return Result(type(error).__name__)
    return Result()


def _finish(row: Mapping[str, Any], result: Result, now: datetime) -> None:
    failed = bool(result.error)
    wait = wait_after(row["attempts"], random.random()) if failed and not result.final else None  # noqa: S311 - spreads retries, guards nothing
    status = DeliveryStatus.SENT if not failed else DeliveryStatus.GIVEN_UP if wait is None else DeliveryStatus.FAILED
    db.run(
        _FINISH,
        {
            "id": row["id"],
            "attempts": row["attempts"],
            "status": status.value,
            "next": None if wait is None else now + wait,
            "error": result.error[:_LONGEST_REASON],
            "answered": result.status,
            "sent": None if failed else now,
        },
    )
    if status is DeliveryStatus.GIVEN_UP and not result.final:
        logger.error(
            "Alert %s to %s was given up after %d tries: %s %s",
            public_id(Prefix.EVENT, row["event_id"]),
            public_id(Prefix.ALERT_TARGET, row["target_id"]),
            row["attempts"],
            result.error,
            result.status or "",
        )
