"""Settings: browser sessions and API tokens of an account."""

from __future__ import annotations

import ipaddress
import re
import secrets
from typing import Any
from uuid import uuid4

import pytest
from allauth.usersessions.models import UserSession
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from entitlements.models import ApiToken
from entitlements.sign_in import sessions
from entitlements.sign_in.browsers import browser_in_words
from tests.entitlements.admin_pages import said
from tests.entitlements.phones import PASSWORD, Person
from tests.factories import make_account, make_token
from tests.pages import inline_of
from webhost.ids import Prefix, public_id

pytestmark = pytest.mark.usefixtures("live_db")
EVIL = "<img src=x onerror=alert(1)>"
FIREFOX = "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0"


@pytest.fixture(autouse=True)
def _fast_passwords(settings: Any) -> None:
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]


@pytest.fixture
def alice() -> Person:
    person = Person(make_account("alice", password=PASSWORD))
    person.type_password()
    return person


def beside(person: Person) -> Person:
    """The same person in a second browser."""
    other = Person(person.account)
    other.type_password()
    return other


def shown(person: Person) -> str:
    """Return the address as pages show it: in short."""
    return str(ipaddress.ip_address(person.address))


@pytest.mark.parametrize(
    ("agent", "words"),
    [
        (FIREFOX, "Firefox on Linux"),
        ("Mozilla/5.0 (Windows NT 10.0) AppleWebKit/537.36 Chrome/140.0 Safari/537.36 Edg/140.0", "Edge on Windows"),
        ("Mozilla/5.0 (Macintosh; Intel Mac OS X 10_15) AppleWebKit/605 Version/18 Safari/605", "Safari on macOS"),
        ("Mozilla/5.0 (iPhone; CPU iPhone OS 18_0 like Mac OS X) Version/18 Safari/604", "Safari on iPhone"),
        ("curl/8.0", "Another program"),
        ("", "Another program"),
    ],
)
def test_a_browser_is_named_in_words(agent: str, words: str) -> None:
    assert browser_in_words(agent) == words


class TestSessions:
    def test_each_is_listed_with_its_browser_and_address_and_this_one_is_marked(self, alice: Person) -> None:
        other = beside(alice)
        page = said(alice.client.get("/settings/sessions/", headers={"User-Agent": FIREFOX}))
        assert page.count("this one") == 1
        assert shown(alice) in page
        assert shown(other) in page
        assert len(UserSession.objects.filter(user=alice.account)) == 2

    def test_one_that_is_ended_is_out_at_its_next_request(self, alice: Person) -> None:
        other = beside(alice)
        row = UserSession.objects.get(session_key=other.client.session.session_key)
        assert other.client.get("/billing/").status_code == 200
        alice.client.post("/settings/sessions/end/", {"session": row.pk})
        assert other.client.get("/billing/").status_code == 302
        assert alice.client.get("/billing/").status_code == 200

    def test_all_others_are_ended_at_once(self, alice: Person) -> None:
        others = [beside(alice) for _ in range(2)]
        assert "2 other sessions ended" in said(alice.client.post("/settings/sessions/end-others/", follow=True))
        assert [o.client.get("/billing/").status_code for o in others] == [302, 302]
        assert alice.client.get("/billing/").status_code == 200

    def test_a_stranger_ends_none_of_hers(self, alice: Person) -> None:
        charlie = Person(make_account("charlie", password=PASSWORD))
        charlie.type_password()
        row = UserSession.objects.get(user=alice.account)
        for session in (row.pk, 0, "", "x", "9" * 30, "²"):
            assert charlie.client.post("/settings/sessions/end/", {"session": session}).status_code == 404
        assert shown(alice) not in said(charlie.client.get("/settings/sessions/"))
        assert alice.client.get("/billing/").status_code == 200

    def test_a_session_that_changes_its_key_stays_one(self, alice: Person) -> None:
        before = UserSession.objects.get(user=alice.account)
        alice.set_up()
        after = UserSession.objects.get(user=alice.account)
        assert (after.pk, after.created_at) == (before.pk, before.created_at)
        assert after.session_key == alice.client.session.session_key

    def test_a_signed_out_one_is_no_longer_listed(self, alice: Person) -> None:
        other = beside(alice)
        other.client.post("/sign-out/")
        assert shown(other) not in said(alice.client.get("/settings/sessions/"))
        sessions.forget_sessions()
        assert UserSession.objects.filter(user=alice.account).count() == 1

    def test_being_seen_is_written_once_a_minute_and_a_call_with_a_token_asks_nothing(self, alice: Person) -> None:
        header = {"Authorization": f"Bearer {make_token(alice.account)}"}
        for client, sent in ((alice.client, {}), (Client(), header)):
            with CaptureQueriesContext(connection) as seen:
                assert client.get("/v1/me", headers=sent).status_code == 200
            assert not [query for query in seen.captured_queries if "usersessions" in query["sql"]]

    def test_many_sessions_cost_no_more_queries(self, alice: Person) -> None:
        def cost() -> int:
            with CaptureQueriesContext(connection) as seen:
                assert alice.client.get("/settings/sessions/").status_code == 200
            return len(seen.captured_queries)

        few = cost()
        for _ in range(4):
            beside(alice)
        assert cost() == few <= 15

    def test_a_browser_that_calls_itself_something_evil_is_inert(self, alice: Person) -> None:
        client = Client(headers={"User-Agent": f"{EVIL} \x00 Firefox/1"})
        client.force_login(alice.account)
        client.get("/billing/")
        page = alice.client.get("/settings/sessions/")
        assert EVIL not in page.content.decode()
        assert inline_of(page) == []


def fields(page: Any, **more: Any) -> dict[str, Any]:
    (token,) = re.findall(r'name="token" value="([^"]+)"', page.content.decode())
    return {"token": token, "name": "laptop", "scopes": ["read", "deploy"], "days": "90"} | more


class TestTokens:
    def test_one_is_made_shown_once_and_works(self, alice: Person, caplog: pytest.LogCaptureFixture) -> None:
        form = alice.client.get("/settings/tokens/")
        page = alice.client.post("/settings/tokens/", fields(form))
        (text,) = re.findall(r"whs_[0-9a-f]{64}", page.content.decode())
        assert "no-store" in page["Cache-Control"]
        assert 'data-copy="token"' in page.content.decode()
        assert inline_of(page) == []
        me = Client().get("/v1/me", headers={"Authorization": f"Bearer {text}"})
        assert me.json()["email"] == alice.account.email
        for at in ("/settings/tokens/", "/settings/security/", "/settings/sessions/", "/"):
            assert text not in alice.client.get(at).content.decode()
        assert text not in caplog.text
        row = ApiToken.objects.get(user=alice.account)
        assert (row.name, row.scopes) == ("laptop", ["deploy", "read"])
        assert row.expiry is not None
        assert round((row.expiry - row.created).total_seconds() / 86_400) == 90

    def test_a_form_that_is_sent_twice_makes_one(self, alice: Person) -> None:
        given = fields(alice.client.get("/settings/tokens/"))
        assert alice.client.post("/settings/tokens/", given).status_code == 200
        again = alice.client.post("/settings/tokens/", given)
        assert again.status_code == 409
        assert not re.findall(r"whs_[0-9a-f]{64}", again.content.decode())
        assert ApiToken.objects.filter(user=alice.account).count() == 1

    def test_never_is_an_expiry_too(self, alice: Person) -> None:
        alice.client.post("/settings/tokens/", fields(alice.client.get("/settings/tokens/"), days=""))
        assert ApiToken.objects.get(user=alice.account).expiry is None

    @pytest.mark.parametrize(
        "wrong", [{"name": ""}, {"scopes": []}, {"scopes": ["root"]}, {"days": "7"}, {"token": "x"}]
    )
    def test_what_is_wrong_is_said_and_nothing_is_made(self, alice: Person, wrong: dict[str, Any]) -> None:
        page = alice.client.post("/settings/tokens/", fields(alice.client.get("/settings/tokens/"), **wrong))
        assert page.status_code == 400
        assert not ApiToken.objects.filter(user=alice.account).exists()

    def test_one_is_revoked_after_a_question_and_its_next_call_is_refused(self, alice: Person) -> None:
        text = make_token(alice.account, name=EVIL)
        at = f"/settings/tokens/{public_id(Prefix.TOKEN, ApiToken.objects.get(user=alice.account).id)}/revoke/"
        listed, asked = alice.client.get("/settings/tokens/"), alice.client.get(at)
        assert at in listed.content.decode()
        for page in (listed, asked):
            assert EVIL not in page.content.decode()
            assert inline_of(page) == []
        header = {"Authorization": f"Bearer {text}"}
        assert Client().get("/v1/me", headers=header).status_code == 200
        assert alice.client.post(at)["Location"] == "/settings/tokens/"
        assert Client().get("/v1/me", headers=header).status_code == 401
        assert alice.client.post(at).status_code == 404

    def test_a_stranger_sees_and_revokes_none_of_hers(self, alice: Person) -> None:
        make_token(alice.account, name=f"mine-{uuid4().hex}")
        row = ApiToken.objects.get(user=alice.account)
        charlie = Person(make_account("charlie", password=PASSWORD))
        charlie.type_password()
        at = f"/settings/tokens/{public_id(Prefix.TOKEN, row.id)}/revoke/"
        assert [charlie.client.get(at).status_code, charlie.client.post(at).status_code] == [404, 404]
        page = charlie.client.get("/settings/tokens/")
        assert row.name not in said(page)
        assert "No tokens yet." in said(page)
        # Nor by sending a form that names hers.
        assert charlie.client.post("/settings/tokens/", fields(page, token=str(row.id))).status_code == 409

    def test_settings_lead_to_the_tokens_and_all_of_them_ask_who_it_is(self, alice: Person) -> None:
        assert alice.client.get("/settings/")["Location"] == "/settings/tokens/"
        for at in ("tokens", "sessions", "security", "alerts", "security/e-mail", "security/new-password"):
            assert Client().get(f"/settings/{at}/")["Location"].startswith("/sign-in/?next=")
            assert alice.client.get(f"/settings/{at}/").status_code == 200

    def test_many_tokens_cost_no_more_queries(self, alice: Person) -> None:
        for _ in range(20):
            make_token(alice.account, name=secrets.token_hex(4))
        with CaptureQueriesContext(connection) as seen:
            assert alice.client.get("/settings/tokens/").status_code == 200
        assert len(seen.captured_queries) <= 15
