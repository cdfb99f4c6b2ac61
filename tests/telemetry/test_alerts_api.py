"""/v1/alerts: whom one's alerts reach, and what was told; another address is asked first."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from django.core.mail import EmailMessage
from django.db import DatabaseError, connection
from django.test import Client
from django.utils import timezone

from entitlements.enums import Scope
from telemetry.actions import retention
from telemetry.actions.alert_targets import ask_addresses, link_of
from telemetry.actions.deliver_alerts import deliver_next
from telemetry.actions.retention import retention_days_of
from telemetry.actions.watch_budgets import watch_accounts
from telemetry.alerts_api import AlertTargetsView
from telemetry.models import AlertDelivery, AlertEvent, AlertTarget
from tests.api import Api, at_once
from tests.entitlements.admin_pages import Staff, history, said
from tests.entitlements.callers import Caller
from tests.factories import make_account, make_tier
from tests.telemetry.receiver import Pretended
from webhost.errors import NotFoundError
from webhost.ids import new_id

pytestmark = pytest.mark.usefixtures("live_db", "nobody_sweeps")
URL = "/v1/alerts"


@pytest.fixture(autouse=True)
def names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AlertTargetsView, "internet", Pretended())


@pytest.fixture
def alice() -> Api:
    return Api(make_account("alice", make_tier(max_requests_per_period=1)))


def address_of(api: Api) -> str:
    assert api.account is not None
    return api.account.email


def webhook(n: int = 0) -> dict[str, Any]:
    return {"kind": "webhook", "address": f"https://hooks.example.com/{n}"}


def someone() -> str:
    return f"ops-{new_id().hex}@example.com"


class TestListing:
    def test_alices_own_address_is_there_without_doing_anything(self, alice: Api) -> None:
        (own,) = alice.get(URL).json["items"]
        assert own["id"] == f"alr_{alice.account_id.hex}"
        assert (own["kind"], own["address"], own["thresholds"], own["confirmed"]) == (
            "email", address_of(alice), [80, 100], True,
        )  # fmt: skip

    def test_pages_end_with_it_whatever_their_size(self, alice: Api) -> None:
        made = [alice.post(URL, webhook(n)).json["id"] for n in range(3)]
        for size in (1, 2, 3, 4, 5):
            found, cursor = [], ""
            while cursor is not None:
                page = alice.get(f"{URL}?limit={size}&cursor={cursor}").json
                assert 1 <= len(page["items"]) <= size
                found += [item["id"] for item in page["items"]]
                cursor = page["nextCursor"]
            assert found == [*reversed(made), f"alr_{alice.account_id.hex}"]

    def test_a_stranger_sees_and_removes_only_their_own(self, alice: Api) -> None:
        made = alice.post(URL, webhook()).json["id"]
        charlie = Api(make_account("charlie"))
        assert [i["address"] for i in charlie.get(URL).json["items"]] == [address_of(charlie)]
        for stranger in (
            made,
            f"alr_{alice.account_id.hex}",
            f"alr_{new_id().hex}",
            "alr_x",
            made.replace("alr", "agt"),
        ):
            assert charlie.delete(f"{URL}/{stranger}").status == 404
        assert len(alice.get(URL).json["items"]) == 2

    def test_reading_needs_read_and_changing_needs_deploy(self, alice: Api) -> None:
        reader = Api(alice.account, scopes=[Scope.READ])
        assert reader.get(URL).status == reader.get(f"{URL}/log").status == 200
        assert reader.post(URL, webhook()).status == reader.delete(f"{URL}/alr_{alice.account_id.hex}").status == 403
        assert Api(alice.account, scopes=[Scope.DEPLOY]).get(URL).status == 403
        assert Api().get(URL).status == Api().post(URL, webhook()).status == 401


class TestAdding:
    def test_a_webhook_shows_its_secret_once(self, alice: Api) -> None:
        made = alice.post(URL, webhook() | {"thresholds": [100]})
        assert made.status == 201
        assert re.fullmatch(r"whsec_[0-9a-f]{64}", made.json["secret"])
        assert (made.json["thresholds"], made.json["confirmed"]) == ([100], True)
        listed = alice.get(URL).json["items"][0]
        assert "secret" not in listed
        assert listed == {k: v for k, v in made.json.items() if k != "secret"}

    def test_the_same_key_makes_one_and_shows_the_same_secret(self, alice: Api) -> None:
        first = alice.post(URL, webhook(), idempotency_key="once")
        again = alice.post(URL, webhook(), idempotency_key="once")
        assert (again.status, again.json) == (201, first.json)
        assert alice.post(URL, webhook(1), idempotency_key="once").status == 409
        assert len(alice.get(URL).json["items"]) == 2

    @pytest.mark.parametrize(
        ("body", "path"),
        [
            ({"kind": "sms", "address": "1"}, "kind"),
            ({"kind": "webhook"}, "address"),
            ({"kind": "webhook", "address": "http://hooks.example.com/"}, "address"),
            ({"kind": "webhook", "address": "https://127.0.0.1/"}, "address"),
            ({"kind": "webhook", "address": "https://hooks.example.com:8080/"}, "address"),
            ({"kind": "email", "address": "nobody"}, "address"),
            ({"kind": "email", "address": "a@example.com\r\nBcc: b@example.com"}, "address"),
            (webhook() | {"thresholds": []}, "thresholds"),
            (webhook() | {"thresholds": [90]}, "thresholds[0]"),
            (webhook() | {"accountId": "acc_1"}, "accountId"),
            (webhook() | {"confirmed": True}, "confirmed"),
        ],
    )
    def test_what_is_wrong_is_named(self, alice: Api, body: dict[str, Any], path: str) -> None:
        answer = alice.post(URL, body)
        assert (answer.status, list(answer.issues)) == (400, [path])

    @pytest.mark.parametrize("answers", [["192.168.0.1"], ["93.184.215.14", "::1"], []])
    def test_a_name_that_leads_inside_is_refused(
        self, alice: Api, answers: list[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(AlertTargetsView, "internet", Pretended(answers=[answers]))
        answer = alice.post(URL, webhook())
        assert (answer.status, list(answer.issues)) == (400, ["address"])

    def test_ten_are_the_most_also_at_once(self, alice: Api) -> None:
        answers = at_once(lambda n: alice.post(URL, webhook(n)).status, 14)
        assert sorted(answers) == [201] * 10 + [409] * 4

    def test_the_same_address_twice_is_refused(self, alice: Api) -> None:
        assert [alice.post(URL, webhook()).status for _ in range(2)] == [201, 409]
        assert alice.post(URL, {"kind": "email", "address": address_of(alice)}).status == 409

    def test_every_change_is_in_the_history_which_nobody_can_change(self, alice: Api) -> None:
        made = alice.post(URL, webhook()).json["id"]
        alice.delete(f"{URL}/{made}")
        events = history(AlertTarget, UUID(made.removeprefix("alr_")))
        assert [e.pgh_label for e in events] == ["insert", "delete"]
        assert events[0].pgh_context.metadata["actor"] == address_of(alice)
        for statement in ("UPDATE telemetry_alerttargetevent SET kind = 'x'", "TRUNCATE telemetry_alerttargetevent"):
            with pytest.raises(DatabaseError), connection.cursor() as cursor:
                cursor.execute(statement)


class TestOnesOwnAddress:
    def test_it_can_be_switched_off_and_on_again_with_other_thresholds(self, alice: Api) -> None:
        own = f"{URL}/alr_{alice.account_id.hex}"
        assert [alice.delete(own).status for _ in range(2)] == [204, 404]
        assert alice.get(URL).json["items"] == []
        again = alice.post(URL, {"kind": "email", "address": address_of(alice).upper(), "thresholds": [100]})
        assert (again.status, again.json["id"], again.json["confirmed"]) == (201, f"alr_{alice.account_id.hex}", True)
        assert [i["thresholds"] for i in alice.get(URL).json["items"]] == [[100]]
        assert alice.delete(own).status == 204


class TestAnotherAddress:
    def asked(self, address: str, mailoutbox: list[EmailMessage]) -> str:
        ask_addresses()
        (mail,) = [m for m in mailoutbox if m.to == [address]]
        found = re.search(r"https?://[^/\s]+(/alerts/confirm/\S+)", str(mail.body))
        assert found
        return found[1]

    def test_it_is_asked_and_gets_nothing_before_it_agreed(self, alice: Api, mailoutbox: list[EmailMessage]) -> None:
        address = someone()
        made = alice.post(URL, {"kind": "email", "address": address})
        assert (made.status, made.json["confirmed"], "secret" in made.json) == (201, False, False)
        link = self.asked(address, mailoutbox)
        browser = Client(enforce_csrf_checks=True)
        page = browser.get(link)
        assert f"Send them to {address}" in said(page)
        assert not alice.get(URL).json["items"][0]["confirmed"], "nothing changes by looking"
        assert browser.post(link).status_code == 403
        token = browser.cookies["csrftoken"].value
        assert "Done" in said(browser.post(link, {"csrfmiddlewaretoken": token}))
        assert alice.get(URL).json["items"][0]["confirmed"]

    def test_it_is_asked_once(self, alice: Api, mailoutbox: list[EmailMessage]) -> None:
        address = someone()
        alice.post(URL, {"kind": "email", "address": address})
        at_once(lambda _: ask_addresses(), 4)
        assert [m.to for m in mailoutbox].count([address]) == 1

    def test_a_link_that_is_forged_old_or_of_a_removed_target_does_nothing(
        self, alice: Api, mailoutbox: list[EmailMessage]
    ) -> None:
        import time_machine as clock

        address = someone()
        target = alice.post(URL, {"kind": "email", "address": address}).json["id"]
        link = self.asked(address, mailoutbox)
        browser = Client()
        for bad in (link[:-3] + "xx/", f"/alerts/confirm/{new_id().hex}/", f"/alerts/confirm/{link_of(new_id())}/"):
            assert browser.post(bad).status_code == 404
        with clock.travel(datetime.now(UTC) + timedelta(days=3, minutes=1)):
            assert browser.post(link).status_code == 404
        assert not alice.get(URL).json["items"][0]["confirmed"]
        alice.delete(f"{URL}/{target}")
        assert browser.post(link).status_code == 404

    def test_nobodys_mailbox_is_filled_by_adding_and_removing(self, alice: Api) -> None:
        for _ in range(10):
            made = alice.post(URL, {"kind": "email", "address": someone()})
            assert made.status == 201
            alice.delete(f"{URL}/{made.json['id']}")
        refused = alice.post(URL, {"kind": "email", "address": someone()})
        assert (refused.status, refused.code) == (429, "RATE_LIMITED")
        assert alice.post(URL, webhook()).status == 201


class TestTheLog:
    def test_it_says_what_fired_and_what_became_of_it(self, alice: Api) -> None:
        caller = Caller(alice.account_id, new_id(), new_id())
        caller.call()
        watch_accounts([alice.account_id])
        first = alice.get(f"{URL}/log").json["items"]
        assert [(e["limitType"], e["threshold"], e["used"], e["limit"], e["percent"]) for e in first] == [
            ("requests", 100, 1, 1, 100), ("requests", 80, 1, 1, 100),
        ]  # fmt: skip
        assert [len(e["deliveries"]) for e in first] == [1, 0]
        assert first[0]["periodKey"] == f"{timezone.now():%Y-%m}"
        (before,) = first[0]["deliveries"]
        assert (before["status"], before["address"], before["attempts"]) == ("pending", address_of(alice), 0)
        found = AlertDelivery.objects.get(event__account_id=alice.account_id)
        deliver_next(only=[found.id])
        (after,) = alice.get(f"{URL}/log?limit=1").json["items"][0]["deliveries"]
        assert (after["status"], after["attempts"], after["nextTryAt"]) == ("sent", 1, None)
        assert Api(make_account("charlie")).get(f"{URL}/log").json["items"] == []

    def test_stella_finds_it_in_the_admin_and_changes_nothing(self, alice: Api) -> None:
        Caller(alice.account_id, new_id(), new_id()).call()
        watch_accounts([alice.account_id])
        stella = Staff()
        page = stella.client.get(stella.url(AlertEvent, "changelist"), {"q": address_of(alice)})
        assert f"{address_of(alice)} requests 100" in said(page)
        event = AlertEvent.objects.get(account_id=alice.account_id, threshold=100)
        opened = said(stella.client.get(stella.url(event)))
        assert event.public_id in opened
        assert "pending" in opened
        assert address_of(alice) in said(
            stella.client.get(stella.url(AlertDelivery, "changelist"), {"q": address_of(alice)})
        )
        assert stella.client.post(stella.url(event), {"used": "0"}).status_code == 403
        assert stella.client.get(stella.url(AlertEvent, "add")).status_code == 403


class TestForgetting:
    def apply(self, account_id: UUID, now: datetime) -> None:
        days, logs = retention_days_of(account_id, at=now)
        retention._forget({"account_id": account_id, "telemetry_days": days, "logs_days": logs}, now)

    def test_alerts_go_with_the_telemetry_but_never_in_the_month_they_fired_in(self) -> None:
        account = make_account("alice", make_tier(max_requests_per_period=1, telemetry_retention_days=1))
        fired = datetime(2035, 3, 2, tzinfo=UTC)
        caller = Caller(account.id, new_id(), new_id())
        caller.call(at=fired)
        watch_accounts([account.id], at=fired)
        late = datetime(2035, 3, 31, tzinfo=UTC)
        self.apply(account.id, late)
        assert watch_accounts([account.id], at=late) == 0, "it would have fired again"
        assert AlertEvent.objects.filter(account_id=account.id).count() == 2
        self.apply(account.id, datetime(2035, 4, 1, tzinfo=UTC))
        assert not AlertEvent.objects.filter(account_id=account.id).exists()
        assert not AlertDelivery.objects.filter(target_id=account.id).exists()

    def test_addresses_that_did_not_agree_go_after_a_week(self, alice: Api) -> None:
        alice.post(URL, {"kind": "email", "address": someone()})
        young = alice.post(URL, {"kind": "email", "address": someone()}).json["id"]
        oldest = AlertTarget.objects.filter(account_id=alice.account_id).order_by("id").first()
        assert oldest is not None
        AlertTarget.objects.filter(pk=oldest.pk).update(created_at=timezone.now() - timedelta(days=8))
        retention.apply_retention()
        assert [i["id"] for i in alice.get(URL).json["items"]] == [young, f"alr_{alice.account_id.hex}"]


def test_what_nobody_has_cannot_be_confirmed() -> None:
    from telemetry.actions.alert_targets import confirm_target

    with pytest.raises(NotFoundError):
        confirm_target("x")
