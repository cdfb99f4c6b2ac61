"""The first page for strangers: what this is, how it works, what it costs."""

from __future__ import annotations

import secrets

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from entitlements.models import Tier, TierPrice
from tests.entitlements.admin_pages import said
from tests.factories import make_account, make_tier
from tests.pages import inline_of

pytestmark = pytest.mark.usefixtures("live_db")


def test_a_stranger_reads_what_this_is_and_finds_every_way_on() -> None:
    page = Client().get("/")
    html = page.content.decode()
    assert page.status_code == 200
    assert "whs deploy hello" in html
    for link in ("/sign-up/", "/sign-in/", "/docs/", "/v1/docs"):
        assert f'href="{link}"' in html
    assert inline_of(page) == []


def test_the_prices_are_those_of_the_tier_table() -> None:
    own = make_tier(name=f"Gold {secrets.token_hex(3)}", is_public=True)
    try:
        for interval, cents in (("month", 1_234_50), ("year", None)):
            TierPrice.objects.create(tier=own, price_id=secrets.token_hex(8), interval=interval, amount_cents=cents)
        page = said(Client().get("/"))
        for tier in Tier.objects.filter(is_public=True, retired_at__isnull=True):
            assert tier.name in page
        assert "unlimited" in page
        assert "$1,234.50 a month" in page
        assert "$0 a year" not in page, "an amount that is not known is none"
    finally:
        TierPrice.objects.filter(tier=own).delete()
        own.delete()


def test_a_hidden_tier_and_its_name_are_not_on_it() -> None:
    hidden = make_tier(name="Only for us")
    assert hidden.name not in said(Client().get("/"))


def test_an_evil_name_of_a_tier_is_inert() -> None:
    tier = make_tier(name="<img src=x onerror=alert(1)>", is_public=True)
    try:
        page = Client().get("/")
        assert "<img" not in page.content.decode()
        assert "&lt;img src=x" in page.content.decode()
    finally:
        Tier.objects.filter(pk=tier.pk).delete()


def test_who_is_signed_in_gets_the_overview_and_neither_is_kept_for_the_other() -> None:
    stranger = Client().get("/")
    assert {"private", "no-cache"} <= set(stranger["Cache-Control"].split(", "))
    assert "Cookie" in stranger["Vary"]
    assert not stranger.cookies
    alice, client = make_account("alice"), Client()
    client.force_login(alice)
    overview = client.get("/")
    assert "no-store" in overview["Cache-Control"]
    assert alice.email in said(overview)


def test_it_is_cheap() -> None:
    with CaptureQueriesContext(connection) as seen:
        page = Client().get("/")
    assert len(seen.captured_queries) <= 3
    assert len(page.content) < 30_000
