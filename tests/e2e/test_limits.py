"""Limits through the front door: what is answered, what is counted, and what reaches the provider are one number."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import uuid4

import pytest
import requests
from django.core.cache import cache

from entitlements.models import Account, PeriodCounter, Tier
from tests.e2e.customers import Agent, Cloud, Customer, events_of, puppet
from tests.factories import example, make_account, make_tier, make_token
from webhost.ids import Prefix, parse_id, public_id
from webhost.local.product import Product

pytestmark = pytest.mark.usefixtures("live_db")


@pytest.fixture
def cloud(product: Product) -> Iterator[Cloud]:
    """The local Cloudflare, without leftover faults."""
    found = Cloud(product)
    yield found
    found.forgive()


def alice(product: Product, **tier: Any) -> Customer:
    """Make a customer whose tier is unlimited in all that is not said."""
    account = make_account("alice", make_tier(**tier))
    return Customer(product.url, public_id(Prefix.ACCOUNT, account.id), make_token(account))


def limit(customer: Customer, **fields: int | None) -> None:
    """Edit the customer's tier, as staff do."""
    account = Account.objects.get(pk=parse_id(Prefix.ACCOUNT, customer.account_id))
    Tier.objects.filter(pk=account.billing_tier_id).update(**fields)


def counted(customer: Customer) -> int:
    """Return the requests that count, by the database."""
    rows = PeriodCounter.objects.filter(account_id=parse_id(Prefix.ACCOUNT, customer.account_id))
    return sum(row.used_requests for row in rows)


def at_once(times: int, agent: Agent, *, stream: bool = False) -> Counter[int]:
    """Call at the same time; return how often each status came."""
    call = agent.stream if stream else agent.invoke
    with ThreadPoolExecutor(times) as crowd:
        return Counter(answer.status_code for answer in crowd.map(lambda _: call(), range(times)))


class TestBursts:
    @pytest.mark.case("LIM-01")
    @pytest.mark.parametrize("stream", [False, True], ids=["json", "stream"])
    def test_of_twenty_at_nine_of_ten_one_is_served(self, product: Product, cloud: Cloud, stream: bool) -> None:
        agent = alice(product, max_requests_per_period=10).deploy()
        assert [agent.invoke().status_code for _ in range(9)] == [200] * 9
        assert at_once(20, agent, stream=stream) == {200: 1, 402: 19}
        assert counted(agent.owner) == cloud.calls(agent) == 10

    @pytest.mark.case("LIM-01")
    @pytest.mark.parametrize("stream", [False, True], ids=["json", "stream"])
    def test_of_thirty_first_calls_of_a_month_ten_are_served(
        self, product: Product, cloud: Cloud, stream: bool
    ) -> None:
        agent = alice(product, max_requests_per_period=10).deploy()
        assert at_once(30, agent, stream=stream) == {200: 10, 402: 20}
        assert PeriodCounter.objects.filter(account_id=parse_id(Prefix.ACCOUNT, agent.owner.account_id)).count() == 1
        assert counted(agent.owner) == cloud.calls(agent) == 10

    def test_never_more_run_at_once_than_the_cap_and_the_rest_hear_429(self, product: Product, cloud: Cloud) -> None:
        agent = alice(product, max_concurrent_invocations=3).deploy(puppet())
        with ThreadPoolExecutor(12) as crowd:
            answers = list(crowd.map(lambda _: agent.invoke({"wait": 3000}), range(12)))
        assert Counter(a.status_code for a in answers) == {200: 3, 429: 9}
        refused = next(a for a in answers if a.status_code == 429)
        assert refused.headers["Retry-After"] == "1"
        assert refused.json()["error"]["details"]["limitType"] == "concurrency"
        assert counted(agent.owner) == cloud.calls(agent) == 3


@pytest.mark.case("LIM-03")
class TestThresholds:
    @pytest.mark.parametrize(("most", "served"), [(0, 0), (1, 1), (None, 3)], ids=["0", "1", "unlimited"])
    def test_of_three_calls_exactly_the_limit_is_served_and_api_says_the_same(
        self, product: Product, cloud: Cloud, most: int | None, served: int
    ) -> None:
        agent = alice(product, max_requests_per_period=most).deploy()
        codes = [agent.invoke().status_code for _ in range(3)]
        assert codes == [200] * served + [402] * (3 - served)
        assert cloud.calls(agent) == served
        usage = agent.owner.usage()
        assert usage["totals"]["requests"] == served
        assert [m["limit"] for m in usage["limits"] if m["limitType"] == "requests"] == [most]
        entitlements = agent.owner.call("GET", "/v1/me").json()["entitlements"]
        assert entitlements["limits"]["maxRequestsPerPeriod"] == most

    def test_a_token_allowance_of_0_refuses_the_first_call(self, product: Product, cloud: Cloud) -> None:
        agent = alice(product, max_tokens_per_period=0).deploy()
        answer = agent.invoke()
        assert (answer.status_code, answer.json()["error"]["details"]["limitType"]) == (402, "tokens")
        assert cloud.calls(agent) == 0

    def test_a_refusal_says_everything_that_the_contract_promises(self, product: Product, cloud: Cloud) -> None:
        agent = alice(product, max_requests_per_period=1).deploy()
        agent.invoke()
        refused = agent.invoke()
        body = refused.json()
        assert refused.headers["Content-Type"] == "application/json"
        assert body["traceId"] == refused.headers["X-Trace-Id"]
        assert (body["error"]["code"], body["error"]["retryable"]) == ("LIMIT_EXCEEDED", False)
        assert set(body["error"]["details"]) == {
            "limitType", "periodKey", "current", "limit", "resetsAt", "source", "suggestedAction", "exceeded", "docs",
        }  # fmt: skip

    def test_what_is_left_is_in_the_headers_of_every_answer(self, product: Product) -> None:
        agent = alice(product, max_requests_per_period=5).deploy()
        assert '"requests";r=4' in agent.invoke().headers["RateLimit"]
        assert '"requests";r=3' in agent.stream().headers["RateLimit"]


class TestTokens:
    def test_one_call_may_cross_the_budget_and_the_next_is_refused_until_it_is_raised(
        self, product: Product, cloud: Cloud
    ) -> None:
        agent = alice(product, max_tokens_per_period=5).deploy(example("tokens"))
        assert agent.invoke("one two three four five six seven").json()["usage"]["tokens"] == 7
        refused = agent.invoke("one")
        details = refused.json()["error"]["details"]
        assert (refused.status_code, details["limitType"], details["current"], details["limit"]) == (
            402,
            "tokens",
            7,
            5,
        )
        limit(agent.owner, max_tokens_per_period=8)
        assert agent.invoke("one").status_code == 200
        assert agent.invoke("one").status_code == 402
        assert counted(agent.owner) == cloud.calls(agent) == 2

    def test_compute_is_a_budget_too(self, product: Product, cloud: Cloud) -> None:
        agent = alice(product, max_compute_ms_per_period=100).deploy(puppet())
        assert agent.invoke({"wait": 300}).json()["usage"]["computeMs"] >= 300
        refused = agent.invoke({})
        assert (refused.status_code, refused.json()["error"]["details"]["limitType"]) == (402, "computeMs")
        assert cloud.calls(agent) == 1


@pytest.mark.case("LIM-04")
class TestFailuresAtTheProvider:
    """Documented rule: what certainly did not run is given back; everything else counts, once."""

    def test_each_failure_burns_what_it_must_and_a_retry_never_burns_twice(
        self, product: Product, cloud: Cloud
    ) -> None:
        agent = alice(product, max_requests_per_period=5).deploy(puppet(timeout_seconds=1))
        assert agent.invoke({}).status_code == 200
        assert counted(agent.owner) == 1

        cloud.be_away(2)
        second = str(uuid4())
        refused = agent.invoke({}, key=second)
        assert (refused.status_code, refused.json()["error"]["code"]) == (502, "RUNTIME_ERROR")
        assert refused.json()["error"]["retryable"] is True
        assert counted(agent.owner) == 1
        cloud.be_back()
        assert agent.invoke({}, key=second).status_code == 200
        assert counted(agent.owner) == 2

        third = str(uuid4())
        cloud.fail(agent, "http-500")
        failed = agent.invoke({}, key=third)
        assert failed.status_code == 502
        assert counted(agent.owner) == 3
        repeated = agent.invoke({}, key=third)
        assert (repeated.status_code, repeated.json()["error"]) == (502, failed.json()["error"])
        assert counted(agent.owner) == cloud.calls(agent) == 3

        timed_out = agent.invoke({"wait": 5000})
        assert (timed_out.status_code, timed_out.json()["error"]["code"]) == (504, "RUNTIME_ERROR")
        assert counted(agent.owner) == 4

        assert [agent.invoke({}).status_code for _ in range(3)] == [200, 402, 402]
        assert counted(agent.owner) == cloud.calls(agent) == 5

    @pytest.mark.parametrize(
        ("fault", "more", "status"),
        [("reset", {}, 502), ("reset-after", {}, 502), ("truncated", {}, 502), ("html-522", {}, 502),
         ("slow", {"seconds": 8}, 504)],
    )  # fmt: skip
    def test_what_may_have_run_counts_once_and_is_never_sent_again(
        self, product: Product, cloud: Cloud, fault: str, more: dict[str, Any], status: int
    ) -> None:
        agent = alice(product).deploy(puppet(timeout_seconds=1))
        cloud.fail(agent, fault, **more)
        assert agent.invoke({}).status_code == status
        assert counted(agent.owner) == cloud.calls(agent) == 1
        assert agent.owner.last_receipt()["outcome"] == "failed"

    @pytest.mark.parametrize("stream", [False, True], ids=["json", "stream"])
    def test_what_the_edge_did_not_take_is_given_back(self, product: Product, cloud: Cloud, stream: bool) -> None:
        agent = alice(product, max_requests_per_period=1).deploy()
        cloud.fail(agent, "429")
        assert (agent.stream() if stream else agent.invoke()).status_code == 502
        assert counted(agent.owner) == 0
        assert agent.owner.last_receipt()["outcome"] == "voided"
        assert agent.invoke().status_code == 200

    def test_the_agents_own_error_counts_and_keeps_its_class(self, product: Product, cloud: Cloud) -> None:
        agent = alice(product).deploy(puppet())
        failed = agent.invoke({"throwAfter": 0})
        assert (failed.status_code, failed.json()["error"]["details"]["errorClass"]) == (502, "AgentError")
        assert "as the prompt asked" not in failed.text
        assert counted(agent.owner) == cloud.calls(agent) == 1


@pytest.mark.case("LIM-06")
class TestEveryOtherWayIn:
    def test_forgetting_the_cache_forgets_no_count(self, product: Product, cloud: Cloud) -> None:
        agent = alice(product, max_requests_per_period=2).deploy()
        assert [agent.invoke().status_code for _ in range(2)] == [200, 200]
        cache.clear()
        assert agent.invoke().status_code == 402
        assert counted(agent.owner) == cloud.calls(agent) == 2

    def test_at_the_limit_every_route_to_a_provider_is_refused_alike(self, product: Product, cloud: Cloud) -> None:
        customer = alice(product, max_requests_per_period=1)
        agent, other = customer.deploy(name="one"), customer.deploy(name="two")
        assert agent.invoke().status_code == 200
        body = {"input": {"prompt": "hello"}}
        tried = {
            "json": agent.invoke(),
            "stream": agent.stream(),
            "by name": customer.call("POST", "/v1/invoke/one", json=body),
            "by name, streamed": customer.call("POST", "/v1/invoke/one/stream", json=body),
            "another agent": other.invoke(),
            "another agent, streamed": other.stream(),
            "with an idempotency key": agent.invoke(key=str(uuid4())),
            "with a session": customer.call("POST", f"/v1/invoke/{agent.id}", json=body | {"sessionId": "s"}),
        }
        refused = {what: (a.status_code, _without_chance(a)) for what, a in tried.items()}
        assert set(map(repr, refused.values())) == {repr(refused["json"])}
        assert refused["json"][0] == 402
        check = customer.call("POST", "/v1/limits/check", json={"agentId": agent.id}).json()
        assert check["allowed"] is False
        assert check["error"]["details"] == tried["json"].json()["error"]["details"]
        assert (cloud.calls(agent), cloud.calls(other), counted(customer)) == (1, 0, 1)

    def test_a_new_deployment_opens_no_new_budget(self, product: Product, cloud: Cloud) -> None:
        customer = alice(product, max_requests_per_period=1)
        agent = customer.deploy()
        assert agent.invoke().status_code == 200
        again = customer.upload(agent.id, puppet()).json()["id"]
        while customer.deployment(again)["status"] == "deploying":
            pass
        assert agent.invoke({}).status_code == 402
        assert cloud.calls(Agent(customer, agent.id, again)) == 0

    def test_a_refusal_costs_no_call_and_shows_among_the_last_refusals(self, product: Product, cloud: Cloud) -> None:
        agent = alice(product, max_requests_per_period=0).deploy()
        for _ in range(5):
            agent.invoke()
        assert cloud.calls(agent) == 0
        assert agent.owner.call("GET", "/v1/invocations").json()["items"] == []


def _without_chance(answer: requests.Response) -> dict[str, Any]:
    return dict(answer.json()["error"])


class TestSameFiguresEverywhere:
    def test_ledger_api_and_receipts_agree_after_a_mix_of_everything(self, product: Product, cloud: Cloud) -> None:
        agent = alice(product).deploy(example("tokens"))
        agent.invoke("one two three")
        agent.stream("one two")
        cloud.fail(agent, "reset")
        agent.invoke("one")
        assert [kind for kind, _ in events_of(agent.stream("one two three four"))][-1] == "done"
        totals = agent.owner.usage()["totals"]
        items = agent.owner.call("GET", "/v1/invocations").json()["items"]
        assert totals["requests"] == len(items) == counted(agent.owner) == cloud.calls(agent) == 4
        assert totals["tokens"] == sum(item["usage"]["tokens"] for item in items)
