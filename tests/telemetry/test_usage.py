"""Hours, usage and cost: the same figures in ledger, roll-ups and API."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest

from entitlements import ledger
from entitlements.enums import LimitType, Runtime, Scope
from entitlements.models import Movement
from telemetry import rules
from telemetry.actions.roll_up import MOST_CLASSES, roll_up
from telemetry.actions.usage import PeriodUse, usage_of
from telemetry.models import RateCard, UsageHour
from tests.api import Api
from tests.entitlements.callers import FAILED, SUCCEEDED, used
from tests.factories import make_account
from tests.telemetry.workload import Workload
from webhost.period import key_of, period_of

pytestmark = pytest.mark.usefixtures("live_db")

NOON = datetime(2031, 5, 15, 12, tzinfo=UTC)
MAY = NOON.date().replace(day=1)
URL = "/v1/billing/usage"


@pytest.fixture
def alice() -> Workload:
    return Workload()


def hours(workload: Workload) -> list[UsageHour]:
    while Movement.objects.filter(account_id=workload.account.id).exists():
        roll_up()
    return list(UsageHour.objects.filter(account_id=workload.account.id).order_by("hour", "deployment_id"))


def call(
    workload: Workload,
    at: datetime,
    outcome: Any = SUCCEEDED,
    error: str | None = None,
    ms: int | None = None,
    **use: int,
) -> Any:
    invocation = workload.caller.admit(at=at)
    ledger.settle(invocation, outcome, used(**use), error_class=error, latency_ms=ms)
    return invocation


def by_runtime(use: PeriodUse) -> dict[str, rules.Quantities]:
    return {r.runtime: r.quantities for r in use.by_runtime}


def agree(workload: Workload, period: date = MAY) -> PeriodUse:
    """Check that ledger, hours with what is open, and the API say the same; return it."""
    use = usage_of(workload.account.id, period)
    for field in rules.Quantities.__dataclass_fields__:
        parts = sum(getattr(r.quantities, field) for r in use.by_runtime) + use.adjusted.get(field, 0)
        assert parts == getattr(use.totals, field) == workload.used(period)[field], field
    shown = Api(workload.account).get(f"{URL}?period={key_of(period)}").json
    assert shown["totals"]["tokens"] == use.totals.tokens
    assert [r["requests"] for r in shown["byRuntime"]] == [r.quantities.requests for r in use.by_runtime]
    return use


class TestRollUp:
    def test_an_hour_sums_up_what_its_calls_used(self, alice: Workload) -> None:
        call(alice, NOON, tokens=1, compute_ms=2, tool_calls=3, code_ms=4, browser_sessions=5, ms=7)
        call(alice, NOON + timedelta(minutes=59), FAILED, "TypeError", 30, tokens=10)
        call(alice, NOON + timedelta(hours=1), tokens=100)
        first, second = hours(alice)
        assert (first.hour, first.requests, first.tokens, first.compute_ms) == (NOON, 2, 11, 2)
        assert (first.tool_calls, first.code_ms, first.browser_sessions) == (3, 4, 5)
        assert (first.errors, first.errors_by_class) == (1, {"TypeError": 1})
        assert first.latency_buckets == [1, 0, 1] + [0] * 10
        assert (second.hour, second.tokens, second.errors_by_class, sum(second.latency_buckets)) == (
            NOON + timedelta(hours=1),
            100,
            {},
            0,
        )

    def test_repeating_it_changes_nothing(self, alice: Workload) -> None:
        call(alice, NOON, tokens=5)
        before = [vars(h) | {"_state": None} for h in hours(alice)]
        for _ in range(3):
            roll_up()
        assert [vars(h) | {"_state": None} for h in hours(alice)] == before

    def test_what_comes_later_is_added(self, alice: Workload) -> None:
        invocation = call(alice, NOON, FAILED, "A", 20, tokens=5)
        hours(alice)
        call(alice, NOON, FAILED, "A", 20)
        call(alice, NOON, FAILED, "B", 90_000)
        alice.caller.report(invocation, tokens=50)
        (hour,) = hours(alice)
        assert (hour.requests, hour.tokens, hour.errors, hour.errors_by_class) == (3, 50, 3, {"A": 2, "B": 1})
        assert (hour.latency_buckets[1], hour.latency_buckets[12]) == (2, 1)

    def test_given_back_calls_are_not_in_it_until_evidence_comes(self, alice: Workload) -> None:
        invocation = alice.caller.admit(at=NOON)
        ledger.void(invocation, "ConnectionRefused")
        assert hours(alice) == []
        alice.caller.report(invocation, tokens=3)
        (hour,) = hours(alice)
        assert (hour.requests, hour.tokens, hour.errors_by_class) == (1, 3, {"ConnectionRefused": 1})

    def test_classes_without_end_do_not_grow_an_hour_without_end(self, alice: Workload) -> None:
        for n in range(MOST_CLASSES + 20):
            call(alice, NOON, FAILED, f"E{n}")
            if n % 10 == 0:
                hours(alice)
        call(alice, NOON, FAILED, "E1")
        (hour,) = hours(alice)
        assert len(hour.errors_by_class) <= MOST_CLASSES + 1
        assert sum(hour.errors_by_class.values()) == hour.errors == MOST_CLASSES + 21
        assert hour.errors_by_class["other"] >= 20

    @pytest.mark.case("API-01")
    def test_two_at_once_take_each_line_once(self) -> None:
        workloads = [Workload() for _ in range(4)]
        for workload in workloads:
            for _ in range(25):
                call(workload, NOON, tokens=2)
        barrier = threading.Barrier(4)

        def roll() -> None:
            barrier.wait()
            for _ in range(5):
                roll_up()

        with ThreadPoolExecutor(4) as pool:
            for done in [pool.submit(roll) for _ in range(4)]:
                done.result()
        for workload in workloads:
            (hour,) = hours(workload)
            assert (hour.requests, hour.tokens) == (25, 50)


class TestUsage:
    def test_figures_agree_while_calls_run_and_before_anything_is_rolled_up(self, alice: Workload) -> None:
        call(alice, NOON, tokens=5, compute_ms=6)
        running = alice.caller.admit(at=NOON, tokens=400)
        alice.caller.report(running, tokens=30)
        ledger.void(alice.caller.admit(at=NOON), "ConnectionRefused")
        use = agree(alice)
        assert (use.totals.requests, use.totals.tokens, use.held.tokens, use.in_flight) == (2, 35, 370, 1)
        hours(alice)
        assert agree(alice).by_runtime == use.by_runtime
        ledger.settle(running, FAILED, used(tokens=31))
        assert agree(alice).totals.tokens == 36
        hours(alice)
        assert agree(alice).by_runtime[0].errors == 1

    def test_runtimes_stand_side_by_side(self) -> None:
        alice = Workload(runtime=Runtime.AGENTCORE, agentcore_enabled=True)
        other = Workload(alice.account)
        call(alice, NOON, tokens=5)
        call(other, NOON, tokens=7)
        use = by_runtime(agree(alice))
        assert {runtime: q.tokens for runtime, q in use.items()} == {"agentcore": 5, "cloudflare": 7}

    def test_a_correction_by_staff_is_shown_apart_and_in_the_totals(self, alice: Workload) -> None:
        call(alice, NOON, tokens=50)
        alice.caller.adjust(MAY, tokens=-20)
        use = agree(alice)
        assert (use.totals.tokens, use.adjusted) == (30, {"tokens": -20})
        assert Api(alice.account).get(f"{URL}?period=2031-05").json["adjusted"] == {"tokens": -20}

    @pytest.mark.case("PER-01")
    def test_a_month_has_its_own_first_and_last_instant_for_everybody(self, alice: Workload) -> None:
        for year, month in ((2031, 1), (2032, 2), (2031, 2), (2031, 10), (2031, 12)):
            first = datetime(year, month, 1, tzinfo=UTC)
            start_of_next = (first + timedelta(days=32)).replace(day=1)
            before, after = agree(alice, first.date()), agree(alice, start_of_next.date())
            call(alice, start_of_next - timedelta(microseconds=1), tokens=11)
            call(alice, start_of_next, tokens=22)
            hours(alice)
            assert agree(alice, first.date()).totals.tokens - before.totals.tokens == 11
            assert agree(alice, start_of_next.date()).totals.tokens - after.totals.tokens == 22

    @pytest.mark.case("PER-01")
    def test_the_clock_change_of_a_zone_neither_loses_nor_doubles_an_hour(self, alice: Workload) -> None:
        midnight = datetime(2031, 10, 26, tzinfo=UTC)
        for hour in range(24):
            call(alice, midnight + timedelta(hours=hour), tokens=1)
        assert len(hours(alice)) == 24
        assert agree(alice, date(2031, 10, 1)).totals.tokens == 24

    @pytest.mark.case("LIM-03")
    def test_a_limit_of_0_is_0_and_null_is_unlimited_and_nothing_divides_by_it(self) -> None:
        alice = Workload(max_requests_per_period=0, max_tokens_per_period=None, max_compute_ms_per_period=200)
        alice.report(computeMs=50)
        alice.statuses()
        use = usage_of(alice.account.id, period_of(datetime.now(UTC)))
        shown = {m.measure: (m.limit, m.percent) for m in use.measures}
        assert shown[LimitType.REQUESTS] == (0, 100)
        assert shown[LimitType.TOKENS] == (None, None)
        assert shown[LimitType.COMPUTE_MS] == (200, 25)

    def test_each_limit_says_where_it_comes_from(self) -> None:
        account = make_account("alice", "free", max_tokens_per_period=7)
        shown = {m["limitType"]: m for m in Api(account).get(URL).json["limits"]}
        assert shown["requests"]["source"] == "tier:free"
        assert shown["tokens"]["source"].startswith("override:")
        assert shown["tokens"]["limit"] == 7


class TestCost:
    def test_it_is_estimated_exact_and_every_day_at_its_own_price(self, alice: Workload) -> None:
        call(alice, datetime(2044, 5, 14, 23, tzinfo=UTC), tokens=33_333)
        call(alice, datetime(2044, 5, 15, 0, tzinfo=UTC), tokens=33_333)
        RateCard.objects.create(
            runtime="cloudflare", effective_from=date(2044, 5, 1), per_million_tokens=Decimal("0.15")
        )
        RateCard.objects.create(
            runtime="cloudflare", effective_from=date(2044, 5, 15), per_million_tokens=Decimal("0.30")
        )
        try:
            shown = Api(alice.account).get(f"{URL}?period=2044-05").json
        finally:
            RateCard.objects.filter(effective_from__year=2044).delete()
        assert shown["byRuntime"][0]["estimatedCost"] == shown["estimatedCostExact"] == "0.01499985"
        assert (shown["estimatedCost"], shown["currency"], shown["costIsEstimated"]) == ("0.01", "USD", True)

    def test_without_usage_it_is_nothing(self, alice: Workload) -> None:
        shown = Api(alice.account).get(URL).json
        assert (shown["byRuntime"], shown["estimatedCost"], shown["estimatedCostExact"]) == ([], "0.00", "0")


class TestAnswers:
    @pytest.mark.parametrize(
        "period",
        ["", "2031", "2031-13", "2031-00", "2031-5", "31-05", "current", "2031-05-01", "0000-01", "9999-12", "٢٠٣١-05"],
    )
    def test_a_period_that_is_none_is_400(self, period: str) -> None:
        answer = Api(make_account()).get(f"{URL}?period={period}")
        assert (answer.status, list(answer.issues)) == (400, ["period"])

    def test_a_parameter_that_is_not_known_is_400(self) -> None:
        assert Api(make_account()).get(f"{URL}?account=acc_1").status == 400

    def test_it_needs_a_token_that_may_read(self) -> None:
        assert Api().get(URL).status == 401
        assert Api(make_account(), scopes=[Scope.INVOKE]).get(URL).status == 403

    def test_nobody_sees_another_account_s(self, alice: Workload) -> None:
        call(alice, NOON, tokens=5)
        charlie = make_account("charlie")
        assert Api(charlie).get(f"{URL}?period=2031-05").json["totals"]["tokens"] == 0

    def test_it_says_when_the_budget_resets(self) -> None:
        shown = Api(make_account()).get(f"{URL}?period=2031-12").json
        assert (shown["periodKey"], shown["startsAt"], shown["resetsAt"]) == (
            "2031-12",
            "2031-12-01T00:00:00Z",
            "2032-01-01T00:00:00Z",
        )
