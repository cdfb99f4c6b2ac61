"""Judging reports, latency buckets and cost: every rule without a database."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID, uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from telemetry import rules
from telemetry.events import Event
from telemetry.rules import Effect, Evidence, KnownInvocation, Owner, Prices, Quantities, Reason, Status, Verdict

NOW = datetime(2026, 11, 29, 12, tzinfo=UTC)
DEPLOYMENT, AGENT, ACCOUNT, INVOCATION = uuid4(), uuid4(), uuid4(), uuid4()
OWNER = Owner(DEPLOYMENT, AGENT, ACCOUNT, "cloudflare", "k1")
EVENT = Event(b"e1", INVOCATION, DEPLOYMENT, NOW, 10, 20, account_id=ACCOUNT, agent_id=AGENT, runtime="cloudflare")
KNOWN = KnownInvocation(DEPLOYMENT, NOW)


def judge(**changes: Any) -> Verdict:
    return rules.judge_report(replace(Evidence(NOW, OWNER, True, EVENT, KNOWN), **changes))


def refused(reason: Reason) -> Verdict:
    return Verdict(Status.REJECTED, reason=reason)


class TestJudging:
    def test_a_report_of_an_invocation_that_we_know_is_observed(self) -> None:
        assert judge() == Verdict(Status.ACCEPTED, Effect.OBSERVE)

    def test_one_that_we_do_not_know_is_adopted(self) -> None:
        assert judge(invocation=None) == Verdict(Status.ACCEPTED, Effect.ADOPT)

    def test_without_a_deployment_nobody_owns_it(self) -> None:
        assert judge(owner=None) == refused(Reason.UNKNOWN_DEPLOYMENT)

    def test_a_signature_that_does_not_fit_is_refused_before_anything_else(self) -> None:
        assert judge(signature_fits=False, accepted_facts=EVENT.facts) == refused(Reason.SIGNATURE)

    def test_what_cannot_be_read_is_refused(self) -> None:
        verdict = judge(event=[{"path": "tokens", "message": "It is missing."}])
        assert (verdict.status, verdict.reason) == (Status.REJECTED, "malformed: tokens")

    @pytest.mark.case("ING-05")
    @pytest.mark.parametrize(
        "claim",
        [{"deployment_id": uuid4()}, {"agent_id": uuid4()}, {"account_id": uuid4()}, {"runtime": "agentcore"}],
    )
    def test_an_origin_that_our_own_row_does_not_confirm_is_refused(self, claim: dict[str, Any]) -> None:
        assert judge(event=replace(EVENT, **claim)) == refused(Reason.ATTRIBUTION)

    def test_an_origin_that_is_not_claimed_is_our_own_row_s(self) -> None:
        anonymous = replace(EVENT, agent_id=None, account_id=None, runtime=None)
        assert judge(event=anonymous).status is Status.ACCEPTED

    def test_the_same_again_is_a_duplicate(self) -> None:
        assert judge(accepted_facts=EVENT.facts) == Verdict(Status.DUPLICATE)

    @pytest.mark.case("ROL-02")
    @pytest.mark.parametrize(
        "other", [{"tokens": 11}, {"compute_ms": 0}, {"tool_calls": 1}, {"errors": 1}, {"invocation_id": uuid4()}]
    )
    def test_the_same_event_id_with_other_numbers_is_a_conflict(self, other: dict[str, Any]) -> None:
        assert judge(accepted_facts=EVENT.facts, event=replace(EVENT, **other)) == refused(Reason.CONFLICT)

    @pytest.mark.case("ING-05")
    def test_the_invocation_of_another_deployment_is_refused(self) -> None:
        assert judge(invocation=KnownInvocation(uuid4(), NOW)) == refused(Reason.FOREIGN_INVOCATION)

    def test_a_known_invocation_is_reported_on_for_35_days(self) -> None:
        last = NOW + timedelta(days=35)
        assert judge(received_at=last).effect is Effect.OBSERVE
        assert judge(received_at=last + timedelta(seconds=1)) == refused(Reason.TOO_LATE)

    def test_the_clock_of_the_workload_does_not_matter_for_a_known_one(self) -> None:
        assert judge(event=replace(EVENT, at=NOW - timedelta(days=300))).effect is Effect.OBSERVE

    @pytest.mark.parametrize("off", [timedelta(minutes=5, seconds=1), timedelta(hours=-72, seconds=-1)])
    def test_an_unknown_one_must_be_of_these_days(self, off: timedelta) -> None:
        assert judge(invocation=None, event=replace(EVENT, at=NOW + off)) == refused(Reason.TOO_LATE)

    def test_an_id_that_is_older_than_35_days_is_not_unknown_but_forgotten(self) -> None:
        old = UUID(int=int((NOW - timedelta(days=36)).timestamp() * 1000) << 80 | 0x7 << 76 | 0x8 << 60)
        assert judge(invocation=None, event=replace(EVENT, invocation_id=old)) == refused(Reason.TOO_LATE)

    @pytest.mark.case("ING-05")
    def test_a_deleted_agent_is_reported_on_for_what_happened_before(self) -> None:
        gone = replace(OWNER, agent_deleted_at=NOW)
        assert judge(owner=gone, invocation=None).effect is Effect.ADOPT
        late = replace(EVENT, at=NOW + timedelta(seconds=1))
        assert judge(owner=gone, invocation=None, event=late) == refused(Reason.AGENT_DELETED)
        assert judge(owner=gone, event=late).effect is Effect.OBSERVE

    def test_only_platform_code_is_trusted(self) -> None:
        assert rules.is_trusted("cloudflare")
        assert not rules.is_trusted("agentcore")

    def test_no_reason_is_longer_than_its_column(self) -> None:
        assert max(map(len, Reason)) <= 200
        assert len(judge(event=[{"path": "x" * 900, "message": ""}]).reason) == 200
        assert (
            len(
                replace(
                    EVENT,
                    **dict.fromkeys(
                        ("tokens", "compute_ms", "tool_calls", "code_ms", "browser_sessions", "errors"), 10**12
                    ),
                ).facts
            )
            <= 200
        )


class TestBuckets:
    @pytest.mark.parametrize(
        ("latency", "bucket"), [(0, 0), (10, 0), (11, 1), (25, 1), (60_000, 11), (60_001, 12), (10**9, 12)]
    )
    def test_a_bound_belongs_to_its_own_bucket(self, latency: int, bucket: int) -> None:
        assert rules.bucket_of(latency) == bucket

    @given(latency=st.integers(0, 10**7))
    def test_a_slower_call_is_never_in_a_faster_bucket(self, latency: int) -> None:
        assert rules.bucket_of(latency) <= rules.bucket_of(latency + 1) <= len(rules.LATENCY_BOUNDS)


def prices(**values: str) -> Prices:
    return Prices("cloudflare", date(2026, 1, 1), **{k: Decimal(v) for k, v in values.items()})


counts = st.integers(0, 10**15)
quantities = st.builds(Quantities, counts, counts, counts, counts, counts, counts)
amounts = st.decimals(0, 10**9, places=12)
cards = st.builds(
    Prices, st.just("cloudflare"), st.just(date(2026, 1, 1)), amounts, amounts, amounts, amounts, amounts, amounts
)


class TestCost:
    @pytest.mark.case("PER-03")
    def test_three_agents_of_33_333_tokens_add_up_to_one_cent(self) -> None:
        card = prices(per_million_tokens="0.15")
        lines = [rules.cost_of(card, Quantities(tokens=33_333)) for _ in range(3)]
        assert [rules.exact(line) for line in lines] == ["0.00499995"] * 3
        total = rules.total_of(lines)
        assert (rules.exact(total), rules.shown(total)) == ("0.01499985", "0.01")
        assert sum(Decimal(rules.exact(line)) for line in lines) == total

    @pytest.mark.case("PER-03")
    def test_a_tiny_price_keeps_all_its_digits(self) -> None:
        assert rules.shown(rules.cost_of(prices(per_million_tokens="0.0762"), Quantities(tokens=10**9))) == "76.20"
        assert rules.exact(rules.cost_of(prices(per_million_tokens="0.0762"), Quantities(tokens=1))) == "0.0000000762"

    @pytest.mark.case("PER-03")
    @pytest.mark.parametrize(("amount", "cents"), [("19.99", 1999), ("1.005", 101), ("0.29", 29)])
    def test_cents_are_half_up_and_lose_nothing(self, amount: str, cents: int) -> None:
        assert rules.cents(Decimal(amount)) == cents

    @pytest.mark.case("PER-03")
    def test_three_times_a_tenth_of_a_second_is_three_cents(self) -> None:
        card = prices(per_code_execution_second="0.10")
        assert rules.exact(rules.cost_of(card, Quantities(code_ms=300))) == "0.03"

    def test_every_price_has_its_own_unit(self) -> None:
        card = prices(
            per_million_requests="1", per_million_tokens="2", per_million_compute_ms="3", per_tool_call="4",
            per_code_execution_second="5", per_browser_session="6",
        )  # fmt: skip
        million = 10**6
        assert rules.cost_of(card, Quantities(requests=million)) == 1
        assert rules.cost_of(card, Quantities(tokens=million)) == 2
        assert rules.cost_of(card, Quantities(compute_ms=million)) == 3
        assert rules.cost_of(card, Quantities(tool_calls=1)) == 4
        assert rules.cost_of(card, Quantities(code_ms=1000)) == 5
        assert rules.cost_of(card, Quantities(browser_sessions=1)) == 6

    @given(card=cards, one=quantities, two=quantities)
    def test_more_usage_never_costs_less_and_parts_add_up_exactly(
        self, card: Prices, one: Quantities, two: Quantities
    ) -> None:
        both = Quantities(*(getattr(one, f) + getattr(two, f) for f in Quantities.__dataclass_fields__))
        cost = rules.cost_of(card, both)
        assert cost >= rules.cost_of(card, one)
        assert cost == rules.total_of([rules.cost_of(card, one), rules.cost_of(card, two)])

    @given(amount=amounts)
    def test_what_is_shown_in_full_is_the_same_number_without_an_exponent(self, amount: Decimal) -> None:
        text = rules.exact(amount)
        assert Decimal(text) == amount
        assert "E" not in text

    def test_each_day_is_priced_by_the_card_in_force_on_it(self) -> None:
        old, new = prices(per_tool_call="1"), replace(prices(per_tool_call="10"), effective_from=date(2026, 11, 15))
        uses = [
            rules.PricedUse("cloudflare", date(2025, 12, 31), Quantities(tool_calls=1)),
            rules.PricedUse("cloudflare", date(2026, 1, 1), Quantities(tool_calls=1)),
            rules.PricedUse("cloudflare", date(2026, 11, 14), Quantities(tool_calls=1)),
            rules.PricedUse("cloudflare", date(2026, 11, 15), Quantities(tool_calls=1)),
            rules.PricedUse("agentcore", date(2026, 11, 15), Quantities(tool_calls=1)),
        ]
        assert rules.cost_by_runtime([new, old], uses) == {"cloudflare": Decimal(12), "agentcore": Decimal(0)}

    @pytest.mark.case("PER-03")
    def test_a_price_a_hundred_times_its_peers_is_implausible(self) -> None:
        assert rules.is_implausible(Decimal("0.15"), [Decimal("0.0000001"), Decimal("0.001")])
        assert not rules.is_implausible(Decimal("0.15"), [Decimal("0.02")])
        assert not rules.is_implausible(Decimal("0.15"), [Decimal(0)])
        assert not rules.is_implausible(Decimal("0.15"), [])


class TestRetention:
    @pytest.mark.parametrize(
        ("days", "first_kept"),
        [(1, date(2026, 10, 1)), (35, date(2026, 10, 1)), (90, date(2026, 8, 1)), (365, date(2025, 11, 1))],
    )
    def test_a_month_s_core_stays_its_retention_and_35_days_in_any_case(self, days: int, first_kept: date) -> None:
        assert rules.core_goes_before(days, NOW) == first_kept
