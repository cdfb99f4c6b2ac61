"""A period is a calendar month in UTC, half-open, opened by date arithmetic and by nothing else."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, timezone
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from entitlements import ledger
from entitlements.actions.standing import read_standing
from entitlements.enums import LimitType
from entitlements.models import PeriodCounter
from tests.entitlements.callers import SUCCEEDED, alice, receipt, used
from webhost.ids import new_id
from webhost.period import ends_at, key_of, next_period, period_of, previous_period, starts_at

TICK = timedelta(microseconds=1)
TURNS = {
    "31 October to 1 November": (date(2026, 10, 1), date(2026, 11, 1)),
    "31 January to 1 February": (date(2027, 1, 1), date(2027, 2, 1)),
    "28 February to 1 March": (date(2027, 2, 1), date(2027, 3, 1)),
    "29 February to 1 March": (date(2028, 2, 1), date(2028, 3, 1)),
    "31 December to 1 January": (date(2026, 12, 1), date(2027, 1, 1)),
}
EVERY_TURN = pytest.mark.parametrize(("before", "after"), TURNS.values(), ids=TURNS)


@pytest.mark.case("PER-01")
@pytest.mark.usefixtures("live_db")
class TestTheTurnOfTheMonth:
    @EVERY_TURN
    def test_the_last_instant_is_the_old_months_and_the_first_the_new_ones(self, before: date, after: date) -> None:
        caller = alice()
        caller.call(at=starts_at(after) - TICK, tokens=11)
        caller.call(at=starts_at(after), tokens=22)
        assert caller.counter(before).used_tokens == 11
        assert caller.counter(after).used_tokens == 22

    @EVERY_TURN
    def test_a_report_about_an_unknown_invocation_goes_to_the_month_of_its_own_time(
        self, before: date, after: date
    ) -> None:
        caller = alice()
        caller.adopt(new_id(), starts_at(after) - TICK, tokens=11)
        caller.adopt(new_id(), starts_at(after), tokens=22)
        assert caller.counter(before).used_tokens == 11
        assert caller.counter(after).used_tokens == 22

    @EVERY_TURN
    def test_a_spent_month_opens_again_a_second_later_without_any_job(self, before: date, after: date) -> None:
        caller = alice(max_requests_per_period=10)
        for _ in range(10):
            caller.call(at=starts_at(before))
        assert caller.refusal(at=starts_at(after) - TICK) is not None
        assert not PeriodCounter.objects.filter(account_id=caller.account_id, period=after).exists()
        assert caller.refusal(at=starts_at(after) + timedelta(seconds=1)) is None
        assert (caller.counter(before).used_requests, caller.counter(after).used_requests) == (10, 1)

    @EVERY_TURN
    def test_a_refusal_says_when_the_month_ends(self, before: date, after: date) -> None:
        caller = alice(max_requests_per_period=0)
        refusal = caller.refusal(at=starts_at(after) - TICK)
        assert refusal is not None
        assert refusal.details["periodKey"] == key_of(before)
        assert refusal.details["resetsAt"] == f"{after:%Y-%m-%d}T00:00:00Z"

    @EVERY_TURN
    def test_what_began_in_the_old_month_is_charged_to_it_whenever_it_ends(self, before: date, after: date) -> None:
        caller = alice()
        admission = caller.admit(at=starts_at(after) - TICK)
        ledger.settle(admission, SUCCEEDED, used(tokens=7))
        caller.report(admission, tokens=9)
        assert receipt(admission).period == before
        assert caller.counter(before).used_tokens == 9
        assert caller.counter(after)._state.adding

    @EVERY_TURN
    def test_what_began_in_the_old_month_and_still_runs_takes_a_slot_in_the_new_one(
        self, before: date, after: date
    ) -> None:
        caller = alice(max_concurrent_invocations=2)
        old = caller.admit(at=starts_at(after) - TICK)
        caller.admit(at=starts_at(after))
        refusal = caller.refusal(at=starts_at(after))
        assert refusal is not None
        assert (refusal.details["limitType"], refusal.details["current"]) == ("concurrency", 2)
        ledger.settle(old, SUCCEEDED, used())
        admitted = receipt(caller.admit(at=starts_at(after)))
        assert admitted.then_in_flight == 2

    def test_the_counter_shown_is_that_of_the_asked_month(self) -> None:
        caller = alice()
        caller.call(at=datetime(2026, 10, 31, 23, 59, 59, 999_999, tzinfo=UTC), tokens=11)
        caller.call(at=datetime(2026, 11, 1, tzinfo=UTC), tokens=22)
        at_two = datetime(2026, 11, 1, 2, tzinfo=UTC)
        assert read_standing(caller.account_id, at=at_two).standing.used[LimitType.TOKENS] == 22
        october = read_standing(caller.account_id, at=at_two, period=date(2026, 10, 1))
        assert october.standing.used[LimitType.TOKENS] == 11
        assert october.period == date(2026, 10, 1)

    @pytest.mark.parametrize(
        "zone", ["UTC", "America/Los_Angeles", "Asia/Kolkata", "Europe/Berlin", "Pacific/Kiritimati"]
    )
    def test_the_zone_in_which_an_instant_is_written_changes_nothing(self, zone: str) -> None:
        caller = alice()
        first = datetime(2026, 11, 1, tzinfo=UTC)
        caller.call(at=(first - TICK).astimezone(ZoneInfo(zone)), tokens=11)
        caller.call(at=first.astimezone(ZoneInfo(zone)), tokens=22)
        assert caller.counter(date(2026, 10, 1)).used_tokens == 11
        assert caller.counter(date(2026, 11, 1)).used_tokens == 22

    def test_the_autumn_hour_that_happens_twice_is_counted_once_each_time(self) -> None:
        berlin, caller = ZoneInfo("Europe/Berlin"), alice(requests_per_minute=1)
        first, again = (datetime(2026, 10, 25, 2, 30, tzinfo=berlin, fold=fold) for fold in (0, 1))
        assert again.astimezone(UTC) - first.astimezone(UTC) == timedelta(hours=1)
        caller.call(at=first)
        caller.call(at=again)
        assert caller.counter(date(2026, 10, 1)).used_requests == 2

    def test_the_session_of_the_database_may_have_any_zone(self) -> None:
        caller = alice()
        subject = ledger.Subject(caller.account_id, caller.agent_id, caller.deployment_id, "cloudflare", 60)
        with ledger.db.hot_connection() as connection, connection.transaction():
            connection.execute("SET LOCAL TIME ZONE 'Asia/Kolkata'")
            for at in (datetime(2026, 11, 1, tzinfo=UTC) - TICK, datetime(2026, 11, 1, tzinfo=UTC)):
                connection.execute(ledger.SQL["admit"], ledger.admit_parameters(new_id(), subject, at=at))
        assert caller.counter(date(2026, 10, 1)).used_requests == 1
        assert caller.counter(date(2026, 11, 1)).used_requests == 1


@pytest.mark.case("PER-01")
class TestThePeriodOfAnInstant:
    instants = st.datetimes(datetime(2000, 1, 1), datetime(2200, 1, 1)).map(lambda d: d.replace(tzinfo=UTC))  # noqa: DTZ001 - made aware by the map

    @given(instants)
    def test_every_instant_lies_in_exactly_one_period(self, at: datetime) -> None:
        period = period_of(at)
        assert starts_at(period) <= at < ends_at(period)
        assert starts_at(next_period(period)) == ends_at(period)
        assert previous_period(next_period(period)) == period

    @given(instants, st.integers(-14 * 60, 14 * 60))
    def test_the_viewers_zone_changes_nothing(self, at: datetime, minutes: int) -> None:
        assert period_of(at.astimezone(timezone(timedelta(minutes=minutes)))) == period_of(at)

    @given(instants)
    def test_a_period_is_a_calendar_month_and_not_thirty_days(self, at: datetime) -> None:
        period = period_of(at)
        assert (ends_at(period) - starts_at(period)).days == (next_period(period) - period).days
        assert next_period(period).day == 1
