"""Admission on real PostgreSQL: what passes, what is refused, what it writes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import uuid4

import psycopg
import pytest
from django.db import connections

from entitlements import ledger
from entitlements.actions.admit import ask_of, check
from entitlements.enums import LimitType, Runtime
from entitlements.errors import LimitExceededError, RateLimitedError
from entitlements.models import Account, Admission, Tier
from entitlements.rules import TOOL_BUDGETS
from tests.entitlements.callers import SUCCEEDED, Caller, alice, receipt, used
from tests.factories import make_tier, override
from webhost import db
from webhost.errors import ForbiddenError, NotFoundError, UnavailableError
from webhost.ids import new_id

pytestmark = pytest.mark.usefixtures("live_db")

NOON = datetime(2031, 5, 15, 12, 0, 10, tzinfo=UTC)
MAY = NOON.date().replace(day=1)


class TestTheRequestLimit:
    @pytest.mark.case("LIM-03")
    def test_a_limit_of_0_refuses_the_first_call_and_opens_no_counter(self) -> None:
        caller = alice(max_requests_per_period=0)
        refusal = caller.refusal()
        assert isinstance(refusal, LimitExceededError)
        assert (refusal.details["current"], refusal.details["limit"]) == (0, 0)
        assert caller.counter()._state.adding
        assert not Admission.objects.filter(account_id=caller.account_id).exists()

    @pytest.mark.case("LIM-03")
    @pytest.mark.parametrize("limit", [1, 3])
    def test_a_limit_of_n_lets_exactly_n_pass(self, limit: int) -> None:
        caller = alice(max_requests_per_period=limit)
        refusals = [caller.refusal() for _ in range(limit + 3)]
        assert [r is None for r in refusals] == [True] * limit + [False] * 3
        assert caller.counter().used_requests == limit
        assert Admission.objects.filter(account_id=caller.account_id).count() == limit

    @pytest.mark.case("LIM-03")
    def test_no_limit_is_unlimited(self) -> None:
        caller = alice(max_requests_per_period=None)
        assert [caller.refusal() for _ in range(20)] == [None] * 20

    def test_the_refusal_says_what_which_period_how_much_and_the_way_out(self) -> None:
        caller = alice(max_requests_per_period=1, name=f"Tiny {new_id().hex}")
        caller.call(at=NOON)
        refusal = caller.refusal(at=NOON)
        tier = Account.objects.get(pk=caller.account_id).billing_tier
        assert refusal is not None
        assert refusal.message == f"You have used all 1 requests of the {tier} plan for May 2031."
        assert refusal.details == {
            "limitType": "requests", "periodKey": "2031-05", "current": 1, "limit": 1,
            "resetsAt": "2031-06-01T00:00:00Z", "source": f"tier:{tier.slug if tier else ''}", "exceeded": ["requests"],
            "suggestedAction": {"type": "upgrade_tier", "tier": "free", "url": "/billing/?tier=free"},
        }  # fmt: skip

    def test_editing_the_tier_is_in_force_on_the_next_request(self) -> None:
        caller = alice(max_requests_per_period=1)
        caller.call()
        assert caller.refusal() is not None
        Tier.objects.filter(billed_accounts=caller.account_id).update(max_requests_per_period=2)
        assert caller.refusal() is None
        assert caller.refusal() is not None

    def test_an_override_is_in_force_on_the_next_request_and_named_by_the_refusal(self) -> None:
        caller = alice(max_requests_per_period=1)
        caller.call()
        made = override(Account.objects.get(pk=caller.account_id), "max_requests_per_period", 2)
        assert caller.refusal() is None
        refusal = caller.refusal()
        assert refusal is not None
        assert refusal.details["source"] == f"override:{made.id}"

    def test_an_override_of_nothing_is_unlimited(self) -> None:
        caller = alice(max_requests_per_period=0)
        override(Account.objects.get(pk=caller.account_id), "max_requests_per_period", None)
        assert caller.refusal() is None

    def test_an_override_that_has_ended_says_nothing(self) -> None:
        caller = alice(max_requests_per_period=0)
        made = override(Account.objects.get(pk=caller.account_id), "max_requests_per_period", None)
        made.ends_at = NOON
        made.save()
        assert caller.refusal(at=NOON - timedelta(microseconds=1)) is None
        assert caller.refusal(at=NOON) is not None

    def test_the_next_invocation_after_a_downgrade_is_judged_by_the_new_tier(self) -> None:
        caller = alice()
        for _ in range(3):
            caller.call()
        Account.objects.filter(pk=caller.account_id).update(billing_tier=make_tier(max_requests_per_period=2))
        refusal = caller.refusal()
        assert refusal is not None
        assert (refusal.details["current"], refusal.details["limit"]) == (3, 2)

    def test_supports_tier_goes_before_billings_while_it_lasts(self) -> None:
        caller = alice(max_requests_per_period=0)
        Account.objects.filter(pk=caller.account_id).update(
            support_tier=make_tier(), support_tier_reason="A trial", support_tier_until=NOON
        )
        assert caller.refusal(at=NOON - timedelta(seconds=1)) is None
        assert caller.refusal(at=NOON) is not None


class TestEveryOtherBudget:
    BUDGETS = (
        ("max_tokens_per_period", "tokens", LimitType.TOKENS, 1),
        ("max_compute_ms_per_period", "compute_ms", LimitType.COMPUTE_MS, 1),
        ("max_tool_calls_per_period", "tool_calls", LimitType.TOOL_CALLS, 1),
        ("max_code_execution_seconds_per_period", "code_ms", LimitType.CODE_EXECUTION_SECONDS, 1000),
        ("max_browser_sessions_per_period", "browser_sessions", LimitType.BROWSER_SESSIONS, 1),
    )

    @pytest.mark.parametrize(("field", "measure", "limit_type", "unit"), BUDGETS, ids=[b[1] for b in BUDGETS])
    class TestOf:
        def allowed(self, field: str, limit: int, limit_type: LimitType) -> Caller:
            return alice(**{field: limit}).but(tools=TOOL_BUDGETS & {limit_type})

        def test_one_call_may_cross_it_and_the_next_is_refused_and_names_it(
            self, field: str, measure: str, limit_type: LimitType, unit: int
        ) -> None:
            caller = self.allowed(field, 100, limit_type)
            caller.call(**{measure: 99 * unit})
            caller.call(**{measure: 51 * unit})
            refusal = caller.refusal()
            assert isinstance(refusal, LimitExceededError)
            assert refusal.details["limitType"] == limit_type.value
            assert (refusal.details["current"], refusal.details["limit"]) == (150, 100)
            assert caller.counter().used_requests == 2

        def test_at_the_limit_exactly_it_is_refused(
            self, field: str, measure: str, limit_type: LimitType, unit: int
        ) -> None:
            caller = self.allowed(field, 100, limit_type)
            caller.call(**{measure: 100 * unit})
            assert caller.refusal() is not None

        def test_one_below_the_limit_it_passes(
            self, field: str, measure: str, limit_type: LimitType, unit: int
        ) -> None:
            caller = self.allowed(field, 100, limit_type)
            caller.call(**{measure: 100 * unit - 1})
            assert caller.refusal() is None

        def test_a_limit_of_0_refuses_the_first(
            self, field: str, measure: str, limit_type: LimitType, unit: int
        ) -> None:
            refusal = self.allowed(field, 0, limit_type).refusal()
            assert refusal is not None
            assert refusal.details["limitType"] == limit_type.value

        def test_it_passes_again_after_a_raise(
            self, field: str, measure: str, limit_type: LimitType, unit: int
        ) -> None:
            caller = self.allowed(field, 100, limit_type)
            caller.call(**{measure: 100 * unit})
            Tier.objects.filter(billed_accounts=caller.account_id).update(**{field: 101})
            assert caller.refusal() is None

        def test_it_passes_again_in_the_next_period(
            self, field: str, measure: str, limit_type: LimitType, unit: int
        ) -> None:
            caller = self.allowed(field, 100, limit_type)
            caller.call(at=NOON, **{measure: 100 * unit})
            assert caller.refusal(at=datetime(2031, 5, 31, 23, 59, 59, 999_999, tzinfo=UTC)) is not None
            assert caller.refusal(at=datetime(2031, 6, 1, tzinfo=UTC)) is None

        def test_holds_divide_it_exactly(self, field: str, measure: str, limit_type: LimitType, unit: int) -> None:
            caller = self.allowed(field, 1000, limit_type)
            refusals = [caller.refusal(**{measure: 70 * unit}) for _ in range(20)]
            assert sum(r is None for r in refusals) == 14
            refusal = refusals[-1]
            assert refusal is not None
            assert (refusal.details["current"], refusal.details["estimate"]) == (980, 70)
            assert getattr(caller.counter(), f"held_{measure}") == 980 * unit

    def test_a_tools_quota_judges_only_calls_that_may_use_the_tool(self) -> None:
        caller = alice(max_tool_calls_per_period=0)
        assert caller.refusal() is None
        assert caller.but(tools=frozenset({LimitType.TOOL_CALLS})).refusal() is not None

    def test_an_empty_quota_is_none_at_all_for_a_call_that_may_use_the_tool(self) -> None:
        caller = alice(max_tool_calls_per_period=None).but(tools=frozenset({LimitType.TOOL_CALLS}))
        assert caller.refusal() is not None


class TestRates:
    def test_the_rate_per_minute_is_exact_and_opens_with_the_next_minute(self) -> None:
        caller = alice(requests_per_minute=3)
        assert [caller.refusal(at=NOON) is None for _ in range(5)] == [True, True, True, False, False]
        refusal = caller.refusal(at=NOON)
        assert isinstance(refusal, RateLimitedError)
        assert (refusal.details["limitType"], refusal.details["current"], refusal.retry_after) == (
            "requestsPerMinute",
            3,
            50,
        )
        assert caller.refusal(at=NOON.replace(second=59, microsecond=999_999)) is not None
        assert [caller.refusal(at=NOON.replace(minute=1, second=0)) is None for _ in range(4)] == [
            True,
            True,
            True,
            False,
        ]
        assert caller.counter(MAY).used_requests == 6

    def test_a_call_that_was_given_back_still_counts_for_the_minute(self) -> None:
        caller = alice(requests_per_minute=1)
        ledger.void(caller.admit(at=NOON), "ConnectionRefused")
        assert caller.refusal(at=NOON) is not None

    @pytest.mark.parametrize("limit", [0, 1, 2])
    def test_no_more_than_the_cap_run_at_once(self, limit: int) -> None:
        caller = alice(max_concurrent_invocations=limit)
        running = [caller.admit() for _ in range(limit)]
        refusal = caller.refusal()
        assert isinstance(refusal, RateLimitedError)
        assert (refusal.details["limitType"], refusal.details["current"]) == ("concurrency", limit)
        for admission in running:
            ledger.settle(admission, SUCCEEDED, used())
        assert caller.counter().in_flight == 0
        assert [caller.refusal() is None for _ in range(limit + 1)] == [True] * limit + [False]

    def test_no_cap_is_unlimited(self) -> None:
        caller = alice(max_concurrent_invocations=None)
        assert [caller.refusal() for _ in range(30)] == [None] * 30


class TestGates:
    def test_a_closed_gate_refuses_and_counts_nothing(self) -> None:
        caller = alice().but(runtime=Runtime.AGENTCORE)
        refusal = caller.refusal()
        assert isinstance(refusal, LimitExceededError)
        assert refusal.details["limitType"] == "runtimeGated"
        assert caller.counter().used_requests == 0

    @pytest.mark.parametrize(
        ("capability", "gate"),
        [("memory", "memoryEnabled"), ("codeInterpreter", "codeInterpreterEnabled"), ("browser", "browserEnabled")],
    )
    def test_a_capability_that_the_tier_lost_refuses(self, capability: str, gate: str) -> None:
        caller = alice(agentcore_enabled=True).but(runtime=Runtime.AGENTCORE)
        assert caller.refusal() is None
        refusal = caller.but(capabilities=frozenset({capability})).refusal()
        assert refusal is not None
        assert refusal.details["limitType"] == gate

    @pytest.mark.parametrize("capability", ["memory", "codeInterpreter", "browser"])
    def test_a_full_tier_lets_every_capability_pass(self, capability: str) -> None:
        caller = alice(
            agentcore_enabled=True, memory_enabled=True, code_interpreter_enabled=True, browser_enabled=True,
            max_tool_calls_per_period=5, max_code_execution_seconds_per_period=5, max_browser_sessions_per_period=5,
        ).but(runtime=Runtime.AGENTCORE, capabilities=frozenset({capability}))  # fmt: skip
        assert caller.refusal() is None

    def test_a_tool_whose_quota_is_overridden_to_0_refuses(self) -> None:
        caller = alice(
            agentcore_enabled=True, browser_enabled=True, max_tool_calls_per_period=5, max_browser_sessions_per_period=5
        ).but(runtime=Runtime.AGENTCORE, capabilities=frozenset({"browser"}))
        assert caller.refusal() is None
        override(Account.objects.get(pk=caller.account_id), "max_browser_sessions_per_period", 0)
        refusal = caller.refusal()
        assert refusal is not None
        assert refusal.details["limitType"] == "browserEnabled"


class TestWhoMayAsk:
    def test_a_disabled_account_is_forbidden_and_nothing_is_counted(self) -> None:
        caller = alice()
        Account.objects.filter(pk=caller.account_id).update(is_active=False)
        assert isinstance(caller.refusal(), ForbiddenError)
        assert caller.counter().used_requests == 0

    def test_an_account_that_does_not_exist_is_not_found(self) -> None:
        assert isinstance(Caller(uuid4(), uuid4(), uuid4()).refusal(), NotFoundError)


class TestTheReceipt:
    def test_it_carries_the_limits_it_was_judged_by_and_the_counters_just_after(self) -> None:
        caller = alice(max_requests_per_period=10, max_tokens_per_period=1000, max_concurrent_invocations=4,
                       requests_per_minute=9)  # fmt: skip
        caller.call(tokens=100, compute_ms=7)
        open_one = caller.admit(tokens=50)
        row = receipt(caller.admit(tokens=30, compute_ms=5))
        assert (row.limit_requests, row.limit_tokens, row.limit_compute_ms, row.limit_in_flight) == (10, 1000, None, 4)
        assert (row.then_requests, row.then_tokens, row.then_compute_ms, row.then_in_flight) == (3, 180, 12, 2)
        assert (row.limit_minute, row.then_minute) in {(9, 3), (9, 2), (9, 1)}  # a minute may turn meanwhile
        assert (row.held_tokens, row.held_compute_ms) == (30, 5)
        assert receipt(open_one).then_tokens == 150

    def test_it_names_tier_version_and_overrides_with_their_values(self) -> None:
        caller = alice(max_requests_per_period=1)
        account = Account.objects.select_related("billing_tier").get(pk=caller.account_id)
        tier = account.billing_tier
        assert tier is not None
        tier.description = "Edited"
        tier.save()
        made = override(account, "max_requests_per_period", 5)
        row = receipt(caller.admit())
        assert (row.tier, row.tier_version) == (tier.slug, 2)
        assert row.overrides == {
            "ids": {"maxRequestsPerPeriod": made.id},
            "values": {"maxRequestsPerPeriod": 5},
        }
        assert row.limit_requests == 5

    def test_it_says_who_asked_and_until_when_it_may_stay_open(self) -> None:
        caller = alice()
        token, admission = uuid4(), new_id()
        subject = ledger.Subject(
            caller.account_id, caller.agent_id, caller.deployment_id, "cloudflare", 45, token_id=token
        )
        judged = ledger.judge(admission, subject, trace_id="trc_1", session_id="ses_1", at=NOON)
        assert judged is not None
        row = receipt(admission)
        assert (row.account_id, row.agent_id, row.deployment_id, row.token_id) == (
            caller.account_id, caller.agent_id, caller.deployment_id, token,
        )  # fmt: skip
        assert (row.trace_id, row.session_id, row.outcome, row.source) == ("trc_1", "ses_1", "open", "gateway")
        assert row.expires_at == NOON + timedelta(seconds=45 + 30)


class TestARepeatAfterALostAnswer:
    def test_the_same_id_does_not_count_twice(self) -> None:
        caller = alice(max_requests_per_period=5)
        admission = caller.admit()
        assert caller.admit(again=admission) == admission
        counter = caller.counter()
        assert (counter.used_requests, counter.in_flight) == (1, 1)
        assert caller.differences() == []

    @pytest.mark.parametrize("limit", [1, 2])
    def test_when_the_connection_breaks_after_counting_it_finds_its_own_admission(
        self, limit: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        caller = alice(max_requests_per_period=limit)
        losing_the_next_answer(monkeypatch)
        admission = caller.admit()
        assert caller.counter().used_requests == 1
        assert receipt(admission).outcome == "open"

    def test_when_the_connection_breaks_before_counting_it_counts_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        caller = alice(max_requests_per_period=1)
        losing_the_next_answer(monkeypatch, execute=False)
        caller.admit()
        assert caller.counter().used_requests == 1
        assert caller.refusal() is not None

    def test_when_the_database_stays_away_it_is_503_and_nothing_is_served(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        caller = alice()
        losing_the_next_answer(monkeypatch, execute=False, times=2)
        assert isinstance(caller.refusal(), UnavailableError)
        assert caller.counter().used_requests == 0

    def test_when_every_idle_connection_has_died_the_first_call_is_served(self) -> None:
        caller, pool = alice(), db.hot_pool()
        lent = [pool.getconn() for _ in range(5)]
        dead = [connection.info.backend_pid for connection in lent]
        for connection in lent:
            pool.putconn(connection)
        with connections["default"].cursor() as cursor:
            cursor.execute("SELECT pg_terminate_backend(pid, 5000) FROM unnest(%s) AS pid", [dead])
        caller.admit()
        assert caller.counter().used_requests == 1


def losing_the_next_answer(monkeypatch: pytest.MonkeyPatch, *, execute: bool = True, times: int = 1) -> None:
    """Break the connection of the next statements, after (or before) the server has done them."""
    ask, left = db._rows, [times]

    def breaking(connection: db.HotConnection, *statement: object) -> list[dict[str, object]]:
        if left[0]:
            left[0] -= 1
            if execute:
                ask(connection, *statement)  # type: ignore[arg-type]
            raise psycopg.OperationalError("the connection is lost")
        return ask(connection, *statement)  # type: ignore[arg-type]

    monkeypatch.setattr(db, "_rows", breaking)


class TestAskingWithoutConsuming:
    def test_the_answer_is_the_refusal_there_would_be(self) -> None:
        caller = alice(max_requests_per_period=1)
        assert check(caller.account_id, ask_of(caller.subject)) is None
        caller.call()
        asked, refused = check(caller.account_id, ask_of(caller.subject)), caller.refusal()
        assert asked is not None
        assert refused is not None
        assert (asked.details, asked.message) == (refused.details, refused.message)

    def test_nothing_is_consumed(self) -> None:
        caller = alice(max_requests_per_period=1)
        for _ in range(3):
            check(caller.account_id, ask_of(caller.subject))
        assert caller.counter()._state.adding
        assert caller.refusal() is None

    @pytest.mark.parametrize("taken", [0, 1, 999, 1000, 1001])
    def test_it_agrees_with_the_ledger_to_the_millisecond_of_code_execution(self, taken: int) -> None:
        caller = alice(max_code_execution_seconds_per_period=1).but(tools=frozenset({LimitType.CODE_EXECUTION_SECONDS}))
        caller.call(code_ms=taken)
        assert (check(caller.account_id, ask_of(caller.subject)) is None) is (caller.refusal() is None)

    def test_a_disabled_account_hears_that_it_is_disabled(self) -> None:
        caller = alice()
        Account.objects.filter(pk=caller.account_id).update(is_active=False)
        assert isinstance(check(caller.account_id, ask_of(caller.subject)), ForbiddenError)
