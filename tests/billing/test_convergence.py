"""Whatever Stripe says, in whatever order: the account ends where Stripe is, with one entry per change."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest
from django.db import connection
from django.utils import timezone
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from billing import stripe_api
from billing.actions.apply import converge, forget_old, replay_event, sweep
from billing.actions.prices import add_price
from billing.actions.reconcile import reconcile
from billing.errors import StripeAwayError
from billing.models import BillingProblem, Customer, EventState, StripeEvent, Subscription
from entitlements.actions.accounts import account_fingerprint, change_account
from entitlements.models import Tier, TierPrice
from tests.api import at_once
from tests.billing.conftest import Payer, applied, customer_row, deliver, post
from tests.billing.local_stripe import LocalStripe
from tests.e2e.customers import until
from tests.factories import make_tier
from webhost.errors import WebhostError
from webhost.local.processes import accepts

PRO, STARTER = "price_local_pro_month", "price_local_starter_month"
DAY = 86_400


def open_problems(payer: Payer) -> list[str]:
    return [p.kind for p in BillingProblem.objects.filter(customer__customer_id=payer.customer, closed_at__isnull=True)]


@pytest.mark.case("STR-01")
class TestOrder:
    def test_an_older_event_that_comes_later_changes_nothing_and_says_so(
        self, local_stripe: LocalStripe, alice: Payer
    ) -> None:
        local_stripe.force(alice.customer, "active", (PRO,), id=f"sub_{alice.account.pk.hex}")
        newer = local_stripe.made_event(
            alice.customer, created=1_766_000_002, object={"id": "sub_o", "status": "active"}
        )
        older = local_stripe.made_event(
            alice.customer,
            "customer.subscription.created",
            created=1_766_000_001,
            object={"id": "sub_o", "status": "incomplete"},
        )
        for body in (newer, older):
            assert post(body).status_code == 200
            done = applied(_id(body))
        assert alice.tier == "pro"
        assert done.outcome.startswith("ignored: stale")
        assert len(alice.changes()) == 1

    @pytest.mark.parametrize("order", [(0, 1), (1, 0)])
    def test_equal_seconds_do_not_decide_by_who_comes_first(
        self, local_stripe: LocalStripe, alice: Payer, order: tuple[int, int]
    ) -> None:
        local_stripe.force(alice.customer, "active", (PRO,))
        same = {"created": 1_766_000_002}
        bodies = [
            local_stripe.made_event(alice.customer, object={"id": "sub_o", "status": "active"}, **same),
            local_stripe.made_event(
                alice.customer, "customer.subscription.created", object={"id": "sub_o", "status": "incomplete"}, **same
            ),
        ]
        for n in order:
            assert post(bodies[n]).status_code == 200
            applied(_id(bodies[n]))
        assert alice.tier == "pro"
        assert len(alice.changes()) == 1

    def test_an_upgrade_delivered_again_after_a_downgrade_changes_nothing(
        self, local_stripe: LocalStripe, alice: Payer
    ) -> None:
        subscription = local_stripe.force(alice.customer, "incomplete", (PRO,), event=None)
        upgrade = local_stripe.change(subscription, status="active")
        deliver(local_stripe, upgrade)
        assert alice.tier == "pro"
        time.sleep(1)  # their clock counts seconds
        deliver(local_stripe, local_stripe.change(subscription, prices=[STARTER]))
        assert alice.tier == "starter"
        again = deliver(local_stripe, upgrade)
        assert alice.tier == "starter"
        assert again.deliveries == 2
        assert len(alice.changes()) == 2

    def test_history_names_the_event_that_changed_the_tier(self, local_stripe: LocalStripe, alice: Payer) -> None:
        subscription = local_stripe.force(alice.customer, "incomplete", (PRO,), event=None)
        event = local_stripe.change(subscription, status="active")
        done = deliver(local_stripe, event)
        assert done.outcome == "no paid tier → Pro"
        (entry,) = alice.changes()
        assert entry.pgh_context.metadata["source"] == f"stripe {event}"
        assert entry.pgh_context.metadata["actor"] == "Stripe"


def _id(body: bytes) -> str:
    import json

    return str(json.loads(body)["id"])


@pytest.mark.case("STR-03")
class TestFailures:
    def test_an_event_that_could_not_be_applied_is_applied_once_when_it_comes_again(
        self, local_stripe: LocalStripe, alice: Payer
    ) -> None:
        subscription = local_stripe.force(alice.customer, "incomplete", (PRO,), event=None)
        event = local_stripe.change(subscription, status="active")
        assert event
        _break_the_update(alice)
        try:
            failed = deliver(local_stripe, event)
        finally:
            _mend_the_update(alice)
        assert failed.state == EventState.PENDING
        assert alice.tier == "free"
        assert Subscription.objects.filter(account=alice.account).count() == 0
        done = deliver(local_stripe, event)
        assert (done.state, done.deliveries) == (EventState.DONE, 2)
        assert alice.tier == "pro"
        assert len(alice.changes()) == 1

    def test_an_event_that_could_not_be_applied_is_applied_by_the_sweep_without_stripe(
        self, local_stripe: LocalStripe, alice: Payer
    ) -> None:
        subscription = local_stripe.force(alice.customer, "incomplete", (PRO,), event=None)
        event = local_stripe.change(subscription, status="active")
        local_stripe.fail(500, count=2)  # the library tries twice
        failed = deliver(local_stripe, event)
        assert (failed.state, failed.attempts) == (EventState.PENDING, 1)
        assert alice.tier == "free"
        sweep(timezone.now() + timedelta(minutes=1))
        failed.refresh_from_db()
        assert failed.state == EventState.DONE
        assert alice.tier == "pro"

    def test_who_could_not_reach_stripe_does_not_wait_for_it_again_at_once(
        self, local_stripe: LocalStripe, alice: Payer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        local_stripe.force(alice.customer, "active", (PRO,), event=None)
        local_stripe.local("POST", "/faults", fault="refuse", seconds=2)
        assert until(lambda: not accepts(local_stripe.port))
        with pytest.raises(StripeAwayError):
            converge(alice.customer, source="test", reason="test")
        assert until(lambda: accepts(local_stripe.port))
        before = local_stripe.calls()["total"]
        with pytest.raises(StripeAwayError):
            converge(alice.customer, source="test", reason="test")
        assert local_stripe.calls()["total"] == before
        assert alice.tier == "free"
        monkeypatch.setattr(stripe_api, "_away_until", 0.0)  # half a minute later
        converge(alice.customer, source="test", reason="test")
        assert alice.tier == "pro"

    def test_two_deliveries_at_the_same_moment_are_one_change(self, local_stripe: LocalStripe, alice: Payer) -> None:
        subscription = local_stripe.force(alice.customer, "incomplete", (PRO,), event=None)
        event = local_stripe.change(subscription, status="active")
        assert event
        body = local_stripe.body_of(event)

        def one(_: int) -> int:
            status = post(body).status_code
            applied(event)
            return int(status)

        assert at_once(one, 8) == [200] * 8
        assert StripeEvent.objects.get(event_id=event).deliveries == 8
        assert alice.tier == "pro"
        assert len(alice.changes()) == 1

    def test_different_events_of_one_customer_at_the_same_moment_end_right(
        self, local_stripe: LocalStripe, alice: Payer
    ) -> None:
        subscription = local_stripe.force(alice.customer, "incomplete", (PRO,), event=None)
        events = [local_stripe.change(subscription, status="active", metadata={"n": str(n)}) for n in range(6)]

        def one(n: int) -> str:
            return deliver(local_stripe, events[n]).state

        assert at_once(one, 6) == [EventState.DONE] * 6
        assert alice.tier == "pro"
        assert len(alice.changes()) == 1

    def test_a_type_that_nobody_knows_is_kept_and_ignored(self, local_stripe: LocalStripe, alice: Payer) -> None:
        body = local_stripe.made_event(alice.customer, "something.new")
        assert post(body).status_code == 200
        assert applied(_id(body)).state == EventState.IGNORED
        assert alice.changes() == []

    def test_a_customer_that_nobody_knows_is_kept_and_told_and_makes_no_account(
        self, local_stripe: LocalStripe, caplog: pytest.LogCaptureFixture
    ) -> None:
        before = Customer.objects.count()
        body = local_stripe.made_event("cus_nobody")
        assert post(body).status_code == 200
        done = applied(_id(body))
        assert (done.state, done.outcome) == (EventState.IGNORED, "ignored: unknown customer; an operator was told")
        assert "customer that we do not know" in caplog.text
        assert Customer.objects.count() == before


def _break_the_update(payer: Payer) -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            f"CREATE FUNCTION broken_{payer.account.pk.hex}() RETURNS trigger LANGUAGE plpgsql AS "
            f"$$ BEGIN RAISE EXCEPTION 'broken for a test'; END $$; CREATE TRIGGER broken BEFORE UPDATE ON entitlements_account "
            f"FOR EACH ROW WHEN (OLD.id = '{payer.account.pk}') EXECUTE FUNCTION broken_{payer.account.pk.hex}()"
        )


def _mend_the_update(payer: Payer) -> None:
    with connection.cursor() as cursor:
        cursor.execute("DROP TRIGGER broken ON entitlements_account")


@pytest.mark.case("STR-04")
class TestPricesThatAreOdd:
    @pytest.fixture
    def pro(self, local_stripe: LocalStripe, alice: Payer) -> str:
        subscription = local_stripe.force(alice.customer, "active", (PRO,), event=None)
        converge(alice.customer, source="test", reason="test")
        assert alice.tier == "pro"
        return subscription

    @pytest.mark.parametrize("prices", [["price_unmapped"], []])
    def test_what_is_not_understood_keeps_the_tier_and_tells_an_operator(
        self, local_stripe: LocalStripe, alice: Payer, pro: str, prices: list[str]
    ) -> None:
        deliver(local_stripe, local_stripe.change(pro, prices=prices))
        assert alice.tier == "pro"
        assert open_problems(alice) == ["unmapped price" if prices else "no items"]
        assert len(alice.changes()) == 1
        deliver(local_stripe, local_stripe.change(pro, prices=[PRO]))
        assert open_problems(alice) == []

    def test_an_add_on_before_the_plan_is_still_the_plan(
        self, local_stripe: LocalStripe, alice: Payer, pro: str
    ) -> None:
        deliver(local_stripe, local_stripe.change(pro, prices=["price_local_addon_month", PRO]))
        assert alice.tier == "pro"
        assert open_problems(alice) == []

    def test_a_plan_behind_more_add_ons_than_one_page_holds_is_found(
        self, local_stripe: LocalStripe, alice: Payer, pro: str
    ) -> None:
        deliver(local_stripe, local_stripe.change(pro, prices=[*(f"price_addon_{n}" for n in range(12)), PRO]))
        assert alice.tier == "pro"
        assert open_problems(alice) == []

    def test_a_retired_tier_stays_with_who_pays_for_it(self, local_stripe: LocalStripe, alice: Payer) -> None:
        tier = make_tier()
        price = _own_price(local_stripe, tier)
        Tier.objects.filter(pk=tier.pk).update(retired_at=timezone.now())
        local_stripe.force(alice.customer, "active", (price,), event=None)
        converge(alice.customer, source="test", reason="test")
        assert alice.tier == tier.slug

    def test_a_price_of_two_tiers_is_refused_in_words(self, local_stripe: LocalStripe) -> None:
        price = _own_price(local_stripe, make_tier())
        with pytest.raises(WebhostError, match="already exists"):
            add_price(make_tier(), price, actor="stella", reason="A mistake")

    def test_a_price_that_stripe_does_not_know_is_refused_in_words(self, local_stripe: LocalStripe) -> None:
        with pytest.raises(WebhostError, match="Stripe knows no price price_typo"):
            add_price(make_tier(), "price_typo", actor="stella", reason="A mistake")
        assert not TierPrice.objects.filter(price_id="price_typo").exists()

    def test_a_new_customer_with_an_unmapped_price_has_the_default_tier_and_an_operator_is_told(
        self, local_stripe: LocalStripe, alice: Payer
    ) -> None:
        local_stripe.force(alice.customer, "active", ("price_unmapped",), event=None)
        converge(alice.customer, source="test", reason="test")
        assert alice.tier == "free"
        assert open_problems(alice) == ["unmapped price"]


def _own_price(stripe: LocalStripe, tier: Tier) -> str:
    made = stripe.client().v1.prices.create({
        "product": "prod_local_pro", "unit_amount": 4200, "currency": "usd", "recurring": {"interval": "month"},
    })  # fmt: skip
    return add_price(tier, made.id, actor="stella", reason="A new price").price_id


@pytest.mark.case("STR-05")
class TestStatuses:
    def test_the_life_of_a_subscription(self, local_stripe: LocalStripe, alice: Payer) -> None:
        start = int(time.time()) - 5 * DAY
        subscription = local_stripe.force(
            alice.customer,
            "active",
            (PRO,),
            event=None,
            current_period_start=start,
            current_period_end=start + 30 * DAY,
        )
        end = datetime.fromtimestamp(start + 30 * DAY, UTC)

        def after(**fields: Any) -> tuple[str, datetime | None]:
            deliver(local_stripe, local_stripe.change(subscription, **fields))
            return alice.tier, alice.fresh().billing_tier_until

        assert after(cancel_at_period_end=True) == ("pro", end)
        assert after(cancel_at_period_end=False) == ("pro", None)
        assert after(status="past_due") == ("pro", datetime.fromtimestamp(start + 7 * DAY, UTC))
        changes = len(alice.changes())
        assert after(status="active") == ("pro", None)
        assert len(alice.changes()) == changes + 1
        assert after(status="active") == ("pro", None)
        assert len(alice.changes()) == changes + 1
        assert after(status="unpaid")[0] == "free"
        assert after(status="active")[0] == "pro"
        assert after(status="canceled", event="customer.subscription.deleted")[0] == "free"

    @pytest.mark.parametrize(
        ("status", "tier"),
        [
            ("incomplete", "free"),
            ("incomplete_expired", "free"),
            ("trialing", "pro"),
            ("paused", "free"),
            ("of_the_future", "free"),
        ],
    )
    def test_what_a_new_customer_gets(self, local_stripe: LocalStripe, alice: Payer, status: str, tier: str) -> None:
        local_stripe.force(alice.customer, status, (PRO,), event=None)
        converge(alice.customer, source="test", reason="test")
        assert alice.tier == tier

    def test_a_status_of_the_future_keeps_the_tier_and_tells_an_operator(
        self, local_stripe: LocalStripe, alice: Payer
    ) -> None:
        subscription = local_stripe.force(alice.customer, "active", (PRO,), event=None)
        converge(alice.customer, source="test", reason="test")
        deliver(local_stripe, local_stripe.change(subscription, status="under_review"))
        assert alice.tier == "pro"
        assert open_problems(alice) == ["unknown status"]

    def test_the_grace_counts_from_the_oldest_open_invoice_and_ends_by_itself(
        self, local_stripe: LocalStripe, alice: Payer
    ) -> None:
        subscription = local_stripe.force(alice.customer, "past_due", (PRO,), event=None)
        since = int(time.time()) - 7 * DAY + 3
        for created in (since + DAY, since):
            local_stripe.local("POST", "/invoices", subscription=subscription, status="open", created=created)
        converge(alice.customer, source="test", reason="test")
        assert alice.fresh().billing_tier_until == datetime.fromtimestamp(since + 7 * DAY, UTC)
        assert alice.tier == "pro"
        time.sleep(3.2)
        assert alice.tier == "free"  # no job had to run
        assert len(alice.changes()) == 1

    def test_a_renewal_that_fails_and_is_paid_later(self, local_stripe: LocalStripe, alice: Payer) -> None:
        subscription = local_stripe.force(alice.customer, "active", (PRO,), event=None)
        local_stripe.local("PATCH", f"/subscriptions/{subscription}", status="past_due", event=None)
        converge(alice.customer, source="test", reason="test")
        assert alice.fresh().billing_tier_until is not None
        local_stripe.local("POST", f"/subscriptions/{subscription}/pay")
        told = local_stripe.events("customer.subscription.updated")
        deliver(local_stripe, next(e["id"] for e in told if e["data"]["object"]["id"] == subscription))
        assert alice.fresh().billing_tier_until is None


class TestOlderShapes:
    @pytest.mark.parametrize("version", ["2024-06-20", "2026-10-28.endive"])
    def test_a_subscription_means_the_same_in_both(
        self, local_stripe: LocalStripe, alice: Payer, version: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        import stripe

        end = int(time.time()) + 9 * DAY
        local_stripe.force(
            alice.customer, "active", (PRO,), event=None, cancel_at_period_end=True, current_period_end=end
        )
        client = stripe.StripeClient(local_stripe.key, base_addresses={"api": local_stripe.url}, stripe_version=version)
        monkeypatch.setattr(stripe_api, "client", lambda: client)
        converge(alice.customer, source="test", reason="test")
        assert alice.fresh().billing_tier_until == datetime.fromtimestamp(end, UTC)

    def test_events_of_an_older_version_are_taken(self, local_stripe: LocalStripe, alice: Payer) -> None:
        local_stripe.local("POST", "/faults", fault="api_version", version="2024-06-20")
        try:
            subscription = local_stripe.force(alice.customer, "incomplete", (PRO,), event=None)
            done = deliver(local_stripe, local_stripe.change(subscription, status="active"))
        finally:
            local_stripe.local("POST", "/faults", fault="api_version", version="2026-10-28.endive")
        assert done.api_version == "2024-06-20"
        assert alice.tier == "pro"

    @pytest.mark.parametrize("version", ["2024-06-20", "2026-10-28.endive"])
    def test_an_invoice_names_its_customer_wherever_its_subscription_is(
        self, local_stripe: LocalStripe, alice: Payer, version: str
    ) -> None:
        subscription = local_stripe.force(alice.customer, "past_due", (PRO,), event=None)
        local_stripe.local("POST", "/invoices", subscription=subscription, status="open")
        local_stripe.local("POST", "/faults", fault="api_version", version=version)
        try:
            local_stripe.local("POST", f"/subscriptions/{subscription}/pay")
        finally:
            local_stripe.local("POST", "/faults", fault="api_version", version="2026-10-28.endive")
        paid = next(e for e in local_stripe.events("invoice.paid") if e["data"]["object"]["customer"] == alice.customer)
        assert ("subscription" in paid["data"]["object"]) is (version == "2024-06-20")
        assert deliver(local_stripe, paid["id"]).outcome == "no paid tier → Pro"


class TestOldEvents:
    def test_go_after_ninety_days_and_pending_ones_never(self, local_stripe: LocalStripe, alice: Payer) -> None:
        kept = local_stripe.made_event(alice.customer)
        gone = local_stripe.made_event(alice.customer, "something.new")
        post(kept)
        post(gone)
        applied(_id(gone))
        long_ago = timezone.now() - timedelta(days=91)
        StripeEvent.objects.filter(event_id=_id(gone)).update(finished_at=long_ago)
        StripeEvent.objects.filter(event_id=_id(kept)).update(received_at=long_ago)
        forget_old(timezone.now())
        found = StripeEvent.objects.filter(event_id__in=[_id(kept), _id(gone)])
        assert [e.event_id for e in found] == [_id(kept)]


class TestATierSetByHand:
    def test_stands_over_stripe_while_it_lasts_and_stripe_is_noted(
        self, local_stripe: LocalStripe, alice: Payer
    ) -> None:
        enterprise = Tier.objects.get(slug="enterprise")
        account = alice.fresh()
        until = timezone.now() + timedelta(seconds=3)
        change_account(
            account.pk,
            {"support_tier": enterprise, "support_tier_until": until},
            actor="stella",
            reason="A trial",
            seen=account_fingerprint(account),
        )
        local_stripe.force(alice.customer, "active", (PRO,), event=None)
        converge(alice.customer, source="test", reason="test")
        assert alice.tier == "enterprise"
        assert alice.fresh().billing_tier == Tier.objects.get(slug="pro")
        time.sleep(3.1)
        assert alice.tier == "pro"  # by date arithmetic


class TestSeveralSubscriptions:
    def test_what_is_left_when_the_higher_one_ends_is_found_without_an_event(
        self, local_stripe: LocalStripe, alice: Payer
    ) -> None:
        end = int(time.time()) + 2
        local_stripe.force(alice.customer, "active", (STARTER,), event=None)
        local_stripe.force(alice.customer, "active", (PRO,), event=None, cancel_at=end)
        converge(alice.customer, source="test", reason="test")
        assert alice.tier == "pro"
        assert open_problems(alice) == ["several subscriptions"]
        time.sleep(2.1)
        due = customer_row(alice).look_again_at
        assert due is not None
        sweep(due)
        assert alice.tier == "starter"

    def test_a_customer_deleted_at_stripe_keeps_the_tier_and_tells_an_operator(
        self, local_stripe: LocalStripe, alice: Payer
    ) -> None:
        local_stripe.force(alice.customer, "active", (PRO,), event=None)
        converge(alice.customer, source="test", reason="test")
        local_stripe.client().v1.customers.delete(alice.customer)
        converge(alice.customer, source="test", reason="test")
        assert alice.tier == "pro"
        assert open_problems(alice) == ["customer gone"]


class TestReconciliation:
    def test_a_lost_webhook_is_found_mended_and_reported(self, local_stripe: LocalStripe, alice: Payer) -> None:
        converge(alice.customer, source="test", reason="test")
        subscription = local_stripe.force(alice.customer, "active", (PRO,), event=None)
        report = reconcile()
        (line,) = [d for d in report.drifted if d["customer"] == alice.customer]
        assert (line["account"], line["before"], line["after"]) == (alice.account.public_id, "no paid tier", "Pro")
        assert line["subscriptions"] == [subscription]
        assert alice.tier == "pro"
        (entry,) = alice.changes()
        assert entry.pgh_context.metadata["source"] == f"task billing.reconcile {report.pk}"
        again = reconcile()
        assert [d for d in again.drifted if d["customer"] == alice.customer] == []

    def test_customers_who_are_as_stripe_says_are_not_read_one_by_one(
        self, local_stripe: LocalStripe, payer: Callable[[], Payer]
    ) -> None:
        everybody = [payer() for _ in range(5)]
        for someone, status in zip(everybody, ("active", "canceled", "incomplete", "paused", "active"), strict=True):
            local_stripe.force(someone.customer, status, (PRO,), event=None)
        reconcile()
        read = {someone.customer: customer_row(someone).read_at for someone in everybody}
        subscription = Subscription.objects.get(account=everybody[4].account)
        local_stripe.change(subscription.pk, prices=[STARTER], event=None)
        again = reconcile()
        ours = [line["customer"] for line in again.drifted if line["customer"] in read]
        assert ours == [everybody[4].customer]
        anew = [s.customer for s in everybody if customer_row(s).read_at != read[s.customer]]
        assert anew == ours

    def test_while_stripe_is_away_the_report_says_so_and_nothing_changes(
        self, local_stripe: LocalStripe, alice: Payer
    ) -> None:
        local_stripe.force(alice.customer, "active", (PRO,), event=None)
        local_stripe.fail(500, count=2)
        report = reconcile()
        assert report.unread == [{"customer": "all of them", "why": "StripeAwayError"}]
        assert alice.tier == "free"

    def test_subscriptions_of_strangers_are_reported_and_nobody_gets_them(self, local_stripe: LocalStripe) -> None:
        stranger = local_stripe.customer("charlie@example.com")
        subscription = local_stripe.force(stranger, "active", (PRO,), event=None)
        assert {"customer": stranger, "subscription": subscription} in reconcile().strangers


class TestReplay:
    def test_an_event_is_replayed_with_a_reason_and_changes_only_what_is_different(
        self, local_stripe: LocalStripe, alice: Payer
    ) -> None:
        subscription = local_stripe.force(alice.customer, "incomplete", (PRO,), event=None)
        done = deliver(local_stripe, local_stripe.change(subscription, status="active"))
        assert replay_event(done.pk, actor="stella", reason="To be sure") is False
        local_stripe.change(subscription, status="canceled", event=None)
        assert replay_event(done.pk, actor="stella", reason="A lost event") is True
        assert alice.tier == "free"
        assert alice.changes()[-1].pgh_context.metadata["reason"] == "Replayed by stella: A lost event"


_states = st.fixed_dictionaries({
    "status": st.sampled_from(["active", "trialing", "past_due", "incomplete", "unpaid", "paused", "canceled"]),
    "prices": st.sampled_from([[PRO], [STARTER], ["price_local_addon_month", PRO]]),
    "cancel_at_period_end": st.booleans(),
})  # fmt: skip


class TestAnySequence:
    @pytest.mark.case("STR-01")
    @settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(states=st.lists(_states, min_size=1, max_size=5), data=st.data())
    def test_in_any_order_with_repeats_and_losses_ends_in_the_tier_of_the_last_state(
        self, local_stripe: LocalStripe, payer: Callable[[], Payer], states: list[dict[str, Any]], data: st.DataObject
    ) -> None:
        someone = payer()
        subscription = local_stripe.force(someone.customer, "incomplete", (PRO,), event=None)
        events = [local_stripe.change(subscription, **state) for state in states]
        for event in data.draw(st.lists(st.sampled_from(events), max_size=2 * len(events))):
            deliver(local_stripe, event)
        converge(someone.customer, source="task billing.reconcile 0", reason="At night")
        last = states[-1]
        paid = last["status"] in {"active", "trialing", "past_due"}
        expected = ("starter" if last["prices"] == [STARTER] else "pro") if paid else "free"
        assert someone.tier == expected
        changes = [(e.billing_tier_id, e.billing_tier_until) for e in someone.changes()]
        assert all(a != b for a, b in pairwise(changes))
