"""Why is this account blocked? The rules that refuse, asked now; without a database."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from entitlements import rules
from entitlements.blocked import (
    Call,
    Obstacle,
    Verdict,
    Weight,
    answer_of,
    plain_calls,
    raised_value,
    rounded_up,
    verdict_on,
    verdict_on_cap,
)
from entitlements.enums import LimitType, Runtime
from entitlements.rules import BUDGETS, CAPS, GATES, RATES, Ask, Key, Refusal
from tests.entitlements.test_display import look_at
from tests.entitlements.tiers import NOON, tier

CLOUD = Call("A call", Ask())
CORE = Call("A call on AgentCore", Ask(runtime=Runtime.AGENTCORE))
OBSTACLE = Obstacle("Requests", "Said", "Later")


def test_a_spent_budget_ends_with_the_month_and_can_be_raised_or_given_back() -> None:
    obstacle, *_ = verdict_on(look_at(requests=10), CLOUD).obstacles
    assert obstacle.ends == "2026-12-01 00:00, in 1 d 12 h"
    assert obstacle.said == "You have used all 10 requests of the Plain plan for November 2026."
    assert obstacle.remedy == "The Bigger tier would let it pass."
    assert obstacle.would_help is not None
    assert obstacle.would_help.key == Key.MAX_REQUESTS
    assert obstacle.used


def test_a_budget_of_nothing_does_not_come_back_with_the_month() -> None:
    (obstacle,) = verdict_on(look_at(tier("none", limits={Key.MAX_REQUESTS: 0})), CLOUD).obstacles
    assert (obstacle.ends, obstacle.used) == ("Not by itself", False)


@pytest.mark.parametrize(
    ("limits", "standing", "ends"),
    [
        ({Key.MAX_CONCURRENT: 1}, {"in_flight": 1}, "When a running call ends"),
        ({Key.REQUESTS_PER_MINUTE: 1}, {"this_minute": 1}, "In 60 s, with the next minute"),
    ],
)
def test_a_rate_ends_by_itself(limits: dict[Key, int | None], standing: dict[str, int], ends: str) -> None:
    look = look_at(tier("rated", limits=limits))
    (obstacle,) = verdict_on(replace(look, standing=replace(look.standing, **standing)), CLOUD).obstacles
    assert obstacle.ends == ends


def test_a_disabled_account_passes_nothing() -> None:
    look = replace(look_at(), is_active=False, disabled_reason="Abuse")
    (obstacle,) = verdict_on(look, CLOUD).obstacles
    assert "Abuse" in obstacle.remedy
    assert not verdict_on_cap(look, "One more agent", LimitType.AGENTS, 0).passes
    assert answer_of(look, [], None).weight == Weight.BLOCKS


@pytest.mark.parametrize(("in_use", "weight"), [(True, Weight.BLOCKS), (False, Weight.NOT_INCLUDED)])
def test_a_closed_gate_blocks_only_who_uses_what_is_behind_it(in_use: bool, weight: Weight) -> None:
    assert verdict_on(look_at(), replace(CORE, in_use=in_use)).weight == weight


def test_a_runtime_that_nothing_runs_on_is_asked_about_all_the_same() -> None:
    assert [c.ask.runtime for c in plain_calls([])] == list(Runtime)
    assert [c.ask.runtime for c in plain_calls([verdict_on(look_at(), CORE)])] == [Runtime.CLOUDFLARE]


def test_a_full_cap_refuses_and_does_not_block() -> None:
    verdict = verdict_on_cap(look_at(), "One more agent", LimitType.AGENTS, 1)
    assert (verdict.weight, verdict.obstacles[0].ends) == (Weight.REFUSES, "When the customer deletes one")
    assert verdict_on_cap(look_at(), "One more agent", LimitType.AGENTS, 0).passes


@pytest.mark.parametrize(
    ("weights", "headline"),
    [
        ([Weight.BLOCKS, Weight.REFUSES], "Blocked: Requests"),
        ([Weight.REFUSES, Weight.NOT_INCLUDED], "Calls pass. Refused now: this"),
        ([Weight.NOT_INCLUDED], "Nothing blocks this account now"),
        ([], "Nothing blocks this account now"),
    ],
)
def test_the_headline_is_the_worst_of_all_answers(weights: list[Weight], headline: str) -> None:
    verdicts = [Verdict("That"), *(Verdict("This", (OBSTACLE,), w) for w in reversed(weights))]
    answer = answer_of(look_at(), verdicts, NOON)
    assert answer.headline == headline
    assert [v.passes for v in answer.verdicts] == [False] * len(weights) + [True]


@given(
    kind=st.sampled_from(sorted({*BUDGETS, *RATES} - rules.TOOL_BUDGETS)), limit=st.integers(0, 10**9),
    over=st.integers(0, 10**9), estimate=st.none() | st.integers(1, 10**9),
)  # fmt: skip
def test_what_is_offered_would_let_the_call_pass(kind: LimitType, limit: int, over: int, estimate: int | None) -> None:
    value = raised_value(Refusal(kind, limit + over, limit, estimate))
    key = rules.KEY_OF_LIMIT[kind]
    look = look_at(tier("raised", limits={key: value}))
    standing = replace(
        look.standing, used={kind: limit + over},
        in_flight=limit + over if kind == LimitType.CONCURRENCY else 0,
        this_minute=limit + over if kind == LimitType.REQUESTS_PER_MINUTE else 0,
    )  # fmt: skip
    ask = Ask(estimate={kind: estimate or 0})
    assert not rules.refusals_of(look.entitlements, standing, ask)


@given(cap=st.sampled_from(sorted(CAPS)), current=st.integers(0, 10**6))
def test_what_is_offered_for_a_cap_has_room_for_one_more(cap: LimitType, current: int) -> None:
    value = raised_value(Refusal(cap, current, current))
    look = look_at(tier("raised", limits={rules.KEY_OF_LIMIT[cap]: value}))
    assert rules.refused_by_cap(look.entitlements, cap, current) is None


@pytest.mark.parametrize("gate", sorted(GATES))
def test_a_gate_is_switched_on(gate: LimitType) -> None:
    assert raised_value(Refusal(gate)) == 1


@given(st.integers(0, 10**12))
def test_a_rounded_number_has_two_digits_and_is_not_less(number: int) -> None:
    rounded = rounded_up(number)
    assert number <= rounded <= number * 1.1 + 1
    assert len(str(rounded).rstrip("0")) <= 2
