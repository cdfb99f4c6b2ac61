"""What happens to an admission afterwards: settled, observed, given back, overdue, taken up, corrected."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import permutations
from uuid import uuid4

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from entitlements import ledger
from entitlements.enums import Runtime
from entitlements.models import Adjustment, Admission, Movement
from entitlements.tasks import close_overdue
from tests.entitlements.callers import FAILED, SUCCEEDED, Caller, alice, expire, receipt, used
from webhost.ids import new_id
from webhost.period import period_of
from webhost.signing import verify_settlement

pytestmark = pytest.mark.usefixtures("live_db")

NOON = datetime(2031, 5, 15, 12, tzinfo=UTC)
MAY = NOON.date().replace(day=1)
HOLD = {"tokens": 100, "compute_ms": 200}
FULL = {"tokens": 10, "compute_ms": 20, "tool_calls": 3, "code_ms": 40, "browser_sessions": 5}


def charged(admission: Admission) -> dict[str, int]:
    return {measure: getattr(admission, f"charged_{measure}") for measure in FULL}


def counted(caller: Caller) -> dict[str, int]:
    counter = caller.counter()
    return {measure: getattr(counter, f"used_{measure}") for measure in FULL}


class TestSettle:
    def test_it_charges_every_measure_and_frees_the_slot(self) -> None:
        caller = alice()
        admission = caller.call(**FULL)
        row = receipt(admission)
        assert (row.outcome, charged(row), counted(caller)) == ("succeeded", FULL, FULL)
        assert (caller.counter().used_requests, caller.counter().in_flight) == (1, 0)
        assert row.settled_at is not None

    def test_it_releases_what_was_held_and_charges_what_was_used(self) -> None:
        caller = alice(max_tokens_per_period=1000)
        admission = caller.admit(tokens=600)
        assert (caller.counter().held_tokens, caller.counter().used_tokens) == (600, 0)
        ledger.settle(admission, SUCCEEDED, used(tokens=50))
        assert (caller.counter().held_tokens, caller.counter().used_tokens) == (0, 50)

    def test_use_beyond_the_hold_is_shown_and_blocks_the_next(self) -> None:
        caller = alice(max_tokens_per_period=1000)
        ledger.settle(caller.admit(tokens=600), SUCCEEDED, used(tokens=1700))
        assert caller.counter().used_tokens == 1700
        assert caller.refusal(tokens=1) is not None

    def test_twice_counts_once(self) -> None:
        caller = alice()
        admission = caller.call(**FULL)
        assert ledger.settle(admission, SUCCEEDED, used(**FULL)) is None
        assert (counted(caller), caller.counter().in_flight) == (FULL, 0)

    def test_a_second_time_with_less_lowers_nothing(self) -> None:
        caller = alice()
        admission = caller.call(**FULL)
        ledger.settle(admission, SUCCEEDED, used(tokens=1))
        assert counted(caller) == FULL

    def test_a_second_time_with_more_is_still_folded_in_and_closes_nothing_anew(self) -> None:
        caller = alice()
        admission = caller.call(tokens=10)
        before = receipt(admission)
        ledger.settle(admission, FAILED, used(tokens=25))
        after = receipt(admission)
        assert (after.outcome, after.charged_tokens, caller.counter().used_tokens) == ("succeeded", 25, 25)
        assert (after.settled_at, after.settlement) == (before.settled_at, before.settlement)

    def test_late_after_the_overdue_closing_it_still_counts_what_was_used(self) -> None:
        caller = alice()
        admission = caller.admit()
        assert expire(admission, caller)
        ledger.settle(admission, SUCCEEDED, used(**FULL))
        row = receipt(admission)
        assert (row.outcome, charged(row), counted(caller)) == ("expired", FULL, FULL)
        assert (caller.counter().used_requests, caller.counter().in_flight) == (1, 0)

    def test_a_failure_counts_like_a_success_and_keeps_why(self) -> None:
        caller = alice()
        admission = caller.admit()
        ledger.settle(admission, FAILED, used(tokens=3), error_class="Timeout", latency_ms=61_000)
        row = receipt(admission)
        assert (row.outcome, row.error_class, row.latency_ms) == ("failed", "Timeout", 61_000)
        assert (caller.counter().used_requests, caller.counter().used_tokens) == (1, 3)

    def test_zero_stays_zero(self) -> None:
        caller = alice()
        assert charged(receipt(caller.call())) == dict.fromkeys(FULL, 0)

    def test_estimated_tokens_are_marked_as_such(self) -> None:
        caller = alice()
        admission = caller.admit()
        ledger.settle(admission, SUCCEEDED, used(tokens=3, tokens_estimated=True))
        assert receipt(admission).tokens_estimated

    def test_it_is_signed_by_the_gateway(self) -> None:
        caller = alice()
        admission = caller.call(**FULL)
        row = receipt(admission)
        assert row.settlement == f"v1|inv_{admission.hex}|succeeded|10|20|3|40|5"
        assert verify_settlement(row.settlement.encode(), row.settlement_mac)
        assert not verify_settlement(row.settlement.replace("|10|", "|11|").encode(), row.settlement_mac)

    def test_an_unknown_one_is_nothing(self) -> None:
        assert ledger.settle(new_id(), SUCCEEDED, used(tokens=5)) is None

    def test_it_is_journalled_once_for_the_roll_ups(self) -> None:
        caller = alice()
        admission = caller.call(tokens=10)
        ledger.settle(admission, SUCCEEDED, used(tokens=10))
        caller.report(admission, tokens=15)
        lines = Movement.objects.filter(account_id=caller.account_id)
        assert (sum(m.requests for m in lines), sum(m.tokens for m in lines)) in {
            (1, 15),
            (0, 0),
        }  # a worker may be faster


class TestObserve:
    def test_a_report_of_the_same_usage_changes_nothing(self) -> None:
        caller = alice()
        admission = caller.call(**FULL)
        for _ in range(3):
            caller.report(admission, **FULL)
        assert counted(caller) == FULL
        assert receipt(admission).reports == 3

    def test_the_larger_view_of_each_measure_counts(self) -> None:
        caller = alice()
        admission = caller.call(tokens=10, compute_ms=20)
        caller.report(admission, tokens=7, compute_ms=33)
        assert (caller.counter().used_tokens, caller.counter().used_compute_ms) == (10, 33)

    def test_before_settlement_it_counts_at_once(self) -> None:
        caller = alice()
        admission = caller.admit()
        caller.report(admission, tokens=7)
        assert (caller.counter().used_tokens, caller.counter().in_flight) == (7, 1)

    def test_it_eats_the_hold_before_it_counts_beyond_it(self) -> None:
        caller = alice()
        admission = caller.admit(tokens=100)
        caller.report(admission, tokens=30)
        assert (caller.counter().used_tokens, caller.counter().held_tokens) == (30, 70)
        caller.report(admission, tokens=130)
        assert (caller.counter().used_tokens, caller.counter().held_tokens) == (130, 0)

    def test_another_deployment_cannot_report_about_it(self) -> None:
        caller, charlie = alice(), alice()
        admission = caller.call(tokens=10)
        assert charlie.report(admission, tokens=999) is None
        assert caller.but(deployment_id=uuid4()).report(admission, tokens=999) is None
        assert caller.counter().used_tokens == 10

    @pytest.mark.parametrize("order", list(permutations(range(4))), ids=lambda o: "".join(map(str, o)))
    def test_in_any_order_and_twice_it_comes_to_the_same(self, order: tuple[int, ...]) -> None:
        caller = alice()
        admission = caller.admit(tokens=50)
        steps = (
            lambda: ledger.settle(admission, SUCCEEDED, used(tokens=10, compute_ms=20)),
            lambda: caller.report(admission, tokens=12, compute_ms=5),
            lambda: caller.report(admission, tokens=3, compute_ms=40),
            lambda: expire(admission, caller),
        )
        for step in (*order, *order):
            steps[step]()
        assert (caller.counter().used_tokens, caller.counter().used_compute_ms) == (12, 40)
        assert (caller.counter().used_requests, caller.counter().in_flight, caller.counter().held_tokens) == (1, 0, 0)
        assert caller.differences() == []

    @given(
        st.lists(
            st.tuples(st.sampled_from(["settle", "report", "void"]), st.integers(0, 99), st.integers(0, 99)), max_size=6
        ),
        st.randoms(use_true_random=False),
    )
    @settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
    def test_whatever_happens_in_whatever_order_the_largest_evidence_counts(self, steps, random) -> None:
        evidence = [(tokens, ms) for what, tokens, ms in steps if what != "void"]
        for order in (steps, random.sample(steps, len(steps))):
            caller = alice()
            admission = caller.admit()
            for what, tokens, ms in order:
                if what == "settle":
                    ledger.settle(admission, SUCCEEDED, used(tokens=tokens, compute_ms=ms))
                elif what == "report":
                    caller.report(admission, tokens=tokens, compute_ms=ms)
                else:
                    ledger.void(admission, "ConnectionRefused")
            row, counter = receipt(admission), caller.counter()
            expected = (max((t for t, _ in evidence), default=0), max((m for _, m in evidence), default=0))
            assert (row.charged_tokens, row.charged_compute_ms) == expected
            assert (counter.used_tokens, counter.used_compute_ms) == expected
            assert counter.used_requests == (0 if steps and not evidence else 1)
            assert caller.differences() == []


class TestVoid:
    def test_it_gives_the_request_the_slot_and_the_hold_back(self) -> None:
        caller = alice(max_requests_per_period=1, max_tokens_per_period=100)
        admission = caller.admit(tokens=100)
        assert ledger.void(admission, "ConnectionRefused") == "voided"
        counter = caller.counter()
        assert (counter.used_requests, counter.in_flight, counter.held_tokens) == (0, 0, 0)
        assert receipt(admission).error_class == "ConnectionRefused"
        assert caller.refusal() is None

    def test_twice_gives_back_once(self) -> None:
        caller = alice()
        caller.call()
        admission = caller.admit()
        ledger.void(admission, "ConnectionRefused")
        assert ledger.void(admission, "ConnectionRefused") is None
        assert caller.counter().used_requests == 1

    def test_what_is_settled_cannot_be_given_back(self) -> None:
        caller = alice()
        admission = caller.call(tokens=5)
        assert ledger.void(admission, "ConnectionRefused") is None
        assert (receipt(admission).outcome, caller.counter().used_requests) == ("succeeded", 1)

    @pytest.mark.parametrize("trusted", [True, False])
    def test_a_report_that_comes_later_takes_it_back(self, trusted: bool) -> None:
        caller = alice()
        admission = caller.admit()
        ledger.void(admission, "ConnectionRefused")
        caller.report(admission, trusted=trusted, tokens=7)
        row = receipt(admission)
        assert (row.outcome, row.charged_requests, row.charged_tokens) == ("failed", 1, 7)
        assert (caller.counter().used_requests, caller.counter().used_tokens) == (1, 7)

    @pytest.mark.parametrize("trusted", [True, False])
    def test_a_report_that_came_before_forbids_it(self, trusted: bool) -> None:
        caller = alice()
        admission = caller.admit()
        caller.report(admission, trusted=trusted, tokens=7)
        assert ledger.void(admission, "ConnectionRefused") == "failed"
        assert (caller.counter().used_requests, caller.counter().used_tokens) == (1, 7)

    def test_it_is_signed_like_every_settlement(self) -> None:
        caller = alice()
        admission = caller.admit()
        ledger.void(admission, "ConnectionRefused")
        row = receipt(admission)
        assert row.settlement.startswith(f"v1|inv_{admission.hex}|voided|0|")
        assert verify_settlement(row.settlement.encode(), row.settlement_mac)


class TestOverdue:
    def agentcore(self) -> Caller:
        return alice(agentcore_enabled=True).but(runtime=Runtime.AGENTCORE)

    def test_before_its_time_nothing_is_closed(self) -> None:
        caller = alice()
        admission = caller.admit()
        row = receipt(admission)
        just_before = row.expires_at - timedelta(microseconds=1)
        assert ledger.db.run(ledger.SQL["expire"], {"id": admission, "at": just_before}) == []
        assert receipt(admission).outcome == "open"

    def test_without_a_hold_it_is_closed_at_what_was_observed_and_the_request_counts(self) -> None:
        caller = alice()
        admission = caller.admit()
        caller.report(admission, tokens=7)
        assert expire(admission, caller)
        row = receipt(admission)
        assert (row.outcome, row.charged_requests, row.charged_tokens, row.estimate_stands) == ("expired", 1, 7, False)
        assert caller.counter().in_flight == 0

    def test_with_a_hold_that_nobody_observed_it_is_closed_at_the_hold_marked_as_an_estimate(self) -> None:
        caller = self.agentcore()
        admission = caller.admit(**HOLD)
        expire(admission, caller)
        row = receipt(admission)
        assert (row.charged_tokens, row.charged_compute_ms, row.estimate_stands) == (100, 200, True)
        assert (caller.counter().used_tokens, caller.counter().held_tokens) == (100, 0)

    @pytest.mark.parametrize("tokens", [0, 30, 100, 170])
    def test_the_first_trusted_observation_replaces_the_estimate_down_as_well_as_up(self, tokens: int) -> None:
        caller = self.agentcore()
        admission = caller.admit(**HOLD)
        expire(admission, caller)
        caller.report(admission, tokens=tokens)
        assert (receipt(admission).charged_tokens, caller.counter().used_tokens) == (tokens, tokens)
        assert (receipt(admission).charged_compute_ms, receipt(admission).estimate_stands) == (0, False)

    def test_the_second_one_only_raises(self) -> None:
        caller = self.agentcore()
        admission = caller.admit(**HOLD)
        expire(admission, caller)
        caller.report(admission, tokens=30)
        caller.report(admission, tokens=20)
        assert caller.counter().used_tokens == 30
        caller.report(admission, tokens=40)
        assert caller.counter().used_tokens == 40

    def test_a_late_settlement_is_a_trusted_observation_too(self) -> None:
        caller = self.agentcore()
        admission = caller.admit(**HOLD)
        expire(admission, caller)
        ledger.settle(admission, SUCCEEDED, used(tokens=30))
        assert (caller.counter().used_tokens, receipt(admission).outcome) == (30, "expired")

    def test_a_claim_never_lowers_the_estimate_but_raises_it(self) -> None:
        caller = self.agentcore()
        admission = caller.admit(**HOLD)
        expire(admission, caller)
        caller.report(admission, trusted=False, tokens=1)
        assert (caller.counter().used_tokens, receipt(admission).estimate_stands) == (100, True)
        caller.report(admission, trusted=False, tokens=150)
        assert caller.counter().used_tokens == 150

    def test_a_claim_before_the_closing_does_not_turn_the_estimate_into_a_fact(self) -> None:
        caller = self.agentcore()
        admission = caller.admit(**HOLD)
        caller.report(admission, trusted=False, tokens=1)
        expire(admission, caller)
        assert (caller.counter().used_tokens, receipt(admission).estimate_stands) == (100, True)
        caller.report(admission, tokens=30)
        assert caller.counter().used_tokens == 30

    def test_what_somebody_trusted_observed_before_the_closing_counts_instead_of_the_hold(self) -> None:
        caller = self.agentcore()
        admission = caller.admit(**HOLD)
        caller.report(admission, tokens=30)
        expire(admission, caller)
        assert (caller.counter().used_tokens, caller.counter().held_tokens) == (30, 0)
        assert receipt(admission).estimate_stands is False

    @pytest.mark.case("LIM-04")
    def test_the_periodic_task_closes_what_is_overdue_and_nothing_else(self) -> None:
        caller = alice()
        dead = [caller.but(timeout_seconds=-31).admit() for _ in range(3)]
        alive = caller.admit()
        close_overdue()
        assert {receipt(a).outcome for a in dead} == {"expired"}
        assert receipt(alive).outcome == "open"
        assert (caller.counter().used_requests, caller.counter().in_flight) == (4, 1)
        assert caller.differences() == []

    def test_what_is_settled_is_not_closed_again(self) -> None:
        caller = alice()
        admission = caller.but(timeout_seconds=-31).call(tokens=5)
        close_overdue()
        assert receipt(admission).outcome == "succeeded"


class TestAdopt:
    def test_a_report_about_an_unknown_invocation_counts_as_one(self) -> None:
        caller, admission = alice(), new_id()
        assert caller.adopt(admission, NOON, **FULL) == [{"period": MAY}]
        row, counter = receipt(admission), caller.counter(MAY)
        assert (row.source, row.outcome, charged(row)) == ("report", "succeeded", FULL)
        assert (counter.used_requests, counter.used_tokens, counter.in_flight) == (1, 10, 0)
        assert caller.differences() == []

    def test_twice_counts_once(self) -> None:
        caller, admission = alice(), new_id()
        caller.adopt(admission, NOON, tokens=10)
        assert caller.adopt(admission, NOON, tokens=10) == []
        assert (caller.counter(MAY).used_requests, caller.counter(MAY).used_tokens) == (1, 10)

    def test_its_repeats_fold_into_it(self) -> None:
        caller, admission = alice(), new_id()
        caller.adopt(admission, NOON, tokens=10)
        caller.report(admission, tokens=15)
        assert (caller.counter(MAY).used_requests, caller.counter(MAY).used_tokens) == (1, 15)

    def test_it_is_never_refused_and_blocks_the_next_call(self) -> None:
        caller = alice(max_requests_per_period=1)
        caller.call(at=NOON)
        caller.adopt(new_id(), NOON)
        refusal = caller.refusal(at=NOON)
        assert refusal is not None
        assert (refusal.details["current"], refusal.details["limit"]) == (2, 1)

    def test_the_id_of_an_admission_is_not_adopted(self) -> None:
        caller = alice()
        admission = caller.call(at=NOON, tokens=10)
        assert caller.adopt(admission, NOON, tokens=99) == []
        assert caller.counter(MAY).used_tokens == 10


class TestAdjust:
    def test_what_is_given_back_may_be_used_again_at_once(self) -> None:
        caller = alice(max_requests_per_period=2)
        caller.call(at=NOON)
        caller.call(at=NOON)
        assert caller.refusal(at=NOON) is not None
        caller.adjust(MAY, requests=-1)
        assert caller.refusal(at=NOON) is None
        assert caller.refusal(at=NOON) is not None

    def test_it_is_kept_with_who_and_why_and_the_ledger_stays_equal(self) -> None:
        caller = alice()
        caller.call(at=NOON, tokens=100)
        caller.adjust(MAY, requests=3, tokens=-40, reason="A bug of ours")
        row = Adjustment.objects.get(account_id=caller.account_id)
        assert (row.actor, row.reason, row.requests, row.tokens) == ("stella", "A bug of ours", 3, -40)
        assert (caller.counter(MAY).used_requests, caller.counter(MAY).used_tokens) == (4, 60)
        assert caller.differences() == []

    def test_below_0_is_refused_and_nothing_is_kept(self) -> None:
        caller = alice()
        caller.call(at=NOON, tokens=10)
        with pytest.raises(psycopg.errors.CheckViolation, match="counter_never_negative"):
            caller.adjust(MAY, tokens=-11)
        assert not Adjustment.objects.filter(account_id=caller.account_id).exists()

    def test_without_a_reason_it_is_refused(self) -> None:
        caller = alice()
        caller.call(at=NOON)
        with pytest.raises(psycopg.errors.CheckViolation, match="adjustment_has_reason"):
            caller.adjust(MAY, requests=1, reason="")

    def test_a_month_without_usage_has_nothing_to_adjust(self) -> None:
        caller = alice()
        assert caller.adjust(period_of(NOON), requests=-1) == []
