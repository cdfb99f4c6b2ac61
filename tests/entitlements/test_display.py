"""How limits and refusals are put into words, the same on every page."""

from __future__ import annotations

from uuid import uuid4

import pytest

from entitlements import rules
from entitlements.actions.standing import AccountStanding
from entitlements.display import advice_on, shown, tier_that_unlocks, use_line, value_lines
from entitlements.enums import LimitType
from entitlements.rules import Key
from tests.entitlements.tiers import NOON, everything, override, tier
from webhost.period import period_of

PLAIN = tier("plain", limits={Key.MAX_REQUESTS: 10, Key.MAX_AGENTS: 1, Key.MAX_TOKENS: 0})
BIGGER = tier("bigger", rank=20, limits={Key.MAX_REQUESTS: 20}, on={Key.AGENTCORE, Key.MEMORY})


def look_at(
    on: rules.TierValues = PLAIN, *, overrides: tuple[rules.OverrideValue, ...] = (), **used: int
) -> AccountStanding:
    return AccountStanding(
        account_id=uuid4(), at=NOON, period=period_of(NOON), is_active=True, disabled_reason="", tier=on,
        tier_source="default", tier_until=None, support_reason="", offered=[BIGGER, PLAIN], overrides=overrides,
        entitlements=rules.entitlements_of(on, overrides, NOON),
        standing=rules.Standing({LimitType(name): n for name, n in used.items()}, {}),
    )  # fmt: skip


@pytest.mark.case("LIM-03")
@pytest.mark.parametrize(
    ("value", "text"), [(None, "unlimited"), (0, "0"), (1, "1"), (1_234_567, "1,234,567"), (True, "yes"), (False, "no")]
)
def test_nothing_is_unlimited_and_zero_is_zero(value: object, text: str) -> None:
    assert shown(value) == text


@pytest.mark.case("LIM-03")
@pytest.mark.parametrize(
    ("limit", "used", "percent", "limit_text", "percent_text"),
    [
        (0, 0, 100, "0", "100 %"),
        (0, 5, 100, "0", "100 %"),
        (1, 0, 0, "1", "0 %"),
        (3, 1, 33, "3", "33 %"),
        (10, 15, 150, "10", "150 %"),
        (None, 5, None, "unlimited", "-"),
    ],
)
def test_a_bar_divides_by_no_zero_and_fills_at_most_whole(
    limit: int | None, used: int, percent: int | None, limit_text: str, percent_text: str
) -> None:
    line = use_line(look_at(tier(limits={Key.MAX_REQUESTS: limit})).entitlements, LimitType.REQUESTS, used, 0)
    assert (line.percent, line.limit_text, line.percent_text) == (percent, limit_text, percent_text)
    assert 0 <= line.bar <= 100


@pytest.mark.parametrize(("percent", "state"), [(0, "ok"), (79, "ok"), (80, "high"), (99, "high"), (100, "full")])
def test_a_bar_warns_from_eighty_percent_on(percent: int, state: str) -> None:
    line = use_line(look_at(tier(limits={Key.MAX_REQUESTS: 100})).entitlements, LimitType.REQUESTS, percent, 0)
    assert line.state == state


def test_what_is_held_fills_a_bar_too() -> None:
    assert use_line(look_at(PLAIN).entitlements, LimitType.REQUESTS, 4, 1).percent == 50


def test_a_tools_quota_means_nothing_without_the_tool() -> None:
    without = use_line(look_at(PLAIN).entitlements, LimitType.TOOL_CALLS, 0, 0)
    assert (without.limit_text, without.percent) == ("not in this tier", None)
    assert use_line(look_at(everything()).entitlements, LimitType.TOOL_CALLS, 0, 0).limit_text == "10"


def test_every_entitlement_is_listed_with_its_source() -> None:
    lines = {
        line.key: line for line in value_lines(look_at(overrides=(override(7, Key.MAX_AGENTS, None),)).entitlements)
    }
    assert lines.keys() == set(Key)
    assert (lines["maxAgents"].text, lines["maxAgents"].source) == ("unlimited", "set by support (override 7)")
    assert (lines["maxRequestsPerPeriod"].text, lines["maxRequestsPerPeriod"].source) == ("10", "tier plain")
    assert (lines["agentcoreEnabled"].text, lines["logsRetentionDays"].text) == ("no", "7")


class TestWhatARefusalSays:
    def test_a_spent_budget_says_how_much_when_it_is_back_and_which_tier_has_more(self) -> None:
        advice = advice_on(look_at(requests=10), LimitType.REQUESTS)
        assert advice.why == "10 of 10 requests are used."
        assert advice.what_to_do == "Wait until 1 December (UTC), or upgrade to Bigger."

    def test_a_budget_of_none_at_all_does_not_say_wait(self) -> None:
        advice = advice_on(look_at(), LimitType.TOKENS)
        assert (advice.why, advice.what_to_do) == ("Plain includes no tokens.", "Upgrade to Bigger.")

    def test_a_budget_that_has_room_again_says_try_again(self) -> None:
        assert advice_on(look_at(requests=9), LimitType.REQUESTS).what_to_do == "It has room now: try again."

    def test_a_gate_names_the_lowest_tier_that_opens_it(self) -> None:
        advice = advice_on(look_at(), LimitType.RUNTIME_GATED)
        assert (advice.why, advice.what_to_do) == ("AgentCore is not in the Plain tier.", "Upgrade to Bigger.")

    def test_a_gate_that_no_tier_opens_leads_to_support(self) -> None:
        assert advice_on(look_at(), LimitType.BROWSER_ENABLED).what_to_do == "Please contact support."

    def test_a_gate_that_is_open_now_says_try_again(self) -> None:
        assert advice_on(look_at(BIGGER), LimitType.MEMORY_ENABLED).what_to_do == "It is now: try again."

    @pytest.mark.parametrize("limit_type", list(LimitType))
    def test_there_is_advice_on_every_limit(self, limit_type: LimitType) -> None:
        for on in (PLAIN, BIGGER, everything()):
            advice = advice_on(look_at(on), limit_type)
            assert advice.why.endswith(".")
            assert advice.what_to_do.endswith(".")
            assert "None" not in advice.why + advice.what_to_do

    def test_an_override_that_closes_a_gate_closes_it_in_every_tier(self) -> None:
        look = look_at(overrides=(override(1, Key.AGENTCORE, 0),))
        assert tier_that_unlocks(look, Key.AGENTCORE) is None
