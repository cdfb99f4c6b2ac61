"""Whether staff may still correct a month that is stated: while it is restated, and only knowingly."""

from __future__ import annotations

from datetime import date, datetime
from uuid import UUID

from entitlements.actions.adjustments import CLOSINGS, Closing
from telemetry.actions.closing import first_restated_period, last_closed_period
from telemetry.models import UsageStatement
from webhost.period import key_of


def closing_of_month(account_id: UUID, period: date, now: datetime) -> Closing | None:
    """Say what stands in the way of a correction: a statement that a restatement follows, or a month that stands.

    A month too old to be restated stands, stated or not: nobody would ever be told of the change.
    """
    if period < first_restated_period(now):
        return Closing(
            f"{key_of(period)} stands: months before {key_of(first_restated_period(now))} are not restated any more.",
            may_restate=False,
        )
    if period > last_closed_period(now):
        return None
    numbers = UsageStatement.objects.filter(account_id=account_id, period=period).order_by("-number")
    number = numbers.values_list("number", flat=True).first()
    if number is None:
        return None
    return Closing(
        f"{key_of(period)} is closed by statement {number}. Tick “Restate this month” to correct it: "
        f"statement {number + 1} then follows within the hour, with your reason.",
        may_restate=True,
    )


CLOSINGS.append(closing_of_month)
