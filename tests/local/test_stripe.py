"""The local Stripe is held to what Stripe's own library and documents say of the pinned version."""

from __future__ import annotations

import http.server
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
import stripe

from tests.billing.local_stripe import LocalStripe
from tests.e2e.customers import until

KEY, SECRET = "sk_test_of_these_tests", "whsec_of_these_tests"
PRO = "price_local_pro_month"


class Receiver(http.server.ThreadingHTTPServer):
    """Takes deliveries, checks their signature with Stripe's own library, and answers what it is told to."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.events: list[dict[str, Any]] = []
        self.answers: list[int] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def types(self) -> list[str]:
        return [event["type"] for event in self.events]


class _Handler(http.server.BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        status = self.server.answers.pop(0) if self.server.answers else 200
        if status == 200:
            stripe.Webhook.construct_event(body, self.headers["Stripe-Signature"], SECRET)
            assert self.path == "/v1/billing/webhook"
            self.server.events.append(json.loads(body))
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@pytest.fixture(scope="module")
def receiver() -> Iterator[Receiver]:
    server = Receiver()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()


@pytest.fixture(scope="module")
def running(receiver: Receiver, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalStripe]:
    server = LocalStripe(tmp_path_factory.mktemp("stripe"), receiver.url, key=KEY, secret=SECRET)
    server.start()
    yield server
    server.stop()


@pytest.fixture
def local(running: LocalStripe, receiver: Receiver) -> LocalStripe:
    running.local("DELETE", "/faults")
    assert until(lambda: not running.calls()["pending"])
    receiver.events.clear()
    receiver.answers.clear()
    return running


def session(local: LocalStripe, customer: str, **more: Any) -> Any:
    return local.client().v1.checkout.sessions.create({
        "mode": "subscription", "customer": customer, "line_items": [{"price": PRO, "quantity": 1}],
        "success_url": "http://127.0.0.1:9/done?of={CHECKOUT_SESSION_ID}", "cancel_url": "http://127.0.0.1:9/left", **more,
    })  # fmt: skip


def pay(url: str, card: str = "4242 4242 4242 4242") -> requests.Response:
    return requests.post(url, data={"card": card}, allow_redirects=False, timeout=10)


class TestApi:
    def test_another_key_is_401_in_stripes_shape(self, local: LocalStripe) -> None:
        client = stripe.StripeClient("sk_test_another", base_addresses={"api": local.url}, max_network_retries=0)
        with pytest.raises(stripe.AuthenticationError, match="Invalid API Key"):
            client.v1.prices.list()

    def test_the_price_list_names_its_tiers(self, local: LocalStripe) -> None:
        found = (
            local.client().v1.prices.list({"active": True, "limit": 100, "expand": ["data.product"]}).to_dict()["data"]
        )
        of_pro = {p["recurring"]["interval"]: p["unit_amount"] for p in found if p["metadata"].get("tier") == "pro"}
        assert of_pro == {"month": 9900, "year": 99000}
        assert next(p for p in found if p["id"] == PRO)["product"]["name"] == "Pro"

    def test_what_is_not_there_is_404_and_names_the_parameter(self, local: LocalStripe) -> None:
        for ask, param in (
            (lambda c: c.v1.subscriptions.list({"customer": "cus_none"}), "customer"),
            (lambda c: c.v1.prices.retrieve("price_none"), "id"),
        ):
            with pytest.raises(stripe.InvalidRequestError) as error:
                ask(local.client())
            assert (error.value.code, error.value.param) == ("resource_missing", param)

    def test_a_repeated_key_makes_one_customer_and_another_body_is_refused(self, local: LocalStripe) -> None:
        customers = local.client().v1.customers
        made = [customers.create({"email": "a@example.com"}, {"idempotency_key": "one"}).id for _ in range(2)]
        assert made[0] == made[1]
        with pytest.raises(stripe.IdempotencyError):
            customers.create({"email": "b@example.com"}, {"idempotency_key": "one"})

    def test_items_beyond_ten_are_on_further_pages(self, local: LocalStripe) -> None:
        customer = local.customer()
        subscription = local.force(customer, prices=tuple(f"price_{n}" for n in range(23)))
        (shown,) = local.client().v1.subscriptions.list({"customer": customer}).to_dict()["data"]
        assert (len(shown["items"]["data"]), shown["items"]["has_more"]) == (10, True)
        pages = local.client().v1.subscription_items.list({"subscription": subscription, "limit": 5})
        assert [i.price.id for i in pages.auto_paging_iter()] == [f"price_{n}" for n in range(23)]

    @pytest.mark.parametrize(("version", "on_items"), [("2026-10-28.endive", True), ("2024-06-20", False)])
    def test_the_period_is_where_the_version_has_it(self, local: LocalStripe, version: str, on_items: bool) -> None:
        customer = local.customer()
        local.force(customer)
        client = stripe.StripeClient(KEY, base_addresses={"api": local.url}, stripe_version=version)
        (shown,) = client.v1.subscriptions.list({"customer": customer}).to_dict()["data"]
        assert ("current_period_end" in shown["items"]["data"][0]) is on_items
        assert ("current_period_end" in shown) is not on_items

    def test_faults_are_met_once(self, local: LocalStripe) -> None:
        local.fail(500, "/v1/prices")
        with pytest.raises(stripe.APIError):
            local.client().v1.prices.list()
        assert local.client().v1.prices.list().data


class TestCheckout:
    def test_a_card_that_pays_makes_a_subscription_and_leads_back(self, local: LocalStripe, receiver: Receiver) -> None:
        customer = local.customer()
        opened = session(local, customer, client_reference_id="acc_1")
        assert "Pro: $99.00 a month" in requests.get(opened.url, timeout=10).text
        paid = pay(opened.url)
        assert (paid.status_code, paid.headers["Location"]) == (303, f"http://127.0.0.1:9/done?of={opened.id}")
        assert until(lambda: "checkout.session.completed" in receiver.types())
        assert receiver.types() == [
            "customer.created",
            "customer.subscription.created",
            "invoice.paid",
            "checkout.session.completed",
        ]
        done = receiver.events[-1]["data"]["object"]
        assert (done["client_reference_id"], done["status"], done["url"]) == ("acc_1", "complete", None)
        assert pay(opened.url).status_code == 410

    def test_a_card_that_is_declined_or_unknown_buys_nothing(self, local: LocalStripe) -> None:
        customer = local.customer()
        opened = session(local, customer)
        for card, said in (("4000 0000 0000 0002", "declined"), ("1234", "invalid")):
            answer = pay(opened.url, card)
            assert answer.status_code == 402
            assert said in answer.text
        assert local.client().v1.subscriptions.list({"customer": customer}).data == []

    def test_an_expired_one_cannot_be_paid_nor_expired_again(self, local: LocalStripe) -> None:
        opened = session(local, local.customer())
        local.client().v1.checkout.sessions.expire(opened.id)
        assert pay(opened.url).status_code == 410
        with pytest.raises(stripe.InvalidRequestError):
            local.client().v1.checkout.sessions.expire(opened.id)

    def test_a_renewal_that_fails_is_past_due_with_an_open_invoice_until_it_is_paid(self, local: LocalStripe) -> None:
        customer = local.customer()
        pay(session(local, customer).url, "4000 0000 0000 0341")
        subscriptions = local.client().v1.subscriptions
        (bought,) = subscriptions.list({"customer": customer}).data
        local.local("POST", f"/subscriptions/{bought.id}/renew")
        assert subscriptions.retrieve(bought.id).status == "past_due"
        (invoice,) = local.client().v1.invoices.list({"subscription": bought.id, "status": "open"}).to_dict()["data"]
        assert invoice["parent"]["subscription_details"]["subscription"] == bought.id
        local.local("POST", f"/subscriptions/{bought.id}/pay")
        assert subscriptions.retrieve(bought.id).status == "active"


class TestPortal:
    def test_ends_keeps_changes_and_cancels(self, local: LocalStripe) -> None:
        customer = local.customer()
        subscription = local.force(customer)
        portal = local.client().v1.billing_portal.sessions.create(
            {"customer": customer, "return_url": "http://127.0.0.1:9/"}
        )

        def do(verb: str, **more: str) -> Any:
            data = {"do": verb, "subscription": subscription, **more}
            assert requests.post(portal.url, data=data, allow_redirects=False, timeout=10).status_code == 303
            return local.client().v1.subscriptions.retrieve(subscription).to_dict()

        ending = do("end")
        assert ending["cancel_at"] == ending["items"]["data"][0]["current_period_end"]
        assert do("keep")["cancel_at"] is None
        assert (
            do("change", price="price_local_starter_year")["items"]["data"][0]["price"]["id"]
            == "price_local_starter_year"
        )
        assert do("cancel")["status"] == "canceled"

    def test_does_nothing_to_somebody_elses(self, local: LocalStripe) -> None:
        other = local.force(local.customer("charlie@example.com"))
        portal = local.client().v1.billing_portal.sessions.create({"customer": local.customer()})
        assert requests.post(portal.url, data={"do": "cancel", "subscription": other}, timeout=10).status_code == 404
        assert local.client().v1.subscriptions.retrieve(other).status == "active"


class TestDelivery:
    def test_what_is_not_taken_comes_again_signed_anew(self, local: LocalStripe, receiver: Receiver) -> None:
        receiver.answers = [500, 503]
        customer = local.customer()
        assert until(lambda: receiver.types() == ["customer.created"], 10)
        assert receiver.events[0]["data"]["object"]["id"] == customer
        assert [d["status"] for d in local.calls()["deliveries"]][-3:] == [500, 503, 200]

    def test_held_events_come_in_the_order_that_is_asked_for(self, local: LocalStripe, receiver: Receiver) -> None:
        customer = local.customer()
        assert until(lambda: receiver.events)
        local.hold()
        subscription = local.force(customer, "incomplete")
        local.change(subscription, status="active")
        time.sleep(0.3)
        assert len(receiver.events) == 1
        local.release("reversed", times=2)
        assert until(lambda: len(receiver.events) == 5)
        statuses = [e["data"]["object"]["status"] for e in receiver.events[1:]]
        assert statuses == ["active", "active", "incomplete", "incomplete"]

    def test_lost_events_are_listed_and_never_come(self, local: LocalStripe, receiver: Receiver) -> None:
        local.lose(1)
        customer = local.customer()
        assert local.events()[0]["data"]["object"]["id"] == customer
        time.sleep(0.3)
        assert receiver.events == []

    def test_the_same_event_can_come_many_times_at_once(self, local: LocalStripe, receiver: Receiver) -> None:
        local.customer()
        assert until(lambda: receiver.events)
        event = receiver.events[0]["id"]
        assert local.redeliver(event, 5, at_once=True) == [200] * 5
        assert [e["id"] for e in receiver.events] == [event] * 6

    def test_a_crash_forgets_neither_state_nor_what_was_under_way(self, tmp_path: Path, receiver: Receiver) -> None:
        mine = LocalStripe(tmp_path, receiver.url, key=KEY, secret=SECRET)
        mine.start()
        receiver.events.clear()
        receiver.answers = [500] * 3
        customer = mine.customer()
        assert until(lambda: len(receiver.answers) < 3)
        mine.kill()
        receiver.answers.clear()
        mine.start()
        try:
            assert until(lambda: customer in [e["data"]["object"]["id"] for e in receiver.events], 15)
            assert mine.client().v1.customers.retrieve(customer).id == customer
        finally:
            mine.stop()
