"""Mails and signed webhooks: to public https addresses only, pinned, without redirects, retried, never two at once."""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from django.conf import settings
from django.core.mail import EmailMessage
from django.utils import timezone

from entitlements.models import Account
from telemetry import webhook
from telemetry.actions.alert_targets import create_target, remove_target, secret_of
from telemetry.actions.deliver_alerts import LEASE, deliver_alerts, deliver_next, take_next
from telemetry.actions.watch_budgets import watch_accounts
from telemetry.addresses import Endpoint, chosen, endpoint_of, is_public
from telemetry.models import AlertDelivery, AlertKind, AlertTarget
from telemetry.webhook import INTERNET, WebhookError, send_webhook
from tests.api import at_once
from tests.entitlements.callers import Caller
from tests.factories import make_account, make_tier
from tests.telemetry.receiver import HOST, PUBLIC, Pretended, Receiver, certificate, drip, listening
from webhost.errors import InvalidRequestError
from webhost.ids import new_id

pytestmark = pytest.mark.usefixtures("live_db", "nobody_sweeps")
URL = f"https://{HOST}/whs?for=alice"


class TestWhichAddressesAreAllowed:
    @pytest.mark.parametrize(
        "url",
        [
            "http://hooks.example.com/", "ftp://hooks.example.com/", "//hooks.example.com/", "hooks.example.com",
            "https://", "https:///x", "https://localhost/", "https://127.0.0.1/", "https://[::1]/", "https://2130706433/",
            "https://0x7f.1/", "https://10.1/", "https://hooks.example.com:8443/", "https://hooks.example.com:0/",
            "https://hooks.example.com:99999/", "https://user@hooks.example.com/", "https://u:p@hooks.example.com/",
            "https://@hooks.example.com/", "https://hooks.example.com/#x", "https://hooks.example.com/ x",
            "https://hooks.example.com/\r\nX: y", "https://hooks.ex\tample.com/", "https://hooks.example.com\\@a.com/",
            "https://hö.example.com/", "https://-a.example.com/", "https://a..com/", "https://a.com./",
            "https://hooks.example.com/" + "x" * 500, "",
        ],
    )  # fmt: skip
    def test_what_is_not_plain_https_to_a_name_on_443_is_refused(self, url: str) -> None:
        assert isinstance(endpoint_of(url), str)

    def test_what_is_keeps_path_and_query(self) -> None:
        assert endpoint_of(URL) == Endpoint(HOST, "/whs?for=alice")
        assert endpoint_of("HTTPS://Hooks.Example.COM:443") == Endpoint(HOST, "/")
        assert endpoint_of("https://xn--h-0ga.example.com/?a") == Endpoint("xn--h-0ga.example.com", "/?a")

    @pytest.mark.parametrize(
        "address",
        [
            "127.0.0.1", "10.0.0.1", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1", "0.0.0.0", "224.0.0.1",  # noqa: S104 - refused
            "239.1.1.1", "240.0.0.1", "255.255.255.255", "192.0.2.1", "198.18.0.1", "198.51.100.1", "192.88.99.1",
            "::", "::1", "fe80::1", "fe80::1%eth0", "fc00::1", "fd00:ec2::254", "ff02::1", "2001:db8::1", "2001::1",
            "3fff::1", "::ffff:127.0.0.1", "::ffff:10.0.0.1", "::127.0.0.1", "64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe",
            "64:ff9b:1::1", "2002:7f00:1::", "2002:a00:1::", "5f00::1", "100::1", "not an address", "",
        ],
    )  # fmt: skip
    def test_what_is_not_plainly_public_is_refused_also_when_wrapped(self, address: str) -> None:
        assert not is_public(address)

    @pytest.mark.parametrize("address", ["93.184.215.14", "1.1.1.1", "2606:4700::1111", "64:ff9b::101:101"])
    def test_public_ones_pass(self, address: str) -> None:
        assert is_public(address)

    def test_one_that_is_not_spoils_the_others(self) -> None:
        assert chosen([PUBLIC, "127.0.0.1"]) is None
        assert chosen([]) is None
        assert chosen([PUBLIC, "1.1.1.1"]) == PUBLIC


@pytest.fixture(scope="module")
def pem(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return certificate(tmp_path_factory.mktemp("certificates"), HOST)


@pytest.fixture
def receiver(pem: Path) -> Iterator[Receiver]:
    with listening(pem) as server:
        yield server


@pytest.fixture
def internet(pem: Path, receiver: Receiver) -> Pretended:
    return Pretended(ca_certs=str(pem), port=receiver.port)


class TestOneCall:
    def refused(self, internet: webhook.Internet, url: str = URL) -> str:
        with pytest.raises(WebhookError) as refused:
            send_webhook(url, b"{}", {}, internet)
        return refused.value.reason

    def test_it_goes_to_the_name_at_the_address_that_was_checked(self, internet: Pretended, receiver: Receiver) -> None:
        assert send_webhook(URL, b'{"a":1}', {"X-Whs-Event-Id": "evt_1"}, internet) == 200
        (request,) = receiver.requests
        assert (request.path, request.body) == ("/whs?for=alice", b'{"a":1}')
        assert (request.headers["Host"], request.headers["Content-Type"]) == (HOST, "application/json")
        assert request.headers["X-Whs-Event-Id"] == "evt_1"

    def test_a_name_that_changes_its_address_after_the_check_changes_nothing(
        self, internet: Pretended, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        looked_up: list[Any] = []
        real = socket.getaddrinfo

        def noting(host: Any, *args: Any, **options: Any) -> Any:
            looked_up.append(host)
            return real(host, *args, **options)

        monkeypatch.setattr(socket, "getaddrinfo", noting)
        rebinding = replace(internet, answers=[[PUBLIC], ["127.0.0.1"]])
        send_webhook(URL, b"{}", {}, rebinding)
        assert (rebinding.asked, rebinding.reached) == ([HOST], [PUBLIC])
        assert HOST not in looked_up, "nothing below looks the name up again"
        assert self.refused(rebinding) == "AddressNotPublic"
        assert rebinding.reached == [PUBLIC]

    def test_the_real_internet_calls_a_number_on_443(self, monkeypatch: pytest.MonkeyPatch) -> None:
        called: list[Any] = []

        def no_way(address: Any, timeout: float) -> socket.socket:
            called.append((address, timeout))
            raise ConnectionRefusedError

        monkeypatch.setattr(socket, "create_connection", no_way)
        with pytest.raises(ConnectionRefusedError):
            INTERNET.reach(PUBLIC)
        assert called == [((PUBLIC, 443), 3.0)]

    def test_the_real_internet_knows_localhost_and_refuses_it(self) -> None:
        assert "127.0.0.1" in INTERNET.resolve("localhost")
        with pytest.raises(WebhookError, match="AddressNotPublic"):
            webhook.public_address("localhost", INTERNET)
        with pytest.raises(WebhookError, match="NameNotFound"):
            INTERNET.resolve("nobody.invalid")

    @pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
    def test_a_redirect_is_not_followed(self, internet: Pretended, receiver: Receiver, status: int) -> None:
        receiver.status, receiver.location = status, f"http://127.0.0.1:{receiver.port}/"
        assert self.refused(internet) == "Status"
        assert (len(receiver.requests), internet.reached) == (1, [PUBLIC])

    def test_private_addresses_are_not_called(self, internet: Pretended, receiver: Receiver) -> None:
        for answers in (["10.0.0.1"], [PUBLIC, "::1"], ["169.254.169.254"]):
            assert self.refused(replace(internet, answers=[answers])) == "AddressNotPublic"
        assert (receiver.requests, internet.reached) == ([], [])

    def test_an_address_that_slipped_into_the_table_is_not_called(self, internet: Pretended) -> None:
        assert self.refused(internet, "http://127.0.0.1/") == "AddressNotAllowed"

    def test_whoever_has_no_certificate_for_the_name_gets_nothing(self, tmp_path: Path, internet: Pretended) -> None:
        other = certificate(tmp_path, "other.example.com")
        with listening(other) as impostor:
            assert self.refused(replace(internet, port=impostor.port)) == "SSLCertVerificationError"
            believed = replace(internet, port=impostor.port, ca_certs=str(other))
            assert self.refused(believed) == "SSLCertVerificationError", "the name, too, must be right"
            assert impostor.requests == []

    def test_without_a_bundle_of_its_own_only_public_authorities_are_believed(
        self, internet: Pretended, receiver: Receiver
    ) -> None:
        assert self.refused(replace(internet, ca_certs=None)) == "SSLCertVerificationError"
        assert receiver.requests == []

    def test_one_that_answers_byte_by_byte_is_cut_off(
        self, internet: Pretended, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(webhook, "_TOTAL_SECONDS", 1.0)
        receiver.answer = drip
        began = time.monotonic()
        assert self.refused(internet) == "Timeout"
        assert time.monotonic() - began < 4

    def test_one_that_never_shakes_hands_is_cut_off(self, internet: Pretended, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(webhook, "_TOTAL_SECONDS", 1.0)
        with socket.create_server(("127.0.0.1", 0)) as silent:
            assert self.refused(replace(internet, port=silent.getsockname()[1])) == "Timeout"

    def test_a_long_answer_is_not_read(self, internet: Pretended, receiver: Receiver) -> None:
        def endless(handler: Any) -> None:
            try:
                handler.wfile.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
                while True:
                    handler.wfile.write(b"10000\r\n" + b"x" * 65536 + b"\r\n")
            except OSError:
                return

        receiver.answer = endless
        began = time.monotonic()
        assert send_webhook(URL, b"{}", {}, internet) == 200
        assert time.monotonic() - began < 5


class Alice:
    """An account with one request a month, a webhook, and its own address."""

    def __init__(self, internet: Pretended, **tier: Any) -> None:
        self.account = make_account("alice", make_tier(**{"max_requests_per_period": 1} | tier))
        self.caller = Caller(self.account.id, new_id(), new_id())
        self.internet = internet
        self.target, self.secret = create_target(
            self.account, AlertKind.WEBHOOK, URL, [80, 100], target_id=new_id(), internet=internet
        )

    def reaches_it(self) -> None:
        self.caller.call()
        watch_accounts([self.account.id])

    def deliveries(self, kind: AlertKind = AlertKind.WEBHOOK) -> list[AlertDelivery]:
        found = AlertDelivery.objects.filter(event__account_id=self.account.id, kind=kind)
        return list(found.order_by("id"))

    @property
    def webhook(self) -> AlertDelivery:
        (delivery,) = self.deliveries()
        return delivery

    def ids(self, *kinds: AlertKind) -> list[UUID]:
        return [d.id for kind in kinds or AlertKind for d in self.deliveries(kind)]

    def send(self, at: datetime | None = None, *kinds: AlertKind) -> bool:
        return deliver_next(internet=self.internet, at=at, only=self.ids(*kinds or (AlertKind.WEBHOOK,)))


@pytest.fixture
def alice(internet: Pretended) -> Alice:
    return Alice(internet)


class TestTheWebhook:
    def test_its_signature_is_verified_with_the_secret_that_was_shown_once(
        self, alice: Alice, receiver: Receiver
    ) -> None:
        alice.reaches_it()
        assert alice.send()
        (request,) = receiver.requests
        # As docs/alerts.md says it.
        secret = alice.secret
        assert secret is not None
        timestamp, signature = request.headers["X-Whs-Timestamp"], request.headers["X-Whs-Signature"]
        signed = timestamp.encode() + b"." + request.body
        expected = "v1=" + hmac.new(secret.encode(), signed, hashlib.sha256).hexdigest()
        assert hmac.compare_digest(expected, signature)
        assert abs(time.time() - int(timestamp)) < 30
        said = json.loads(request.body)
        assert said["id"] == request.headers["X-Whs-Event-Id"]
        month = timezone.now()
        assert {k: v for k, v in said.items() if k not in ("id", "resetsAt", "occurredAt")} == {
            "type": "budget.threshold_reached", "accountId": alice.account.public_id, "periodKey": f"{month:%Y-%m}",
            "limitType": "requests", "threshold": 100, "used": 1, "limit": 1, "percent": 100,
        }  # fmt: skip
        assert said["resetsAt"].endswith("-01T00:00:00Z")
        assert (alice.webhook.status, alice.webhook.last_status, alice.webhook.attempts) == ("sent", 200, 1)

    def test_nothing_secret_lies_in_the_database(self, alice: Alice) -> None:
        assert alice.secret is not None
        digits = alice.secret.removeprefix("whsec_")
        row = AlertTarget.objects.filter(pk=alice.target.pk).values().get()
        assert digits not in str(row)
        assert secret_of(alice.target.id, "none") is None
        other = make_account("charlie")
        _, another = create_target(other, AlertKind.WEBHOOK, URL, [80], target_id=new_id(), internet=alice.internet)
        assert another != alice.secret

    def test_what_fails_is_tried_again_later_under_the_same_id_with_the_same_body(
        self, alice: Alice, receiver: Receiver
    ) -> None:
        receiver.status = 503
        alice.reaches_it()
        alice.send()
        failed = alice.webhook
        assert (failed.status, failed.last_status, failed.last_error) == ("failed", 503, "Status")
        assert failed.next_try_at is not None
        assert timedelta(seconds=40) < failed.next_try_at - timezone.now() <= timedelta(minutes=1)
        assert not alice.send()
        receiver.status = 204
        assert alice.send(failed.next_try_at)
        assert (alice.webhook.status, alice.webhook.attempts, alice.webhook.last_error) == ("sent", 2, "")
        first, second = receiver.requests
        assert first.body == second.body
        assert first.headers["X-Whs-Event-Id"] == second.headers["X-Whs-Event-Id"]
        assert not alice.send(timezone.now() + timedelta(days=9))

    def test_after_ten_tries_it_is_given_up_and_logged(
        self, alice: Alice, receiver: Receiver, caplog: pytest.LogCaptureFixture
    ) -> None:
        receiver.status = 500
        alice.reaches_it()
        tries, at = 0, timezone.now()
        with caplog.at_level(logging.ERROR, "telemetry.actions.deliver_alerts"):
            while alice.send(at):
                tries, at = tries + 1, alice.webhook.next_try_at or at + timedelta(days=2)
        assert tries == len(receiver.requests) == 10
        assert (alice.webhook.status, alice.webhook.next_try_at) == ("given_up", None)
        (record,) = [r for r in caplog.records if r.name == "telemetry.actions.deliver_alerts"]
        assert "given up after 10 tries: Status 500" in record.getMessage()
        assert URL not in record.getMessage()

    def test_a_name_that_went_private_since_it_was_added_is_not_called(self, alice: Alice, receiver: Receiver) -> None:
        alice.reaches_it()
        alice.internet = replace(alice.internet, answers=[["10.0.0.7"]])
        alice.send()
        assert (alice.webhook.status, alice.webhook.last_error) == ("failed", "AddressNotPublic")
        assert receiver.requests == []

    def test_a_target_that_was_removed_gets_nothing_more(self, alice: Alice, receiver: Receiver) -> None:
        alice.reaches_it()
        remove_target(alice.account, alice.target.id)
        alice.send()
        assert (alice.webhook.status, alice.webhook.last_error, receiver.requests) == ("given_up", "TargetGone", [])

    @pytest.mark.parametrize("url", ["http://hooks.example.com/", "https://localhost/", "https://10.0.0.1/"])
    def test_what_may_not_be_called_cannot_be_added(self, alice: Alice, url: str) -> None:
        with pytest.raises(InvalidRequestError):
            create_target(alice.account, AlertKind.WEBHOOK, url, [80], target_id=new_id(), internet=alice.internet)

    @pytest.mark.parametrize("answers", [["10.0.0.1"], [PUBLIC, "127.0.0.1"], []])
    def test_a_name_that_does_not_lead_to_the_public_internet_cannot_be_added(
        self, alice: Alice, answers: list[str]
    ) -> None:
        inside = replace(alice.internet, answers=[answers])
        with pytest.raises(InvalidRequestError):
            create_target(alice.account, AlertKind.WEBHOOK, URL, [80], target_id=new_id(), internet=inside)


class TestTheMail:
    def test_it_says_which_budget_how_much_of_it_until_when_and_what_to_do(
        self, alice: Alice, mailoutbox: list[EmailMessage]
    ) -> None:
        alice.reaches_it()
        alice.send(None, AlertKind.EMAIL)
        (mail,) = mailoutbox
        month = timezone.now()
        assert mail.to == [alice.account.email]
        assert mail.subject == f"100 % of your budget used: Requests, {month:%Y-%m}"
        assert "Requests: 1 of 1 used, 100 %." in str(mail.body)
        assert f"Period: {month:%Y-%m}, resets at " in str(mail.body)
        assert f"{settings.PUBLIC_URL}/billing/" in str(mail.body)
        (delivery,) = alice.deliveries(AlertKind.EMAIL)
        assert (delivery.status, delivery.attempts) == ("sent", 1)

    def test_it_goes_to_the_address_that_the_account_has_now(
        self, alice: Alice, mailoutbox: list[EmailMessage]
    ) -> None:
        alice.reaches_it()
        moved = f"moved-{new_id().hex}@example.com"
        Account.objects.filter(pk=alice.account.id).update(email=moved)
        alice.send(None, AlertKind.EMAIL)
        assert [mail.to for mail in mailoutbox] == [[moved]]

    def test_nobody_gets_a_header_into_it(self, alice: Alice, mailoutbox: list[EmailMessage]) -> None:
        evil = f"a-{new_id().hex}@example.com\nBcc: all@example.com"
        Account.objects.filter(pk=alice.account.id).update(email=evil, name="Alice\r\nBcc: all@example.com")
        alice.reaches_it()
        alice.send(None, AlertKind.EMAIL)
        (delivery,) = alice.deliveries(AlertKind.EMAIL)
        assert (mailoutbox, delivery.status, delivery.last_error) == ([], "failed", "BadHeaderError")

    def test_a_mail_server_that_is_away_is_tried_again(
        self, alice: Alice, settings: Any, mailoutbox: list[EmailMessage]
    ) -> None:
        alice.reaches_it()
        works = settings.EMAIL_BACKEND
        with socket.create_server(("127.0.0.1", 0)) as gone:
            port = gone.getsockname()[1]
        settings.EMAIL_BACKEND = "django.core.mail.backends.smtp.EmailBackend"
        settings.EMAIL_HOST, settings.EMAIL_PORT = "127.0.0.1", port
        alice.send(None, AlertKind.EMAIL)
        (delivery,) = alice.deliveries(AlertKind.EMAIL)
        assert (delivery.status, delivery.last_error) == ("failed", "ConnectionRefusedError")
        settings.EMAIL_BACKEND = works
        alice.send(delivery.next_try_at, AlertKind.EMAIL)
        assert [mail.to for mail in mailoutbox] == [[alice.account.email]]


_TAKE_AND_DIE = """
import os, sys, uuid, django
django.setup()
from telemetry.actions.deliver_alerts import take_next
assert take_next(only=[uuid.UUID(sys.argv[1])])
os._exit(9)
"""


class TestWhoSends:
    def test_many_workers_at_once_send_each_message_once(
        self, alice: Alice, receiver: Receiver, mailoutbox: list[EmailMessage]
    ) -> None:
        alice.reaches_it()
        ids = alice.ids()
        tries = at_once(lambda _: deliver_alerts(internet=alice.internet, only=ids), 5)
        assert sum(tries) == 2
        assert (len(receiver.requests), len(mailoutbox)) == (1, 1)

    def test_a_worker_killed_between_taking_and_sending_is_followed_when_its_lease_is_over(
        self, alice: Alice, receiver: Receiver
    ) -> None:
        alice.reaches_it()
        command = [sys.executable, "-c", _TAKE_AND_DIE, str(alice.webhook.id)]
        assert subprocess.run(command, check=False, env=os.environ, timeout=60).returncode == 9
        assert not alice.send(timezone.now() + LEASE / 2)
        assert alice.send(timezone.now() + LEASE)
        assert (alice.webhook.status, alice.webhook.attempts, len(receiver.requests)) == ("sent", 2, 1)

    def test_one_that_was_slower_than_its_lease_does_not_undo_what_the_next_one_did(
        self, alice: Alice, receiver: Receiver
    ) -> None:
        alice.reaches_it()
        receiver.status = 500

        def meanwhile(handler: Any) -> None:
            receiver.answer, receiver.status = None, 200
            assert alice.send(timezone.now() + LEASE)
            handler.send_response(500)
            handler.send_header("Content-Length", "0")
            handler.end_headers()

        receiver.answer = meanwhile
        alice.send()
        assert (alice.webhook.status, alice.webhook.attempts) == ("sent", 2)

    def test_no_database_connection_is_held_while_something_is_sent(
        self, alice: Alice, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from webhost import db

        lent: list[int] = []

        def measure(handler: Any) -> None:
            stats = db.hot_pool().get_stats()
            lent.append(stats["pool_size"] - stats["pool_available"])
            handler.send_response(200)
            handler.send_header("Content-Length", "0")
            handler.end_headers()

        receiver.answer = measure
        alice.reaches_it()
        alice.send()
        assert lent == [0]

    def test_nothing_due_is_nothing_taken(self, alice: Alice) -> None:
        alice.reaches_it()
        assert take_next(at=timezone.now() - timedelta(minutes=1), only=alice.ids()) is None
        assert deliver_alerts(internet=alice.internet, at=timezone.now() - timedelta(minutes=1), only=alice.ids()) == 0


def test_a_message_is_sent_within_seconds_of_being_noticed(alice: Alice, monkeypatch: pytest.MonkeyPatch) -> None:
    woken: list[str] = []
    wake: Callable[[str], None] = woken.append
    monkeypatch.setattr("telemetry.actions.watch_budgets.send_on_commit", wake)
    alice.reaches_it()
    assert woken == ["telemetry.deliver_alerts"]
