"""The door to the admin: what opens to staff with a phone, without one, and to nobody."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from io import StringIO
from typing import Any

import pytest
import time_machine
from allauth.mfa.models import Authenticator
from django.contrib.auth.models import Group
from django.core.mail import EmailMessage
from django.core.management import CommandError, call_command
from django.test import Client
from django.urls import URLPattern, URLResolver, get_resolver
from django.urls.resolvers import RoutePattern

from entitlements.actions.send_notices import send_notices
from entitlements.groups import GROUPS
from entitlements.models import Account, Notice, SecondFactor
from entitlements.sign_in.checks import staff_prove_a_second_factor
from entitlements.sign_in.door import Step, step_needed
from tests.entitlements.admin_pages import Staff, said
from tests.entitlements.phones import PASSWORD, STEP, Person
from tests.factories import make_account

pytestmark = pytest.mark.usefixtures("live_db")


@pytest.fixture(autouse=True)
def _fast_passwords(settings: Any) -> None:
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]


@pytest.fixture(autouse=True)
def clock() -> Iterator[time_machine.Traveller]:
    with time_machine.travel(time.time() // STEP * STEP + 5, tick=True) as traveller:
        yield traveller


@pytest.fixture
def required(settings: Any) -> None:
    settings.STAFF_TOTP = True


def staff(*groups: str, superuser: bool = False) -> Person:
    account = make_account("stella", password=PASSWORD)
    Account.objects.filter(pk=account.pk).update(is_staff=True, is_superuser=superuser)
    account.groups.set(Group.objects.filter(name__in=groups))
    return Person(Account.objects.get(pk=account.pk))


def with_phone(person: Person, clock: time_machine.Traveller) -> Person:
    person.type_password()
    assert person.set_up().status_code == 200
    clock.shift(2 * STEP)
    return person


def admin_addresses() -> list[str]:
    """Return an address for every route below /admin/, from the table of URLs."""

    def walk(patterns: Sequence[URLPattern | URLResolver], before: str) -> Iterator[str]:
        for pattern in patterns:
            part = pattern.pattern
            route = str(part)
            if not isinstance(part, RoutePattern):  # Django's own: the page of an app, and everything else
                route = route.replace("^", "").replace("$", "").replace("(?P<url>.*)", "nowhere")
                route = re.sub(r"\(\?P<app_label>(\w+)[^)]*\)", r"\1", route)
            route = re.sub(r"<[^>]+>", "1", route)
            if isinstance(pattern, URLResolver):
                yield from walk(pattern.url_patterns, before + route)
            else:
                yield before + route

    return sorted({address for address in walk(get_resolver().url_patterns, "/") if address.startswith("/admin/")})


class TestEveryPageOfTheAdmin:
    def test_the_table_of_urls_has_them_all(self) -> None:
        addresses = admin_addresses()
        assert len(addresses) > 100
        assert {
            "/admin/", "/admin/login/", "/admin/logout/", "/admin/password_change/", "/admin/jsi18n/", "/admin/nowhere",
            "/admin/entitlements/tier/", "/admin/entitlements/account/1/change/", "/admin/entitlements/",
            "/admin/entitlements/account/1/reset-totp/", "/admin/entitlements/historyentry/export.csv",
        } <= set(addresses)  # fmt: skip

    @pytest.mark.usefixtures("required")
    @pytest.mark.parametrize("how", ["force_login", "password"])
    def test_none_opens_without_a_phone(self, how: str) -> None:
        stella = staff(superuser=True)
        if how == "password":
            stella.type_password()
        else:
            stella.client.force_login(stella.account)
        for address in admin_addresses():
            for method in ("get", "post", "delete"):
                answer = getattr(stella.client, method)(address)
                assert (answer.status_code, answer.content) == (302, b""), (method, address)
                assert answer["Location"].startswith("/settings/security/app/?next=%2Fadmin%2F"), (method, address)

    @pytest.mark.parametrize("setting", [True, False])
    def test_none_opens_to_a_session_that_did_not_prove_the_phone(
        self, setting: bool, settings: Any, clock: time_machine.Traveller
    ) -> None:
        settings.STAFF_TOTP = setting
        stella = with_phone(staff(superuser=True), clock)
        stella.client = Client()
        stella.client.force_login(stella.account)
        for address in admin_addresses():
            for method in ("get", "post"):
                answer = getattr(stella.client, method)(address)
                assert (answer.status_code, answer.content) == (302, b""), (method, address)
                assert answer["Location"].startswith("/settings/security/code/?next=%2Fadmin%2F"), (method, address)

    def test_none_opens_to_a_stranger_or_a_customer(self) -> None:
        alice = Client()
        alice.force_login(make_account("alice"))
        for address in admin_addresses():
            assert Client().get(address, follow=True).redirect_chain[-1][0].startswith("/sign-in/?next=%2Fadmin%2F")
            assert alice.get(address, follow=True).status_code == 403, address


@pytest.mark.usefixtures("required")
class TestTheWayIn:
    def test_who_has_no_phone_is_led_to_setting_one_up_and_then_in(self) -> None:
        stella = staff("support")
        wanted = "/admin/entitlements/account/?q=alice"
        assert stella.client.get(wanted, follow=True).redirect_chain[-1][0].startswith("/sign-in/?next=")
        assert stella.type_password(back=wanted)["Location"] == wanted
        led = stella.client.get(wanted)["Location"]
        assert led == "/settings/security/app/?next=%2Fadmin%2Fentitlements%2Faccount%2F%3Fq%3Dalice"
        asked = stella.client.get(led)["Location"]
        assert asked.startswith("/settings/security/password/?next=%2Fsettings%2Fsecurity%2Fapp%2F")
        page = stella.set_up(back=wanted)
        assert f'href="{wanted}"' in page.content.decode()
        assert stella.client.get(wanted).status_code == 200

    def test_who_has_one_comes_in_with_password_and_code(self, clock: time_machine.Traveller) -> None:
        stella = with_phone(staff("support"), clock)
        stella.new_browser()
        assert stella.client.get("/admin/", follow=True).redirect_chain[-1][0] == "/sign-in/?next=%2Fadmin%2F"
        assert stella.type_password(back="/admin/")["Location"] == "/sign-in/code/"
        assert stella.client.get("/admin/").status_code == 302
        assert stella.type_code(stella.code())["Location"] == "/admin/"
        assert stella.client.get("/admin/").status_code == 200

    def test_a_session_from_before_the_phone_is_asked_for_a_code(self, clock: time_machine.Traveller) -> None:
        stella = staff("support")
        stella.type_password()
        elsewhere = with_phone(Person(stella.account), clock)
        stella.secret = elsewhere.secret
        assert stella.client.get("/admin/")["Location"] == "/settings/security/code/?next=%2Fadmin%2F"
        before = stella.client.session.session_key
        answer = stella.client.post("/settings/security/code/", {"code": stella.code(), "next": "/admin/"})
        assert answer["Location"] == "/admin/"
        assert stella.client.get("/admin/").status_code == 200
        assert stella.client.session.session_key != before

    def test_the_code_page_leads_to_no_other_site(self, clock: time_machine.Traveller) -> None:
        stella = with_phone(staff("support"), clock)
        stella.client.force_login(stella.account)
        for back in ("https://evil.example/", "//evil.example/", "/\\evil.example/", "javascript:alert(1)"):
            page = stella.client.get("/settings/security/code/", {"next": back})
            assert "evil" not in page.content.decode()
            assert "javascript:" not in page.content.decode()

    @pytest.mark.parametrize("group", [*sorted(GROUPS), "none"])
    def test_each_group_finds_behind_it_what_it_may_see_and_no_more(
        self, group: str, clock: time_machine.Traveller
    ) -> None:
        stella = with_phone(staff(group), clock)
        assert stella.client.get("/admin/").status_code == 200
        may = "entitlements.view_account" in GROUPS.get(group, ())
        assert stella.client.get("/admin/entitlements/account/").status_code == (200 if may else 403)

    def test_a_form_that_was_sent_leads_back_to_the_admin_and_is_not_sent_again(self) -> None:
        stella = staff(superuser=True)
        stella.client.force_login(stella.account)
        answer = stella.client.post("/admin/entitlements/tier/add/", {"name": "Mine"})
        assert answer["Location"] == "/settings/security/app/?next=%2Fadmin%2F"

    def test_a_customer_is_asked_for_nothing(self) -> None:
        alice = Client()
        alice.force_login(make_account("alice"))
        assert alice.get("/").status_code == 200

    def test_the_admins_own_sign_in_page_takes_no_password(self, clock: time_machine.Traveller) -> None:
        alice, stella = Person(make_account("alice")), with_phone(staff("support"), clock)
        sent = {"username": stella.account.email, "password": PASSWORD}
        assert Client().post("/admin/login/", sent).status_code == 405
        assert Client().get("/admin/login/?next=/admin/entitlements/tier/")["Location"] == (
            "/sign-in/?next=%2Fadmin%2Fentitlements%2Ftier%2F"
        )
        assert Client().get("/admin/login/?next=//evil.example/")["Location"] == "/sign-in/?next=%2Fadmin%2F"
        assert stella.client.get("/admin/login/")["Location"] == "/admin/"
        alice.client.force_login(alice.account)
        assert alice.client.get("/admin/login/").status_code == 403


class TestWithTheSettingOff:
    def test_staff_without_a_phone_come_in_with_a_password(self) -> None:
        stella = staff("support")
        assert stella.type_password(back="/admin/")["Location"] == "/admin/"
        assert stella.client.get("/admin/").status_code == 200

    def test_a_production_without_it_is_warned(self, settings: Any) -> None:
        (warning,) = staff_prove_a_second_factor(None)
        assert warning.id == "entitlements.W001"
        settings.STAFF_TOTP = True
        assert staff_prove_a_second_factor(None) == []

    @pytest.mark.parametrize(
        ("required", "factor", "proven", "step"),
        [
            (True, None, None, Step.SET_UP), (True, None, 7, Step.SET_UP), (True, 7, None, Step.PROVE),
            (True, 8, 7, Step.PROVE), (True, 7, 7, Step.NONE), (False, None, None, Step.NONE),
            (False, None, 7, Step.NONE), (False, 7, None, Step.PROVE), (False, 8, 7, Step.PROVE), (False, 7, 7, Step.NONE),
        ],
    )  # fmt: skip
    def test_what_is_missing_is_a_rule(
        self, required: bool, factor: int | None, proven: int | None, step: Step
    ) -> None:
        assert step_needed(required=required, factor=factor, proven=proven) is step


class TestALostPhone:
    def reset(self, by: Staff, account: Account, **sent: str) -> Any:
        return by.client.post(f"/admin/entitlements/account/{account.pk}/reset-totp/", sent)

    def test_a_superuser_resets_it_with_a_reason_and_everything_that_was_proven_is_void(
        self, clock: time_machine.Traveller
    ) -> None:
        steve, stella = with_phone(staff("support"), clock), Staff()
        assert steve.client.get("/admin/").status_code == 200
        answer = self.reset(stella, steve.account, why="Lost his phone, ticket 12")
        assert answer["Location"] == f"/admin/entitlements/account/{steve.account.pk}/change/"
        assert not Authenticator.objects.filter(user=steve.account).exists()
        events = next(iter(SecondFactor.pgh_event_models.values()))
        context = events.objects.filter(user_id=steve.account.pk).latest("pgh_id").pgh_context.metadata
        assert context["reason"] == "Lost his phone, ticket 12"
        assert (context["actor"], context["source"]) == (stella.account.email, "admin")
        with_phone(Person(steve.account), clock)
        assert steve.client.get("/admin/")["Location"].startswith("/settings/security/code/")

    def test_the_button_is_there_for_superusers_only_and_only_where_there_is_something_to_reset(
        self, clock: time_machine.Traveller
    ) -> None:
        alice, steve, stella = (
            with_phone(Person(make_account("alice", password=PASSWORD)), clock),
            staff("support"),
            Staff(),
        )
        steve.client.force_login(steve.account)
        page = stella.url(alice.account)
        assert "reset-totp" in stella.client.get(page).content.decode()
        assert "reset-totp" not in steve.client.get(page).content.decode()
        assert "reset-totp" not in stella.client.get(stella.url(make_account("charlie"))).content.decode()

    @pytest.mark.parametrize("group", [*sorted(GROUPS), "none"])
    def test_no_group_may(self, group: str, clock: time_machine.Traveller) -> None:
        alice, steve = with_phone(Person(make_account("alice", password=PASSWORD)), clock), staff(group)
        steve.client.force_login(steve.account)
        address = f"/admin/entitlements/account/{alice.account.pk}/reset-totp/"
        assert steve.client.get(address).status_code == 403
        assert steve.client.post(address, {"why": "Mine"}).status_code == 403
        assert Authenticator.objects.filter(user=alice.account).count() == 2

    def test_a_look_changes_nothing_and_a_reason_is_needed(self, clock: time_machine.Traveller) -> None:
        alice, stella = with_phone(Person(make_account("alice", password=PASSWORD)), clock), Staff()
        address = f"/admin/entitlements/account/{alice.account.pk}/reset-totp/"
        page = stella.client.get(address, {"why": "By a link"})
        assert alice.account.email in said(page)
        for why in ("", "   "):
            assert "This field is required." in said(self.reset(stella, alice.account, why=why))
        assert Authenticator.objects.filter(user=alice.account).count() == 2

    def test_nobody_resets_their_own_here(self, clock: time_machine.Traveller) -> None:
        stella = with_phone(staff(superuser=True), clock)
        address = f"/admin/entitlements/account/{stella.account.pk}/reset-totp/"
        assert stella.client.post(address, {"why": "Mine"}).status_code == 403
        assert "reset-totp" not in stella.client.get(address.replace("reset-totp", "change")).content.decode()
        assert Authenticator.objects.filter(user=stella.account).exists()

    @pytest.mark.parametrize("which", ["nobody", "acc_nobody", "00000000-0000-0000-0000-000000000000"])
    def test_an_account_that_is_none_is_refused(self, which: str) -> None:
        assert Staff().client.post(f"/admin/entitlements/account/{which}/reset-totp/", {"why": "x"}).status_code == 403

    def test_the_last_superuser_is_helped_by_a_command_that_leaves_its_reason(
        self, clock: time_machine.Traveller
    ) -> None:
        stella = with_phone(staff(superuser=True), clock)
        out = StringIO()
        call_command("reset_totp", stella.account.email.upper(), "--reason", "Lost, ticket 13", stdout=out)
        assert out.getvalue().strip() == f"The second factor of {stella.account.email} is reset."
        assert not Authenticator.objects.filter(user=stella.account).exists()
        events = next(iter(SecondFactor.pgh_event_models.values()))
        context = events.objects.filter(user_id=stella.account.pk).latest("pgh_id").pgh_context.metadata
        assert (context["actor"], context["reason"], context["source"]) == (
            "reset_totp",
            "Lost, ticket 13",
            "command reset_totp",
        )
        with pytest.raises(CommandError, match="has no second factor"):
            call_command("reset_totp", stella.account.email, "--reason", "Again")
        with pytest.raises(CommandError, match="no account"):
            call_command("reset_totp", "nobody@example.com", "--reason", "x")
        with pytest.raises(CommandError, match="--reason"):
            call_command("reset_totp", stella.account.email)


@pytest.mark.usefixtures("nobody_sweeps")
class TestTheMail:
    def test_the_owner_is_told_of_each_change_once(
        self, mailoutbox: list[EmailMessage], clock: time_machine.Traveller
    ) -> None:
        alice = with_phone(Person(make_account("alice", password=PASSWORD)), clock)
        alice.client.post("/settings/security/recovery-codes/")
        Staff().client.post(f"/admin/entitlements/account/{alice.account.pk}/reset-totp/", {"why": "Lost"})
        with_phone(alice, clock)
        alice.client.post("/settings/security/app/remove/")
        send_notices()
        send_notices()
        mine = [mail for mail in mailoutbox if mail.to == [alice.account.email]]
        assert [mail.subject for mail in mine] == [
            "webhost.systems: An authenticator app was set up",
            "webhost.systems: New recovery codes were made",
            "webhost.systems: Your second factor was reset by support",
            "webhost.systems: An authenticator app was set up",
            "webhost.systems: Your authenticator app was removed",
        ]
        texts = " ".join(str(mail.body) for mail in mine)
        assert "write to support@webhost.systems at once" in texts
        assert not [code for code in alice.recovery_codes if code in texts]
        assert alice.secret.replace(" ", "") not in texts
        assert not Notice.objects.filter(account=alice.account).exists()

    def test_one_that_cannot_be_sent_is_sent_later_and_stops_nothing(
        self, mailoutbox: list[EmailMessage], monkeypatch: pytest.MonkeyPatch, clock: time_machine.Traveller
    ) -> None:
        def refuse(*_: object, **__: object) -> None:
            raise ConnectionRefusedError

        alice = Person(make_account("alice", password=PASSWORD))
        with monkeypatch.context() as broken:
            broken.setattr(EmailMessage, "send", refuse)
            with_phone(alice, clock)
            send_notices()
        assert Notice.objects.filter(account=alice.account).count() == 1
        send_notices()
        assert not [mail for mail in mailoutbox if mail.to == [alice.account.email]], "not at once"
        clock.shift(301)
        send_notices()
        assert len([mail for mail in mailoutbox if mail.to == [alice.account.email]]) == 1
        assert not Notice.objects.filter(account=alice.account).exists()
