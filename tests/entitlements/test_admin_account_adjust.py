"""Support gives usage back, or adds it: by an audited adjustment with a reason, shown first, made once, never an edit."""

from __future__ import annotations

import threading
from datetime import date
from typing import Any
from uuid import uuid4

import pytest
from django.db import connections
from django.utils import timezone

from entitlements.actions.adjustments import adjust_usage, problems_of_adjustment
from entitlements.models import Account, Adjustment
from telemetry.actions.closing import close_periods, first_restated_period
from telemetry.actions.verify import verify_usage
from telemetry.models import UsageStatement
from tests.entitlements.admin_pages import Staff, history, said
from tests.entitlements.callers import Caller
from tests.entitlements.test_groups import member
from tests.factories import make_account, make_tier
from webhost.errors import ConflictError, InvalidRequestError
from webhost.period import key_of, period_of, previous_period, starts_at

pytestmark = pytest.mark.usefixtures("live_db")


@pytest.fixture
def steve() -> Staff:
    return member("support")


@pytest.fixture
def alice() -> Caller:
    return Caller(make_account("alice", make_tier(max_requests_per_period=3)).pk, uuid4(), uuid4())


def this_month() -> date:
    return period_of(timezone.now())


def adjusted(caller: Caller) -> list[Adjustment]:
    return list(Adjustment.objects.filter(account_id=caller.account_id))


class Desk:
    """The form, as somebody fills it in."""

    def __init__(self, staff: Staff, caller: Caller, period: date | None = None) -> None:
        self.staff = staff
        url = staff.url(Account.objects.get(pk=caller.account_id), "adjust")
        self.url = url if period is None else f"{url}?period={key_of(period)}"
        self.page = staff.client.get(self.url)
        self.once = self.page.context["form"]["once"].value() if "form" in self.page.context else ""

    def preview(self, **fields: str) -> Any:
        """Fill it in and have it show what would become of it."""
        data = {"way": "back", "why": "Ticket 7", "once": self.once, **fields}
        return self.staff.client.post(self.url, data)

    def send(self, **fields: str) -> Any:
        """Fill it in, look, and confirm."""
        page = self.preview(**fields)
        assert page.status_code == 200, said(page)
        data = {"way": "back", "why": "Ticket 7", "once": self.once, **fields}
        return self.staff.client.post(self.url, data | {"confirmed": page.context["form"].shown})


class TestGivingBack:
    def test_it_is_in_force_on_the_next_call_with_one_receipt_and_one_entry(self, steve: Staff, alice: Caller) -> None:
        for _ in range(3):
            alice.call(tokens=100)
        assert alice.refusal() is not None
        assert Desk(steve, alice).send(requests="2", tokens="150").status_code == 302
        assert alice.refusal() is None
        (row,) = adjusted(alice)
        assert (row.requests, row.tokens, row.compute_ms, row.actor, row.reason) == (
            -2, -150, 0, steve.account.email, "Ticket 7",
        )  # fmt: skip
        (entry,) = history(row)
        assert entry.pgh_context.metadata["actor"] == steve.account.email
        assert entry.pgh_context.metadata["reason"] == "Ticket 7"

    def test_first_it_shows_before_and_after_and_adjusts_nothing(self, steve: Staff, alice: Caller) -> None:
        alice.call(tokens=1_234)
        text = said(Desk(steve, alice).preview(tokens="1000"))
        assert "Tokens 1,234 234" in text
        assert "Nothing is adjusted yet" in text
        assert adjusted(alice) == []

    def test_a_change_of_mind_after_the_preview_is_shown_again(self, steve: Staff, alice: Caller) -> None:
        alice.call(tokens=500)
        desk = Desk(steve, alice)
        shown = desk.preview(tokens="100").context["form"].shown
        page = desk.preview(tokens="400", confirmed=shown)
        assert "Tokens 500 100" in said(page)
        assert adjusted(alice) == []

    def test_times_are_given_in_seconds_and_kept_in_milliseconds(self, steve: Staff, alice: Caller) -> None:
        alice.call(code_ms=90_000, compute_ms=2_500)
        desk = Desk(steve, alice)
        assert "90 used (1 min 30 s)" in said(desk.page)
        desk.send(code_ms="30.5", compute_ms="2.5")
        assert (alice.counter().used_code_ms, alice.counter().used_compute_ms) == (59_500, 0)

    def test_adding_adds(self, steve: Staff, alice: Caller) -> None:
        alice.call()
        Desk(steve, alice).send(way="add", requests="1")
        assert alice.counter().used_requests == 2

    @pytest.mark.parametrize(
        ("fields", "words"),
        [
            ({"requests": "2"}, "Only 1 requests are used: 2 cannot be given back."),
            ({}, "Say how much of something to give back or to add."),
            ({"requests": "1", "why": ""}, "This field is required."),
            ({"requests": "-1"}, "greater than or equal to 0"),
        ],
    )
    def test_what_makes_no_sense_is_refused_in_words(
        self, steve: Staff, alice: Caller, fields: dict[str, str], words: str
    ) -> None:
        alice.call()
        assert words in said(Desk(steve, alice).preview(**fields)).replace("&#x27;", "'")
        assert adjusted(alice) == []

    def test_a_month_in_which_nothing_began_has_nothing_to_adjust(self, steve: Staff, alice: Caller) -> None:
        assert "There is nothing to adjust." in said(Desk(steve, alice).page)


class TestOnce:
    def test_the_same_form_sent_twice_is_one_adjustment(self, steve: Staff, alice: Caller) -> None:
        alice.call(tokens=500)
        desk = Desk(steve, alice)
        assert desk.send(tokens="100").status_code == 302
        page = desk.send(tokens="100")
        assert "was adjusted already" in said(steve.client.get(page["Location"]))
        assert len(adjusted(alice)) == 1
        assert alice.counter().used_tokens == 400

    def test_two_at_the_same_time_are_one(self, alice: Caller) -> None:
        alice.call(tokens=500)
        ended: list[str] = []

        def send() -> None:
            try:
                adjust_usage(
                    alice.account_id, this_month(), {"tokens": -100}, once="one key", actor="steve", reason="Ticket"
                )
                ended.append("done")
            except ConflictError:
                ended.append("refused")
            finally:
                connections.close_all()

        threads = [threading.Thread(target=send) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(ended) == ["done", *["refused"] * 7]
        assert alice.counter().used_tokens == 400

    def test_what_was_refused_can_be_corrected_in_the_same_form(self, steve: Staff, alice: Caller) -> None:
        alice.call(tokens=50)
        desk = Desk(steve, alice)
        assert desk.preview(tokens="51").status_code == 422
        assert desk.send(tokens="50").status_code == 302

    def test_giving_back_more_than_is_left_by_then_is_refused_at_the_last_moment(self, alice: Caller) -> None:
        alice.call(tokens=100)
        adjust_usage(alice.account_id, this_month(), {"tokens": -80}, once="a", actor="steve", reason="Ticket")
        with pytest.raises(InvalidRequestError, match="Only 20 tokens are used: 80 cannot be given back"):
            adjust_usage(alice.account_id, this_month(), {"tokens": -80}, once="b", actor="steve", reason="Ticket")
        assert alice.counter().used_tokens == 20


class TestTheBooksAfterwards:
    def test_the_ledger_and_the_proof_of_usage_are_clean(self, steve: Staff, alice: Caller) -> None:
        alice.call(tokens=500, compute_ms=3_000)
        Desk(steve, alice).send(tokens="100", compute_ms="1")
        assert alice.differences() == []
        assert verify_usage(alice.account_id, this_month()).findings == []


class TestAClosedMonth:
    @pytest.fixture
    def last_month(self, alice: Caller) -> date:
        """The month before the last closed one, with a statement."""
        period = previous_period(this_month())
        alice.call(at=starts_at(period), tokens=30)
        close_periods(at=starts_at(this_month()).replace(day=10))
        assert UsageStatement.objects.filter(account_id=alice.account_id, period=period).count() == 1
        return period

    def test_it_is_refused_unless_it_is_restated(self, steve: Staff, alice: Caller, last_month: date) -> None:
        desk = Desk(steve, alice, last_month)
        assert f"{key_of(last_month)} is closed by statement 1." in said(desk.page)
        assert desk.preview(tokens="10").status_code == 422
        assert adjusted(alice) == []
        assert desk.send(tokens="10", restate="on").status_code == 302
        close_periods(at=starts_at(this_month()).replace(day=10))
        statements = UsageStatement.objects.filter(account_id=alice.account_id, period=last_month).order_by("number")
        assert [(s.totals["tokens"], s.reason) for s in statements] == [(30, ""), (20, "adjusted: Ticket 7")]
        assert verify_usage(alice.account_id, last_month).findings == []

    def test_the_action_itself_refuses_it_too(self, alice: Caller, last_month: date) -> None:
        with pytest.raises(ConflictError, match="is closed by statement 1"):
            adjust_usage(alice.account_id, last_month, {"tokens": -1}, once="a", actor="steve", reason="Ticket")

    def test_one_that_is_not_restated_any_more_stands(self, steve: Staff, alice: Caller) -> None:
        old = previous_period(first_restated_period(timezone.now()))
        alice.call(at=starts_at(old), tokens=30)
        desk = Desk(steve, alice, old)
        assert f"{key_of(old)} stands" in said(desk.page)
        assert desk.preview(tokens="10", restate="on").status_code == 422
        assert adjusted(alice) == []


class TestWhoMay:
    def test_nobody_on_support_gives_to_themselves_or_to_a_colleague(self, steve: Staff) -> None:
        for account in (steve.account, make_account("stella", staff=True)):
            Caller(account.pk, uuid4(), uuid4()).call()
            for method in (steve.client.get, steve.client.post):
                assert method(steve.url(account, "adjust")).status_code == 403

    def test_the_list_of_adjustments_stays_to_read(self, alice: Caller) -> None:
        stella = Staff()
        assert stella.client.get(stella.url(Adjustment, "add")).status_code == 403
        alice.call()
        alice.adjust(this_month(), requests=-1)
        (row,) = adjusted(alice)
        assert stella.client.post(stella.url(row), {"requests": "5"}).status_code == 403


@pytest.mark.parametrize(
    ("used", "change", "right"),
    [({"tokens": 5}, {"tokens": -5}, True), ({"tokens": 5}, {"tokens": -6}, False), ({}, {"tokens": 0}, False)],
)
def test_an_adjustment_goes_down_to_zero_and_moves_something(
    used: dict[str, int], change: dict[str, int], right: bool
) -> None:
    assert (problems_of_adjustment(used, change) == []) is right
