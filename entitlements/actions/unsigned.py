"""Changes that nobody signed: support is told of them once, looks at them, and says why they are in order."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from datetime import datetime
from typing import Final
from uuid import UUID

from django.conf import settings
from django.core.mail import send_mail
from django.db import connection, transaction
from django.utils import timezone

from entitlements.actions.authorship import written_by
from entitlements.models import HistoryEntry, UnsignedChange

logger = logging.getLogger(__name__)

# Named one by one in a mail; the rest is a number and a link.
_MOST_NAMED: Final = 20
_MOST_ROWS: Final = 3
_WHAT: Final = f"""
SELECT w.id, h.kind, coalesce(h.name, h.object_id) FROM unnest(%s::uuid[]) AS w(id)
 CROSS JOIN LATERAL (SELECT kind, name, object_id FROM {HistoryEntry._meta.db_table} e
                      WHERE e.context_id = w.id LIMIT {_MOST_ROWS + 1}) h
"""  # noqa: S608, SLF001 - the view's own name


def what_changed(context_ids: Iterable[UUID]) -> dict[UUID, str]:
    """Return some of what each transaction changed, in words; one query, however much there is."""
    with connection.cursor() as cursor:
        cursor.execute(_WHAT, [list(context_ids)])
        rows = cursor.fetchall()
    found: dict[UUID, list[str]] = {}
    for context_id, kind, name in rows:
        found.setdefault(context_id, []).append(f"{kind.partition('.')[2].lower()} {name}")
    return {
        pk: ", ".join(names[:_MOST_ROWS]) + (" and more" if len(names) > _MOST_ROWS else "")
        for pk, names in found.items()
    }


def report_unsigned(now: datetime) -> int:
    """Write to support about changes that nobody signed, once about each; return how many. One mail, however many.

    A mail that cannot be sent leaves them to the next sweep.
    """
    with transaction.atomic():
        # Of two sweeps at once the second finds nothing: what is locked is being told.
        waiting = UnsignedChange.objects.select_for_update(skip_locked=True).filter(mailed_at__isnull=True)
        rows = list(waiting.order_by("at").values_list("pk", "at", "role", "application", "address")[:10_000])
        if not rows:
            return 0
        UnsignedChange.objects.filter(pk__in=[row[0] for row in rows]).update(mailed_at=now)
        what = what_changed(row[0] for row in rows[:_MOST_NAMED])
        lines = [
            f"{at:%Y-%m-%d %H:%M:%S} UTC, database role {role}, from {address} ({application or 'no application'}): "
            f"{what.get(pk, 'nothing that is kept')}"
            for pk, at, role, application, address in rows[:_MOST_NAMED]
        ]
        if len(rows) > _MOST_NAMED:
            lines.append(f"and {len(rows) - _MOST_NAMED:,} transactions more.")
        count = f"{len(rows):,} transaction{'s' if len(rows) > 1 else ''}"
        logger.error("%s changed what the audit log follows without a signature.", count)
        # Inside: if the mail fails, nothing is marked. Nobody else waits for these rows.
        send_mail(
            subject="[webhost.systems] Changes that nobody signed",
            message=(
                f"{count} changed tiers, accounts or other rows past the product, as raw SQL does:\n\n"
                + "\n".join(lines)
                + f"\n\n{settings.PUBLIC_URL}/admin/entitlements/unsignedchange/\n"
            ),
            from_email=None,
            recipient_list=[settings.SUPPORT_EMAIL],
        )
    return len(rows)


def acknowledge_unsigned(context_ids: Iterable[UUID], *, actor: str, reason: str) -> int:
    """Say that somebody looked at changes, and why they are in order; return how many nobody had looked at yet."""
    with written_by(actor, reason):
        open_ones = UnsignedChange.objects.filter(pk__in=list(context_ids), acknowledged_at__isnull=True)
        return open_ones.update(
            acknowledged_at=timezone.now(), acknowledged_by=actor[:254], acknowledged_reason=reason.strip()[:500]
        )
