"""Settings, Alerts: whom alerts reach, added and removed on the page, and what became of the last ones."""

from __future__ import annotations

import re

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from telemetry.actions.watch_budgets import watch_accounts
from telemetry.models import AlertTarget
from telemetry.pages import alerts
from tests.entitlements.admin_pages import said
from tests.entitlements.callers import Caller
from tests.factories import make_account, make_tier
from tests.pages import inline_of
from tests.telemetry.receiver import Pretended
from webhost.ids import new_id

pytestmark = pytest.mark.usefixtures("live_db", "nobody_sweeps")
AT = "/settings/alerts/"
EVIL = "https://hooks.example.com/<img src=x onerror=alert(1)>"


@pytest.fixture(autouse=True)
def names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alerts, "internet", Pretended())


def signed_in(who: str = "alice") -> tuple[Client, str]:
    account, client = make_account(who), Client()
    client.force_login(account)
    return client, account.email


def webhook(url: str = "https://hooks.example.com/1") -> dict[str, object]:
    return {"kind": "webhook", "address": url, "thresholds": ["80", "100"]}


def test_alices_own_address_is_there_and_can_be_switched_off_and_on() -> None:
    alice, email = signed_in()
    assert f"{email} your own" in said(alice.get(AT))
    (remove,) = re.findall(r'action="(/settings/alerts/alr_[^"]+)"', alice.get(AT).content.decode())
    assert "No alerts go there any more." in said(alice.post(remove, follow=True))
    assert "gets no alerts" in said(alice.get(AT))
    assert "Nobody is told." in said(alice.get(AT))
    alice.post(AT, {"kind": "email", "address": email, "thresholds": ["100"]})
    assert f"{email} your own E-mail 100 %" in said(alice.get(AT)).replace("Email", "E-mail")


def test_the_secret_of_a_webhook_is_shown_once() -> None:
    alice, _ = signed_in()
    page = alice.post(AT, webhook())
    (secret,) = re.findall(r"whsec_[0-9a-f]+", page.content.decode())
    assert "no-store" in page["Cache-Control"]
    assert inline_of(page) == []
    listed = alice.get(AT)
    assert "https://hooks.example.com/1" in said(listed)
    assert secret not in listed.content.decode()


def test_another_address_is_asked_first() -> None:
    alice, _ = signed_in()
    address = f"ops-{new_id().hex}@example.com"
    page = said(alice.post(AT, {"kind": "email", "address": address, "thresholds": ["80"]}, follow=True))
    assert f"{address} is added. It gets a mail first" in page
    assert "not confirmed yet" in page


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        ({"address": "nobody"}, 400),
        ({"address": ""}, 400),
        ({"thresholds": []}, 400),
        ({"thresholds": ["50"]}, 400),
        ({"kind": "pigeon"}, 400),
        ({"kind": "webhook", "address": "http://hooks.example.com/"}, 400),
    ],
)
def test_what_is_wrong_is_said_and_nothing_is_added(sent: dict[str, object], status: int) -> None:
    alice, _ = signed_in()
    given = {"kind": "email", "address": f"{new_id().hex}@example.com", "thresholds": ["80"]} | sent
    page = alice.post(AT, given)
    assert page.status_code == status
    assert 'role="alert"' in page.content.decode()
    assert len(re.findall("alr_", alice.get(AT).content.decode())) == 1


def test_a_stranger_removes_nothing_of_hers() -> None:
    alice, _ = signed_in()
    alice.post(AT, webhook())
    removes = re.findall(r'action="(/settings/alerts/alr_[^"]+)"', alice.get(AT).content.decode())
    charlie, _ = signed_in("charlie")
    assert [charlie.post(at).status_code for at in removes] == [404, 404]
    assert "hooks.example.com" not in said(charlie.get(AT))
    assert charlie.post("/settings/alerts/x/remove/").status_code == 404


def test_the_last_messages_are_listed_with_their_outcome() -> None:
    account = make_account("alice", make_tier(max_requests_per_period=1))
    client = Client()
    client.force_login(account)
    assert "Nothing was sent yet." in said(client.get(AT))
    Caller(account.pk, new_id(), new_id()).call()
    watch_accounts([account.pk])
    page = said(client.get(AT))
    assert "Requests: 100 %" in page
    assert "Pending" in page


def test_an_evil_address_is_inert_and_the_page_is_cheap() -> None:
    alice, email = signed_in()
    AlertTarget.objects.create(
        account_id=make_account("x").pk, kind="webhook", address=f"https://{new_id().hex}.example.com/"
    )
    refused = alice.post(AT, webhook(EVIL))
    assert "<img src=x" not in refused.content.decode()
    with CaptureQueriesContext(connection) as seen:
        page = alice.get(AT)
    assert inline_of(page) == []
    assert email in said(page)
    assert len(seen.captured_queries) <= 15
