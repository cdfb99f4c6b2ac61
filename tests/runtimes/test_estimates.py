"""What is set aside for a call before it starts: pure rules, no database."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from entitlements.enums import Capability, LimitType
from runtimes import rules
from runtimes.rules import InvokeRequest, Need, estimate_of

ALL = frozenset({LimitType.TOOL_CALLS, LimitType.CODE_EXECUTION_SECONDS, LimitType.BROWSER_SESSIONS})
USED = Need(tokens=700, compute_ms=9_000, tool_calls=4, code_ms=2_500, browser_sessions=2)


def asked(prompt: str = "x" * 400, **options: object) -> InvokeRequest:
    return InvokeRequest(({"role": "user", "content": prompt},), None, options)


def estimate(
    request: InvokeRequest | None = None, *, calls: int = 50, recent: Need = USED, tools=ALL, seconds: int = 60
):
    return estimate_of(request or asked(), timeout_seconds=seconds, tools=tools, calls=calls, recent=recent)


class TestWithHistory:
    def test_the_deployments_own_recent_use_is_what_the_next_call_is_expected_to_need(self):
        assert estimate() == USED

    def test_a_prompt_longer_than_any_recent_call_counts_with_its_length(self):
        assert estimate(asked("x" * 40_000)).tokens == 10_000

    def test_compute_is_never_above_the_timeout(self):
        assert estimate(seconds=5).compute_ms == 5_000
        assert estimate(seconds=2).code_ms == 2_000


class TestWithoutHistory:
    @pytest.mark.parametrize("calls", [0, 4])
    def test_compute_is_the_whole_timeout_and_tokens_the_prompt_and_a_usual_answer(self, calls):
        found = estimate(calls=calls, recent=Need())
        assert (found.compute_ms, found.tokens) == (60_000, 100 + 1_000)

    def test_each_tool_is_expected_to_be_used(self):
        found = estimate(calls=0, recent=Need())
        assert min(found.tool_calls, found.code_ms, found.browser_sessions) >= 1


class TestWhatTheRequestSays:
    def test_max_tokens_goes_before_history(self):
        assert estimate(asked(maxTokens=50)).tokens == 150
        assert estimate(asked(maxTokens=9_000)).tokens == 9_100

    def test_max_steps_bounds_tool_calls(self):
        assert estimate(asked(maxSteps=2)).tool_calls == 2
        assert estimate(asked(maxSteps=900)).tool_calls == 4

    def test_quotas_that_do_not_speak_have_nothing_set_aside(self):
        found = estimate(tools=frozenset())
        assert (found.tool_calls, found.code_ms, found.browser_sessions) == (0, 0, 0)

    def test_a_browser_alone_holds_no_code_execution(self):
        found = estimate(tools=rules.quotas_of([Capability.BROWSER]))
        assert (found.tool_calls, found.code_ms, found.browser_sessions) == (4, 0, 2)


needs = st.builds(Need, *[st.integers(0, 10**9)] * 5)


@given(needs, st.integers(0, 60), st.integers(1, 900), st.integers(1, 10**6) | st.none())
def test_an_estimate_is_never_nothing_and_never_above_what_one_call_can_spend(recent, calls, seconds, most):
    request = asked("hi", **({"maxTokens": most} if most else {}))
    found = estimate(request, calls=calls, recent=recent, seconds=seconds)
    assert found.tokens >= 1
    assert 1 <= found.compute_ms <= seconds * 1000
    assert 1 <= found.code_ms <= seconds * 1000
    assert found.tool_calls >= 1


class TestWhatIsAllowedNow:
    GRANTED = frozenset(Capability)

    def test_tools_off_leaves_memory(self):
        assert rules.allowed_now(self.GRANTED, asked(tools="off")) == {Capability.MEMORY}

    def test_auto_leaves_everything(self):
        assert rules.allowed_now(self.GRANTED, asked(tools="auto")) == self.GRANTED
        assert rules.allowed_now(self.GRANTED, asked()) == self.GRANTED

    def test_only_a_capability_alone_is_worth_waiting_for(self):
        assert rules.only_waits_for_withdrawal(["browserEnabled", "memoryEnabled"])
        assert not rules.only_waits_for_withdrawal(["runtimeGated", "browserEnabled"])
        assert not rules.only_waits_for_withdrawal(["requests", "browserEnabled"])
        assert not rules.only_waits_for_withdrawal([])


class TestSessions:
    def test_agentcore_ends_a_session_after_its_lifecycle(self):
        assert rules.session_life("agentcore", {}) == (900, 28_800)
        assert rules.session_life("agentcore", {"idleTimeoutSeconds": 60, "maxLifetimeSeconds": 600}) == (60, 600)

    def test_cloudflare_keeps_one_for_thirty_idle_days(self):
        assert rules.session_life("cloudflare", {"idleTimeoutSeconds": 60}) == (30 * 86_400, None)
