"""When a budget runs out: the rule by itself, and as page and API say it."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone
from hypothesis import given
from hypothesis import strategies as st

from entitlements import ledger
from entitlements.enums import LimitType
from entitlements.models import Admission, Movement, PeriodCounter
from runtimes.models import Agent
from telemetry.actions.pace import forecasts_of, pace_of, run_outs_of
from telemetry.actions.usage import usage_of
from telemetry.display import forecast_text
from telemetry.forecast import LEAST, LOOKS_BACK, Answer, Forecast, run_out, window_start
from telemetry.models import UsageHour
from tests.api import Api
from tests.entitlements.admin_pages import said
from tests.entitlements.callers import FAILED, SUCCEEDED, used
from tests.factories import make_account, make_agent, make_tier
from tests.pages import inline_of
from tests.telemetry.workload import Workload
from webhost.period import ends_at, period_of

NOW = datetime(2026, 11, 10, 12, 30, tzinfo=UTC)
RESET = datetime(2026, 12, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)


def forecast(limit: int | None, taken: int, lately: int, days: float = 7) -> Forecast:
    return run_out(limit, taken, lately=lately, since=NOW - timedelta(days=days), now=NOW, resets_at=RESET)


class TestTheRule:
    def test_at_ten_a_day_a_hundred_more_take_ten_days(self) -> None:
        assert forecast(200, 100, 70) == Forecast(Answer.RUNS_OUT, datetime(2026, 11, 20, 13, tzinfo=UTC))

    def test_what_would_run_out_after_the_reset_does_not_this_month(self) -> None:
        assert forecast(306, 100, 70).answer is Answer.NOT_THIS_PERIOD
        assert forecast(304, 100, 70).answer is Answer.RUNS_OUT

    def test_no_limit_no_date(self) -> None:
        assert forecast(None, 10**12, 10**12) == Forecast(Answer.UNLIMITED)

    @pytest.mark.parametrize(("limit", "taken"), [(0, 0), (5, 5), (5, 9)])
    def test_what_is_full_is_used_up(self, limit: int, taken: int) -> None:
        assert forecast(limit, taken, 7) == Forecast(Answer.USED_UP)

    def test_less_than_a_day_tells_nothing(self) -> None:
        assert forecast(10, 1, 1, days=0.99).answer is Answer.TOO_EARLY
        assert forecast(10, 1, 1, days=1).answer is Answer.RUNS_OUT
        nothing = run_out(10, 0, lately=0, since=None, now=NOW, resets_at=RESET)
        assert nothing.answer is Answer.TOO_EARLY

    def test_who_used_nothing_lately_runs_out_of_nothing(self) -> None:
        assert forecast(10, 1, 0).answer is Answer.NOT_THIS_PERIOD

    def test_the_pace_is_a_weeks_or_since_the_first_use(self) -> None:
        young = NOW - timedelta(days=2)
        assert window_start(young, NOW) == young
        assert window_start(NOW - timedelta(days=400), NOW) == datetime(2026, 11, 3, 12, tzinfo=UTC)
        assert window_start(None, NOW) is None

    def test_in_words(self) -> None:
        assert forecast_text(forecast(200, 100, 70)) == "20 November, 13:00 UTC"
        assert forecast_text(Forecast(Answer.TOO_EARLY)) == "too early to tell"

    @given(
        limit=st.integers(0, 2**63 - 1),
        taken=st.integers(0, 2**63 - 1),
        lately=st.fractions(0, 2**63 - 1),
        age=st.timedeltas(timedelta(0), LOOKS_BACK + HOUR),
        left=st.timedeltas(timedelta(microseconds=1), timedelta(days=31)),
    )
    def test_a_date_is_never_past_nor_after_the_reset_nor_early(
        self, limit: int, taken: int, lately: Fraction, age: timedelta, left: timedelta
    ) -> None:
        found = run_out(limit, taken, lately=lately, since=NOW - age, now=NOW, resets_at=NOW + left)
        assert (found.at is not None) == (found.answer is Answer.RUNS_OUT)
        if found.at is not None:
            assert NOW <= found.at <= NOW + left
            # At that pace it is not reached an hour before.
            passed = max(found.at - HOUR - NOW, timedelta(0))
            assert taken + lately * Fraction(passed // timedelta(microseconds=1), age // timedelta(microseconds=1)) < (
                limit + 1
            )
        elif found.answer is Answer.NOT_THIS_PERIOD:
            span = Fraction(left // timedelta(microseconds=1), age // timedelta(microseconds=1))
            assert taken + lately * span <= limit

    @given(more=st.integers(0, 10**9), lately=st.integers(1, 10**9), taken=st.integers(0, 10**9))
    def test_using_faster_never_runs_out_later(self, more: int, lately: int, taken: int) -> None:
        slow, fast = forecast(10**9, taken, lately), forecast(10**9, taken, lately + more)
        assert (fast.at or RESET) <= (slow.at or RESET)

    @given(age=st.timedeltas(timedelta(0), LEAST - timedelta(microseconds=1)), lately=st.integers(0, 10**9))
    def test_a_day_is_needed_however_fast(self, age: timedelta, lately: int) -> None:
        found = run_out(10**9, 1, lately=lately, since=NOW - age, now=NOW, resets_at=RESET)
        assert found.answer is Answer.TOO_EARLY


def hour(workload: Workload, at: datetime, **sums: int) -> None:
    """Write an hour as if it had been rolled up long ago."""
    UsageHour.objects.create(
        account_id=workload.account.pk, agent_id=workload.agent.pk, deployment_id=workload.deployment.pk,
        runtime="cloudflare", hour=at.replace(minute=0, second=0, microsecond=0), **sums,
    )  # fmt: skip


@pytest.mark.usefixtures("live_db")
class TestThePaceOfAnAccount:
    NOON = datetime(2033, 5, 15, 12, tzinfo=UTC)

    def answers(self, alice: Workload, now: datetime) -> Any:
        return forecasts_of(usage_of(alice.account.pk, period_of(now), at=now), pace_of(alice.account.pk, now))

    def test_it_is_read_from_hours_journal_and_what_runs(self) -> None:
        alice = Workload(max_tokens_per_period=1000, max_requests_per_period=None)
        before = self.NOON - timedelta(days=300)
        hour(alice, before, requests=1, tokens=900)
        PeriodCounter.objects.create(account_id=alice.account.pk, period=period_of(before), used_tokens=900)
        hour(alice, self.NOON - timedelta(days=3), requests=1, tokens=60)
        PeriodCounter.objects.create(
            account_id=alice.account.pk, period=period_of(self.NOON), used_requests=1, used_tokens=60
        )
        invocation = alice.caller.admit(at=self.NOON - timedelta(hours=1))
        ledger.settle(invocation, SUCCEEDED, used(tokens=10))
        running = alice.caller.admit(at=self.NOON)
        alice.caller.report(running, tokens=30)
        pace = pace_of(alice.account.pk, self.NOON)
        assert (pace.used.tokens, pace.since) == (100, self.NOON - timedelta(days=7))
        # 900 are left, at 100 a week: 63 days.
        found = self.answers(alice, self.NOON)
        assert found[LimitType.TOKENS].answer is Answer.NOT_THIS_PERIOD
        assert found[LimitType.REQUESTS].answer is Answer.UNLIMITED

    def test_it_begins_with_the_first_use(self) -> None:
        alice = Workload()
        assert pace_of(alice.account.pk, self.NOON).since is None
        for days in (2, 3):
            hour(alice, self.NOON - timedelta(days=days), requests=1)
            assert pace_of(alice.account.pk, self.NOON).since == self.NOON - timedelta(days=days)
        hour(alice, self.NOON - timedelta(days=9), requests=1)
        assert pace_of(alice.account.pk, self.NOON).since == self.NOON - timedelta(days=7)

    def test_code_execution_is_compared_in_seconds(self) -> None:
        alice = Workload(
            agentcore_enabled=True, code_interpreter_enabled=True, max_tool_calls_per_period=10**6,
            max_code_execution_seconds_per_period=200,
        )  # fmt: skip
        hour(alice, self.NOON - timedelta(days=7), code_ms=70_000)
        PeriodCounter.objects.create(account_id=alice.account.pk, period=period_of(self.NOON), used_code_ms=70_000)
        (at,) = [f.at for m, f in self.answers(alice, self.NOON).items() if m is LimitType.CODE_EXECUTION_SECONDS]
        assert at == self.NOON + timedelta(days=13)

    def test_a_month_that_is_over_has_no_date(self) -> None:
        alice = Workload(max_tokens_per_period=1000)
        use = usage_of(alice.account.pk, period_of(self.NOON))
        assert run_outs_of(alice.account.pk, use, ends_at(period_of(self.NOON))) == {}


@pytest.fixture
def alice(live_db: None) -> Workload:
    """Somebody at 1,000 tokens a day for a week, with one of 10,000 left."""
    made = Workload(max_tokens_per_period=10_000, max_requests_per_period=0)
    now = timezone.now()
    for day in range(1, 8):
        hour(made, now - timedelta(days=day), requests=1, tokens=1_000)
    PeriodCounter.objects.create(account_id=made.account.pk, period=period_of(now), used_requests=7, used_tokens=9_999)
    return made


def overview(workload: Workload) -> Any:
    client = Client()
    client.force_login(workload.account)
    return client.get("/")


def runs_out(page: Any, measure: str) -> str:
    """Return what the overview says of a measure."""
    found = re.search(rf'id="use-{measure}".*?class="runs-out"[^>]*>(.*?)</td>', page.content.decode(), flags=re.DOTALL)
    return re.sub(r"<[^>]+>", "", found[1]).strip() if found else "nothing"


class TestTheOverview:
    def test_page_and_api_name_the_same_hour(self, alice: Workload) -> None:
        page = overview(alice)
        limits = {m["limitType"]: m["runsOutAt"] for m in Api(alice.account).get("/v1/billing/usage").json["limits"]}
        at = datetime.fromisoformat(limits["tokens"])
        # One token at a thousand a day: a minute and a half.
        assert timezone.now() - HOUR < at <= timezone.now() + 2 * HOUR
        assert runs_out(page, "tokens") == f"{at:%-d %B, %H:%M} UTC"
        assert (runs_out(page, "requests"), limits["requests"]) == ("used up", None)
        assert (runs_out(page, "computeMs"), limits["computeMs"]) == ("–", None)
        assert runs_out(page, "toolCalls") == "–"

    def test_a_month_that_is_over_has_no_date_in_the_api(self, alice: Workload) -> None:
        limits = Api(alice.account).get("/v1/billing/usage?period=2026-01").json["limits"]
        assert {m["runsOutAt"] for m in limits} == {None}

    def test_charts_show_thirty_days_with_their_table(self, alice: Workload) -> None:
        page = overview(alice)
        assert 'id="requests-data"' in page.content.decode()
        assert 'id="tokens-data"' in page.content.decode()
        yesterday = timezone.now() - timedelta(days=1)
        assert f"{yesterday:%-d %b %Y} 1,000" in said(page)
        assert inline_of(page) == []

    def test_errors_lead_to_their_receipts_and_are_inert(self, live_db: None) -> None:
        alice, mark = Workload(), "<img src=x onerror=alert(1)>"
        Agent.objects.filter(pk=alice.agent.pk).update(name=mark)
        first, last = alice.caller.admit(), alice.caller.admit()
        for invocation, error in ((first, "TypeError"), (last, mark)):
            ledger.settle(invocation, FAILED, used(), error_class=error)
        page = overview(alice)
        shown = page.content.decode()
        assert shown.index(f"/invocations/inv_{last.hex}/") < shown.index(f"/invocations/inv_{first.hex}/")
        assert "TypeError" in said(page)
        assert mark not in shown
        assert "&lt;img src=x onerror=alert(1)&gt;" in shown

    def test_errors_of_charlie_and_of_deleted_agents_are_not_there(self, live_db: None) -> None:
        alice, charlie = Workload(), Workload(make_account("charlie", make_tier()))
        for workload in (alice, charlie):
            ledger.settle(workload.caller.admit(), FAILED, used(), error_class="TypeError")
        Agent.objects.filter(pk=alice.agent.pk).update(deleted_at=timezone.now())
        # Even if a receipt of hers named an agent of his.
        Admission.objects.filter(account_id=charlie.account.pk).update(agent_id=make_agent(alice.account).pk)
        assert "No invocation failed." in said(overview(alice))

    def test_a_refusal_leads_to_its_explanation(self, live_db: None) -> None:
        alice = Workload(max_requests_per_period=0)
        assert alice.caller.refusal() is not None
        assert 'href="/docs/errors/#requests"' in overview(alice).content.decode()

    def test_the_use_of_charlie_is_in_nobody_elses_chart(self, alice: Workload) -> None:
        charlie = Workload(make_account("charlie", make_tier()))
        hour(charlie, timezone.now() - timedelta(days=1), requests=7_777_777, tokens=1)
        assert not Movement.objects.filter(account_id=charlie.account.pk).exists()
        assert "7,777,777" not in said(overview(alice))
