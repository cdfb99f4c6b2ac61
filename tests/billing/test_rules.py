"""From subscriptions to a tier, without a database: every status, price, date and combination."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from billing.rules import (
    NOT_PAID,
    NOTHING_HELD,
    Held,
    Item,
    PaidTier,
    ProblemKind,
    Status,
    Subscription,
    Verdict,
    decide,
    tier_of,
)

NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)
GRACE = timedelta(days=7)
STARTER = PaidTier(2, "starter", "Starter", 20)
PRO = PaidTier(3, "pro", "Pro", 30)
PRICES = {"price_starter": STARTER, "price_pro": PRO, "price_pro_yearly": PRO}


def subscription(status: str = "active", *prices: str, id: str = "sub_1", **values: object) -> Subscription:  # noqa: A002
    items = tuple(Item(f"si_{n}", price) for n, price in enumerate(prices or ("price_pro",)))
    return Subscription(id, status, items, NOW - timedelta(days=40), **values)  # type: ignore[arg-type]


def verdict(*subscriptions: Subscription, held: Held = NOTHING_HELD, now: datetime = NOW) -> Verdict:
    return decide(subscriptions, PRICES, held, now=now, grace=GRACE)


@pytest.mark.case("STR-05")
class TestAStatus:
    @pytest.mark.parametrize("status", ["active", "trialing"])
    def test_that_is_paid_has_its_tier_without_an_end(self, status: str) -> None:
        assert verdict(subscription(status)).held == Held(PRO)

    @pytest.mark.parametrize("status", sorted(NOT_PAID))
    def test_that_is_not_paid_has_nothing(self, status: str) -> None:
        found = verdict(subscription(status), held=Held(PRO))
        assert found.held == NOTHING_HELD
        assert found.problems == ()

    def test_of_the_future_keeps_what_there_is_and_tells_an_operator(self) -> None:
        found = verdict(subscription("suspended_for_review"), held=Held(PRO))
        assert found.held == Held(PRO)
        assert [p.kind for p in found.problems] == [ProblemKind.UNKNOWN_STATUS]

    def test_of_the_future_gives_a_new_customer_nothing(self) -> None:
        found = verdict(subscription("suspended_for_review"))
        assert found.held == NOTHING_HELD
        assert [p.kind for p in found.problems] == [ProblemKind.UNKNOWN_STATUS]

    def test_past_due_keeps_the_tier_until_the_grace_of_its_oldest_open_invoice_ends(self) -> None:
        since = NOW - timedelta(days=2)
        found = verdict(subscription("past_due", unpaid_since=since, period_start=NOW - timedelta(days=1)))
        assert found.held == Held(PRO, since + GRACE)
        assert found.look_again_at == since + GRACE

    def test_past_due_without_an_open_invoice_counts_from_the_period_that_is_not_paid(self) -> None:
        start = NOW - timedelta(days=3)
        assert verdict(subscription("past_due", period_start=start)).held == Held(PRO, start + GRACE)

    def test_past_due_beyond_the_grace_has_nothing(self) -> None:
        late = subscription("past_due", unpaid_since=NOW - GRACE)
        assert verdict(late, held=Held(PRO)).held == NOTHING_HELD
        assert verdict(late, now=NOW - timedelta(seconds=1)).held == Held(PRO, NOW)


@pytest.mark.case("STR-05")
class TestAnEnd:
    def test_at_the_end_of_the_period_keeps_the_tier_until_then(self) -> None:
        end = NOW + timedelta(days=9)
        assert verdict(subscription(cancel_at_period_end=True, period_end=end)).held == Held(PRO, end)

    def test_that_was_taken_back_is_none(self) -> None:
        end = NOW + timedelta(days=9)
        assert verdict(subscription(period_end=end), held=Held(PRO, end)).held == Held(PRO)

    def test_on_a_day_of_its_own_counts_before_the_period(self) -> None:
        day = NOW + timedelta(days=3)
        found = verdict(subscription(cancel_at=day, cancel_at_period_end=True, period_end=NOW + timedelta(days=9)))
        assert found.held == Held(PRO, day)

    def test_that_has_passed_is_over_although_nobody_said_so(self) -> None:
        assert verdict(subscription(cancel_at=NOW), held=Held(PRO, NOW)).held == NOTHING_HELD

    def test_and_an_unpaid_invoice_end_at_the_earlier(self) -> None:
        day = NOW + timedelta(days=1)
        assert verdict(subscription("past_due", unpaid_since=NOW, cancel_at=day)).held == Held(PRO, day)


@pytest.mark.case("STR-04")
class TestPrices:
    @pytest.mark.parametrize("prices", [("price_unmapped",), ("price_unmapped", "price_addon")])
    def test_that_nobody_mapped_keep_what_there_is(self, prices: tuple[str, ...]) -> None:
        found = verdict(subscription("active", *prices), held=Held(PRO))
        assert found.held == Held(PRO)
        assert [p.kind for p in found.problems] == [ProblemKind.UNMAPPED_PRICE]

    def test_that_nobody_mapped_give_a_new_customer_nothing(self) -> None:
        found = verdict(subscription("active", "price_unmapped"))
        assert found.held == NOTHING_HELD
        assert [p.kind for p in found.problems] == [ProblemKind.UNMAPPED_PRICE]

    def test_none_at_all_keeps_what_there_is(self) -> None:
        nothing = Subscription("sub_1", "active", (), NOW)
        found = verdict(nothing, held=Held(PRO))
        assert found.held == Held(PRO)
        assert [p.kind for p in found.problems] == [ProblemKind.NO_ITEMS]

    def test_of_add_ons_before_the_plan_are_looked_through_without_a_word(self) -> None:
        found = verdict(subscription("active", "price_addon", "price_pro"))
        assert found.held == Held(PRO)
        assert found.problems == ()

    def test_what_is_kept_in_ignorance_is_not_what_has_ended(self) -> None:
        assert verdict(subscription("active", "price_unmapped"), held=Held(PRO, NOW)).held == NOTHING_HELD

    def test_something_understood_and_higher_is_given_in_spite_of_a_riddle(self) -> None:
        found = verdict(subscription("active", "price_x"), subscription(id="sub_2"), held=Held(STARTER))
        assert found.held == Held(PRO)

    def test_something_understood_and_lower_takes_nothing_away_beside_a_riddle(self) -> None:
        found = verdict(
            subscription("active", "price_x"), subscription("active", "price_starter", id="sub_2"), held=Held(PRO)
        )
        assert found.held == Held(PRO)


class TestSeveral:
    def test_of_two_the_highest_rank_counts_and_an_operator_is_told(self) -> None:
        found = verdict(subscription("active", "price_starter"), subscription(id="sub_2"))
        assert found.held == Held(PRO)
        assert [p.kind for p in found.problems] == [ProblemKind.SEVERAL_SUBSCRIPTIONS]

    def test_what_is_left_when_the_higher_one_ends_is_looked_at_then(self) -> None:
        end = NOW + timedelta(days=1)
        both = (subscription("active", "price_starter"), subscription(id="sub_2", cancel_at=end))
        found = verdict(*both)
        assert (found.held, found.look_again_at) == (Held(PRO, end), end)
        assert verdict(*both, now=end).held == Held(STARTER)

    def test_of_two_of_one_tier_the_longer_counts(self) -> None:
        found = verdict(subscription(cancel_at=NOW + timedelta(days=1)), subscription(id="sub_2"))
        assert found.held == Held(PRO)

    def test_an_ended_one_beside_a_live_one_says_nothing(self) -> None:
        found = verdict(subscription("canceled", "price_pro"), subscription("active", "price_starter", id="sub_2"))
        assert found.held == Held(STARTER)
        assert found.problems == ()


_moments = st.integers(-30, 30).map(lambda days: NOW + timedelta(days=days))
_subscriptions = st.builds(
    Subscription,
    id=st.sampled_from(["sub_a", "sub_b", "sub_c"]),
    status=st.sampled_from([*Status, "something_new"]),
    items=st.lists(st.builds(Item, st.just("si"), st.sampled_from([*PRICES, "price_unmapped"])), max_size=3).map(tuple),
    created=_moments,
    period_start=st.none() | _moments,
    period_end=st.none() | _moments,
    cancel_at=st.none() | _moments,
    cancel_at_period_end=st.booleans(),
    unpaid_since=st.none() | _moments,
)
_helds = st.builds(Held, st.sampled_from([None, STARTER, PRO]), st.none() | _moments)


class TestWhateverStripeSays:
    @pytest.mark.case("STR-01")
    @given(st.lists(_subscriptions, max_size=4), _helds, st.randoms())
    def test_the_order_of_the_list_does_not_matter(self, subscriptions, held, random) -> None:  # type: ignore[no-untyped-def]
        shuffled = list(subscriptions)
        random.shuffle(shuffled)
        assert verdict(*subscriptions, held=held) == verdict(*shuffled, held=held)

    @given(st.lists(_subscriptions, max_size=4), _helds)
    def test_asking_twice_changes_nothing_more(self, subscriptions, held) -> None:  # type: ignore[no-untyped-def]
        first = verdict(*subscriptions, held=held)
        assert verdict(*subscriptions, held=first.held).held == first.held

    @given(st.lists(_subscriptions, max_size=4), _helds)
    def test_what_is_given_is_in_force_or_nothing(self, subscriptions, held) -> None:  # type: ignore[no-untyped-def]
        found = verdict(*subscriptions, held=held).held
        assert found == NOTHING_HELD or found.lasts(NOW)

    @given(st.lists(_subscriptions, max_size=4), _helds)
    def test_a_riddle_never_takes_a_tier_away(self, subscriptions, held) -> None:  # type: ignore[no-untyped-def]
        found = verdict(*subscriptions, held=held)
        riddles = {p.kind for p in found.problems} - {ProblemKind.SEVERAL_SUBSCRIPTIONS}
        if riddles and held.lasts(NOW):
            assert found.held.tier is not None
            assert held.tier is not None
            assert found.held.tier.rank >= held.tier.rank

    @given(
        st.lists(_subscriptions.filter(lambda s: tier_of(s.items, PRICES) and s.status in set(Status)), max_size=4),
        _helds,
        _helds,
    )
    def test_without_a_riddle_what_was_before_does_not_matter(self, subscriptions, one, other) -> None:  # type: ignore[no-untyped-def]
        assert verdict(*subscriptions, held=one).held == verdict(*subscriptions, held=other).held
