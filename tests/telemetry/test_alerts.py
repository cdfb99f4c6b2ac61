"""Budgets that reach 80 or 100 %: fired once, recovered when a limit is raised, whoever looks and however often."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from django.utils import timezone
from hypothesis import given
from hypothesis import strategies as st

from entitlements import ledger
from entitlements.enums import LimitType, Runtime
from entitlements.models import Account, Override
from telemetry.actions.roll_up import roll_up
from telemetry.actions.watch_budgets import watch_accounts, watch_all_budgets, watch_budgets
from telemetry.alert_rules import Budget, Mark, is_reached, messages, reached_marks, turn, wait_after
from telemetry.models import AlertDelivery, AlertEvent, AlertKind, AlertTarget
from tests.api import at_once
from tests.entitlements.callers import Caller, alice, used
from tests.factories import make_account, make_tier, override
from webhost.ids import new_id

REQUESTS, TOKENS, CODE = LimitType.REQUESTS, LimitType.TOKENS, LimitType.CODE_EXECUTION_SECONDS
TOOLS: dict[str, Any] = {
    "agentcore_enabled": True, "code_interpreter_enabled": True, "max_tool_calls_per_period": 100,
    "max_code_execution_seconds_per_period": 10,
}  # fmt: skip


def marks(used: int, limit: int | None) -> list[int]:
    return sorted(m.threshold for m in reached_marks({TOKENS: Budget(used, limit)}))


class TestTheDecision:
    @pytest.mark.parametrize(
        ("used", "limit", "reached"),
        [
            (79, 100, []), (80, 100, [80]), (99, 100, [80]), (100, 100, [80, 100]), (500, 100, [80, 100]),
            (0, 1, []), (1, 1, [80, 100]), (2, 3, []), (3, 3, [80, 100]), (0, 100, []), (-3, 100, []),
            (4, 5, [80]), (10**12 * 8 // 10 - 1, 10**12, []), (10**12 * 8 // 10, 10**12, [80]),
        ],
    )  # fmt: skip
    def test_a_threshold_is_reached_exactly(self, used: int, limit: int, reached: list[int]) -> None:
        assert marks(used, limit) == reached

    @pytest.mark.parametrize("limit", [None, 0])
    def test_unlimited_and_none_at_all_never_reach_any(self, limit: int | None) -> None:
        assert marks(10**12, limit) == []

    def test_a_limit_lowered_below_the_use_is_reached(self) -> None:
        assert marks(50, 200) == []
        assert marks(50, 20) == [80, 100]

    def test_of_both_at_once_a_target_hears_the_highest_that_it_wants(self) -> None:
        fired = [Mark(TOKENS, 80), Mark(TOKENS, 100), Mark(REQUESTS, 80)]
        assert messages(fired, [80, 100]) == [Mark(REQUESTS, 80), Mark(TOKENS, 100)]
        assert messages(fired, [80]) == [Mark(REQUESTS, 80), Mark(TOKENS, 80)]
        assert messages(fired, [100]) == [Mark(TOKENS, 100)]
        assert messages([], [80, 100]) == []

    @given(st.lists(st.tuples(st.integers(0, 130), st.sampled_from([None, 0, 50, 100, 110])), max_size=40))
    def test_however_use_and_limit_move_none_fires_twice_without_recovering_and_none_is_missed(
        self, moves: list[tuple[int, int | None]]
    ) -> None:
        open_marks: frozenset[Mark] = frozenset()
        told: dict[int, list[str]] = {80: [], 100: []}
        for use, limit in moves:
            budget = Budget(use, limit)
            change = turn(open_marks, reached_marks({TOKENS: budget}))
            open_marks = (open_marks - set(change.recovered)) | set(change.fired)
            for mark in change.fired:
                told[mark.threshold].append("fired")
            for mark in change.recovered:
                told[mark.threshold].append("recovered")
            for threshold, said in told.items():
                is_open = bool(said) and said[-1] == "fired"
                assert is_open == is_reached(budget, threshold)
            assert not turn(open_marks, reached_marks({TOKENS: budget})), "a second look changes nothing"
        for said in told.values():
            assert all(a != b for a, b in itertools.pairwise(said))
            assert said[:1] in ([], ["fired"])

    def test_what_fails_is_tried_ten_times_in_about_a_day(self) -> None:
        waits = [wait_after(tries, 0) for tries in range(1, 10)]
        assert waits[0] == timedelta(minutes=1)
        assert max(w for w in waits if w) == timedelta(hours=6)
        assert timedelta(hours=20) < sum((w for w in waits if w), timedelta()) < timedelta(hours=28)
        assert wait_after(10, 0) is None

    @given(st.integers(1, 9), st.floats(0, 1, exclude_max=True))
    def test_jitter_takes_up_to_a_quarter_off(self, tries: int, jitter: float) -> None:
        wait, longest = wait_after(tries, jitter), wait_after(tries, 0)
        assert wait is not None
        assert longest is not None
        assert longest * 0.75 <= wait <= longest


pytestmark = pytest.mark.usefixtures("live_db", "nobody_sweeps")


def look(caller: Caller, at: datetime | None = None) -> int:
    return watch_accounts([caller.account_id], at=at)


def told(caller: Caller) -> list[tuple[str, int, int, int, bool]]:
    events = AlertEvent.objects.filter(account_id=caller.account_id).order_by("id")
    return [(e.limit_type, e.threshold, e.used, e.limit, e.recovered_at is None) for e in events]


def sent(caller: Caller) -> list[tuple[str, int]]:
    found = AlertDelivery.objects.filter(event__account_id=caller.account_id).select_related("event").order_by("id")
    return [(d.event.limit_type, d.event.threshold) for d in found]


def set_limit(caller: Caller, field: str, value: int | None) -> None:
    override(Account.objects.get(pk=caller.account_id), field, value)


class TestFiring:
    def test_alice_is_told_once_at_80_and_once_at_100_however_often_one_looks(self) -> None:
        caller = alice(max_requests_per_period=10)
        for _ in range(7):
            caller.call()
        assert look(caller) == 0
        for expected in (1, 0, 0):
            if expected:
                caller.call()
            assert look(caller) == expected
        caller.call()
        assert look(caller) == 0
        caller.call()
        assert [look(caller) for _ in range(3)] == [1, 0, 0]
        assert told(caller) == [("requests", 80, 8, 10, True), ("requests", 100, 10, 10, True)]
        assert sent(caller) == [("requests", 80), ("requests", 100)]

    def test_both_at_once_are_one_message_that_names_the_highest(self) -> None:
        caller = alice(max_tokens_per_period=100)
        caller.call(tokens=150)
        assert look(caller) == 2
        assert told(caller) == [("tokens", 80, 150, 100, True), ("tokens", 100, 150, 100, True)]
        assert sent(caller) == [("tokens", 100)]

    def test_two_budgets_are_two_messages(self) -> None:
        caller = alice(max_tokens_per_period=100, max_compute_ms_per_period=1000)
        caller.call(tokens=80, compute_ms=900)
        look(caller)
        assert sent(caller) == [("tokens", 80), ("computeMs", 80)]

    def test_what_is_held_does_not_count_and_what_runs_not_yet(self) -> None:
        caller = alice(max_requests_per_period=1, max_tokens_per_period=100)
        running = caller.admit(tokens=100)
        assert look(caller) == 0
        ledger.settle(running, ledger.Outcome.SUCCEEDED, used(tokens=79))
        assert look(caller) == 2
        assert {measure for measure, *_ in told(caller)} == {"requests"}

    def test_calls_that_are_given_back_do_not_make_an_alert_swing(self) -> None:
        caller = alice(max_requests_per_period=10)
        for _ in range(7):
            caller.call()
        for _ in range(3):
            refused = caller.admit()
            assert look(caller) == 0
            ledger.void(refused, "ConnectionRefused")
            assert look(caller) == 0
        assert told(caller) == []

    def test_unlimited_none_at_all_and_a_tool_that_is_not_in_the_tier_fire_nothing(self) -> None:
        caller = alice(max_tool_calls_per_period=5)
        caller.call(tool_calls=5, tokens=10**9, compute_ms=10**9)
        assert look(caller) == 0
        set_limit(caller, "max_compute_ms_per_period", 0)
        assert look(caller) == 0

    def test_code_execution_is_compared_in_milliseconds_and_told_in_seconds(self) -> None:
        caller = alice(**TOOLS).but(runtime=Runtime.AGENTCORE)
        caller.call(code_ms=7999)
        assert look(caller) == 0
        caller.call(code_ms=1)
        assert look(caller) == 1
        assert told(caller) == [("codeExecutionSeconds", 80, 8, 10, True)]

    def test_a_disabled_account_is_left_alone(self) -> None:
        caller = alice(max_requests_per_period=1)
        caller.call()
        Account.objects.filter(pk=caller.account_id).update(is_active=False)
        assert look(caller) == 0
        Account.objects.filter(pk=caller.account_id).update(is_active=True)
        assert look(caller) == 2


class TestRecovering:
    def test_a_raised_limit_recovers_it_and_reaching_that_fires_again(self) -> None:
        caller = alice(max_requests_per_period=2)
        caller.call()
        caller.call()
        assert look(caller) == 2
        set_limit(caller, "max_requests_per_period", 4)
        assert [look(caller) for _ in range(2)] == [2, 0]
        assert [is_open for *_, is_open in told(caller)] == [False, False]
        caller.call()
        caller.call()
        assert look(caller) == 2
        assert told(caller)[2:] == [("requests", 80, 4, 4, True), ("requests", 100, 4, 4, True)]
        assert sent(caller) == [("requests", 100)] * 2

    def test_a_limit_raised_a_little_recovers_only_what_is_no_longer_reached(self) -> None:
        caller = alice(max_requests_per_period=4)
        for _ in range(4):
            caller.call()
        look(caller)
        set_limit(caller, "max_requests_per_period", 5)
        assert look(caller) == 1
        assert [(t, is_open) for _, t, *_, is_open in told(caller)] == [(80, True), (100, False)]

    def test_an_adjustment_that_gives_back_recovers_it(self) -> None:
        caller = alice(max_tokens_per_period=100)
        caller.call(tokens=80)
        look(caller)
        caller.adjust(timezone.now().date().replace(day=1), tokens=-1)
        assert look(caller) == 1
        caller.call(tokens=1)
        assert look(caller) == 1
        assert sent(caller) == [("tokens", 80)] * 2

    def test_a_tier_that_allows_less_fires_at_once(self) -> None:
        caller = alice(max_requests_per_period=100)
        caller.call()
        assert look(caller) == 0
        Account.objects.filter(pk=caller.account_id).update(billing_tier=make_tier(max_requests_per_period=1))
        assert look(caller) == 2

    def test_an_override_that_ends_fires_by_date(self) -> None:
        caller = alice(max_requests_per_period=1)
        ends = timezone.now() + timedelta(seconds=30)
        Override.objects.create(
            account_id=caller.account_id, key="maxRequestsPerPeriod", value=9, ends_at=ends, reason="For a while"
        )
        caller.call()
        assert look(caller, ends - timedelta(seconds=1)) == 0
        assert look(caller, ends) == 2


class TestPeriods:
    MAY = datetime(2034, 5, 31, 23, 59, 59, tzinfo=UTC)
    JUNE = datetime(2034, 6, 1, tzinfo=UTC)

    def test_a_new_month_starts_afresh_and_a_closed_one_fires_nothing(self) -> None:
        caller = alice(max_requests_per_period=1, max_tokens_per_period=100)
        invocation = caller.call(at=self.MAY)
        assert look(caller, self.MAY) == 2
        caller.report(invocation, tokens=100)
        assert look(caller, self.JUNE) == 0
        caller.call(at=self.JUNE)
        assert look(caller, self.JUNE) == 2
        periods = list(AlertEvent.objects.filter(account_id=caller.account_id).order_by("id").values_list("period"))
        assert [p.month for (p,) in periods] == [5, 5, 6, 6]
        assert {measure for measure, *_ in told(caller)} == {"requests"}


class TestLookingOnlyWhereSomethingMoved:
    """The quick look; each of these would otherwise wait for the look at all."""

    def quickly(self, caller: Caller, ready: Callable[[], bool]) -> bool:
        for _ in range(100):  # somebody else's look may have taken the note
            roll_up()
            watch_budgets()
            if ready():
                return True
        return False

    def test_a_call_that_was_rolled_up_is_seen(self) -> None:
        caller = alice(max_requests_per_period=1)
        caller.call()
        assert self.quickly(caller, lambda: len(told(caller)) == 2)

    def test_an_override_an_adjustment_and_a_tier_of_just_now_are_seen(self) -> None:
        caller = alice(max_requests_per_period=100, max_tokens_per_period=100)
        caller.call(tokens=50)
        assert self.quickly(caller, lambda: told(caller) == [])
        set_limit(caller, "max_requests_per_period", 1)
        assert self.quickly(caller, lambda: len(told(caller)) == 2)
        caller.adjust(timezone.now().date().replace(day=1), tokens=30)
        assert self.quickly(caller, lambda: len(told(caller)) == 3)
        tier = make_tier(max_tokens_per_period=80)
        Account.objects.filter(pk=caller.account_id).update(billing_tier=tier)
        assert self.quickly(caller, lambda: len(told(caller)) == 4)
        tier.max_tokens_per_period = 1000
        tier.save()
        assert self.quickly(caller, lambda: not any(m == "tokens" and is_open for m, *_, is_open in told(caller)))

    def test_the_look_at_all_finds_who_was_not_noted(self) -> None:
        caller = alice(max_requests_per_period=1)
        caller.call()
        watch_all_budgets()
        assert len(told(caller)) == 2


_LOOK = """
import os, sys, uuid, django
django.setup()
from telemetry.actions.watch_budgets import watch_accounts
sys.stdin.readline()
print(watch_accounts([uuid.UUID(sys.argv[1])]))
"""


class TestAtOnce:
    def test_ten_threads_fire_once_and_write_one_message_per_target(self) -> None:
        caller = alice(max_requests_per_period=1)
        AlertTarget.objects.create(
            account_id=caller.account_id, kind=AlertKind.WEBHOOK, address="https://a.example.com/",
            confirmed_at=timezone.now(),
        )  # fmt: skip
        caller.call()
        assert sum(at_once(lambda _: look(caller), 10)) == 2
        assert len(told(caller)) == 2
        assert sent(caller) == [("requests", 100)] * 2

    def test_two_processes_fire_once(self) -> None:
        caller = alice(max_requests_per_period=1)
        caller.call()
        workers = [
            subprocess.Popen(
                [sys.executable, "-c", _LOOK, str(caller.account_id)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            )
            for _ in range(2)
        ]  # fmt: skip
        for worker in workers:
            assert worker.stdin is not None
            worker.stdin.write("go\n")
            worker.stdin.flush()
        moved = [int(worker.communicate(timeout=60)[0]) for worker in workers]
        assert sorted(moved) == [0, 2]
        assert sent(caller) == [("requests", 100)]

    def test_the_database_refuses_a_second_open_event_whoever_writes_it(self) -> None:
        caller = alice(max_requests_per_period=1)
        caller.call()
        look(caller)
        again = AlertEvent.objects.filter(account_id=caller.account_id, threshold=100).get()
        again.pk = new_id()
        AlertEvent.objects.bulk_create([again], ignore_conflicts=True)
        assert not AlertEvent.objects.filter(pk=again.pk).exists()

    def test_a_look_from_before_a_call_does_not_recover_what_a_later_one_fired(self) -> None:
        caller = alice(max_requests_per_period=4)
        for _ in range(3):
            caller.call()

        def work(n: int) -> None:
            if n == 0:
                caller.call()
            for _ in range(5):
                look(caller)

        at_once(work, 6)
        assert told(caller) == [("requests", 80, 4, 4, True), ("requests", 100, 4, 4, True)]


class TestTargets:
    def target(self, account_id: UUID, **fields: Any) -> AlertTarget:
        values: dict[str, Any] = {"kind": AlertKind.EMAIL, "confirmed_at": timezone.now()}
        return AlertTarget.objects.create(
            account_id=account_id, address=f"{new_id().hex}@example.com", **values | fields
        )

    def test_each_hears_what_it_asked_for_and_an_unconfirmed_one_nothing(self) -> None:
        caller = alice(max_requests_per_period=1)
        low = self.target(caller.account_id, thresholds=[80])
        high = self.target(caller.account_id, thresholds=[100])
        self.target(caller.account_id, confirmed_at=None)
        caller.call()
        look(caller)
        found = AlertDelivery.objects.filter(event__account_id=caller.account_id)
        assert {(d.target_id, d.event.threshold) for d in found.select_related("event")} == {
            (low.id, 80), (high.id, 100), (caller.account_id, 100),
        }  # fmt: skip

    def test_with_the_own_address_switched_off_it_fires_and_nobody_is_told(self) -> None:
        account = make_account("alice", make_tier(max_requests_per_period=1))
        caller = Caller(account.id, new_id(), new_id())
        AlertTarget.objects.create(id=account.id, account_id=account.id, kind=AlertKind.EMAIL, enabled=False)
        caller.call()
        assert look(caller) == 2
        assert sent(caller) == []
