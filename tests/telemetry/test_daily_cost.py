"""What a runtime costs a day: one row, recomputed, with an alarm that is raised once."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from threading import Barrier
from typing import Any

import pytest
from django.conf import settings
from django.core.mail import EmailMessage
from django.db import connections
from hypothesis import given
from hypothesis import strategies as st

from entitlements.enums import Runtime
from runtimes.models import RuntimeSwitch
from telemetry.actions.daily_cost import estimate_daily_cost
from telemetry.models import DailyCost, RateCard, UsageHour
from telemetry.rules import passes_alarm
from telemetry.tasks import daily_cost
from tests.entitlements.admin_pages import Staff, said
from webhost.ids import new_id

MONEY = st.decimals(min_value=0, max_value=1000, places=2)


class TestTheDecision:
    def test_it_is_raised_over_the_threshold_not_at_it(self) -> None:
        assert passes_alarm(Decimal("10.000001"), Decimal(10), None)
        assert not passes_alarm(Decimal(10), Decimal(10), None)

    def test_without_a_threshold_it_never_is(self) -> None:
        assert not passes_alarm(Decimal(10**9), None, None)

    def test_a_threshold_of_0_is_passed_by_the_first_cent_and_not_by_nothing(self) -> None:
        assert passes_alarm(Decimal("0.01"), Decimal(0), None)
        assert not passes_alarm(Decimal(0), Decimal(0), None)

    def test_it_is_raised_again_only_for_a_higher_threshold(self) -> None:
        assert not passes_alarm(Decimal(30), Decimal(10), Decimal(10))
        assert not passes_alarm(Decimal(30), Decimal(5), Decimal(10))
        assert passes_alarm(Decimal(30), Decimal(20), Decimal(10))
        assert not passes_alarm(Decimal(30), Decimal(40), Decimal(10))

    @given(costs=st.lists(MONEY, max_size=20), threshold=MONEY)
    def test_however_the_figure_moves_one_threshold_raises_it_once_at_most(
        self, costs: list[Decimal], threshold: Decimal
    ) -> None:
        raised_for, raised = None, 0
        for cost in costs:
            if passes_alarm(cost, threshold, raised_for):
                raised_for, raised = threshold, raised + 1
        assert raised == (1 if any(cost > threshold for cost in costs) else 0)


@pytest.fixture
def day(live_db: None) -> Iterator[date]:
    """A day of its own for each test, with a price of its own, and no alarm but the test's."""
    last = DailyCost.objects.filter(day__year=2071).order_by("-day").first()
    chosen = (last.day if last else date(2071, 1, 1)) + timedelta(days=3)
    RateCard.objects.create(runtime="agentcore", effective_from=chosen, per_tool_call=Decimal("0.01"))
    kept = list(RuntimeSwitch.objects.all())
    RuntimeSwitch.objects.update(daily_cost_alarm=None)
    yield chosen
    RateCard.objects.filter(effective_from__year=2071).delete()
    RuntimeSwitch.objects.update(daily_cost_alarm=None)
    for switch in kept:
        switch.save()


def at(day: date, hour: int = 12) -> datetime:
    return datetime(day.year, day.month, day.day, hour, tzinfo=UTC)


def use(when: datetime, tool_calls: int, runtime: Runtime = Runtime.AGENTCORE) -> UsageHour:
    return UsageHour.objects.create(
        account_id=new_id(),
        agent_id=new_id(),
        deployment_id=new_id(),
        runtime=runtime,
        hour=when,
        tool_calls=tool_calls,
    )


def alarm(dollars: str) -> None:
    RuntimeSwitch.objects.update_or_create(runtime=Runtime.AGENTCORE, defaults={"daily_cost_alarm": Decimal(dollars)})


def cost(day: date, runtime: Runtime = Runtime.AGENTCORE) -> Decimal:
    return DailyCost.objects.get(day=day, runtime=runtime).cost


class TestTheFigure:
    def test_a_day_is_the_sum_of_its_hours_of_all_accounts_at_its_price(self, day: date) -> None:
        for hour, calls in ((0, 100), (12, 20), (23, 3)):
            use(at(day, hour), calls)
        use(at(day) - timedelta(days=1, hours=-11), 5)
        use(at(day, 0) + timedelta(days=1), 1000)
        use(at(day), 7, Runtime.CLOUDFLARE)
        estimate_daily_cost(at(day))
        assert cost(day) == Decimal("1.23")
        assert cost(day, Runtime.CLOUDFLARE) == 0

    def test_yesterday_is_brought_up_to_date_after_midnight(self, day: date) -> None:
        use(at(day, 23), 10)
        estimate_daily_cost(at(day, 23))
        use(at(day, 23), 5)
        estimate_daily_cost(at(day + timedelta(days=1), 0))
        assert cost(day) == Decimal("0.15")
        assert cost(day + timedelta(days=1)) == 0

    def test_repeating_it_changes_nothing(self, day: date) -> None:
        use(at(day), 10)
        estimate_daily_cost(at(day))
        before = list(DailyCost.objects.order_by("id").values())
        estimate_daily_cost(at(day, 13))
        assert list(DailyCost.objects.order_by("id").values()) == before

    def test_no_digit_is_lost(self, day: date) -> None:
        RateCard.objects.filter(effective_from=day).update(per_million_tokens=Decimal("0.000000000001"))
        UsageHour.objects.filter(pk=use(at(day), 0).pk).update(tokens=1)
        estimate_daily_cost(at(day))
        assert cost(day) == Decimal("0.000000000000000001")

    def test_a_day_without_use_costs_nothing(self, day: date) -> None:
        estimate_daily_cost(at(day))
        assert cost(day) == 0

    def test_the_task_writes_a_row_for_every_runtime_today(self, live_db: None) -> None:
        daily_cost()
        today = datetime.now(UTC).date()
        assert set(DailyCost.objects.filter(day=today).values_list("runtime", flat=True)) == set(Runtime)


class TestTheAlarm:
    def test_it_is_logged_and_mailed_once_however_often_the_figure_is_computed(
        self, day: date, mailoutbox: list[EmailMessage], caplog: pytest.LogCaptureFixture
    ) -> None:
        alarm("0.10")
        use(at(day), 10)
        with caplog.at_level(logging.ERROR, "telemetry.actions.daily_cost"):
            assert estimate_daily_cost(at(day, 13)) == 0
            use(at(day), 5)
            assert estimate_daily_cost(at(day, 14)) == 1
            use(at(day), 5)
            assert estimate_daily_cost(at(day, 15)) == 0
        (record,) = [r for r in caplog.records if r.name == "telemetry.actions.daily_cost"]
        told = f"agentcore is estimated to cost $0.15 on {day} (UTC), over the alarm of $0.10."
        assert (record.levelname, record.getMessage()) == ("ERROR", told)
        (mail,) = mailoutbox
        assert mail.to == [settings.SUPPORT_EMAIL]
        assert told in str(mail.body)
        row = DailyCost.objects.get(day=day, runtime="agentcore")
        assert (row.alarm_raised_at, row.alarm_raised_for) == (at(day, 14), Decimal("0.10"))

    def test_it_is_raised_again_when_the_threshold_was_raised_and_passed_again(
        self, day: date, mailoutbox: list[EmailMessage]
    ) -> None:
        use(at(day), 15)
        alarm("0.10")
        assert estimate_daily_cost(at(day)) == 1
        alarm("0.05")
        assert estimate_daily_cost(at(day)) == 0
        alarm("0.20")
        assert estimate_daily_cost(at(day)) == 0
        use(at(day), 10)
        assert estimate_daily_cost(at(day)) == 1
        assert len(mailoutbox) == 2

    def test_the_next_day_has_its_own(self, day: date, mailoutbox: list[EmailMessage]) -> None:
        alarm("0.10")
        use(at(day), 15)
        use(at(day + timedelta(days=1)), 15)
        assert estimate_daily_cost(at(day)) == 1
        assert estimate_daily_cost(at(day + timedelta(days=1))) == 1
        assert len(mailoutbox) == 2

    def test_two_workers_at_once_raise_it_once(self, day: date, mailoutbox: list[EmailMessage]) -> None:
        alarm("0.10")
        use(at(day), 15)
        barrier = Barrier(4)

        def work(_: int) -> int:
            barrier.wait()
            try:
                return estimate_daily_cost(at(day))
            finally:
                connections.close_all()

        with ThreadPoolExecutor(4) as pool:
            assert sum(pool.map(work, range(4))) == 1
        assert len(mailoutbox) == 1

    def test_a_mail_that_cannot_be_sent_leaves_figure_and_alarm(
        self, day: date, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse(**_: Any) -> None:
            raise OSError("The mail server is away.")

        monkeypatch.setattr("telemetry.actions.daily_cost.send_mail", refuse)
        alarm("0.10")
        use(at(day), 15)
        assert estimate_daily_cost(at(day)) == 1
        row = DailyCost.objects.get(day=day, runtime="agentcore")
        assert (row.cost, row.alarm_raised_for) == (Decimal("0.15"), Decimal("0.10"))

    def test_stella_reads_it_in_the_admin_and_changes_nothing(self, day: date) -> None:
        alarm("0.10")
        use(at(day), 15)
        estimate_daily_cost(at(day))
        stella = Staff()
        page = said(stella.client.get(stella.url(DailyCost, "changelist"), {"day__year": "2071"}))
        assert "agentcore $0.15 over $0.10 at 12:00" in page
        assert stella.client.get(stella.url(DailyCost, "add")).status_code == 403
        row = DailyCost.objects.get(day=day, runtime="agentcore")
        assert stella.client.post(stella.url(row), {"cost": "0"}).status_code == 403
