"""What each runtime is estimated to cost per day, all accounts together; an alarm where it passes a threshold."""

from __future__ import annotations

import logging
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Final

from django.conf import settings
from django.core.mail import send_mail
from django.db import transaction
from django.db.models import Sum

from entitlements.enums import Runtime
from runtimes.models import RuntimeSwitch
from telemetry import rules
from telemetry.actions.usage import rate_cards
from telemetry.models import DailyCost, UsageHour

logger = logging.getLogger(__name__)

_MEASURES: Final = ("requests", "tokens", "compute_ms", "tool_calls", "code_ms", "browser_sessions")


def estimate_daily_cost(now: datetime) -> int:
    """Bring the rows of today and yesterday (UTC) up to date; return how many alarms that raised.

    Yesterday again, because late reports come in after midnight. Repeating it changes nothing.
    """
    today = now.astimezone(UTC).date()
    days = (today - timedelta(days=1), today)
    return sum(_estimate(runtime, day, now) for day in days for runtime in Runtime)


def _estimate(runtime: Runtime, day: date, now: datetime) -> bool:
    with transaction.atomic():
        DailyCost.objects.get_or_create(runtime=runtime, day=day, defaults={"computed_at": now})
        # Locked first and summed then: of two at once the later sees no less, and only one raises the alarm.
        row = DailyCost.objects.select_for_update().get(runtime=runtime, day=day)
        cost = _cost_of(runtime, day)
        if cost != row.cost:
            row.cost, row.computed_at = cost, now
            row.save(update_fields=["cost", "computed_at"])
        switch = RuntimeSwitch.objects.filter(runtime=runtime).first()
        threshold = switch.daily_cost_alarm if switch is not None else None
        if threshold is None or not rules.passes_alarm(cost, threshold, row.alarm_raised_for):
            return False
        row.alarm_raised_at, row.alarm_raised_for = now, threshold
        row.save(update_fields=["alarm_raised_at", "alarm_raised_for"])
        # A function of its own: Django cannot name a partial that fails, and fails over that.
        transaction.on_commit(lambda: _alert(runtime, day, cost, threshold), robust=True)
    return True


def _cost_of(runtime: Runtime, day: date) -> Decimal:
    start = datetime.combine(day, time(), UTC)
    sums = UsageHour.objects.filter(runtime=runtime, hour__gte=start, hour__lt=start + timedelta(days=1)).aggregate(
        **{measure: Sum(measure) for measure in _MEASURES}
    )
    used = rules.Quantities(**{measure: int(total or 0) for measure, total in sums.items()})
    return rules.cost_by_runtime(rate_cards(), [rules.PricedUse(runtime, day, used)])[runtime]


def _alert(runtime: Runtime, day: date, cost: Decimal, threshold: Decimal) -> None:
    said = f"{runtime} is estimated to cost ${rules.exact(cost)} on {day} (UTC), over the alarm of ${threshold}."
    logger.error(said)
    send_mail(
        subject=f"[webhost.systems] {runtime}: over ${threshold} on {day}",
        message=(
            f"{said}\n\nAll accounts together, from the rate cards; an estimate, not a bill. You are told again for "
            f"this day only if the alarm is raised and passed again.\n\n"
            f"{settings.PUBLIC_URL}/admin/telemetry/dailycost/\n"
        ),
        from_email=None,
        recipient_list=[settings.SUPPORT_EMAIL],
    )
