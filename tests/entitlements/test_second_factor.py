"""A second factor: set up, asked for, used once, lost. With real codes from the secret that the page showed."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
import time_machine
from allauth.mfa.models import Authenticator
from django.contrib.sessions.models import Session
from django.db import connections
from django.test import Client

from entitlements.actions.second_factors import use_code
from entitlements.models import Account, SecondFactor
from tests.entitlements.admin_pages import Staff, said
from tests.entitlements.phones import PASSWORD, STEP, Person, alerts, code_at, shown_secret
from tests.factories import make_account
from tests.pages import inline_of

pytestmark = pytest.mark.usefixtures("live_db")


@pytest.fixture(autouse=True)
def _fast_passwords(settings: Any) -> None:
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]


@pytest.fixture(autouse=True)
def clock() -> Iterator[time_machine.Traveller]:
    # Not at the end of a code's time, so that no code changes in the middle of a test.
    with time_machine.travel(time.time() // STEP * STEP + 5, tick=True) as traveller:
        yield traveller


@pytest.fixture
def alice() -> Person:
    return Person(make_account("alice", password=PASSWORD))


@pytest.fixture
def stella() -> Person:
    return Person(make_account("stella", staff=True, password=PASSWORD))


def enrolled(person: Person, clock: time_machine.Traveller) -> Person:
    """Set up a phone, and come back later with a fresh browser."""
    person.type_password()
    assert person.set_up().status_code == 200
    clock.shift(2 * STEP)
    person.new_browser()
    return person


def stored(account: Account) -> Authenticator:
    return Authenticator.objects.get(user=account, type="totp")


class TestSettingUp:
    def test_it_asks_for_the_password_first_however_fresh_the_session(self, alice: Person) -> None:
        alice.type_password()
        answer = alice.client.get("/settings/security/app/")
        assert answer["Location"] == "/settings/security/password/?next=%2Fsettings%2Fsecurity%2Fapp%2F"
        assert "not your password" in alerts(alice.confirm_password("/settings/security/app/", "wrong"))
        assert alice.client.get("/settings/security/app/").status_code == 302
        assert alice.confirm_password("/settings/security/app/")["Location"] == "/settings/security/app/"
        assert alice.client.get("/settings/security/app/").status_code == 200

    def test_the_password_is_asked_for_again_after_five_minutes(
        self, alice: Person, clock: time_machine.Traveller
    ) -> None:
        alice.type_password()
        alice.confirm_password("/")
        assert alice.client.get("/settings/security/app/").status_code == 200
        clock.shift(301)
        assert alice.client.get("/settings/security/app/").status_code == 302

    def test_the_page_shows_a_drawn_qr_code_and_the_secret_as_text_under_the_strict_policy(self, alice: Person) -> None:
        alice.type_password()
        alice.confirm_password("/")
        page = alice.client.get("/settings/security/app/")
        html = page.content.decode()
        assert "default-src 'self'" in page.headers["Content-Security-Policy"]
        assert "no-store" in page.headers["Cache-Control"]
        assert '<svg class="qr" viewBox="-4 -4 ' in html
        assert len(shown_secret(page).replace(" ", "")) == 32
        assert inline_of(page) == []
        assert "<img" not in html

    def test_a_wrong_code_sets_up_nothing_and_the_secret_stays(self, alice: Person) -> None:
        alice.type_password()
        alice.confirm_password("/")
        secret = shown_secret(alice.client.get("/settings/security/app/"))
        page = alice.client.post("/settings/security/app/", {"code": code_at(secret, time.time() - 600)})
        assert "This code is wrong" in alerts(page)
        assert shown_secret(page) == secret
        assert not Authenticator.objects.filter(user=alice.account).exists()

    def test_recovery_codes_are_shown_in_the_answer_and_never_again(self, alice: Person) -> None:
        alice.type_password()
        page = alice.set_up()
        assert len(alice.recovery_codes) == len(set(alice.recovery_codes)) == 10
        assert "no-store" in page.headers["Cache-Control"]
        for address in ("/settings/security/", "/settings/security/app/", "/settings/security/recovery-codes/"):
            text = alice.client.get(address, follow=True).content.decode()
            assert not [code for code in alice.recovery_codes if code in text]
        assert "10 recovery codes left" in said(alice.client.get("/settings/security/"))

    def test_once_is_enough(self, alice: Person) -> None:
        alice.type_password()
        alice.set_up()
        first = stored(alice.account).pk
        assert alice.client.get("/settings/security/app/").status_code == 302
        assert alice.client.post("/settings/security/app/", {"code": alice.code()}).status_code == 302
        assert stored(alice.account).pk == first

    def test_the_secret_is_nowhere_in_the_clear(self, alice: Person) -> None:
        alice.type_password()
        alice.confirm_password("/")
        secret = shown_secret(alice.client.get("/settings/security/app/")).replace(" ", "")
        session = Session.objects.get(pk=alice.client.session.session_key)
        assert secret not in str(session.get_decoded())
        alice.set_up()
        rows = Authenticator.objects.filter(user=alice.account)
        assert {row.type for row in rows} == {"totp", "recovery_codes"}
        text = str([row.data for row in rows])
        assert alice.secret.replace(" ", "") not in text
        assert not [code for code in alice.recovery_codes if code in text]

    def test_another_secret_key_reads_nothing_until_the_old_one_is_named(
        self, alice: Person, settings: Any, caplog: pytest.LogCaptureFixture, clock: time_machine.Traveller
    ) -> None:
        enrolled(alice, clock)
        old, settings.SECRET_KEY = settings.SECRET_KEY, "another-secret-key" * 4
        assert use_code(alice.account.pk, alice.code()) is None
        assert "another SECRET_KEY" in caplog.text
        settings.SECRET_KEY_FALLBACKS = [old]
        assert use_code(alice.account.pk, alice.code()) is not None


class TestSigningIn:
    def test_the_password_alone_signs_nobody_in_who_has_a_phone(
        self, alice: Person, clock: time_machine.Traveller
    ) -> None:
        enrolled(alice, clock)
        assert alice.type_password()["Location"] == "/sign-in/code/"
        for address in ("/agents/", "/v1/me", "/settings/security/", "/settings/security/app/"):
            assert alice.client.get(address).status_code in {302, 401}
        assert "_auth_user_id" not in alice.client.session

    def test_a_code_signs_in_and_leads_on(self, alice: Person, clock: time_machine.Traveller) -> None:
        enrolled(alice, clock)
        alice.type_password(back="/billing/?tier=starter")
        answer = alice.type_code(f" {alice.code()[:3]} {alice.code()[3:]} ")
        assert (answer.status_code, answer["Location"]) == (302, "/billing/?tier=starter")
        assert alice.account.email in said(alice.client.get("/"))

    def test_without_a_password_there_is_nothing_to_enter_a_code_for(self) -> None:
        assert Client().get("/sign-in/code/")["Location"] == "/sign-in/"
        assert Client().post("/sign-in/code/", {"code": "123456"})["Location"] == "/sign-in/"

    def test_the_step_between_password_and_code_ends_after_five_minutes(
        self, alice: Person, clock: time_machine.Traveller
    ) -> None:
        enrolled(alice, clock)
        alice.type_password()
        clock.shift(301)
        assert alice.type_code(alice.code())["Location"] == "/sign-in/"
        assert alice.client.get("/billing/").status_code == 302

    @pytest.mark.parametrize("later", [-1, 0, 1])
    def test_a_phone_whose_clock_is_half_a_minute_off_signs_in(
        self, alice: Person, later: int, clock: time_machine.Traveller
    ) -> None:
        enrolled(alice, clock)
        alice.type_password()
        assert alice.type_code(alice.code(later))["Location"] == "/"

    @pytest.mark.parametrize("later", [-2, 2])
    def test_an_older_or_newer_code_does_not(self, alice: Person, later: int, clock: time_machine.Traveller) -> None:
        enrolled(alice, clock)
        clock.shift(3 * STEP)
        alice.type_password()
        assert "This code is wrong" in alerts(alice.type_code(alice.code(later)))

    def test_a_code_is_taken_once(self, alice: Person, clock: time_machine.Traveller) -> None:
        enrolled(alice, clock)
        alice.type_password()
        used = alice.code()
        assert alice.type_code(used).status_code == 302
        alice.new_browser()
        alice.type_password()
        assert "was used already" in alerts(alice.type_code(used))
        assert "was used already" in alerts(alice.type_code(alice.code(-1))), "older than the newest that was taken"
        assert alice.client.get("/billing/").status_code == 302

    def test_the_code_that_set_it_up_is_not_taken_again(self, alice: Person) -> None:
        alice.type_password()
        alice.set_up()
        alice.new_browser()
        alice.type_password()
        assert "was used already" in alerts(alice.type_code(alice.code()))

    def test_of_a_code_sent_eight_times_at_once_one_is_taken(
        self, alice: Person, clock: time_machine.Traveller
    ) -> None:
        enrolled(alice, clock)
        code, taken = alice.code(), []

        def use() -> None:
            taken.append(use_code(alice.account.pk, code) is not None)
            connections.close_all()

        threads = [threading.Thread(target=use) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(taken) == [False] * 7 + [True]

    def test_a_recovery_code_signs_in_once(self, alice: Person, clock: time_machine.Traveller) -> None:
        enrolled(alice, clock)
        code = alice.recovery_codes[3]
        alice.type_password()
        assert alice.type_code(f"{code[:4]}-{code[4:]}").status_code == 302
        assert "9 recovery codes left" in said(alice.client.get("/settings/security/"))
        alice.new_browser()
        alice.type_password()
        assert "was used already" in alerts(alice.type_code(code))
        assert alice.type_code(alice.recovery_codes[4]).status_code == 302

    def test_somebody_elses_code_does_not_sign_in(self, alice: Person, clock: time_machine.Traveller) -> None:
        enrolled(alice, clock)
        charlie = enrolled(Person(make_account("charlie", password=PASSWORD)), clock)
        alice.type_password()
        assert alice.type_code(charlie.code()).status_code == 200
        assert alice.type_code(charlie.recovery_codes[0]).status_code == 200

    def test_who_sees_the_code_page_can_become_somebody_else(
        self, alice: Person, clock: time_machine.Traveller
    ) -> None:
        enrolled(alice, clock)
        alice.type_password()
        assert alice.client.get("/sign-in/")["Location"] == "/sign-in/code/"
        assert alice.client.post("/sign-out/").status_code == 302
        assert alice.client.get("/sign-in/").status_code == 200


class TestTheSession:
    def test_signing_in_rotates_its_key_with_a_phone_and_without(
        self, alice: Person, clock: time_machine.Traveller
    ) -> None:
        session = alice.client.session
        session["kept"] = "from before"
        session.save()
        alice.client.cookies["sessionid"] = session.session_key
        before = session.session_key
        alice.type_password()
        assert alice.client.cookies["sessionid"].value != before
        enrolled(alice, clock)
        alice.type_password()
        between = alice.client.cookies["sessionid"].value
        alice.type_code(alice.code())
        assert alice.client.cookies["sessionid"].value not in {before, between}

    def test_one_of_staff_ends_after_twelve_hours_however_busy(
        self, stella: Person, clock: time_machine.Traveller
    ) -> None:
        enrolled(stella, clock)
        stella.type_password()
        stella.type_code(stella.code())
        for _ in range(3):
            clock.shift(timedelta(hours=3, minutes=59))
            assert stella.client.get("/admin/").status_code == 200
            stella.confirm_password("/")  # writes the session
        clock.shift(timedelta(minutes=4))
        assert stella.client.get("/admin/")["Location"].startswith("/admin/login/")
        assert stella.client.get("/billing/").status_code == 302

    def test_one_of_staff_without_a_phone_ends_as_soon(self, stella: Person, clock: time_machine.Traveller) -> None:
        stella.type_password()
        clock.shift(timedelta(hours=11, minutes=59))
        assert stella.client.get("/").status_code == 200
        clock.shift(timedelta(minutes=2))
        assert stella.client.get("/billing/").status_code == 302

    def test_one_of_a_customer_lasts_two_weeks(self, alice: Person, clock: time_machine.Traveller) -> None:
        alice.type_password()
        clock.shift(timedelta(days=13))
        assert alice.client.get("/").status_code == 200

    def test_all_end_when_the_password_changes(self, stella: Person) -> None:
        stella.type_password()
        account = Account.objects.get(pk=stella.account.pk)
        account.set_password("another-long-secret")
        account.save()
        assert stella.client.get("/billing/").status_code == 302


class TestRemoving:
    def test_it_asks_for_the_password_and_changes_nothing_on_a_get(self, alice: Person) -> None:
        alice.type_password()
        alice.set_up()
        later = "/settings/security/app/remove/"
        assert alice.client.get(later).status_code == 200
        assert stored(alice.account)
        answer = alice.client.post(later)
        assert answer["Location"] == "/settings/security/"
        assert not Authenticator.objects.filter(user=alice.account).exists()
        alice.new_browser()
        assert alice.type_password()["Location"] == "/"

    @pytest.mark.parametrize("what", ["app/remove", "recovery-codes"])
    def test_a_session_that_proved_nothing_is_asked_for_a_code_first(
        self, alice: Person, what: str, clock: time_machine.Traveller
    ) -> None:
        enrolled(alice, clock)
        alice.client.force_login(alice.account)
        alice.confirm_password("/")
        answer = alice.client.post(f"/settings/security/{what}/")
        assert answer["Location"].startswith("/settings/security/code/")
        assert stored(alice.account)

    def test_an_old_password_confirmation_is_not_enough(self, alice: Person, clock: time_machine.Traveller) -> None:
        alice.type_password()
        alice.set_up()
        clock.shift(301)
        answer = alice.client.post("/settings/security/app/remove/")
        assert answer["Location"].startswith("/settings/security/password/")
        assert stored(alice.account)
        alice.confirm_password("/settings/security/app/remove/")
        assert not Authenticator.objects.filter(user=alice.account).exists(), "what was asked for goes on then"


class TestNewRecoveryCodes:
    def test_they_replace_the_old_ones(self, alice: Person, clock: time_machine.Traveller) -> None:
        alice.type_password()
        alice.set_up()
        assert alice.client.get("/settings/security/recovery-codes/").status_code == 200
        page = alice.client.post("/settings/security/recovery-codes/")
        new = re.findall(r"<li><code>(\d+)</code>", page.content.decode())
        assert len(new) == 10
        assert not set(new) & set(alice.recovery_codes)
        enrolled_again = Person(alice.account)
        enrolled_again.type_password()
        assert enrolled_again.type_code(alice.recovery_codes[0]).status_code == 200
        assert enrolled_again.type_code(new[0]).status_code == 302

    def test_without_a_phone_there_are_none(self, alice: Person) -> None:
        alice.type_password()
        alice.confirm_password("/")
        page = alice.client.post("/settings/security/recovery-codes/", follow=True)
        assert "There is no authenticator app." in said(page)
        assert not Authenticator.objects.filter(user=alice.account).exists()


class TestTheAuditLog:
    def test_it_says_who_did_what_and_why_and_never_the_secret(self, alice: Person) -> None:
        alice.type_password()
        alice.set_up()
        alice.client.post("/settings/security/recovery-codes/")
        alice.client.post("/settings/security/app/remove/")
        events = next(iter(SecondFactor.pgh_event_models.values()))
        rows = list(events.objects.filter(user_id=alice.account.pk).order_by("pgh_id").select_related("pgh_context"))
        found = [(row.pgh_label, row.name, row.pgh_context.metadata["reason"]) for row in rows]
        assert found[:4] == [
            ("insert", "totp", "Set up by its owner"),
            ("insert", "recovery_codes", "Set up by its owner"),
            ("delete", "recovery_codes", "Renewed by its owner"),
            ("insert", "recovery_codes", "Renewed by its owner"),
        ]
        assert sorted(found[4:]) == [
            ("delete", "recovery_codes", "Removed by its owner"),
            ("delete", "totp", "Removed by its owner"),
        ]
        assert {row.pgh_context.metadata["actor"] for row in rows} == {alice.account.email}
        text = said(Staff().client.get("/admin/entitlements/historyentry/", {"account": alice.account.public_id}))
        assert "second factor totp created" in text
        assert "Removed by its owner" in text
        assert not {field.name for field in events._meta.fields} & {"data"}

    def test_another_secret_put_there_by_hand_is_noticed_and_a_code_that_is_used_is_no_news(
        self, alice: Person, clock: time_machine.Traveller
    ) -> None:
        enrolled(alice, clock)
        events = next(iter(SecondFactor.pgh_event_models.values()))
        before = events.objects.filter(user_id=alice.account.pk).count()
        assert use_code(alice.account.pk, alice.code()) is not None
        assert use_code(alice.account.pk, alice.recovery_codes[0]) is not None
        assert events.objects.filter(user_id=alice.account.pk).count() == before
        Authenticator.objects.filter(user=alice.account, type="totp").update(data={"secret": "mine"})
        newest = events.objects.filter(user_id=alice.account.pk).latest("pgh_id")
        assert (newest.pgh_label, newest.name) == ("update", "totp")

    def test_an_account_with_a_phone_that_was_never_used_can_be_deleted(self, alice: Person) -> None:
        alice.type_password()
        alice.set_up()
        stella = Staff()
        answer = stella.client.post(stella.url(alice.account, "delete"), {"post": "yes"})
        assert answer.status_code == 302
        assert not Account.objects.filter(pk=alice.account.pk).exists()
        assert not Authenticator.objects.filter(user_id=alice.account.pk).exists()
