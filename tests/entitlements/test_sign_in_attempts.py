"""How many wrong passwords and codes are taken, with Redis and without."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
import time_machine
from django.test import Client
from redis.exceptions import ConnectionError as RedisConnectionError

from entitlements import throttles
from entitlements.errors import RateLimitedError
from entitlements.sign_in import attempts
from entitlements.sign_in.attempts import Guessed
from tests.entitlements.phones import STEP, Person, alerts
from tests.factories import make_account

pytestmark = pytest.mark.usefixtures("live_db")

PASSWORD = "a-long-enough-secret"
FIVE_MINUTES = 300


@pytest.fixture(autouse=True)
def _fast_passwords(settings: Any) -> None:
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[time_machine.Traveller]:
    monkeypatch.setattr(throttles, "_away_until", 0.0)
    # At the begin of five minutes, so that none end in the middle of a test.
    with time_machine.travel(time.time() // FIVE_MINUTES * FIVE_MINUTES + 5, tick=True) as traveller:
        yield traveller


@pytest.fixture
def away(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """A Redis that refuses every connection; what it was asked for."""
    asked: list[Any] = []

    def refuse(*args: object, **_: object) -> None:
        asked.append(args)
        raise RedisConnectionError("refused")

    for name in ("add", "incr", "decr", "get", "set", "delete"):
        monkeypatch.setattr(throttles.cache, name, refuse)
    return asked


@pytest.fixture
def alice() -> Person:
    return Person(make_account("alice", password=PASSWORD))


def with_phone(person: Person, clock: time_machine.Traveller) -> Person:
    person.type_password()
    assert person.set_up().status_code == 200
    clock.shift(FIVE_MINUTES)
    person.new_browser()
    return person


class TestWrongPasswords:
    def test_after_five_the_sixth_is_not_looked_at_and_says_how_long_to_wait(self, alice: Person) -> None:
        assert [alice.type_password("wrong").status_code for _ in range(5)] == [200] * 5
        page = alice.type_password()
        assert page.status_code == 429
        assert "Too many wrong tries. Please wait 5 minutes and try again." in alerts(page)
        assert 200 < int(page.headers["Retry-After"]) <= FIVE_MINUTES

    def test_nobody_is_locked_out_for_good(self, alice: Person, clock: time_machine.Traveller) -> None:
        for _ in range(6):
            alice.type_password("wrong")
        clock.shift(FIVE_MINUTES)
        assert alice.type_password().status_code == 302

    def test_somebody_who_guesses_elsewhere_does_not_keep_the_owner_out(self, alice: Person) -> None:
        charlie = Person(alice.account)
        assert [charlie.type_password("wrong").status_code for _ in range(120)].count(200) == 5
        assert alice.type_password().status_code == 302

    def test_right_ones_do_not_count(self, alice: Person) -> None:
        for _ in range(12):
            alice.new_browser()
            assert alice.type_password().status_code == 302

    def test_guessing_many_accounts_from_one_network_is_paced(self, alice: Person) -> None:
        network, codes = alice.address.removesuffix("::1"), []
        for n in range(55):
            nobody = Client(REMOTE_ADDR=f"{network}::{n + 1:x}")
            sent = {"username": f"nobody-{n}@example.com", "password": "wrong"}
            codes.append(nobody.post("/sign-in/", sent, headers={"X-Forwarded-For": f"203.0.113.{n}"}).status_code)
        assert codes == [200] * 50 + [429] * 5

    def test_guessing_one_account_from_many_addresses_is_paced(self, alice: Person) -> None:
        codes = [Person(alice.account).type_password("wrong").status_code for _ in range(103)]
        assert codes == [200] * 100 + [429] * 3

    def test_unknown_accounts_are_paced_like_known_ones(self, alice: Person) -> None:
        sent = {"username": f"nobody-{alice.account.pk}@example.com", "password": "wrong"}
        codes = [alice.client.post("/sign-in/", sent).status_code for _ in range(6)]
        assert codes == [200] * 5 + [429]

    def test_case_and_spaces_make_no_other_account(self, alice: Person) -> None:
        email = alice.account.email
        for name in (email, email.upper(), f" {email}", email.title(), f"{email} "):
            alice.client.post("/sign-in/", {"username": name, "password": "wrong"})
        assert alice.type_password().status_code == 429

    def test_the_password_that_is_asked_for_again_counts_as_well(self, alice: Person) -> None:
        alice.type_password()
        assert [alice.confirm_password("/", "wrong").status_code for _ in range(6)] == [200] * 5 + [429]
        assert alice.confirm_password("/").status_code == 429


class TestWrongCodes:
    def test_after_five_the_right_one_has_to_wait_from_wherever(
        self, alice: Person, clock: time_machine.Traveller
    ) -> None:
        with_phone(alice, clock)
        alice.type_password()
        assert [alice.type_code("000000").status_code for _ in range(5)] == [200] * 5
        assert alice.type_code(alice.code()).status_code == 429
        elsewhere = Person(alice.account)
        elsewhere.type_password()
        assert elsewhere.type_code(alice.recovery_codes[0]).status_code == 429
        clock.shift(FIVE_MINUTES)
        elsewhere.type_password()
        assert elsewhere.type_code(alice.recovery_codes[0]).status_code == 302

    def test_thirty_a_day_are_enough(self, alice: Person) -> None:
        account, taken = str(alice.account.pk), 0
        with time_machine.travel(time.time() // 86400 * 86400 + 60, tick=True) as clock:
            for _ in range(50):
                try:
                    attempts.begin(Guessed.CODE, account, alice.address)
                    taken += 1
                except RateLimitedError:
                    clock.shift(FIVE_MINUTES)
            assert taken == 30
            clock.shift(86400)
            attempts.begin(Guessed.CODE, account, alice.address)

    def test_a_page_that_asks_a_signed_in_session_for_a_code_counts_as_well(
        self, alice: Person, clock: time_machine.Traveller
    ) -> None:
        with_phone(alice, clock)
        alice.client.force_login(alice.account)
        codes = [alice.client.post("/settings/security/code/", {"code": "000000"}).status_code for _ in range(6)]
        assert codes == [200] * 5 + [429]


class TestWithoutRedis:
    def test_signing_in_works_with_a_phone_and_a_code_is_still_taken_once(
        self, alice: Person, away: list[Any], clock: time_machine.Traveller
    ) -> None:
        with_phone(alice, clock)
        assert alice.type_password().status_code == 302
        used = alice.code()
        assert alice.type_code(used)["Location"] == "/"
        alice.new_browser()
        alice.type_password()
        assert alice.type_code(used).status_code == 200
        assert away

    def test_guessing_is_paced_by_each_process(self, alice: Person, away: list[Any]) -> None:
        assert [alice.type_password("wrong").status_code for _ in range(6)] == [200] * 5 + [429]
        assert len(away) == 1, "a Redis that is away is left alone for a while"

    def test_right_ones_do_not_count_there_either(self, alice: Person, away: list[Any]) -> None:
        for _ in range(12):
            alice.new_browser()
            assert alice.type_password().status_code == 302
        assert away

    def test_windows_of_different_lengths_do_not_forget_each_other(self, away: list[Any]) -> None:
        now = int(time.time())
        for _ in range(3):
            throttles.count("one", now // 60)
            throttles.count("one", now // STEP, STEP)
        assert throttles.count("one", now // 60) == 4
        assert throttles.count("one", now // 60 + 1) == 1
        assert throttles.count("one", now // STEP, STEP) == 4
        assert away
