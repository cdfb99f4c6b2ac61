"""What this app adds to an account's page: the alerts about its budgets."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from django.db.models import Count, Q

from entitlements.admin.sections import TIMELINE, Before, Moment, Source, page_of_row
from entitlements.display import LABELS
from entitlements.enums import LimitType
from telemetry.models import AlertEvent, DeliveryStatus


def alert_moments(account_id: UUID, before: Before, most: int) -> Sequence[Moment]:
    """Return the budgets that reached a threshold, and how many messages were sent about each."""
    sent = Count("deliveries", filter=Q(deliveries__status=DeliveryStatus.SENT))
    events = AlertEvent.objects.filter(account_id=account_id).annotate(sent=sent)
    return [
        Moment(
            row.fired_at, str(row.pk),
            f"Alert: {row.threshold} % of {LABELS[LimitType(row.limit_type)]} reached, {row.used:,} of {row.limit:,}; "
            f"{row.sent} message{'' if row.sent == 1 else 's'} sent",
            source="roll-up", url=page_of_row("telemetry_alertevent", row.pk),
        )
        for row in before.rows(events, "fired_at", "pk")[:most]
    ]  # fmt: skip


TIMELINE.append(Source("alert", "Alerts", "telemetry.view_alertevent", alert_moments))
