"""Closing a month, and what retention leaves of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest
from django.utils import timezone

from entitlements import ledger
from entitlements.models import Admission, Denial, Tier
from runtimes.models import AgentLogLine, AgentSession, DeploymentLogLine, ToolUse
from telemetry.actions import retention
from telemetry.actions.closing import close_periods, last_closed_period, statement_stands
from telemetry.actions.retention import retention_days_of
from telemetry.actions.usage import usage_of
from telemetry.actions.verify import verify_usage
from telemetry.models import Delivery, Report, UsageHour, UsageStatement
from tests.entitlements.callers import SUCCEEDED, receipt, used
from tests.factories import make_account, make_tier, override
from tests.telemetry.workload import Workload
from webhost import db

pytestmark = pytest.mark.usefixtures("live_db")

NOON = datetime(2033, 5, 15, 12, tzinfo=UTC)
MAY = NOON.date().replace(day=1)
CLOSED = datetime(2033, 6, 4, 0, 0, 0, tzinfo=UTC)


@pytest.fixture
def alice() -> Iterator[Workload]:
    workload = Workload(telemetry_retention_days=60, logs_retention_days=10)
    yield workload
    with db.hot_connection() as connection:  # nothing stays in that far year for other tests to close
        connection.execute("DELETE FROM entitlements_periodcounter WHERE account_id = %s", [workload.account.id])
        connection.execute("DELETE FROM entitlements_admission WHERE account_id = %s", [workload.account.id])
        connection.execute("DELETE FROM entitlements_adjustment WHERE account_id = %s", [workload.account.id])


def statements(workload: Workload) -> list[UsageStatement]:
    return list(UsageStatement.objects.filter(account_id=workload.account.id).order_by("number"))


def call(workload: Workload, at: datetime = NOON, **use: int) -> Any:
    invocation = workload.caller.admit(at=at)
    ledger.settle(invocation, SUCCEEDED, used(**use))
    return invocation


class TestClosing:
    def test_a_month_closes_72_hours_into_the_next(self) -> None:
        assert last_closed_period(CLOSED - timedelta(microseconds=1)) == date(2033, 4, 1)
        assert last_closed_period(CLOSED) == MAY
        assert last_closed_period(datetime(2033, 1, 4, tzinfo=UTC)) == date(2032, 12, 1)

    def test_its_totals_are_signed_once(self, alice: Workload) -> None:
        call(alice, tokens=30, compute_ms=4)
        close_periods(at=CLOSED - timedelta(seconds=1))
        assert statements(alice) == []
        for _ in range(3):
            close_periods(at=CLOSED)
        (statement,) = statements(alice)
        assert statement.totals == {
            "requests": 1,
            "tokens": 30,
            "compute_ms": 4,
            "tool_calls": 0,
            "code_ms": 0,
            "browser_sessions": 0,
        }
        assert statement_stands(statement)
        assert json.loads(statement.payload)["account"] == alice.account.public_id

    @pytest.mark.parametrize(
        "change",
        [{"totals": {}}, {"number": 2}, {"mac": "k1:" + "0" * 64}, {"period": date(2033, 4, 1)}, {"payload": "{}"}],
    )
    def test_a_statement_that_was_touched_no_longer_stands(self, alice: Workload, change: dict[str, Any]) -> None:
        call(alice, tokens=30)
        close_periods(at=CLOSED)
        (statement,) = statements(alice)
        for name, value in change.items():
            setattr(statement, name, value)
        assert not statement_stands(statement)

    def test_a_late_report_is_restated_and_does_not_touch_the_present_budget(self, alice: Workload) -> None:
        invocation = call(alice, tokens=30)
        close_periods(at=CLOSED)
        late = CLOSED + timedelta(days=2)
        alice.keep(alice.event(invocation, tokens=50, timestamp=late.isoformat()), late)
        assert alice.statuses() == ["accepted"]
        close_periods(at=late)
        first, second = statements(alice)
        assert (first.totals["tokens"], second.totals["tokens"], second.reason) == (30, 50, "a late signed report")
        said = json.loads(second.payload)
        assert (said["was"]["tokens"], said["totals"]["tokens"], said["why"]) == (30, 50, "a late signed report")
        assert statement_stands(second)
        assert alice.used(date(2033, 6, 1))["tokens"] == 0

    def test_a_correction_by_staff_is_restated_with_its_reason(self, alice: Workload) -> None:
        call(alice, tokens=30)
        close_periods(at=CLOSED)
        UsageStatement.objects.filter(account_id=alice.account.id).update(
            created_at=timezone.now() - timedelta(seconds=5)
        )
        alice.caller.adjust(MAY, tokens=-10, reason="Our fault")
        close_periods(at=CLOSED)
        assert [(s.totals["tokens"], s.reason) for s in statements(alice)] == [(30, ""), (20, "adjusted: Our fault")]

    def test_a_month_in_which_something_still_runs_waits(self, alice: Workload) -> None:
        alice.caller.admit(at=NOON)
        close_periods(at=CLOSED)
        assert statements(alice) == []


class TestDays:
    def test_they_are_those_of_the_tier(self) -> None:
        account = make_account("alice", make_tier(telemetry_retention_days=60, logs_retention_days=10))
        assert retention_days_of(account.id) == (60, 10)

    def test_of_an_account_without_a_tier_those_of_the_default(self) -> None:
        default = Tier.objects.get(is_default=True)
        assert retention_days_of(make_account().id) == (default.telemetry_retention_days, default.logs_retention_days)

    def test_a_downgrade_shortens_them_after_30_days(self) -> None:
        account = make_account("alice", make_tier(telemetry_retention_days=365, logs_retention_days=90))
        account.billing_tier = make_tier(telemetry_retention_days=7, logs_retention_days=3)
        account.save()
        now = timezone.now()
        assert retention_days_of(account.id, at=now + timedelta(days=29)) == (365, 90)
        assert retention_days_of(account.id, at=now + timedelta(days=31)) == (7, 3)

    def test_so_does_a_tier_that_was_edited(self) -> None:
        tier = make_tier(telemetry_retention_days=100, logs_retention_days=50)
        account = make_account("alice", tier)
        tier.telemetry_retention_days = 5
        tier.save()
        now = timezone.now()
        assert retention_days_of(account.id, at=now + timedelta(days=29)) == (100, 50)
        assert retention_days_of(account.id, at=now + timedelta(days=31)) == (5, 50)

    def test_an_upgrade_lengthens_them_at_once(self) -> None:
        account = make_account("alice", make_tier(telemetry_retention_days=7))
        account.billing_tier = make_tier(telemetry_retention_days=365)
        account.save()
        assert retention_days_of(account.id)[0] == 365

    def test_an_override_lengthens_at_once_and_shortens_after_30_days(self) -> None:
        account = make_account("alice", make_tier(telemetry_retention_days=60, logs_retention_days=10))
        override(account, "telemetry_retention_days", 5)
        override(account, "logs_retention_days", 99)
        now = timezone.now()
        assert retention_days_of(account.id) == (60, 99)
        assert retention_days_of(account.id, at=now + timedelta(days=31)) == (5, 99)

    def test_an_override_that_was_taken_away_still_counts_for_30_days(self) -> None:
        account = make_account("alice", make_tier(telemetry_retention_days=60))
        override(account, "telemetry_retention_days", 500).delete()
        now = timezone.now()
        assert retention_days_of(account.id, at=now + timedelta(days=29))[0] == 500
        assert retention_days_of(account.id, at=now + timedelta(days=31))[0] == 60


def apply(workload: Workload, now: datetime) -> int:
    """Apply retention to this account alone: that far in the future everybody's rows would be past theirs."""
    days, logs = retention_days_of(workload.account.id, at=now)
    return retention._forget({"account_id": workload.account.id, "telemetry_days": days, "logs_days": logs}, now)


class TestForgetting:
    def test_logs_go_after_their_days(self, alice: Workload) -> None:
        ids = {"account_id": alice.account.id, "agent_id": alice.agent.id, "deployment_id": alice.deployment.id}
        for days in (9, 11):
            AgentLogLine.objects.create(
                **ids, invocation_id=alice.agent.id, at=NOON - timedelta(days=days), text=f"{days}"
            )
            DeploymentLogLine.objects.create(
                deployment=alice.deployment, at=NOON - timedelta(days=days), line=f"{days}"
            )
        apply(alice, NOON)
        assert [line.text for line in AgentLogLine.objects.filter(account_id=alice.account.id)] == ["9"]
        assert [line.line for line in DeploymentLogLine.objects.filter(deployment=alice.deployment)] == ["9"]

    def test_details_go_after_theirs_and_the_core_stays(self, alice: Workload) -> None:
        invocation = call(alice, tokens=3)
        Admission.objects.filter(pk=invocation).update(trace_id="trc_1", session_id="s1")
        Denial.objects.create(account_id=alice.account.id, limit_type="tokens", period=MAY, minute=NOON, count=1)
        apply(alice, NOON + timedelta(days=59))
        assert (receipt(invocation).trace_id, receipt(invocation).session_id) == ("trc_1", "s1")
        apply(alice, NOON + timedelta(days=61))
        assert (receipt(invocation).trace_id, receipt(invocation).session_id) == ("", "")
        assert receipt(invocation).charged_tokens == 3
        assert not Denial.objects.filter(account_id=alice.account.id).exists()
        assert alice.caller.differences() == []

    def test_sessions_go_with_the_details(self, alice: Workload) -> None:
        ids = {"account_id": alice.account.id, "agent_id": alice.agent.id, "deployment_id": alice.deployment.id}
        for name, days in (("old", 61), ("young", 59)):
            used = NOON - timedelta(days=days)
            AgentSession.objects.create(
                **ids, scope_id=alice.agent.id, runtime="cloudflare", session_id=name, started_at=used, last_used_at=used,
                idle_seconds=60,
            )  # fmt: skip
        apply(alice, NOON)
        assert [s.session_id for s in AgentSession.objects.filter(account_id=alice.account.id)] == ["young"]

    def test_what_was_seen_of_tools_goes_with_the_core(self, alice: Workload) -> None:
        invocation = call(alice, tool_calls=1)
        ToolUse.objects.create(
            account_id=alice.account.id, deployment_id=alice.deployment.id, invocation_id=invocation, kind="browser",
            remote_id="one", started_at=NOON, seen_at=NOON, mac="-",
        )  # fmt: skip
        apply(alice, datetime(2033, 8, 15, tzinfo=UTC))
        assert ToolUse.objects.filter(invocation_id=invocation).exists()
        close_periods(at=CLOSED)
        apply(alice, datetime(2033, 8, 15, tzinfo=UTC))
        assert not ToolUse.objects.filter(invocation_id=invocation).exists()

    def test_an_open_call_keeps_its_details(self, alice: Workload) -> None:
        invocation = alice.caller.admit(at=NOON)
        Admission.objects.filter(pk=invocation).update(trace_id="trc_1")
        apply(alice, NOON + timedelta(days=61))
        assert receipt(invocation).trace_id == "trc_1"

    def test_the_core_of_a_stated_month_goes_and_everything_still_adds_up(self, alice: Workload) -> None:
        invocations = [call(alice, tokens=n) for n in (10, 20)]
        call(alice, NOON + timedelta(days=31), tokens=1)
        stamp = {"timestamp": NOON.isoformat()}
        alice.keep({"events": [alice.event(i, tokens=25, **stamp) for i in invocations]}, NOON)
        alice.caller.adjust(MAY, tokens=-5)
        assert alice.statuses() == ["accepted"] * 2
        before = usage_of(alice.account.id, MAY)

        july = datetime(2033, 8, 15, tzinfo=UTC)
        apply(alice, july)
        assert Admission.objects.filter(account_id=alice.account.id).count() == 3, "no statement stands for it yet"
        close_periods(at=CLOSED)
        apply(alice, CLOSED)
        assert Admission.objects.filter(account_id=alice.account.id).count() == 3, "its days are not over"

        assert apply(alice, july) >= 2
        assert [a.period for a in Admission.objects.filter(account_id=alice.account.id)] == [date(2033, 6, 1)]
        assert Report.objects.filter(deployment_id=alice.deployment.id).count() == 0
        assert alice.caller.differences() == []
        after = usage_of(alice.account.id, MAY)
        assert (after.totals, after.by_runtime, after.adjusted) == (before.totals, before.by_runtime, before.adjusted)
        assert verify_usage(alice.account.id, MAY).findings == []
        assert UsageHour.objects.filter(account_id=alice.account.id).count() == 2
        apply(alice, july)
        assert alice.caller.differences() == []

    def test_after_that_an_altered_hour_or_statement_still_shows(self, alice: Workload) -> None:
        call(alice, tokens=10)
        close_periods(at=CLOSED)
        alice.statuses()
        apply(alice, CLOSED + timedelta(days=90))
        UsageHour.objects.filter(account_id=alice.account.id).update(tokens=900)
        assert [f.row for f in verify_usage(alice.account.id, MAY).findings] == ["roll-ups"]

    def test_repeats_and_refusals_go_after_35_days_and_a_batch_with_its_last_report(self, alice: Workload) -> None:
        event = alice.event(timestamp=NOON.isoformat())
        alice.keep({"events": [event, event]}, NOON)
        delivery = Delivery.objects.filter(deployment_id=alice.deployment.id)
        Report.objects.filter(deployment_id=alice.deployment.id).update(status="rejected")
        long_ago = timezone.now() - timedelta(days=36)
        Report.objects.filter(deployment_id=alice.deployment.id).update(received_at=long_ago)
        delivery.update(received_at=long_ago)
        retention.apply_retention(at=timezone.now() - timedelta(days=2))
        assert (alice.kept, delivery.count()) == (2, 1)
        retention.apply_retention()
        assert (alice.kept, delivery.count()) == (0, 0)
