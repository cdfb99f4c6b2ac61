"""What this app adds to an account's page: the alerts, in its timeline."""

from __future__ import annotations

import pytest
from django.utils import timezone

from entitlements.admin.sections import Before
from entitlements.enums import LimitType
from telemetry.admin.account import alert_moments
from telemetry.models import AlertEvent
from tests.factories import make_account
from webhost.period import period_of

pytestmark = pytest.mark.usefixtures("live_db")


def test_an_alert_says_what_was_reached_and_how_many_were_told() -> None:
    account, now = make_account("alice"), timezone.now()
    AlertEvent.objects.create(
        account_id=account.pk, period=period_of(now), limit_type=LimitType.TOKENS, threshold=80, used=1_600, limit=2_000,
        fired_at=now,
    )  # fmt: skip
    assert alert_moments(account.pk, Before(now), 5) == []
    (moment,) = alert_moments(account.pk, Before(now, inclusive=True), 5)
    assert moment.what == "Alert: 80 % of Tokens reached, 1,600 of 2,000; 0 messages sent"
