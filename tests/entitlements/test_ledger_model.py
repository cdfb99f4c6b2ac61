"""The ledger beside a plain model of it (ledger_model.py): any verbs, in any order, months and tiers turning meanwhile."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from django.conf import settings as product
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, multiple, precondition, rule

from entitlements import ledger
from entitlements.enums import Capability, LimitType, Outcome, Runtime
from entitlements.errors import LimitExceededError, RateLimitedError
from entitlements.models import Account, Override, Tier
from entitlements.rules import KEY_OF_FIELD
from tests.entitlements.callers import Caller, alice
from tests.entitlements.ledger_model import HELD, TOOLS, Books
from webhost import db
from webhost.ids import new_id

pytestmark = [pytest.mark.usefixtures("live_db"), pytest.mark.slow]

_FIELDS = {
    "requests": "max_requests_per_period", "tokens": "max_tokens_per_period", "compute_ms": "max_compute_ms_per_period",
    "tool_calls": "max_tool_calls_per_period", "code_ms": "max_code_execution_seconds_per_period",
    "browser_sessions": "max_browser_sessions_per_period", "in_flight": "max_concurrent_invocations",
    "minute": "requests_per_minute",
}  # fmt: skip
_NAMES = {
    LimitType.REQUESTS: "requests", LimitType.TOKENS: "tokens", LimitType.COMPUTE_MS: "compute_ms",
    LimitType.TOOL_CALLS: "tool_calls", LimitType.CODE_EXECUTION_SECONDS: "code_ms",
    LimitType.BROWSER_SESSIONS: "browser_sessions", LimitType.CONCURRENCY: "in_flight",
    LimitType.REQUESTS_PER_MINUTE: "minute",
}  # fmt: skip
_TOOLS = frozenset({LimitType.TOOL_CALLS, LimitType.CODE_EXECUTION_SECONDS, LimitType.BROWSER_SESSIONS})
_LIFETIME = 60 + product.OVERDUE_GRACE_SECONDS
# Small, so that limits are met often; code execution in whole seconds, as limits are.
_figures = st.fixed_dictionaries(
    {m: st.integers(0, 4).map(lambda n, m=m: n * 1000 if m == "code_ms" else n) for m in HELD}
)
_limit = st.none() | st.integers(0, 12)
_quota = st.integers(1, 12)


class LedgerMachine(RuleBasedStateMachine):
    """One account of a tier with everything; its calls run on AgentCore and may use both tools."""

    calls: Bundle[UUID] = Bundle("calls")

    @initialize(limits=st.fixed_dictionaries({n: _quota if n in TOOLS else _limit for n in _FIELDS}))
    def open_books(self, limits: dict[str, int | None]) -> None:
        flags = dict.fromkeys(
            ("agentcore_enabled", "memory_enabled", "code_interpreter_enabled", "browser_enabled"), True
        )
        made = alice(**flags, **{_FIELDS[name]: value for name, value in limits.items()})
        capabilities = frozenset({Capability.CODE_INTERPRETER, Capability.BROWSER})
        self.caller: Caller = made.but(runtime=Runtime.AGENTCORE, capabilities=capabilities)
        self.tier = Tier.objects.get(pk=Account.objects.get(pk=made.account_id).billing_tier_id)
        self.now = datetime(2031, 5, 31, 23, 50, tzinfo=UTC)
        self.of_tier = dict(limits)
        self.overrides: dict[str, int | None] = {}
        self.said: dict[UUID, tuple[Any, ...]] = {}
        self.seen: dict[UUID, dict[str, int]] = {}
        self.books = Books({})
        self._set_limits()

    def _set_limits(self) -> None:
        self.books.limits = {
            n: v * 1000 if n == "code_ms" and v is not None else v for n, v in (self.of_tier | self.overrides).items()
        }

    # --- What happens --------------------------------------------------------------------------------

    @rule(target=calls, estimate=_figures, uses_tools=st.booleans())
    def admit(self, estimate: dict[str, int], uses_tools: bool) -> Any:
        admission_id = new_id()
        expected = self.books.refuses(self.now, estimate, TOOLS if uses_tools else ())
        caller = self.caller.but(tools=_TOOLS if uses_tools else frozenset())
        refused: set[str] = set()
        try:
            caller.admit(again=admission_id, at=self.now, **estimate)
        except (LimitExceededError, RateLimitedError) as error:
            refused = {_NAMES[LimitType(name)] for name in error.details["exceeded"]}
        assert refused == expected
        if refused:
            return multiple()
        self.books.admit(admission_id, self.now, estimate, timedelta(seconds=_LIFETIME))
        return admission_id

    @rule(call=calls)
    def admit_the_same_again(self, call: UUID) -> None:
        if not self.books.refuses(self.now, {}, ()):
            self.caller.admit(again=call, at=self.now)

    @rule(
        call=calls, outcome=st.sampled_from([Outcome.SUCCEEDED, Outcome.FAILED]), usage=_figures,
        guesses=st.booleans(), unseen=st.booleans(),
    )  # fmt: skip
    def settle(self, call: UUID, outcome: Outcome, usage: dict[str, int], guesses: bool, unseen: bool) -> None:
        # A second settlement is the first one again: the gateway repeats itself, it does not change its mind.
        first = self.said.setdefault(call, (outcome, usage, guesses, unseen))
        outcome, usage, guesses, unseen = first
        if self.books.calls[call].settled == {}:
            return  # voided: the same gateway said that it never began
        ledger.settle(call, outcome, ledger.Usage(**usage, tokens_estimated=guesses), tools_unseen=unseen)
        if self.books.calls[call].settled is None:
            self.books.calls[call].settle(outcome, usage, guesses_tokens=guesses, tools_unseen=unseen)

    @rule(call=calls, usage=_figures, trusted=st.booleans(), times=st.integers(1, 2))
    def report(self, call: UUID, usage: dict[str, int], trusted: bool, times: int) -> None:
        for _ in range(times):
            assert self.caller.report(call, trusted=trusted, **usage) is not None
            self.books.calls[call].observe(usage, trusted=trusted)

    @rule(call=calls, more=_figures)
    def look_at_its_tools(self, call: UUID, more: dict[str, int]) -> None:
        before = self.seen.get(call, {})
        seen = {m: before.get(m, 0) + more[m] for m in TOOLS}  # the provider's list only grows
        if self.books.calls[call].outcome != "voided":
            self.seen[call] = seen
        ledger.see_tools(call, **seen)
        self.books.calls[call].see_tools(seen)

    @rule(call=calls)
    def void(self, call: UUID) -> None:
        ledger.void(call, "ConnectError")
        self.books.calls[call].void()

    @rule(call=calls)
    def expire(self, call: UUID) -> None:
        db.run(ledger.SQL["expire"], {"id": call, "at": self.now})
        self.books.calls[call].expire(self.now)

    @rule(target=calls, usage=_figures, trusted=st.booleans())
    def a_report_of_an_unknown_call_arrives(self, usage: dict[str, int], trusted: bool) -> Any:
        admission_id = new_id()
        for _ in range(2):
            self.caller.adopt(admission_id, self.now, **usage)
        self.books.admit(admission_id, self.now, {}, timedelta())
        self.books.minutes[self.now.replace(second=0, microsecond=0)] -= 1  # it was never asked for
        call = self.books.calls[admission_id]
        call.outcome, call.settled, call.trusted = "succeeded", dict(usage), [usage]
        self.said[admission_id] = (Outcome.SUCCEEDED, usage, False, False)
        return admission_id

    # --- What people change, and time ------------------------------------------------------------------

    @rule(name=st.sampled_from(sorted(_FIELDS)), value=_limit)
    def edit_the_tier(self, name: str, value: int | None) -> None:
        value = max(value or 1, 1) if name in TOOLS else value
        self.of_tier[name] = value
        Tier.objects.filter(pk=self.tier.pk).update(**{_FIELDS[name]: value})
        self._set_limits()

    @rule(name=st.sampled_from(sorted(set(_FIELDS) - set(TOOLS))), value=_limit)
    def override(self, name: str, value: int | None) -> None:
        key = KEY_OF_FIELD[_FIELDS[name]]
        Override.objects.create(account_id=self.caller.account_id, key=key, value=value, reason="A test")
        self.overrides[name] = value
        self._set_limits()

    @precondition(lambda self: self.overrides)
    @rule()
    def end_the_overrides(self) -> None:
        Override.objects.filter(account_id=self.caller.account_id).update(ends_at=self.now)
        self.overrides.clear()
        self._set_limits()

    @rule(requests=st.integers(-2, 2), usage=_figures, gives_back=st.booleans())
    def adjust(self, requests: int, usage: dict[str, int], gives_back: bool) -> None:
        period = self._period()
        figures = {m: -n if gives_back else n for m, n in usage.items()} | {"requests": requests}
        if any(self.books.used(period, m) + n < 0 for m, n in figures.items()):
            return
        if self.caller.adjust(period, **figures):
            self.books.adjust(period, figures)

    @rule(seconds=st.sampled_from([1, 30, 60, _LIFETIME, 600, 31 * 86_400]))
    def time_passes(self, seconds: int) -> None:
        self.now += timedelta(seconds=seconds)

    # --- What is always true -----------------------------------------------------------------------------

    def _period(self) -> date:
        return self.now.date().replace(day=1)

    @invariant()
    def the_counters_are_the_models(self) -> None:
        if not hasattr(self, "books"):
            return
        for period in {c.period for c in self.books.calls.values()}:
            counter = self.caller.counter(period)
            found = {m: getattr(counter, f"used_{m}") for m in ("requests", *HELD)}
            assert found == {m: self.books.used(period, m) for m in ("requests", *HELD)}, f"used in {period}"
            found = {m: getattr(counter, f"held_{m}") for m in HELD}
            assert found == {m: self.books.held(period, m) for m in HELD}, f"held in {period}"
            assert counter.in_flight == self.books.running(period)

    @invariant()
    def the_ledger_proves_itself(self) -> None:
        if hasattr(self, "books"):
            assert self.caller.differences() == []


LedgerMachine.TestCase.settings = settings(
    max_examples=60, report_multiple_bugs=False, stateful_step_count=30, deadline=None, derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture, HealthCheck.filter_too_much],
)  # fmt: skip


def test_any_verbs_in_any_order_leave_what_the_model_says() -> None:
    LedgerMachine.TestCase().runTest()
