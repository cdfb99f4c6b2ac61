"""The door at which Stripe knocks: what is Stripe's is kept as its bytes, all else changes nothing and leaves a trace."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import pytest
from django.conf import settings as live_settings
from django.core.checks import run_checks
from django.test import Client

from billing.models import EventState, RefusedDelivery, StripeEvent
from tests.billing.conftest import WEBHOOK, Payer, applied, post
from tests.billing.local_stripe import LocalStripe, signature

OURS = live_settings.STRIPE_WEBHOOK_SECRETS[0]


@pytest.fixture
def body(local_stripe: LocalStripe, alice: Payer) -> bytes:
    return local_stripe.made_event(alice.customer)


def kept(body: bytes) -> bool:
    return StripeEvent.objects.filter(event_id=json.loads(body)["id"]).exists()


def traces(reason: str) -> int:
    return sum(r.count for r in RefusedDelivery.objects.filter(reason=reason))


def refused(body: bytes, header: str, reason: str) -> Any:
    before = traces(reason)
    answer = post(body, header)
    assert traces(reason) == before + 1
    assert not kept(body)
    return answer


class TestWhatIsStripes:
    def test_is_kept_byte_for_byte_and_answered(self, body: bytes) -> None:
        odd = b" " + body.replace(b'": ', b'" :  ')
        answer = post(odd)
        assert (answer.status_code, answer.json()) == (200, {"received": True})
        row = StripeEvent.objects.get(event_id=json.loads(body)["id"])
        assert bytes(row.body) == odd

    def test_is_kept_once_however_often_it_comes(self, body: bytes) -> None:
        assert [post(body).status_code for _ in range(3)] == [200] * 3
        row = StripeEvent.objects.get(event_id=json.loads(body)["id"])
        assert row.deliveries == 3

    def test_is_not_applied_again_when_it_is_replayed(
        self, body: bytes, alice: Payer, local_stripe: LocalStripe
    ) -> None:
        event = json.loads(body)["id"]
        post(body)
        assert applied(event).state == EventState.DONE
        asked = local_stripe.calls()["total"]
        assert post(body).status_code == 200
        assert applied(event).state == EventState.DONE
        assert local_stripe.calls()["total"] == asked

    def test_is_known_by_either_secret_while_one_is_replaced(self, body: bytes, settings: Any) -> None:
        settings.STRIPE_WEBHOOK_SECRETS = ["whsec_new", OURS]
        assert post(body).status_code == 200
        settings.STRIPE_WEBHOOK_SECRETS = [OURS, "whsec_new"]
        other = body.replace(b"evt_", b"evt_n")
        assert post(other, secret="whsec_new").status_code == 200

    def test_is_known_by_any_of_several_signatures(self, body: bytes) -> None:
        good = signature(body, OURS)
        seconds, value = good.split(",")
        assert post(body, f"{seconds},v0=aa,v1={'0' * 64},{value}").status_code == 200

    def test_is_known_whatever_it_says_that_it_is(self, body: bytes) -> None:
        answer = Client().post(
            WEBHOOK, body, content_type="text/plain", headers={"Stripe-Signature": signature(body, OURS)}
        )
        assert answer.status_code == 200

    def test_needs_neither_a_session_nor_a_csrf_token(self, body: bytes) -> None:
        strict = Client(enforce_csrf_checks=True)
        headers = {"Stripe-Signature": signature(body, OURS)}
        assert strict.post(WEBHOOK, body, content_type="application/json", headers=headers).status_code == 200


class TestWhatIsNot:
    @pytest.mark.parametrize(
        ("header", "reason"),
        [
            ("", "without a signature"),
            ("t=1,v1=00", "wrong signature"),
            ("nonsense", "wrong signature"),
            ("t=abc,v1=00", "wrong signature"),
            ("t=1,v1=é", "wrong signature"),
            ("v1=" + "0" * 5000, "wrong signature"),
        ],
    )
    def test_a_header_that_is_odd(self, body: bytes, header: str, reason: str) -> None:
        answer = refused(body, header, reason)
        assert answer.status_code == 401
        assert answer.json()["error"]["code"] == "UNAUTHENTICATED"

    def test_signed_with_another_secret(self, body: bytes) -> None:
        assert refused(body, signature(body, "whsec_forged"), "wrong signature").status_code == 401

    def test_signed_with_nothing(self, body: bytes) -> None:
        assert refused(body, signature(body, ""), "wrong signature").status_code == 401

    def test_changed_after_it_was_signed(self, body: bytes) -> None:
        header = signature(body, OURS)
        assert refused(body.replace(b"sub_x", b"sub_y"), header, "wrong signature").status_code == 401

    def test_signed_too_long_ago(self, body: bytes) -> None:
        assert refused(body, signature(body, OURS, at=time.time() - 301), "too old").status_code == 401
        assert post(body, at=time.time() - 290).status_code == 200

    @pytest.mark.parametrize("mode", [True, None, 0, "false"])
    def test_of_the_other_mode(self, local_stripe: LocalStripe, alice: Payer, mode: Any) -> None:
        body = local_stripe.made_event(alice.customer, livemode=mode)
        assert refused(body, signature(body, OURS), "of the other mode").status_code == 400

    def test_of_test_mode_where_we_are_live(self, body: bytes, settings: Any) -> None:
        settings.STRIPE_LIVEMODE = True
        assert refused(body, signature(body, OURS), "of the other mode").status_code == 400

    @pytest.mark.parametrize(
        "text",
        [
            b'{"object": "event"}',
            b'{"object": "event", "id": 7, "type": "x", "created": 1, "data": {"object": {}}}',
            b'{"object": "event", "id": "evt_a", "type": "x", "created": "1", "data": {"object": {}}}',
            b'{"object": "event", "id": "evt_a", "type": "x", "created": 1, "data": []}',
            b'{"object": "charge", "id": "evt_a"}',
            b'{"object": "event", "id": "evt_\\u0000", "type": "x", "created": 1, "data": {"object": {}}}',
            b'{"object": "event", "id": "evt_a", "type": "x", "created": 1, "data": {"object": {"customer": "cus_\\u0000"}}}',
            b'{"object": "event", "id": "evt_a", "type": "x", "created": 1, "data": {"object": {"id": "\\u00e9"}}}',
            b"[]",
            b"null",
        ],
    )
    def test_signed_but_no_event(self, local_stripe: LocalStripe, text: bytes) -> None:
        before = traces("not an event")
        assert post(text).status_code == 400
        assert traces("not an event") == before + 1

    @pytest.mark.parametrize(
        ("text", "status"),
        [(b"", 400), (b"{", 400), (b"\xff\xfe", 401), (b'{"a": NaN}', 400), (b'{"id": "a", "id": "b"}', 400)],
    )
    def test_signed_but_no_json(self, local_stripe: LocalStripe, text: bytes, status: int) -> None:
        before = sum(r.count for r in RefusedDelivery.objects.all())
        assert post(text).status_code == status
        assert sum(r.count for r in RefusedDelivery.objects.all()) == before + 1

    def test_of_another_method(self, local_stripe: LocalStripe) -> None:
        assert Client().get(WEBHOOK).status_code == 405

    def test_too_large_to_be_read(self, local_stripe: LocalStripe) -> None:
        assert post(b" " * (1024 * 1024 + 1)).status_code == 413


class TestWithoutASecret:
    @pytest.mark.parametrize("secrets", [[], [""], [" "]])
    def test_nothing_is_taken_not_even_what_is_signed_with_nothing(
        self, body: bytes, settings: Any, secrets: list[str]
    ) -> None:
        settings.STRIPE_WEBHOOK_SECRETS = secrets
        answer = refused(body, signature(body, secrets[0] if secrets else ""), "no secret is set")
        assert answer.status_code == 503

    @pytest.mark.parametrize(
        ("values", "found"),
        [
            ({"STRIPE_WEBHOOK_SECRETS": []}, {"billing.E002"}),
            ({"STRIPE_WEBHOOK_SECRETS": [OURS, ""]}, {"billing.E002"}),
            ({"STRIPE_SECRET_KEY": ""}, {"billing.E001"}),
            ({"STRIPE_LIVEMODE": True}, {"billing.E003"}),
            ({}, set()),
        ],
    )
    def test_a_system_check_fails(self, settings: Any, values: dict[str, Any], found: set[str]) -> None:
        for name, value in values.items():
            setattr(settings, name, value)
        assert {m.id for m in run_checks() if str(m.id).startswith("billing.")} == found


class TestClients:
    def test_no_request_of_a_client_changes_a_tier(self, payer: Callable[[], Payer]) -> None:
        from tests.factories import make_token

        alice = payer()
        token = make_token(alice.account)
        headers = {"Authorization": f"Bearer {token}"}
        for path in ("/v1/me", "/v1/billing/checkout", "/v1/billing/portal", WEBHOOK):
            for sent in ({"tier": "enterprise"}, {"billingTier": "enterprise", "accountId": alice.account.public_id}):
                for method in ("post", "put", "patch"):
                    getattr(Client(), method)(path, json.dumps(sent), content_type="application/json", headers=headers)
        assert alice.tier == "free"
        assert alice.changes() == []
