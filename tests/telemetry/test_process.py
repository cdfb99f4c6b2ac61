"""Judging what was kept: each report once, with its effect, whoever sent it and however often."""

from __future__ import annotations

import json
import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from itertools import permutations
from typing import Any
from uuid import uuid4

import pytest
from django.utils import timezone

from entitlements import ledger
from entitlements.enums import Runtime
from entitlements.models import Admission, PeriodCounter
from telemetry.actions import process
from telemetry.actions.process import process_reports
from telemetry.actions.verify import verify_usage
from telemetry.models import Report
from telemetry.rules import Reason
from tests.entitlements.callers import FAILED, SUCCEEDED, expire, receipt, used
from tests.telemetry.workload import Workload, settle_down
from webhost import db
from webhost.ids import new_id

pytestmark = pytest.mark.usefixtures("live_db", "nobody_sweeps")

NOON = datetime(2031, 5, 15, 12, tzinfo=UTC)
MAY = NOON.date().replace(day=1)


@pytest.fixture
def alice() -> Workload:
    return Workload()


def forge(workload: Workload, body: bytes, **columns: Any) -> Report:
    """Put a report into the table by another way than the edge."""
    values: dict[str, Any] = {
        "deployment_id": workload.deployment.id, "event_id": json.loads(body)["eventId"].encode(), "body": body,
        "signature": workload.signed(body)["x_telemetry_signature"], "key_id": workload.deployment.root_key_id,
    }  # fmt: skip
    return Report.objects.create(**values | columns)


class TestKnown:
    def test_it_raises_what_is_charged_to_the_largest_that_was_observed(self, alice: Workload) -> None:
        invocation = alice.caller.call(tokens=100, compute_ms=50)
        alice.report(invocation, tokens=80, computeMs=70, toolCalls=2, codeExecutionMs=30, browserSessions=1)
        assert alice.statuses() == ["accepted"]
        assert alice.used() == {
            "requests": 1, "tokens": 100, "compute_ms": 70, "tool_calls": 2, "code_ms": 30, "browser_sessions": 1,
        }  # fmt: skip

    def test_before_the_gateway_settles_it_counts_already(self, alice: Workload) -> None:
        invocation = alice.caller.admit()
        alice.report(invocation, tokens=40)
        alice.statuses()
        assert alice.used()["tokens"] == 40
        ledger.settle(invocation, SUCCEEDED, used(tokens=30))
        assert (alice.used()["tokens"], receipt(invocation).outcome) == (40, "succeeded")

    @pytest.mark.parametrize("order", list(permutations(range(3))))
    def test_in_any_order_and_twice_it_comes_to_the_same(self, alice: Workload, order: tuple[int, ...]) -> None:
        invocation = alice.caller.call(tokens=5)
        events = [alice.event(invocation, tokens=n) for n in (10, 30, 20)]
        for n in (*order, *order):
            alice.post(events[n])
        assert sorted(alice.statuses()) == ["accepted"] * 3 + ["duplicate"] * 3
        assert (alice.used()["requests"], alice.used()["tokens"]) == (1, 30)
        assert receipt(invocation).reports == 3

    def test_evidence_beats_a_void(self, alice: Workload) -> None:
        invocation = alice.caller.admit()
        ledger.void(invocation, "ConnectionRefused")
        assert alice.used()["requests"] == 0
        alice.report(invocation, tokens=9)
        assert alice.statuses() == ["accepted"]
        assert (alice.used()["requests"], alice.used()["tokens"], receipt(invocation).outcome) == (1, 9, "failed")

    def test_it_stays_in_the_month_of_its_admission_whatever_its_clock_says(self, alice: Workload) -> None:
        invocation = alice.caller.admit(at=NOON)
        ledger.settle(invocation, SUCCEEDED, used())
        alice.keep(
            alice.event(invocation, tokens=11, timestamp="2031-06-02T00:00:00Z"), datetime(2031, 6, 2, tzinfo=UTC)
        )
        assert alice.statuses() == ["accepted"]
        assert alice.used(MAY)["tokens"] == 11
        assert alice.used(MAY.replace(month=6))["tokens"] == 0

    @pytest.mark.parametrize(("days", "status"), [(34, "accepted"), (36, "rejected")])
    def test_for_35_days(self, alice: Workload, days: int, status: str) -> None:
        invocation = alice.caller.admit(at=NOON)
        ledger.settle(invocation, SUCCEEDED, used())
        late = NOON + timedelta(days=days)
        alice.keep(alice.event(invocation, tokens=11, timestamp=late.isoformat()), late)
        assert alice.statuses() == [status]


class TestEstimates:
    @pytest.fixture
    def reserving(self) -> Workload:
        return Workload(runtime=Runtime.AGENTCORE, agentcore_enabled=True)

    def test_a_claim_from_beside_user_code_does_not_lower_an_estimate(self, reserving: Workload) -> None:
        invocation = reserving.caller.admit(tokens=1000)
        assert expire(invocation, reserving.caller)
        reserving.report(invocation, tokens=1)
        assert reserving.statuses() == ["accepted"]
        assert reserving.used()["tokens"] == 1000

    def test_platform_code_does(self) -> None:
        alice = Workload()
        invocation = alice.caller.admit(tokens=1000)
        assert expire(invocation, alice.caller)
        alice.report(invocation, tokens=1)
        assert alice.statuses() == ["accepted"]
        assert alice.used()["tokens"] == 1


class TestTokensThatTheGatewayGuessed:
    """A connection broke: nobody told the gateway, so it counted the text. The runtime may know better."""

    def guess(self, alice: Workload, invocation: Any) -> None:
        ledger.settle(invocation, FAILED, ledger.Usage(tokens=100, tokens_estimated=True), error_class="Broken")

    def test_the_report_replaces_the_guess_downwards(self, alice: Workload) -> None:
        invocation = alice.caller.admit()
        self.guess(alice, invocation)
        alice.report(invocation, tokens=7)
        assert alice.statuses() == ["accepted"]
        assert (alice.used()["tokens"], receipt(invocation).tokens_estimated) == (7, False)
        assert alice.caller.differences() == []
        assert verify_usage(alice.account.id, receipt(invocation).period).findings == []

    def test_also_when_it_came_first(self, alice: Workload) -> None:
        invocation = alice.caller.admit()
        alice.report(invocation, tokens=7)
        assert alice.statuses() == ["accepted"]
        self.guess(alice, invocation)
        assert (alice.used()["tokens"], receipt(invocation).tokens_estimated) == (7, False)
        assert verify_usage(alice.account.id, receipt(invocation).period).findings == []

    def test_only_the_first_report_may_lower_it(self, alice: Workload) -> None:
        invocation = alice.caller.admit()
        self.guess(alice, invocation)
        for tokens in (50, 20, 60):
            alice.report(invocation, tokens=tokens)
            alice.statuses()
        assert alice.used()["tokens"] == 60
        assert verify_usage(alice.account.id, receipt(invocation).period).findings == []

    def test_a_report_that_guesses_too_stays_marked(self, alice: Workload) -> None:
        invocation = alice.caller.admit()
        self.guess(alice, invocation)
        alice.report(invocation, tokens=30, provider={"tokensEstimated": True})
        assert alice.statuses() == ["accepted"]
        assert (alice.used()["tokens"], receipt(invocation).tokens_estimated) == (30, True)

    def test_what_the_runtime_told_the_gateway_is_no_guess_and_stays(self, alice: Workload) -> None:
        invocation = alice.caller.admit()
        ledger.settle(invocation, SUCCEEDED, used(tokens=100))
        alice.report(invocation, tokens=7)
        assert alice.statuses() == ["accepted"]
        assert alice.used()["tokens"] == 100


class TestUnknown:
    def test_it_becomes_an_admission_of_its_own_beyond_the_limits(self) -> None:
        alice = Workload(max_requests_per_period=0)
        invocation = new_id()
        alice.report(invocation, tokens=70, computeMs=3)
        alice.report(invocation, tokens=90)
        assert alice.statuses() == ["accepted", "accepted"]
        row = receipt(invocation)
        assert (row.source, row.outcome, row.reports, row.account_id) == ("report", "succeeded", 2, alice.account.id)
        assert (alice.used()["requests"], alice.used()["tokens"]) == (1, 90)
        assert alice.caller.differences() == []

    def test_one_with_errors_failed(self, alice: Workload) -> None:
        invocation = new_id()
        alice.report(invocation, errors=1, errorClass="TypeError")
        alice.statuses()
        assert (receipt(invocation).outcome, receipt(invocation).error_class) == ("failed", "TypeError")

    @pytest.mark.case("PER-01")
    def test_the_last_instant_of_a_month_is_its_own_and_the_next_is_not(self, alice: Workload) -> None:
        night = datetime(2031, 11, 1, 2, tzinfo=UTC)
        alice.keep(alice.event(uuid4(), tokens=11, timestamp="2031-10-31T23:59:59.999999Z"), night)
        alice.keep(alice.event(uuid4(), tokens=22, timestamp="2031-11-01T00:00:00Z"), night)
        assert alice.statuses() == ["accepted", "accepted"]
        assert [alice.used(NOON.date().replace(month=m, day=1))["tokens"] for m in (9, 10, 11, 12)] == [0, 11, 22, 0]

    @pytest.mark.case("PER-01")
    @pytest.mark.parametrize(("stamp", "month"), [("2031-10-31T19:30:00-05:00", 11), ("2031-11-01T05:00:00+05:30", 10)])
    def test_a_month_begins_in_utc_whatever_zone_the_stamp_is_written_in(
        self, alice: Workload, stamp: str, month: int
    ) -> None:
        alice.keep(alice.event(uuid4(), tokens=5, timestamp=stamp), datetime(2031, 11, 1, 2, tzinfo=UTC))
        alice.statuses()
        assert alice.used(NOON.date().replace(month=month, day=1))["tokens"] == 5


class TestOwnership:
    @pytest.mark.case("ING-05")
    @pytest.mark.parametrize("name", ["accountId", "agentId"])
    def test_a_body_that_names_somebody_else_bills_nobody(self, alice: Workload, name: str) -> None:
        charlie = Workload()
        claims = {"accountId": charlie.account.public_id, "agentId": charlie.agent.public_id}
        assert alice.report(tokens=900, **{name: claims[name]}).status == 202
        assert alice.judged() == [("rejected", Reason.ATTRIBUTION)]
        assert (alice.used()["requests"], charlie.used()["requests"]) == (0, 0)

    @pytest.mark.case("ING-05")
    def test_the_invocation_of_a_stranger_is_not_touched(self, alice: Workload) -> None:
        charlie = Workload()
        hers = charlie.caller.call(tokens=1)
        alice.report(hers, tokens=900)
        assert alice.judged() == [("rejected", Reason.FOREIGN_INVOCATION)]
        assert (receipt(hers).charged_tokens, alice.used()["requests"]) == (1, 0)

    @pytest.mark.case("ING-05")
    def test_nor_that_of_another_deployment_of_the_same_account(self, alice: Workload) -> None:
        other = Workload(alice.account)
        invocation = other.caller.call(tokens=1)
        alice.report(invocation, tokens=900)
        assert alice.judged() == [("rejected", Reason.FOREIGN_INVOCATION)]

    @pytest.mark.case("ING-05")
    def test_a_deleted_agent_is_billed_for_what_happened_before_and_for_nothing_later(self, alice: Workload) -> None:
        admitted = alice.caller.call()
        alice.agent.deleted_at = timezone.now()
        alice.agent.save()
        before, after = alice.agent.deleted_at - timedelta(minutes=1), alice.agent.deleted_at + timedelta(minutes=1)
        alice.report(admitted, tokens=1)
        alice.report(tokens=10, timestamp=before.isoformat())
        alice.report(tokens=100, timestamp=after.isoformat())
        assert alice.judged() == [("accepted", ""), ("accepted", ""), ("rejected", Reason.AGENT_DELETED)]
        assert alice.used()["tokens"] == 11

    @pytest.mark.case("ING-05")
    def test_a_paused_agent_is_billed_for_what_still_ran(self, alice: Workload) -> None:
        invocation = alice.caller.admit()
        alice.agent.disabled_at = timezone.now()
        alice.agent.save()
        alice.report(invocation, tokens=3)
        assert alice.statuses() == ["accepted"]

    def test_what_reached_the_table_by_another_way_is_not_counted(self, alice: Workload) -> None:
        body = json.dumps(alice.event(tokens=900)).encode()
        forge(alice, body, signature="v1=" + "0" * 64)
        forge(alice, body, deployment_id=uuid4())
        forge(alice, body, event_id=b"another")
        forge(alice, body, delivery_id=0)
        forge(alice, body, item=3)
        settle_down(alice)
        rows = Report.objects.filter(signature=alice.signed(body)["x_telemetry_signature"]) | Report.objects.filter(
            deployment_id=alice.deployment.id
        )
        assert {r.status for r in rows} == {"rejected"}
        assert alice.used()["requests"] == 0


class TestEventIds:
    @pytest.mark.case("ROL-02")
    def test_each_deployment_has_event_ids_of_its_own(self, alice: Workload) -> None:
        charlie, second = Workload(), Workload(alice.account)
        alice.report(eventId="1", tokens=100)
        charlie.report(eventId="1", tokens=250)
        second.report(eventId="1", tokens=40)
        for workload in (alice, charlie, second):
            assert workload.statuses() == ["accepted"]
        assert (alice.used()["tokens"], charlie.used()["tokens"]) == (140, 250)

    @pytest.mark.case("ROL-02")
    def test_the_same_id_with_other_numbers_is_rejected_as_a_conflict(self, alice: Workload) -> None:
        invocation = alice.caller.admit()
        alice.report(invocation, eventId="1", tokens=100)
        alice.report(invocation, eventId="1", tokens=900)
        assert alice.judged() == [("accepted", ""), ("rejected", Reason.CONFLICT)]
        alice.report(invocation, eventId="1", tokens=901)
        assert alice.statuses() == ["accepted", "rejected", "rejected"]
        assert alice.used()["tokens"] == 100

    @pytest.mark.case("ROL-02")
    def test_ids_that_differ_in_a_space_or_in_case_are_different(self, alice: Workload) -> None:
        for event_id in ("a1", "a1 ", "A1"):
            alice.report(eventId=event_id, tokens=1)
        assert alice.statuses() == ["accepted"] * 3
        assert alice.used()["tokens"] == 3

    def test_a_repeat_written_in_another_way_is_a_duplicate(self, alice: Workload) -> None:
        event = alice.event(tokens=5)
        alice.post(event)
        alice.post(dict(reversed(event.items())))
        assert alice.statuses() == ["accepted", "duplicate"]

    @pytest.mark.case("ROL-01")
    def test_mark_and_effect_are_one_transaction(self, alice: Workload) -> None:
        """The first try dies between them: nothing of it stays, and the second counts once."""
        invocation = alice.caller.admit()
        alice.report(invocation, tokens=700)
        counter = PeriodCounter.objects.filter(account_id=alice.account.id)
        row = counter.values().get()
        counter.delete()  # the ledger's trigger refuses to fold into a month without its counter
        process_reports()
        (report,) = Report.objects.filter(deployment_id=alice.deployment.id)
        assert (report.status, receipt(invocation).charged_tokens, receipt(invocation).reports) == ("pending", 0, 0)
        PeriodCounter.objects.create(**{k: v for k, v in row.items() if k != "pk"})
        wait_out(report)
        assert alice.statuses() == ["accepted"]
        assert (alice.used()["tokens"], receipt(invocation).reports) == (700, 1)


def wait_out(report: Report) -> None:
    """Let the time pass until a report that failed is tried again, and try."""
    Report.objects.filter(pk=report.pk).update(processed_at=timezone.now() - timedelta(hours=1))
    process_reports()


class TestFailing:
    def test_one_that_keeps_failing_is_parked_with_an_alert_and_blocks_nobody(
        self, alice: Workload, caplog: pytest.LogCaptureFixture
    ) -> None:
        broken = alice.caller.admit()
        alice.report(broken, tokens=1)
        PeriodCounter.objects.filter(account_id=alice.account.id).delete()
        charlie = Workload()
        for _ in range(3):
            charlie.report(tokens=10)
        assert charlie.statuses() == ["accepted"] * 3
        (report,) = Report.objects.filter(deployment_id=alice.deployment.id)
        with caplog.at_level(logging.ERROR):
            for _ in range(10):
                wait_out(report)
        report.refresh_from_db()
        assert (report.status, report.attempts, report.reason) == ("parked", 5, "failed: RaiseException")
        assert charlie.used()["tokens"] == 30
        Admission.objects.filter(pk=broken).delete()

    def test_a_bug_in_judging_one_does_not_block_the_others(
        self, alice: Workload, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        real = process.judge_report

        def judge(evidence: Any) -> Any:
            if getattr(evidence.event, "event_id", b"") == b"poison":
                raise ZeroDivisionError
            return real(evidence)

        monkeypatch.setattr(process, "judge_report", judge)
        alice.report(eventId="poison", tokens=1)
        alice.report(eventId="good", tokens=10)
        process_reports()
        assert alice.used()["tokens"] == 10


class TestAtOnce:
    def test_threads_that_judge_and_settle_at_once_count_exactly(self) -> None:
        """Reports of few admissions in one pipeline, settlements beside it, and several who judge."""
        workloads = [Workload() for _ in range(3)]
        admissions = [(w, w.caller.admit()) for w in workloads for _ in range(20)]
        for workload in workloads:
            events = [workload.event(i, tokens=n) for w, i in admissions if w is workload for n in (10, 30, 20)]
            assert workload.post({"events": events}).status == 202
        barrier = threading.Barrier(6)

        def judge() -> None:
            barrier.wait()
            process_reports()

        def settle(part: int) -> None:
            barrier.wait()
            for _, invocation in admissions[part::3]:
                ledger.settle(invocation, FAILED if part else SUCCEEDED, used(tokens=25))

        with ThreadPoolExecutor(6) as pool:
            for done in [pool.submit(judge) for _ in range(3)] + [pool.submit(settle, n) for n in range(3)]:
                done.result()
        settle_down(*workloads)
        for workload in workloads:
            assert set(workload.statuses()) == {"accepted"}
            assert (workload.used()["requests"], workload.used()["tokens"]) == (20, 600)
            assert workload.caller.differences() == []

    def test_two_who_are_not_kept_apart_by_the_lock_fold_each_report_in_once(
        self, alice: Workload, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The lock saves work; what makes it exact is each report's own row."""
        monkeypatch.setattr(process, "_ONE_AT_A_TIME", 0)
        invocations = [alice.caller.admit() for _ in range(60)]
        events = [alice.event(i, tokens=7) for i in invocations] + [alice.event(tokens=7) for _ in range(20)]
        alice.post({"events": events})
        rows = db.run(process._FRESH, {"after": 0, "batch": 500})
        barrier = threading.Barrier(3)

        def conclude() -> int:
            with db.hot_connection() as connection:
                barrier.wait()
                return process._conclude(connection, rows)

        with ThreadPoolExecutor(3) as pool:
            counts = [f.result() for f in [pool.submit(conclude) for _ in range(3)]]
        assert sum(counts) >= 1
        assert set(alice.statuses()) == {"accepted"}
        assert (alice.used()["requests"], alice.used()["tokens"]) == (80, 560)
        assert {a.reports for a in Admission.objects.filter(account_id=alice.account.id)} == {1}
        assert alice.caller.differences() == []

    def test_a_thousand_are_judged_in_their_order(self, alice: Workload) -> None:
        invocation = alice.caller.admit()
        for start in range(0, 1000, 100):
            alice.post(
                {
                    "events": [
                        alice.event(invocation, eventId=f"e{n % 700}", tokens=n % 700)
                        for n in range(start, start + 100)
                    ]
                }
            )
        statuses = alice.statuses()
        assert statuses[:700] == ["accepted"] * 700
        assert statuses[700:] == ["duplicate"] * 300
        assert (alice.used()["tokens"], receipt(invocation).reports) == (699, 700)

    def test_the_oldest_that_is_pending_can_be_seen(self, alice: Workload) -> None:
        alice.report()
        assert process.oldest_pending() is not None
