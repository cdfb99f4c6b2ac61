"""The edge: what is kept, what is refused before anything is written, and what is answered."""

from __future__ import annotations

import json
import threading
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest
from django.test import Client

from telemetry.actions import receive
from telemetry.models import Delivery, Report
from tests.api import Api
from tests.telemetry.workload import URL, Workload
from webhost import db, notes
from webhost.errors import UnavailableError
from webhost.signing import Purpose, derive_key, root_keys, sign, signature_header

pytestmark = pytest.mark.usefixtures("live_db")


@pytest.fixture
def alice() -> Workload:
    return Workload()


def stamp(at: datetime) -> str:
    return at.isoformat()


class TestBytes:
    @pytest.mark.case("ING-01")
    def test_odd_spacing_escapes_and_a_newline_are_verified_as_they_are(self, alice: Workload) -> None:
        event = json.dumps(alice.event())[1:]
        body = b'{"b":1,  "a":"\\u00e9", "n":1.0,\n' + event.encode() + b"\n"
        assert alice.post(body).json == {"accepted": True}
        (row,) = Report.objects.filter(deployment_id=alice.deployment.id)
        assert bytes(row.body) == body
        assert alice.statuses() == ["accepted"]

    @pytest.mark.case("ING-01")
    @pytest.mark.parametrize(
        "kind",
        ["multipart/form-data", "multipart/form-data; boundary=x", "application/x-www-form-urlencoded", "text/plain", "",
         "application/json; charset=utf-16", "application/json; charset=nonsense"],
    )  # fmt: skip
    def test_the_content_type_never_gets_between_bytes_and_signature(self, alice: Workload, kind: str) -> None:
        body = json.dumps(alice.event()).encode()
        answer = alice.post(body, content_type=kind)
        assert answer.status == 202
        assert alice.kept == 1

    @pytest.mark.case("ING-01")
    def test_one_more_space_is_401_and_keeps_nothing(self, alice: Workload) -> None:
        body = json.dumps(alice.event()).encode()
        answer = alice.post(body + b" ", **alice.signed(body))
        assert (answer.status, answer.code, alice.kept) == (401, "UNAUTHENTICATED", 0)

    def test_a_body_over_the_limit_is_413_before_it_is_read(self, alice: Workload) -> None:
        answer = alice.post(b" " * (1024 * 1024 + 1))
        assert (answer.status, alice.kept) == (413, 0)

    def test_a_compressed_body_is_not_inflated(self, alice: Workload) -> None:
        assert alice.post(alice.event(), content_encoding="gzip").status == 415

    def test_the_answer_is_no_oracle_of_what_else_is_wrong_before_the_signature_fits(self, alice: Workload) -> None:
        assert alice.post(b"{", x_telemetry_signature="v1=" + "0" * 64).status == 401

    @pytest.mark.parametrize("method", ["GET", "PUT", "DELETE"])
    def test_only_posting_is_possible(self, method: str) -> None:
        assert Api().call(method, URL, check=False).status == 405


class TestSignatures:
    @pytest.mark.case("ING-02")
    @pytest.mark.parametrize(
        "header",
        [None, "", "v1=", "sha256=", "v1", "=", ",", "v1=" + "0" * 64, "0" * 64, "v1=" + "0" * 63 + "\xe9", "v1=" + "é" * 64,
         "v0=GOOD", "t=1,v0=GOOD", "GOOD", "v1=UPPER", "x" * 10_000, "v1=" + "0" * 10_000, ",".join(["v1=" + "0" * 64] * 500)],
    )  # fmt: skip
    def test_a_strange_header_is_refused_without_a_trace(self, alice: Workload, header: str | None) -> None:
        body = json.dumps(alice.event()).encode()
        good = sign(alice.key, body)
        headers: dict[str, Any] = {"HTTP_X_TELEMETRY_DEPLOYMENT_ID": alice.deployment.public_id}
        if header is not None:
            headers["HTTP_X_TELEMETRY_SIGNATURE"] = header.replace("GOOD", good).replace("UPPER", good.upper())
        answer = Client(raise_request_exception=True).generic(
            "POST", URL, body, content_type="application/json", **headers
        )
        assert answer.status_code == 401
        assert alice.kept == 0

    @pytest.mark.case("ING-02")
    def test_while_keys_rotate_any_fitting_signature_will_do(self, alice: Workload) -> None:
        body = json.dumps(alice.event()).encode()
        rotating = f"t=1, v1={'0' * 64}, {signature_header(alice.key, body)}"
        assert alice.post(body, x_telemetry_signature=rotating).status == 202
        assert alice.statuses() == ["accepted"]

    @pytest.mark.parametrize(
        "header", ["", "dep_", "dep_" + "0" * 31, "agt_" + "0" * 32, "x" * 5000, "dep_" + "é" * 32]
    )
    def test_a_header_that_names_no_deployment_is_401(self, alice: Workload, header: str) -> None:
        assert alice.post(alice.event(), x_telemetry_deployment_id=header).status == 401

    def test_a_key_of_another_purpose_is_worthless(self, alice: Workload) -> None:
        body = json.dumps(alice.event()).encode()
        key = derive_key(next(iter(root_keys().values())), Purpose.INVOKE, alice.deployment.public_id)
        assert alice.post(body, x_telemetry_signature=signature_header(key, body)).status == 401

    def test_another_deployment_s_key_is_worthless(self, alice: Workload) -> None:
        charlie = Workload()
        body = json.dumps(alice.event()).encode()
        assert alice.post(body, x_telemetry_signature=signature_header(charlie.key, body)).status == 401


class TestReplay:
    @pytest.mark.case("ING-03")
    def test_the_same_again_is_taken_and_counts_once(self, alice: Workload) -> None:
        body = json.dumps(alice.event(alice.caller.admit(), tokens=500)).encode()
        assert [alice.post(body).status for _ in range(3)] == [202, 202, 202]
        assert alice.statuses() == ["accepted", "duplicate", "duplicate"]
        assert alice.used()["tokens"] == 500

    @pytest.mark.case("ING-03")
    @pytest.mark.parametrize(
        "change", [{"eventId": "other"}, {"timestamp": "2026-01-01T00:00:00Z"}, {"timestamp": ...}]
    )
    def test_nothing_in_it_can_be_changed_under_the_old_signature(
        self, alice: Workload, change: dict[str, Any]
    ) -> None:
        event = alice.event(tokens=500)
        signed = alice.signed(json.dumps(event).encode())
        changed = {k: v for k, v in (event | change).items() if v is not ...}
        assert alice.post(changed, **signed).status == 401
        assert alice.kept == 0

    @pytest.mark.case("ING-03")
    @pytest.mark.parametrize("hours", [1, 24 * 365, -73, -24 * 365])
    def test_a_signed_time_outside_the_window_is_400(self, alice: Workload, hours: int) -> None:
        answer = alice.report(timestamp=stamp(datetime.now(UTC) + timedelta(hours=hours)))
        assert (answer.status, list(answer.issues), alice.kept) == (400, ["timestamp"], 0)

    @pytest.mark.case("ING-03")
    @pytest.mark.parametrize("value", ["abc", 1764417600, 1764417600000, "1764417600", None, ...])
    def test_a_time_that_is_none_is_400(self, alice: Workload, value: Any) -> None:
        answer = alice.report(timestamp=value)
        assert (answer.status, list(answer.issues), alice.kept) == (400, ["timestamp"], 0)

    @pytest.mark.case("ING-03")
    @pytest.mark.parametrize("minutes", [4, -4, -60])
    def test_a_skewed_clock_is_borne(self, alice: Workload, minutes: int) -> None:
        assert alice.report(timestamp=stamp(datetime.now(UTC) + timedelta(minutes=minutes))).status == 202


class TestNumbers:
    @pytest.mark.case("ING-04")
    @pytest.mark.parametrize(
        "literal",
        ["NaN", "Infinity", "1e400", "-5", "true", '"100"', "1.5", "1" + "0" * 30, "null", "[]", '1,"tokens":999999'],
    )
    def test_an_absurd_number_is_400_by_its_name_and_keeps_nothing(self, alice: Workload, literal: str) -> None:
        alice.caller.call(tokens=100)
        body = json.dumps(alice.event(tokens="HERE")).replace('"HERE"', literal).encode()
        answer = alice.post(body)
        assert (answer.status, answer.code, alice.kept) == (400, "INVALID_REQUEST", 0)
        assert answer.issues
        assert alice.used()["tokens"] == 100

    @pytest.mark.case("ING-04")
    def test_nobody_earns_credit(self, alice: Workload) -> None:
        invocation = alice.caller.call(tokens=100)
        assert alice.report(invocation, tokens=-500).status == 400
        assert alice.used()["tokens"] == 100


class TestOwnership:
    @pytest.mark.case("ING-05")
    def test_a_body_that_names_another_deployment_is_403(self, alice: Workload) -> None:
        charlie = Workload()
        answer = alice.post(charlie.event())
        assert (answer.status, answer.code, alice.kept, charlie.kept) == (403, "UNAUTHORIZED", 0, 0)

    @pytest.mark.case("ING-05")
    def test_a_deployment_that_does_not_exist_is_refused_like_a_wrong_signature(self, alice: Workload) -> None:
        body = json.dumps(alice.event()).encode()
        unknown = alice.post(body, x_telemetry_deployment_id=f"dep_{uuid4().hex}")
        wrong = alice.post(body, x_telemetry_signature=f"v1={'0' * 64}")
        assert unknown.status == wrong.status == 401
        assert unknown.json["error"] == wrong.json["error"]

    def test_a_token_is_neither_needed_nor_looked_at(self, alice: Workload) -> None:
        assert alice.post(alice.event(), authorization="Bearer whs_nonsense").status == 202


class TestBatches:
    @pytest.mark.case("ROL-03")
    def test_each_item_is_answered_in_its_place_and_counts_once(self, alice: Workload) -> None:
        admissions = {n: alice.caller.admit() for n in (1, 2, 3, 5)}
        e = {n: alice.event(i, eventId=f"e{n}", tokens=10**n) for n, i in admissions.items()}
        assert [alice.post(e[1]).status, alice.post(e[2]).status] == [202, 202]
        assert alice.statuses() == ["accepted", "accepted"]
        batch = {"events": [e[1], e[2], e[3], e[3], alice.event(eventId="e4", tokens=1.5), e[5]]}
        answer = alice.post(batch)
        assert answer.status == 202
        assert answer.json["accepted"] is False
        items = answer.json["items"]
        assert [i["status"] for i in items] == [
            "duplicate",
            "duplicate",
            "accepted",
            "duplicate",
            "invalid",
            "accepted",
        ]
        assert [i["index"] for i in items] == list(range(6))
        assert items[4]["issues"][0]["path"] == "tokens"
        alice.statuses()
        once = alice.used()
        assert (once["requests"], once["tokens"]) == (4, 10 + 100 + 1000 + 100_000)
        for _ in range(2):
            again = alice.post(batch).json["items"]
            assert [i["status"] for i in again] == ["duplicate"] * 4 + ["invalid", "duplicate"]
        assert "rejected" not in alice.statuses()
        assert alice.used() == once

    @pytest.mark.case("ROL-03")
    def test_a_repeat_is_known_before_it_was_judged(self, alice: Workload) -> None:
        event = alice.event()
        alice.post(event)
        assert alice.post({"events": [event]}).json["items"][0]["status"] == "duplicate"

    @pytest.mark.case("ROL-03")
    def test_a_full_batch_is_taken_and_one_more_is_413_with_nothing_kept(self, alice: Workload) -> None:
        events = [alice.event() for _ in range(101)]
        answer = alice.post({"events": events})
        assert (answer.status, alice.kept) == (413, 0)
        answer = alice.post({"events": events[:100]})
        assert (answer.status, answer.json["accepted"], alice.kept) == (202, True, 100)
        assert alice.statuses() == ["accepted"] * 100
        assert alice.used()["requests"] == 100

    @pytest.mark.case("ROL-03")
    def test_an_empty_batch_is_400(self, alice: Workload) -> None:
        assert alice.post({"events": []}).status == 400

    @pytest.mark.case("ING-05")
    def test_in_a_mixed_batch_only_one_s_own_items_count(self, alice: Workload) -> None:
        charlie = Workload()
        answer = alice.post({"events": [alice.event(tokens=7), charlie.event(tokens=900)]})
        assert [i["status"] for i in answer.json["items"]] == ["accepted", "invalid"]
        assert answer.json["items"][1]["issues"][0]["path"] == "deploymentId"
        alice.statuses()
        charlie.statuses()
        assert (alice.used()["tokens"], charlie.used()["tokens"]) == (7, 0)

    def test_the_bytes_of_a_batch_are_kept_once(self, alice: Workload) -> None:
        body = json.dumps({"events": [alice.event() for _ in range(3)]}).encode()
        alice.post(body)
        (delivery,) = Delivery.objects.filter(deployment_id=alice.deployment.id)
        assert bytes(delivery.body) == body
        rows = Report.objects.filter(delivery_id=delivery.id).order_by("item")
        assert [(bytes(r.body), r.item) for r in rows] == [(b"", 0), (b"", 1), (b"", 2)]

    def test_a_batch_with_nothing_valid_keeps_nothing(self, alice: Workload) -> None:
        answer = alice.post({"events": [{}, 7]})
        assert [i["status"] for i in answer.json["items"]] == ["invalid", "invalid"]
        assert not Delivery.objects.filter(deployment_id=alice.deployment.id).exists()


class TestFailing:
    @pytest.mark.case("ROL-01")
    def test_a_report_that_could_not_be_kept_is_503_and_its_retry_counts_once(
        self, alice: Workload, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        body = json.dumps(alice.event(alice.caller.admit(), tokens=700)).encode()
        real = db.run
        monkeypatch.setattr(db, "run", _away)
        answer = alice.post(body)
        assert (answer.status, answer.json["error"]["retryable"], "Retry-After" in answer.headers) == (503, True, True)
        monkeypatch.setattr(db, "run", real)
        assert alice.kept == 0
        assert [alice.post(body).status for _ in range(2)] == [202, 202]
        assert alice.statuses() == ["accepted", "duplicate"]
        assert alice.used()["tokens"] == 700

    def test_a_refusal_leaves_one_note_in_ten_seconds(self, alice: Workload, caplog: pytest.LogCaptureFixture) -> None:
        notes.forget()
        for _ in range(20):
            alice.post(alice.event(), x_telemetry_signature="v1=nonsense")
        assert len([r for r in caplog.records if "Refused" in r.message]) == 1


def _away(*_: Any) -> Any:
    raise UnavailableError


class TestWaking:
    def test_a_burst_wakes_the_task_once_and_the_last_of_it_is_not_missed(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        woken: list[str] = []
        sent = threading.Event()
        monkeypatch.setattr(receive, "send_on_commit", lambda name: (woken.append(name), sent.set()))
        for _ in range(50):
            receive.wake_processing()
        assert sent.wait(2)
        assert woken == ["telemetry.process_reports"]
        sent.clear()
        receive.wake_processing()
        assert sent.wait(2)
        assert len(woken) == 2

    def test_a_request_never_waits_for_the_broker(self, alice: Workload, monkeypatch: pytest.MonkeyPatch) -> None:
        hold = threading.Event()
        monkeypatch.setattr(receive, "send_on_commit", lambda name: hold.wait(5))
        started = datetime.now(UTC)
        assert all(alice.report().status == 202 for _ in range(3))
        assert datetime.now(UTC) - started < timedelta(seconds=3)
        hold.set()
