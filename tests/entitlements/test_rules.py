"""What a tier allows, and which limit refuses: every field and every gate has its own case. No database."""

from __future__ import annotations

from dataclasses import replace
from datetime import date, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from entitlements.enums import Capability, LimitType, Runtime
from entitlements.refusals import refusal_error, sentence
from entitlements.rules import (
    BUDGETS,
    CAPS,
    FLAG_OF_CAPABILITY,
    FLAGS,
    GATE_OF_FLAG,
    GATES,
    KEY_OF_FIELD,
    KEY_OF_LIMIT,
    QUOTAS,
    QUOTAS_OF_FLAG,
    RETENTION,
    TOOL_BUDGETS,
    Ask,
    Key,
    Refusal,
    Standing,
    entitlements_of,
    get_entitlements_for_tier,
    in_public_order,
    merge,
    problems_of,
    refusals_of,
    refused_by_cap,
    refused_by_gates,
    tier_that_allows,
    tier_with_cap,
)
from tests.entitlements.tiers import (
    ALL_TOOLS,
    FLAG_KEYS,
    LIMIT_KEYS,
    NOON,
    RETENTION_KEYS,
    everything,
    override,
    tier,
)

NOVEMBER = date(2026, 11, 1)
FREE_OF_EVERYTHING = Standing({}, {})


def used(**amounts: int) -> Standing:
    return Standing({LimitType[name]: amount for name, amount in amounts.items()}, {})


def ask(*tools: LimitType, **estimate: int) -> Ask:
    return Ask({LimitType[name]: amount for name, amount in estimate.items()}, frozenset(tools))


class TestEveryFieldOfATier:
    @pytest.mark.parametrize("value", [0, 1, 1000, None], ids=["0", "1", "1000", "unlimited"])
    @pytest.mark.parametrize("key", LIMIT_KEYS, ids=str)
    def test_a_limit_is_entitled_exactly_as_the_tier_says(self, key: Key, value: int | None) -> None:
        entitlements = get_entitlements_for_tier(tier("pro", limits={key: value}))
        assert entitlements.limits[key] == value
        assert entitlements.sources[key] == "tier:pro"
        assert all(entitlements.limits[other] is None for other in LIMIT_KEYS if other != key)

    @pytest.mark.parametrize("days", [1, 90])
    @pytest.mark.parametrize("key", RETENTION_KEYS, ids=str)
    def test_a_retention_is_entitled_exactly_as_the_tier_says(self, key: Key, days: int) -> None:
        entitlements = get_entitlements_for_tier(tier("pro", retention={key: days}))
        assert entitlements.retention[key] == days
        assert entitlements.sources[key] == "tier:pro"

    @pytest.mark.parametrize("flag", FLAG_KEYS, ids=str)
    def test_a_switch_of_a_full_tier_is_on(self, flag: Key) -> None:
        assert get_entitlements_for_tier(everything()).runtime_access[flag] is True

    @pytest.mark.parametrize("flag", FLAG_KEYS, ids=str)
    def test_a_switch_of_a_plain_tier_is_off(self, flag: Key) -> None:
        assert get_entitlements_for_tier(tier()).runtime_access[flag] is False

    @pytest.mark.parametrize("flag", [f for f in FLAG_KEYS if f != Key.AGENTCORE], ids=str)
    def test_switching_one_capability_off_leaves_the_others_on(self, flag: Key) -> None:
        entitlements = get_entitlements_for_tier(tier(limits=ALL_TOOLS, on=set(FLAGS) - {flag}))
        assert {f for f in FLAGS if not entitlements.allows(f)} == {flag}

    def test_switching_agentcore_off_switches_every_capability_off(self) -> None:
        entitlements = get_entitlements_for_tier(tier(limits=ALL_TOOLS, on=set(FLAGS) - {Key.AGENTCORE}))
        assert not any(entitlements.runtime_access.values())

    def test_name_and_version_of_the_tier_are_carried_along(self) -> None:
        entitlements = get_entitlements_for_tier(replace(tier("pro"), version=7))
        assert (entitlements.tier, entitlements.tier_name, entitlements.tier_version) == ("pro", "Pro", 7)

    def test_the_same_tier_gives_the_same_entitlements(self) -> None:
        assert get_entitlements_for_tier(everything()) == get_entitlements_for_tier(everything())

    def test_every_key_is_a_limit_a_switch_or_a_retention_and_nothing_twice(self) -> None:
        assert sorted([*LIMIT_KEYS, *FLAG_KEYS, *RETENTION_KEYS]) == sorted(Key)

    def test_every_field_of_the_tiers_table_has_its_key(self) -> None:
        from entitlements.models import ENTITLEMENT_FIELDS, Tier

        assert set(KEY_OF_FIELD) == set(ENTITLEMENT_FIELDS)
        assert set(KEY_OF_FIELD.values()) == set(Key)
        about_the_product = {
            "id",
            "slug",
            "name",
            "description",
            "rank",
            "is_public",
            "is_default",
            "retired_at",
            "version",
        }
        assert {f.name for f in Tier._meta.concrete_fields} == set(ENTITLEMENT_FIELDS) | about_the_product

    def test_every_limit_that_a_refusal_may_name_has_its_key(self) -> None:
        assert set(KEY_OF_LIMIT) == set(LimitType)
        assert set(KEY_OF_LIMIT.values()) == set(Key) - RETENTION


class TestATierThatCannotBeSold:
    @pytest.mark.parametrize("key", LIMIT_KEYS, ids=str)
    def test_a_negative_limit(self, key: Key) -> None:
        assert [p.key for p in problems_of(tier(limits={key: -1}))] == [key]

    @pytest.mark.parametrize("key", LIMIT_KEYS, ids=str)
    @pytest.mark.parametrize("value", [0, 1, None], ids=["0", "1", "unlimited"])
    def test_but_0_1_and_unlimited_are_fine(self, key: Key, value: int | None) -> None:
        assert problems_of(tier(limits={key: value})) == []

    @pytest.mark.parametrize("flag", [f for f in FLAG_KEYS if f != Key.AGENTCORE], ids=str)
    def test_a_capability_without_agentcore(self, flag: Key) -> None:
        assert [p.key for p in problems_of(tier(limits=ALL_TOOLS, on={flag}))] == [flag]

    @pytest.mark.parametrize("value", [0, None], ids=["0", "empty"])
    @pytest.mark.parametrize(
        ("flag", "quota"), [(f, q) for f, quotas in QUOTAS_OF_FLAG.items() for q in quotas], ids=str
    )
    def test_a_tool_without_its_quota(self, flag: Key, quota: Key, value: int | None) -> None:
        assert [p.key for p in problems_of(tier(limits=ALL_TOOLS | {quota: value}, on={Key.AGENTCORE, flag}))] == [
            quota
        ]

    @pytest.mark.parametrize("key", RETENTION_KEYS, ids=str)
    def test_keeping_nothing(self, key: Key) -> None:
        assert [p.key for p in problems_of(tier(retention={key: 0}))] == [key]

    def test_a_full_and_a_plain_tier_are_fine(self) -> None:
        assert problems_of(everything()) == problems_of(tier()) == []

    def test_memory_needs_no_quota(self) -> None:
        assert problems_of(tier(limits=dict.fromkeys(QUOTAS, 0), on={Key.AGENTCORE, Key.MEMORY})) == []


class TestOverrides:
    @pytest.mark.parametrize("key", LIMIT_KEYS, ids=str)
    @pytest.mark.parametrize("value", [0, 5, None], ids=["0", "5", "unlimited"])
    def test_a_limit_is_replaced_and_says_by_which_override(self, key: Key, value: int | None) -> None:
        entitlements = entitlements_of(tier(limits={key: 3}), [override(12, key, value)], NOON)
        assert entitlements.limits[key] == value
        assert entitlements.sources[key] == "override:12"
        assert {entitlements.sources[other] for other in Key if other != key} == {"tier:plain"}

    @pytest.mark.parametrize("key", RETENTION_KEYS, ids=str)
    def test_a_retention_is_replaced(self, key: Key) -> None:
        entitlements = entitlements_of(tier(), [override(12, key, 400)], NOON)
        assert (entitlements.retention[key], entitlements.sources[key]) == (400, "override:12")

    @pytest.mark.parametrize("flag", FLAG_KEYS, ids=str)
    def test_a_switch_is_turned_on(self, flag: Key) -> None:
        plain = tier(limits=ALL_TOOLS, on={Key.AGENTCORE} - {flag})
        assert entitlements_of(plain, [override(1, flag, 1)], NOON).allows(flag)

    @pytest.mark.parametrize("flag", FLAG_KEYS, ids=str)
    def test_a_switch_is_turned_off(self, flag: Key) -> None:
        assert not entitlements_of(everything(), [override(1, flag, 0)], NOON).allows(flag)

    @pytest.mark.parametrize("given", [(1, 2), (2, 1)], ids=["in order", "out of order"])
    def test_of_two_for_the_same_key_the_newest_wins(self, given: tuple[int, int]) -> None:
        both = [override(n, Key.MAX_TOKENS, n * 100) for n in given]
        entitlements = entitlements_of(tier(), both, NOON)
        assert (entitlements.limits[Key.MAX_TOKENS], entitlements.sources[Key.MAX_TOKENS]) == (200, "override:2")

    def test_an_expired_one_says_nothing(self) -> None:
        ended = override(9, Key.MAX_TOKENS, 1, NOON - timedelta(microseconds=1))
        assert entitlements_of(tier(limits={Key.MAX_TOKENS: 3}), [ended], NOON).limits[Key.MAX_TOKENS] == 3

    def test_at_its_very_end_it_says_nothing_any_more(self) -> None:
        assert entitlements_of(tier(), [override(9, Key.MAX_TOKENS, 1, NOON)], NOON).limits[Key.MAX_TOKENS] is None

    def test_until_its_end_it_is_in_force(self) -> None:
        live = override(9, Key.MAX_TOKENS, 1, NOON + timedelta(microseconds=1))
        assert entitlements_of(tier(), [live], NOON).limits[Key.MAX_TOKENS] == 1

    def test_when_the_newest_has_expired_the_one_before_is_in_force_again(self) -> None:
        older, newer = override(1, Key.MAX_TOKENS, 7), override(2, Key.MAX_TOKENS, 8, NOON)
        assert entitlements_of(tier(), [older, newer], NOON).limits[Key.MAX_TOKENS] == 7

    @pytest.mark.parametrize(
        ("flag", "quota"), [(f, q) for f, quotas in QUOTAS_OF_FLAG.items() for q in quotas], ids=str
    )
    def test_a_tool_whose_quota_is_overridden_to_0_is_off(self, flag: Key, quota: Key) -> None:
        assert not entitlements_of(everything(), [override(1, quota, 0)], NOON).allows(flag)

    @pytest.mark.parametrize("flag", QUOTAS_OF_FLAG, ids=str)
    def test_a_tool_switched_on_without_its_quota_is_off(self, flag: Key) -> None:
        memory_only = tier(limits=dict.fromkeys(QUOTAS, 0), on={Key.AGENTCORE, Key.MEMORY})
        assert not entitlements_of(memory_only, [override(1, flag, 1)], NOON).allows(flag)

    @pytest.mark.parametrize("flag", QUOTAS_OF_FLAG, ids=str)
    def test_a_tool_switched_on_together_with_its_quotas_is_on(self, flag: Key) -> None:
        memory_only = tier(limits=dict.fromkeys(QUOTAS, 0), on={Key.AGENTCORE, Key.MEMORY})
        quotas = [override(n, quota, 5) for n, quota in enumerate(QUOTAS_OF_FLAG[flag])]
        assert entitlements_of(memory_only, [*quotas, override(9, flag, 1)], NOON).allows(flag)

    def test_memory_switched_on_without_agentcore_is_off(self) -> None:
        assert not entitlements_of(tier(), [override(1, Key.MEMORY, 1)], NOON).allows(Key.MEMORY)

    def test_merge_shows_what_would_break_the_rules_so_that_it_can_be_refused_when_saved(self) -> None:
        merged, _ = merge(tier(), [override(1, Key.BROWSER, 1)], NOON)
        assert Key.BROWSER in {p.key for p in problems_of(merged)}


class TestEveryGate:
    @pytest.mark.parametrize("capability", [None, *Capability], ids=str)
    def test_cloudflare_is_open_to_every_tier(self, capability: Capability | None) -> None:
        assert (
            refused_by_gates(get_entitlements_for_tier(tier()), Runtime.CLOUDFLARE, [capability] if capability else [])
            == []
        )

    def test_agentcore_is_closed_without_agentcore(self) -> None:
        assert refused_by_gates(get_entitlements_for_tier(tier()), Runtime.AGENTCORE) == [LimitType.RUNTIME_GATED]

    def test_agentcore_is_open_with_agentcore(self) -> None:
        plain = get_entitlements_for_tier(tier(on={Key.AGENTCORE}))
        assert refused_by_gates(plain, Runtime.AGENTCORE) == []

    @pytest.mark.parametrize(
        ("capability", "gate"),
        [
            (Capability.MEMORY, LimitType.MEMORY_ENABLED),
            (Capability.CODE_INTERPRETER, LimitType.CODE_INTERPRETER_ENABLED),
            (Capability.BROWSER, LimitType.BROWSER_ENABLED),
        ],
        ids=str,
    )
    class TestOfACapability:
        def test_it_is_closed_without_it_and_names_it(self, capability: Capability, gate: LimitType) -> None:
            without = tier(limits=ALL_TOOLS, on=set(FLAGS) - {FLAG_OF_CAPABILITY[capability]})
            assert refused_by_gates(get_entitlements_for_tier(without), Runtime.AGENTCORE, [capability]) == [gate]

        def test_it_is_open_with_it(self, capability: Capability, gate: LimitType) -> None:
            assert refused_by_gates(get_entitlements_for_tier(everything()), Runtime.AGENTCORE, [capability]) == []

        def test_who_does_not_want_it_is_not_refused_by_it(self, capability: Capability, gate: LimitType) -> None:
            without = tier(limits=ALL_TOOLS, on=set(FLAGS) - {FLAG_OF_CAPABILITY[capability]})
            others = set(Capability) - {capability}
            assert refused_by_gates(get_entitlements_for_tier(without), Runtime.AGENTCORE, others) == []

        def test_it_is_named_by_its_public_name_too(self, capability: Capability, gate: LimitType) -> None:
            without = tier(limits=ALL_TOOLS, on=set(FLAGS) - {FLAG_OF_CAPABILITY[capability]})
            found = refused_by_gates(get_entitlements_for_tier(without), "agentcore", [capability.value])
            assert found == [gate]

        def test_it_refuses_the_invocation(self, capability: Capability, gate: LimitType) -> None:
            without = tier(limits=ALL_TOOLS, on=set(FLAGS) - {FLAG_OF_CAPABILITY[capability]})
            wish = Ask(runtime=Runtime.AGENTCORE, capabilities=frozenset({capability}))
            assert refusals_of(get_entitlements_for_tier(without), FREE_OF_EVERYTHING, wish) == [Refusal(gate)]

    def test_several_closed_gates_are_all_named_runtime_first(self) -> None:
        found = refused_by_gates(
            get_entitlements_for_tier(tier()), Runtime.AGENTCORE, [Capability.BROWSER, Capability.MEMORY]
        )
        assert found == [LimitType.RUNTIME_GATED, LimitType.MEMORY_ENABLED, LimitType.BROWSER_ENABLED]

    def test_every_switch_has_its_gate(self) -> None:
        assert set(GATE_OF_FLAG) == FLAGS
        assert set(FLAG_OF_CAPABILITY) == set(Capability)


class TestEveryBudget:
    """A tool's budget is asked with that tool allowed; TestTools says what happens without."""

    @pytest.mark.parametrize("measure", BUDGETS, ids=str)
    class TestOf:
        def refused(self, measure: LimitType, limit: int | None, current: int, estimate: int = 0) -> list[Refusal]:
            entitlements = get_entitlements_for_tier(tier(limits={KEY_OF_LIMIT[measure]: limit}))
            wish = Ask({measure: estimate}, frozenset({measure} & TOOL_BUDGETS))
            return refusals_of(entitlements, Standing({measure: current}, {}), wish)

        def test_a_limit_of_0_refuses_the_first(self, measure: LimitType) -> None:
            assert self.refused(measure, 0, 0) == [Refusal(measure, 0, 0)]

        def test_a_limit_of_1_lets_one_pass(self, measure: LimitType) -> None:
            assert self.refused(measure, 1, 0) == []

        def test_a_limit_of_1_refuses_the_second(self, measure: LimitType) -> None:
            assert self.refused(measure, 1, 1) == [Refusal(measure, 1, 1)]

        def test_one_below_the_limit_passes(self, measure: LimitType) -> None:
            assert self.refused(measure, 1000, 999) == []

        def test_at_the_limit_it_is_refused(self, measure: LimitType) -> None:
            assert self.refused(measure, 1000, 1000) == [Refusal(measure, 1000, 1000)]

        def test_over_the_limit_it_is_refused_and_says_how_far(self, measure: LimitType) -> None:
            assert self.refused(measure, 1000, 1234) == [Refusal(measure, 1234, 1000)]

        def test_what_is_held_counts_like_what_is_used(self, measure: LimitType) -> None:
            entitlements = get_entitlements_for_tier(tier(limits={KEY_OF_LIMIT[measure]: 10}))
            wish = Ask(tools=frozenset({measure} & TOOL_BUDGETS))
            assert refusals_of(entitlements, Standing({measure: 4}, {measure: 5}), wish) == []
            assert refusals_of(entitlements, Standing({measure: 4}, {measure: 6}), wish) == [Refusal(measure, 10, 10)]

        def test_an_estimate_that_just_fits_passes(self, measure: LimitType) -> None:
            assert self.refused(measure, 10, 6, estimate=4) == []

        def test_an_estimate_that_does_not_fit_is_refused_and_named(self, measure: LimitType) -> None:
            assert self.refused(measure, 10, 6, estimate=5) == [Refusal(measure, 6, 10, estimate=5)]

        def test_on_a_spent_budget_it_is_not_the_estimate_that_refuses(self, measure: LimitType) -> None:
            assert self.refused(measure, 10, 10, estimate=5) == [Refusal(measure, 10, 10)]

    @pytest.mark.parametrize("measure", [m for m in BUDGETS if m not in TOOL_BUDGETS], ids=str)
    def test_unlimited_never_refuses(self, measure: LimitType) -> None:
        entitlements = get_entitlements_for_tier(tier())
        assert refusals_of(entitlements, Standing({measure: 10**15}, {}), Ask({measure: 10**12})) == []


class TestTools:
    @pytest.mark.parametrize("limit", [0, None], ids=["0", "empty"])
    @pytest.mark.parametrize("measure", sorted(TOOL_BUDGETS), ids=str)
    def test_a_quota_says_nothing_where_its_tool_may_not_be_used(self, measure: LimitType, limit: int | None) -> None:
        entitlements = get_entitlements_for_tier(tier(limits={KEY_OF_LIMIT[measure]: limit}))
        others = TOOL_BUDGETS - {measure}
        assert measure not in {r.limit_type for r in refusals_of(entitlements, used(), Ask(tools=others))}
        assert refusals_of(entitlements, used(), Ask()) == []

    @pytest.mark.parametrize("measure", sorted(TOOL_BUDGETS), ids=str)
    def test_an_empty_quota_is_none_at_all_where_the_tool_may_be_used(self, measure: LimitType) -> None:
        entitlements = get_entitlements_for_tier(tier())
        assert refusals_of(entitlements, used(), Ask(tools=frozenset({measure}))) == [Refusal(measure, 0, 0)]

    @pytest.mark.parametrize(
        ("taken_ms", "wanted_ms", "passes"),
        [(0, 0, True), (999, 0, True), (999, 1, True), (1000, 0, False), (400, 600, True), (400, 601, False)],
    )
    def test_code_execution_is_judged_in_milliseconds_like_the_ledger_does(
        self, taken_ms: int, wanted_ms: int, passes: bool
    ) -> None:
        code = LimitType.CODE_EXECUTION_SECONDS
        entitlements = get_entitlements_for_tier(tier(limits={Key.MAX_CODE_SECONDS: 1}))
        standing = Standing({code: -(-taken_ms // 1000)}, {}, code_ms=taken_ms)
        wish = Ask({code: -(-wanted_ms // 1000)}, frozenset({code}), code_ms=wanted_ms)
        assert (refusals_of(entitlements, standing, wish) == []) is passes


class TestRates:
    @pytest.mark.parametrize(
        ("limit", "current", "passes"),
        [(0, 0, False), (1, 0, True), (1, 1, False), (5, 4, True), (5, 5, False), (5, 9, False), (None, 10**9, True)],
    )
    def test_concurrency(self, limit: int | None, current: int, passes: bool) -> None:
        entitlements = get_entitlements_for_tier(tier(limits={Key.MAX_CONCURRENT: limit}))
        found = refusals_of(entitlements, Standing({}, {}, in_flight=current), Ask())
        assert found == ([] if passes else [Refusal(LimitType.CONCURRENCY, current, limit)])

    @pytest.mark.parametrize(
        ("limit", "current", "passes"),
        [(0, 0, False), (1, 0, True), (1, 1, False), (60, 59, True), (60, 60, False), (None, 10**9, True)],
    )
    def test_requests_per_minute(self, limit: int | None, current: int, passes: bool) -> None:
        entitlements = get_entitlements_for_tier(tier(limits={Key.REQUESTS_PER_MINUTE: limit}))
        found = refusals_of(entitlements, Standing({}, {}, this_minute=current), Ask())
        assert found == ([] if passes else [Refusal(LimitType.REQUESTS_PER_MINUTE, current, limit)])


class TestCaps:
    @pytest.mark.parametrize("cap", sorted(CAPS), ids=str)
    @pytest.mark.parametrize(
        ("limit", "current", "passes"),
        [(0, 0, False), (1, 0, True), (1, 1, False), (3, 2, True), (3, 3, False), (3, 5, False), (None, 10**9, True)],
    )
    def test_one_more_passes_while_it_fits(self, cap: LimitType, limit: int | None, current: int, passes: bool) -> None:
        entitlements = get_entitlements_for_tier(tier(limits={KEY_OF_LIMIT[cap]: limit}))
        assert refused_by_cap(entitlements, cap, current) == (None if passes else Refusal(cap, current, limit))


class TestSeveralRefusals:
    def test_quotas_of_an_open_capability_speak_and_those_behind_a_closed_gate_do_not(self) -> None:
        limits = dict.fromkeys(LIMIT_KEYS, 1000) | {Key.MAX_BROWSER_SESSIONS: 0}
        wish = Ask(tools=TOOL_BUDGETS, runtime=Runtime.AGENTCORE, capabilities=frozenset(Capability))
        spent = Standing({LimitType.TOOL_CALLS: 1000, LimitType.BROWSER_SESSIONS: 5}, {})
        found = refusals_of(
            get_entitlements_for_tier(tier(limits=limits, on={Key.AGENTCORE, Key.CODE_INTERPRETER})), spent, wish
        )
        assert [r.limit_type for r in found] == [
            LimitType.TOOL_CALLS, LimitType.MEMORY_ENABLED, LimitType.BROWSER_ENABLED,
        ]  # fmt: skip

    def test_all_are_listed_in_the_public_order(self) -> None:
        nothing = get_entitlements_for_tier(tier(limits=dict.fromkeys(LIMIT_KEYS, 0)))
        wish = Ask(tools=TOOL_BUDGETS, runtime=Runtime.AGENTCORE, capabilities=frozenset(Capability))
        found = [r.limit_type for r in refusals_of(nothing, FREE_OF_EVERYTHING, wish)]
        # A tool's quota says nothing behind a closed gate: the gate speaks.
        assert found == [limit for limit in LimitType if limit not in CAPS | TOOL_BUDGETS]

    def test_the_public_order_is_that_of_the_contract(self) -> None:
        contract = (
            "requests tokens computeMs toolCalls codeExecutionSeconds browserSessions concurrency requestsPerMinute "
            "agents deployments runtimeGated memoryEnabled codeInterpreterEnabled browserEnabled"
        )
        assert [limit.value for limit in LimitType] == contract.split()
        assert in_public_order(reversed(LimitType)) == list(LimitType)

    def test_the_first_is_named_and_all_are_in_exceeded(self) -> None:
        plain = get_entitlements_for_tier(tier(limits={Key.MAX_REQUESTS: 1, Key.MAX_TOKENS: 5, Key.MAX_CONCURRENT: 0}))
        found = refusals_of(plain, used(REQUESTS=1, TOKENS=9), Ask())
        error = refusal_error(found, plain, period=NOVEMBER, at=NOON, way_out=None)
        assert error.details["limitType"] == "requests"
        assert error.details["exceeded"] == ["requests", "tokens", "concurrency"]


class TestTheRefusalThatIsTold:
    def told(self, refusal: Refusal, source: int | None = None) -> dict[str, object]:
        key = KEY_OF_LIMIT[refusal.limit_type]
        given_overrides = [override(source, key, 1)] if source else []
        entitlements = entitlements_of(tier("free"), given_overrides, NOON)
        error = refusal_error([refusal], entitlements, period=NOVEMBER, at=NOON, way_out=tier("starter"))
        return {
            "status": int(error.status),
            "message": error.message,
            "retry_after": error.retry_after,
            **error.details,
        }

    def test_a_budget_carries_period_numbers_reset_and_the_way_out(self) -> None:
        assert self.told(Refusal(LimitType.REQUESTS, 1000, 1000)) == {
            "status": 402,
            "message": "You have used all 1,000 requests of the Free plan for November 2026.",
            "retry_after": None,
            "limitType": "requests",
            "periodKey": "2026-11",
            "current": 1000,
            "limit": 1000,
            "resetsAt": "2026-12-01T00:00:00Z",
            "source": "tier:free",
            "suggestedAction": {"type": "upgrade_tier", "tier": "starter", "url": "/billing/?tier=starter"},
            "exceeded": ["requests"],
        }

    def test_an_overridden_limit_names_the_override(self) -> None:
        assert self.told(Refusal(LimitType.TOKENS, 1, 1), source=123)["source"] == "override:123"

    def test_an_estimate_that_refused_is_told(self) -> None:
        told = self.told(Refusal(LimitType.TOKENS, 900, 1000, estimate=500))
        assert told["estimate"] == 500
        assert told["message"] == (
            "This call is estimated to need 500 tokens, and 100 of 1,000 are left of the Free plan for November 2026."
        )

    @pytest.mark.parametrize("gate", sorted(GATES), ids=str)
    def test_a_gate_carries_the_period_and_no_numbers(self, gate: LimitType) -> None:
        told = self.told(Refusal(gate))
        assert (told["status"], told["limitType"], told["periodKey"]) == (402, gate.value, "2026-11")
        assert not {"current", "limit", "resetsAt"} & told.keys()

    @pytest.mark.parametrize("cap", sorted(CAPS), ids=str)
    def test_a_cap_carries_numbers_and_no_period(self, cap: LimitType) -> None:
        told = self.told(Refusal(cap, 3, 3))
        assert (told["status"], told["periodKey"], told["current"], told["limit"]) == (402, None, 3, 3)

    def test_concurrency_is_429_and_worth_a_try_in_a_second(self) -> None:
        told = self.told(Refusal(LimitType.CONCURRENCY, 5, 5))
        assert (told["status"], told["retry_after"], told["limitType"]) == (429, 1, "concurrency")

    def test_the_rate_per_minute_is_429_until_the_minute_is_over(self) -> None:
        plain = get_entitlements_for_tier(tier("free"))
        found = [Refusal(LimitType.REQUESTS_PER_MINUTE, 60, 60)]
        error = refusal_error(found, plain, period=NOVEMBER, at=NOON.replace(second=45), way_out=None)
        assert (int(error.status), error.retry_after, error.retryable) == (429, 15, True)

    def test_where_no_tier_would_do_it_says_to_contact_support(self) -> None:
        plain = get_entitlements_for_tier(tier("free"))
        error = refusal_error([Refusal(LimitType.REQUESTS, 1, 1)], plain, period=NOVEMBER, at=NOON, way_out=None)
        assert error.details["suggestedAction"] == {"type": "contact_support"}

    @pytest.mark.parametrize("limit_type", list(LimitType), ids=str)
    def test_every_limit_has_a_sentence_for_people(self, limit_type: LimitType) -> None:
        said = sentence(Refusal(limit_type, 3, 3), "Free", NOVEMBER)
        assert said.endswith(".")
        assert "Free plan" in said

    @pytest.mark.case("LIM-03")
    @pytest.mark.parametrize("measure", BUDGETS, ids=str)
    def test_a_limit_of_0_is_told_as_none_and_never_as_unlimited(self, measure: LimitType) -> None:
        said = sentence(Refusal(measure, 0, 0), "Free", NOVEMBER)
        assert "includes no" in said
        assert "unlimited" not in said


class TestTheWayOut:
    FREE = tier("free", rank=10, limits={Key.MAX_REQUESTS: 10, Key.MAX_AGENTS: 1})
    PRO = tier("pro", rank=30, limits={Key.MAX_REQUESTS: 1000, Key.MAX_AGENTS: 9}, on={Key.AGENTCORE})
    STARTER = tier("starter", rank=20, limits={Key.MAX_REQUESTS: 100, Key.MAX_AGENTS: 5})
    OFFERED = (FREE, PRO, STARTER)  # out of order on purpose

    def way_out(self, standing: Standing, wish: Ask, *overrides: object) -> str | None:
        found = tier_that_allows(self.OFFERED, overrides, NOON, standing, wish)  # type: ignore[arg-type]
        return found.slug if found else None

    def test_it_is_the_lowest_tier_under_which_the_same_request_passes(self) -> None:
        assert self.way_out(used(REQUESTS=10), Ask()) == "starter"

    def test_what_is_used_already_counts_under_the_new_tier_too(self) -> None:
        assert self.way_out(used(REQUESTS=100), Ask()) == "pro"

    def test_it_is_nothing_where_no_tier_would_do(self) -> None:
        assert self.way_out(used(REQUESTS=1000), Ask()) is None

    def test_a_gated_runtime_suggests_the_lowest_tier_that_has_it(self) -> None:
        assert self.way_out(used(), Ask(runtime=Runtime.AGENTCORE)) == "pro"

    def test_an_override_stays_in_force_under_every_tier(self) -> None:
        assert self.way_out(used(REQUESTS=10), Ask(), override(1, Key.MAX_REQUESTS, 10)) is None

    @pytest.mark.parametrize(("agents", "slug"), [(0, "free"), (1, "starter"), (5, "pro"), (9, None)])
    def test_a_cap_suggests_the_lowest_tier_with_room(self, agents: int, slug: str | None) -> None:
        found = tier_with_cap(self.OFFERED, [], NOON, LimitType.AGENTS, agents)
        assert (found.slug if found else None) == slug


amounts = st.integers(0, 50)
limits = st.one_of(st.none(), st.integers(0, 50))
budget = st.sampled_from(BUDGETS)


@st.composite
def tiers(draw: st.DrawFn):
    """Any tier at all, sellable or not."""
    return tier(
        limits={key: draw(limits) for key in LIMIT_KEYS},
        on={flag for flag in FLAG_KEYS if draw(st.booleans())},
        retention={key: draw(st.integers(1, 400)) for key in RETENTION_KEYS},
    )


@st.composite
def some_overrides(draw: st.DrawFn):
    """Overrides as the database allows them, of any age, live and expired."""
    found = []
    for number in range(draw(st.integers(0, 6))):
        key = draw(st.sampled_from(list(Key)))
        if key in FLAGS:
            value = draw(st.integers(0, 1))
        elif key in RETENTION:
            value = draw(st.integers(1, 400))
        elif key in QUOTAS:
            value = draw(st.integers(0, 50))
        else:
            value = draw(limits)
        ends = draw(st.sampled_from([None, NOON - timedelta(1), NOON, NOON + timedelta(1)]))
        found.append(override(number, key, value, ends))
    return found


@st.composite
def standings(draw: st.DrawFn) -> Standing:
    return Standing(
        {m: draw(amounts) for m in BUDGETS}, {m: draw(amounts) for m in BUDGETS}, draw(amounts), draw(amounts)
    )


@st.composite
def asks(draw: st.DrawFn) -> Ask:
    return Ask(
        {m: draw(amounts) for m in BUDGETS if draw(st.booleans())},
        frozenset(m for m in TOOL_BUDGETS if draw(st.booleans())),
        draw(st.sampled_from(list(Runtime))),
        frozenset(c for c in Capability if draw(st.booleans())),
    )


def raised(limit: int | None, by: int) -> int | None:
    return None if limit is None else limit + by


class TestWhateverTheNumbers:
    @given(budget, limits, amounts, amounts, amounts)
    def test_a_budget_refuses_exactly_when_used_and_held_and_the_estimate_pass_it(
        self, measure: LimitType, limit: int | None, used_: int, held: int, estimate: int
    ) -> None:
        entitlements = get_entitlements_for_tier(tier(limits={KEY_OF_LIMIT[measure]: limit}))
        tools = frozenset({measure} & TOOL_BUDGETS)
        found = refusals_of(entitlements, Standing({measure: used_}, {measure: held}), Ask({measure: estimate}, tools))
        most = 0 if limit is None and tools else limit
        assert bool(found) == (most is not None and used_ + held + max(estimate, 1) > most)

    @given(tiers(), standings(), asks(), st.tuples(st.sampled_from(LIMIT_KEYS), st.integers(1, 50)))
    def test_raising_a_limit_never_refuses_more(self, given_tier, standing, wish, more) -> None:
        before = get_entitlements_for_tier(given_tier)
        key, by = more
        after = replace(before, limits=dict(before.limits) | {key: raised(before.limits[key], by)})
        refused_before = {r.limit_type for r in refusals_of(before, standing, wish)}
        assert {r.limit_type for r in refusals_of(after, standing, wish)} <= refused_before

    @given(tiers(), standings(), asks(), st.sampled_from(LIMIT_KEYS))
    def test_taking_a_limit_away_never_refuses_more_except_a_tools(self, given_tier, standing, wish, key) -> None:
        before = get_entitlements_for_tier(given_tier)
        after = replace(before, limits=dict(before.limits) | {key: None})
        refused_before = {r.limit_type for r in refusals_of(before, standing, wish)}
        tools = {m for m in TOOL_BUDGETS if KEY_OF_LIMIT[m] == key}  # an empty quota is no quota
        assert {r.limit_type for r in refusals_of(after, standing, wish)} <= refused_before | tools

    @given(tiers(), some_overrides())
    def test_what_an_account_may_do_never_breaks_the_rules_of_a_tier(self, given_tier, overrides) -> None:
        entitlements = entitlements_of(given_tier, overrides, NOON)
        as_a_tier = replace(
            given_tier, limits=entitlements.limits, flags=entitlements.runtime_access, retention=entitlements.retention
        )
        assert problems_of(as_a_tier) == []

    @given(tiers(), some_overrides())
    def test_every_value_says_where_it_came_from(self, given_tier, overrides) -> None:
        live = {o.key for o in overrides if o.ends_at is None or o.ends_at > NOON}
        sources = entitlements_of(given_tier, overrides, NOON).sources
        assert set(sources) == set(Key)
        assert {key for key, source in sources.items() if source.startswith("override:")} == live

    @given(tiers(), some_overrides(), standings(), asks())
    def test_what_is_suggested_would_let_the_very_same_request_pass(
        self, given_tier, overrides, standing, wish
    ) -> None:
        offered = [replace(given_tier, rank=1), replace(everything(), rank=2)]
        way_out = tier_that_allows(offered, overrides, NOON, standing, wish)
        passing = [t for t in offered if not refusals_of(entitlements_of(t, overrides, NOON), standing, wish)]
        assert way_out == (passing[0] if passing else None)

    @given(tiers(), some_overrides(), standings(), asks())
    def test_refusals_come_in_public_order_and_never_twice(self, given_tier, overrides, standing, wish) -> None:
        found = [r.limit_type for r in refusals_of(entitlements_of(given_tier, overrides, NOON), standing, wish)]
        assert found == in_public_order(set(found))
