"""People: signing up, proving an address, a forgotten password, another password, another address."""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import time_machine
from allauth.account.models import EmailAddress
from django.core import mail as sent_mail
from django.core.mail import EmailMessage
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from entitlements.actions.accounts import account_fingerprint, change_account, create_account
from entitlements.actions.addresses import is_confirmed
from entitlements.actions.send_notices import send_notices
from entitlements.models import Account, ApiToken, Notice
from tests.api import at_once
from tests.entitlements.admin_pages import history, said
from tests.entitlements.phones import PASSWORD, STEP, Person
from tests.factories import make_account, make_token
from tests.pages import inline_of

pytestmark = pytest.mark.usefixtures("live_db", "nobody_sweeps")
NEW = "another-long-secret"


@pytest.fixture(autouse=True)
def _fast_passwords(settings: Any) -> None:
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]


@pytest.fixture
def clock() -> Iterator[time_machine.Traveller]:
    with time_machine.travel(time.time() // STEP * STEP + 5, tick=True) as traveller:
        yield traveller


def someone() -> str:
    return f"alice-{secrets.token_hex(6)}@example.com"


def browser() -> Client:
    """A browser at an address of its own, so that no test uses up what another may ask for."""
    return Client(REMOTE_ADDR=f"2001:db8:{secrets.token_hex(2)}:{secrets.token_hex(2)}::1")


def mails_to(address: str) -> list[EmailMessage]:
    send_notices()
    return [mail for mail in sent_mail.outbox if mail.to == [address]]


def path_in(mail: EmailMessage) -> str:
    """Return the one link of a mail, without the host."""
    (link,) = re.findall(r"https?://\S+", str(mail.body))
    return "/" + str(link).split("/", 3)[3]


def hidden(page: Any, name: str) -> str:
    (value,) = re.findall(rf'name="{name}" value="([^"]+)"', page.content.decode())
    return str(value)


def signed_up(password: str = PASSWORD) -> Person:
    """Sign up through the page; the address is not confirmed yet."""
    address = someone()
    answer = browser().post("/sign-up/", {"email": address, "password": password})
    assert (answer.status_code, answer["Location"]) == (302, "/sign-up/sent/")
    return Person(Account.objects.get(email=address))


def confirm(client: Client, path: str) -> Any:
    page = client.get(path)
    return client.post("/confirm/", {"link": hidden(page, "link")})


class TestSigningUp:
    def test_alice_gets_an_account_on_the_default_tier_that_is_in_the_audit_log(self) -> None:
        alice = signed_up().account
        assert (alice.billing_tier, alice.support_tier, alice.is_staff, alice.is_superuser) == (
            None,
            None,
            False,
            False,
        )
        (entry,) = history(alice)
        assert (entry.pgh_label, entry.pgh_context.metadata["actor"]) == ("insert", alice.email)
        assert entry.pgh_context.metadata["reason"] == "Signed up"

    def test_she_proves_her_address_with_a_button_and_not_by_opening_the_link(self) -> None:
        alice = signed_up()
        (mail,) = mails_to(alice.account.email)
        assert mail.subject == "webhost.systems: Confirm your e-mail address"
        scanner = browser()
        for _ in range(2):
            assert "Is " + alice.account.email in said(scanner.get(path_in(mail)))
        assert not is_confirmed(alice.account.pk)
        assert confirm(scanner, path_in(mail)).status_code == 302
        assert is_confirmed(alice.account.pk)
        assert "is confirmed" in said(scanner.get(path_in(mail))), "a second time says so"

    def test_a_known_address_is_answered_alike_and_its_owner_is_told(self) -> None:
        alice = make_account("alice", password=PASSWORD)
        known = browser().post("/sign-up/", {"email": alice.email.upper(), "password": NEW}, follow=True)
        unknown = browser().post("/sign-up/", {"email": someone(), "password": NEW}, follow=True)
        assert known.redirect_chain == unknown.redirect_chain
        assert said(known) == said(unknown)
        (mail,) = mails_to(alice.email)
        assert mail.subject == "webhost.systems: You have an account already"
        assert path_in(mail) == "/reset/"
        alice.refresh_from_db()
        assert alice.check_password(PASSWORD)
        assert Account.objects.filter(email=alice.email).count() == 1

    def test_a_known_address_costs_one_hash_as_an_unknown_one_does(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from entitlements.actions import sign_up

        made: list[str] = []
        hash_it = sign_up.make_password

        def counted(password: str) -> str:
            made.append(password)
            return hash_it(password)

        monkeypatch.setattr(sign_up, "make_password", counted)
        for address in (make_account("alice").email, someone()):
            browser().post("/sign-up/", {"email": address, "password": NEW})
        assert made == [NEW, NEW]

    def test_twice_at_once_makes_one_account(self) -> None:
        address = someone()
        codes = at_once(lambda _: browser().post("/sign-up/", {"email": address, "password": PASSWORD}).status_code, 4)
        assert codes == [302] * 4
        assert Account.objects.filter(email=address).count() == 1

    @pytest.mark.parametrize(
        ("email", "password", "told"),
        [
            ("nobody", PASSWORD, "valid email"),
            ("ü@example.com", PASSWORD, "valid email"),
            ("a@example.com\nBcc: b@example.com", PASSWORD, "valid email"),
            ("", PASSWORD, "required"),
            ("somebody@example.com", "xq7-zw", "too short"),
            ("somebody@example.com", "password123", "too common"),
            ("longenough-name@example.com", "longenough-name", "too similar"),
        ],
    )
    def test_what_is_wrong_is_said_and_nothing_is_made(self, email: str, password: str, told: str) -> None:
        before = Account.objects.count()
        page = browser().post("/sign-up/", {"email": email, "password": password})
        assert page.status_code == 200
        assert told in page.content.decode()
        assert password not in page.content.decode() or "longenough" in password
        assert Account.objects.count() == before

    def test_it_is_paced_for_one_address_and_for_one_network(self) -> None:
        address, here = someone(), browser()
        codes = [here.post("/sign-up/", {"email": address, "password": PASSWORD}).status_code for _ in range(6)]
        assert codes == [302] * 5 + [429]
        codes = [here.post("/sign-up/", {"email": someone(), "password": PASSWORD}).status_code for _ in range(30)]
        assert codes[-1] == 429
        refused = here.post("/sign-up/", {"email": someone(), "password": PASSWORD})
        assert int(refused["Retry-After"]) > 0
        assert "You asked too often" in said(refused)

    def test_who_is_signed_in_has_no_use_for_it(self) -> None:
        alice = Person(make_account("alice", password=PASSWORD))
        alice.type_password()
        assert [alice.client.get(at)["Location"] for at in ("/sign-up/", "/reset/")] == ["/", "/"]

    @pytest.mark.parametrize(
        "at", ["/sign-up/", "/sign-up/sent/", "/reset/", "/reset/sent/", "/confirm/x/", "/reset/x/"]
    )
    def test_the_pages_hold_nothing_inline_and_are_not_kept(self, at: str) -> None:
        page = browser().get(at)
        assert inline_of(page) == []
        assert "no-store" in page["Cache-Control"]


class TestUnconfirmed:
    def test_she_signs_in_and_every_page_asks_her_to_confirm(self) -> None:
        alice = signed_up()
        assert alice.type_password()["Location"] == "/"
        for at in ("/", "/agents/", "/billing/", "/settings/tokens/", "/settings/security/"):
            assert "Confirm your address." in said(alice.client.get(at)), at
        assert alice.client.post("/agents/", {"name": "mine", "runtimeProvider": "cloudflare"}).status_code == 302

    def test_who_is_confirmed_is_not_asked(self) -> None:
        alice = Person(make_account("alice", password=PASSWORD))
        alice.type_password()
        assert "Confirm your address." not in said(alice.client.get("/"))

    def test_the_mail_is_sent_again_and_paced(self) -> None:
        alice = signed_up()
        alice.type_password()
        answers = [alice.client.post("/confirm/again/", {"next": "/agents/"}) for _ in range(6)]
        assert {answer["Location"] for answer in answers} == {"/agents/"}
        assert "You asked too often" in said(alice.client.get("/agents/"))
        assert len(mails_to(alice.account.email)) == 1 + 5
        assert alice.client.post("/confirm/again/", {"next": "https://evil.example/"})["Location"] == "/"

    def test_staff_vouch_for_accounts_that_they_open(self) -> None:
        made = create_account({"email": someone()}, None, actor="stella", reason="By hand")
        assert is_confirmed(made.pk)

    def test_an_address_that_staff_change_is_to_be_confirmed_and_both_are_told(self) -> None:
        alice = make_account("alice")
        before, after = alice.email, someone()
        change_account(alice.pk, {"email": after}, actor="stella", reason="Asked", seen=account_fingerprint(alice))
        assert not is_confirmed(alice.pk)
        assert [mail.subject for mail in mails_to(before)] == ["webhost.systems: Your e-mail address was changed"]
        (mail,) = mails_to(after)
        confirm(browser(), path_in(mail))
        assert is_confirmed(alice.pk)


class TestLinks:
    @pytest.mark.parametrize(
        "spoil", [lambda p: p[:-3] + "xx/", lambda p: p.replace(":", ":x", 1), lambda _: "/confirm/%00/"]
    )
    def test_one_that_was_tampered_with_confirms_nothing(self, spoil: Callable[[str], str]) -> None:
        alice = signed_up()
        (mail,) = mails_to(alice.account.email)
        spoilt = spoil(path_in(mail))
        assert browser().get(spoilt).status_code in (400, 404)
        assert browser().post("/confirm/", {"link": spoilt.split("/")[2]}).status_code == 404
        assert not is_confirmed(alice.account.pk)

    def test_one_that_is_old_confirms_nothing(self, clock: time_machine.Traveller) -> None:
        alice = signed_up()
        (mail,) = mails_to(alice.account.email)
        clock.shift(3 * 24 * 60 * 60 + 1)
        assert browser().get(path_in(mail)).status_code == 404
        assert browser().post("/confirm/", {"link": path_in(mail).split("/")[2]}).status_code == 404
        assert not is_confirmed(alice.account.pk)

    def test_that_of_a_disabled_account_confirms_nothing(self) -> None:
        alice = signed_up()
        (mail,) = mails_to(alice.account.email)
        Account.objects.filter(pk=alice.account.pk).update(is_active=False)
        assert browser().get(path_in(mail)).status_code == 404

    def test_no_link_lies_in_the_database(self) -> None:
        alice = signed_up()
        browser().post("/reset/", {"email": alice.account.email})
        rows = list(Notice.objects.filter(address=alice.account.email).values())
        rows += list(Notice.objects.filter(account=alice.account).values())
        assert len(rows) == 2
        assert not [
            value for row in rows for value in row.values() if "-" in str(value) and alice.account.pk.hex in str(value)
        ]


class TestForgottenPassword:
    def asked(self, address: str) -> str:
        answer = browser().post("/reset/", {"email": address})
        assert (answer.status_code, answer["Location"]) == (302, "/reset/sent/")
        return path_in(mails_to(address)[-1])

    def test_it_is_replaced_once_and_every_session_ends(self) -> None:
        alice = Person(make_account("alice", password=PASSWORD))
        alice.type_password()
        path, elsewhere = self.asked(alice.account.email), browser()
        link = hidden(elsewhere.get(path), "link")
        answer = elsewhere.post("/reset/new/", {"link": link, "password": NEW})
        assert answer["Location"] == "/sign-in/"
        assert alice.client.get("/billing/").status_code == 302, "out at once"
        assert elsewhere.get("/billing/").status_code == 302, "nobody is signed in by it"
        assert elsewhere.get(path).status_code == 404
        assert elsewhere.post("/reset/new/", {"link": link, "password": PASSWORD}).status_code == 404
        alice.new_browser()
        assert alice.type_password().status_code == 200
        assert alice.type_password(NEW).status_code == 302
        assert mails_to(alice.account.email)[-1].subject == "webhost.systems: Your password was changed"

    def test_a_link_that_is_sent_twice_at_once_works_once(self) -> None:
        alice = make_account("alice", password=PASSWORD)
        link = self.asked(alice.email).split("/")[2]
        passwords = [f"{NEW}-{n}" for n in range(4)]
        codes = at_once(
            lambda n: browser().post("/reset/new/", {"link": link, "password": passwords[n]}).status_code, 4
        )
        assert sorted(codes) == [302, 404, 404, 404]
        alice.refresh_from_db()
        assert alice.check_password(passwords[codes.index(302)])

    def test_the_second_factor_is_asked_for_all_the_same(self, clock: time_machine.Traveller) -> None:
        alice = Person(make_account("alice", password=PASSWORD))
        alice.type_password()
        alice.set_up()
        clock.shift(2 * STEP)
        link = self.asked(alice.account.email).split("/")[2]
        browser().post("/reset/new/", {"link": link, "password": NEW})
        alice.new_browser()
        assert alice.type_password(NEW)["Location"] == "/sign-in/code/"
        assert alice.client.get("/billing/").status_code == 302

    def test_nobody_learns_whether_there_is_an_account(self) -> None:
        alice, gone, nobody = make_account("alice"), make_account("charlie"), someone()
        Account.objects.filter(pk=gone.pk).update(is_active=False)
        pages, work = set(), set()
        for address in (alice.email, gone.email, nobody):
            here = browser()
            here.get("/reset/")
            with CaptureQueriesContext(connection) as seen:
                page = here.post("/reset/", {"email": address}, follow=True)
            pages.add(said(page))
            # The tables, in order; what is noted for the audit log before each statement holds a trace id.
            statements = " ".join(query["sql"] for query in seen.captured_queries)
            work.add(tuple(re.findall(r"(INSERT INTO|FROM|UPDATE) (\S+)", statements)))
        assert (len(pages), len(work)) == (1, 1)
        assert (len(mails_to(alice.email)), mails_to(gone.email), mails_to(nobody)) == (1, [], [])
        assert not Notice.objects.filter(address__in=[gone.email, nobody]).exists()

    def test_a_link_ends_in_an_hour(self, clock: time_machine.Traveller) -> None:
        path = self.asked(make_account("alice").email)
        clock.shift(59 * 60)
        assert browser().get(path).status_code == 200
        clock.shift(2 * 60)
        assert browser().get(path).status_code == 404

    @pytest.mark.parametrize("link", ["x", "-", "zz-1", "%00", "a" * 300])
    def test_a_made_up_link_is_none(self, link: str) -> None:
        assert browser().get(f"/reset/{link}/").status_code in (400, 404)
        assert browser().post("/reset/new/", {"link": link, "password": NEW}).status_code == 404

    def test_it_is_held_to_the_rules_and_the_link_stays_good(self) -> None:
        alice, here = make_account("alice", password=PASSWORD), browser()
        link = self.asked(alice.email).split("/")[2]
        assert "too short" in here.post("/reset/new/", {"link": link, "password": "short"}).content.decode()
        assert here.post("/reset/new/", {"link": link, "password": NEW}).status_code == 302

    def test_it_is_paced(self) -> None:
        address, here = someone(), browser()
        codes = [here.post("/reset/", {"email": address}).status_code for _ in range(6)]
        assert codes == [302] * 5 + [429]

    def test_it_proves_the_address_and_ends_tokens_of_whoever_signed_up_with_it(self) -> None:
        squatter = signed_up()
        make_token(squatter.account)
        link = self.asked(squatter.account.email).split("/")[2]
        browser().post("/reset/new/", {"link": link, "password": NEW})
        assert is_confirmed(squatter.account.pk)
        assert not ApiToken.objects.filter(user=squatter.account).exists()

    def test_tokens_of_a_proven_account_stay(self) -> None:
        alice = make_account("alice")
        make_token(alice)
        browser().post("/reset/new/", {"link": self.asked(alice.email).split("/")[2], "password": NEW})
        assert ApiToken.objects.filter(user=alice).count() == 1


class TestOnesOwn:
    @pytest.fixture
    def alice(self) -> Person:
        person = Person(make_account("alice", password=PASSWORD))
        person.type_password()
        return person

    def test_a_password_is_changed_by_who_knows_it_and_other_sessions_end(self, alice: Person) -> None:
        other = Person(alice.account)
        other.type_password()
        at = "/settings/security/new-password/"
        wrong = alice.client.post(at, {"current": "wrong", "password": NEW})
        assert "This is not your password" in said(wrong)
        assert alice.client.post(at, {"current": PASSWORD, "password": NEW})["Location"] == "/settings/security/"
        assert alice.client.get("/billing/").status_code == 200
        assert other.client.get("/billing/").status_code == 302

    def test_wrong_passwords_are_counted_as_at_the_door(self, alice: Person) -> None:
        at = "/settings/security/new-password/"
        codes = [alice.client.post(at, {"current": "wrong", "password": NEW}).status_code for _ in range(6)]
        assert codes == [200] * 5 + [429]

    def test_another_address_counts_once_it_was_confirmed_and_the_old_one_is_told(self, alice: Person) -> None:
        old, new = alice.account.email, someone()
        alice.client.post("/settings/security/e-mail/", {"email": new, "current": PASSWORD})
        alice.account.refresh_from_db()
        assert alice.account.email == old
        assert f"{new} takes its place" in said(alice.client.get("/settings/security/"))
        (mail,) = mails_to(new)
        assert confirm(browser(), path_in(mail)).status_code == 302
        alice.account.refresh_from_db()
        assert (alice.account.email, is_confirmed(alice.account.pk)) == (new, True)
        assert [m.subject for m in mails_to(old)] == ["webhost.systems: Your e-mail address was changed"]
        assert EmailAddress.objects.filter(user=alice.account).count() == 1

    def test_an_address_of_somebody_else_is_answered_alike_and_stays_theirs(self, alice: Person) -> None:
        charlie = make_account("charlie")
        answer = alice.client.post("/settings/security/e-mail/", {"email": charlie.email, "current": PASSWORD})
        assert answer["Location"] == "/settings/security/"
        assert f"{charlie.email} takes its place" in said(alice.client.get("/settings/security/"))
        (mail,) = mails_to(charlie.email)
        assert path_in(mail) == "/reset/", "no link that would move it"
        assert is_confirmed(charlie.pk)

    def test_she_may_change_her_mind(self, alice: Person) -> None:
        new = someone()
        alice.client.post("/settings/security/e-mail/", {"email": new, "current": PASSWORD})
        (mail,) = mails_to(new)
        alice.client.post("/settings/security/e-mail/keep/")
        assert browser().get(path_in(mail)).status_code == 404

    def test_it_takes_her_password(self, alice: Person) -> None:
        page = alice.client.post("/settings/security/e-mail/", {"email": someone(), "current": "wrong"})
        assert "This is not your password" in said(page)
        assert not EmailAddress.objects.filter(user=alice.account, verified=False).exists()
