"""The backends' door on the running product: who passes it is judged as the account, and nothing passes it twice."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import requests

from entitlements.enums import Runtime
from entitlements.models import Account, Admission, PeriodCounter
from tests.backend import ROUTE, Backend, envelope
from tests.e2e.customers import Agent, Cloud, Customer
from tests.e2e.story import customer, delegated, verified
from tests.factories import make_account, make_agent, make_deployment, make_tier, make_token
from webhost.ids import Prefix, parse_id, public_id
from webhost.local.product import Product

pytestmark = pytest.mark.usefixtures("live_db")
GUIDE = Path(__file__).resolve().parents[2] / "docs" / "delegated.md"


@pytest.fixture
def cloud(product: Product) -> Iterator[Cloud]:
    """The local Cloudflare, without leftover faults."""
    found = Cloud(product)
    yield found
    found.forgive()


@pytest.fixture
def backend(product: Product) -> Backend:
    """The product's own source."""
    return Backend.listed(product.env["DELEGATED_SOURCES"])[0]


def alice(product: Product, **tier: Any) -> Customer:
    """Make a customer whose tier is unlimited in all that is not said."""
    account = make_account("alice", make_tier(**tier))
    return Customer(product.url, public_id(Prefix.ACCOUNT, account.id), make_token(account))


def counted(owner: Customer) -> int:
    """Return the requests that count, by the database."""
    rows = PeriodCounter.objects.filter(account_id=parse_id(Prefix.ACCOUNT, owner.account_id))
    return sum(row.used_requests for row in rows)


def codes_of(calls: list[Callable[[], requests.Response]]) -> Counter[int]:
    """Do all of this at the same time; return how often each status came."""
    with ThreadPoolExecutor(len(calls)) as crowd:
        return Counter(answer.status_code for answer in crowd.map(lambda call: call(), calls))


def test_a_call_is_answered_counts_once_on_the_account_and_says_by_whom_it_was_made(
    product: Product, cloud: Cloud, backend: Backend
) -> None:
    agent = alice(product).deploy()
    answer = delegated(product, backend, agent.id, envelope(agent.owner.account_id, "good morning"))
    assert (answer.status_code, "good morning" in answer.json()["output"]["text"]) == (200, True)
    assert counted(agent.owner) == cloud.calls(agent) == agent.owner.usage()["totals"]["requests"] == 1
    assert agent.owner.receipt(answer.json()["invocationId"])["delegatedBy"] == "local"
    verified(product, agent.owner)


def test_of_thirty_delegated_and_thirty_own_calls_at_once_exactly_the_limit_is_served(
    product: Product, cloud: Cloud, backend: Backend
) -> None:
    agent = alice(product, max_requests_per_period=10).deploy()

    def by_the_backend() -> requests.Response:
        return delegated(product, backend, agent.id, envelope(agent.owner.account_id))

    assert codes_of([by_the_backend, agent.invoke] * 30) == {200: 10, 402: 50}
    assert counted(agent.owner) == cloud.calls(agent) == 10


def test_a_refusal_names_the_limit_and_is_the_one_of_the_accounts_own_calls(
    product: Product, cloud: Cloud, backend: Backend
) -> None:
    agent = alice(product, max_requests_per_period=0).deploy()
    refused = delegated(product, backend, agent.id, envelope(agent.owner.account_id))
    assert (refused.status_code, refused.json()["error"]["details"]["limitType"]) == (402, "requests")
    assert refused.json()["error"] == agent.invoke().json()["error"]
    assert cloud.calls(agent) == 0


class TestOnce:
    @pytest.mark.case("ING-03")
    def test_a_repeat_gets_the_first_answer_and_reaches_the_provider_once(
        self, product: Product, cloud: Cloud, backend: Backend
    ) -> None:
        agent = alice(product).deploy()
        body = envelope(agent.owner.account_id)
        first, again = (delegated(product, backend, agent.id, body, ago=ago) for ago in (30, 0))
        assert (first.status_code, again.status_code) == (200, 200)
        assert again.json() == first.json()
        assert again.headers["Idempotency-Replayed"] == "true"
        assert counted(agent.owner) == cloud.calls(agent) == 1

    def test_forty_at_once_under_one_key_reach_it_once(self, product: Product, cloud: Cloud, backend: Backend) -> None:
        agent = alice(product).deploy()
        raw = json.dumps(envelope(agent.owner.account_id)).encode()
        codes = codes_of([lambda: delegated(product, backend, agent.id, raw)] * 40)
        assert set(codes) <= {200, 409}
        assert codes[200] >= 1
        assert delegated(product, backend, agent.id, raw).status_code == 200
        assert counted(agent.owner) == cloud.calls(agent) == 1


@pytest.mark.case("ING-02")
def test_whoever_is_not_believed_gets_401_and_nothing_is_on_the_wire(
    product: Product, cloud: Cloud, backend: Backend
) -> None:
    agent = alice(product).deploy()
    other = agent.owner.deploy(name="other")
    raw = json.dumps(envelope(agent.owner.account_id)).encode()
    good: dict[str, str | bytes] = {"Content-Type": "application/json", **backend.headers(agent.id, raw)}

    def sent(to: Agent = agent, body: bytes = raw, **changes: str | bytes | None) -> requests.Response:
        headers = good | {f"X-Whs-{name.title()}": value for name, value in changes.items()}
        given = {name: value for name, value in headers.items() if value is not None}
        return requests.post(product.url + ROUTE + to.id, data=body, headers=given, timeout=30)  # type: ignore[arg-type]

    stranger = Backend(backend.source, b"x" * 32).headers(agent.id, raw)["X-Whs-Signature"]
    names = ("source", "timestamp", "signature")
    tried = {
        "stale": delegated(product, backend, agent.id, raw, ago=301),
        "too far ahead": delegated(product, backend, agent.id, raw, ago=-90),
        "a tampered body": sent(body=raw.replace(b"hello", b"jello")),
        "a tampered agent": sent(other),
        "a tampered time": sent(timestamp=str(int(str(good["X-Whs-Timestamp"])) + 1)),
        "another source's key": sent(signature=stranger),
        "an unknown source": delegated(product, Backend("nobody", backend.key), agent.id, raw),
        "a token alone": agent.owner.call("POST", ROUTE + agent.id, data=raw),
        **{f"an empty {name}": sent(**{name: ""}) for name in names},
        **{f"no {name}": sent(**{name: None}) for name in names},
        **{f"bytes in {name}": sent(**{name: b"v1=\xff\xc3\x28\xa9"}) for name in names},
    }
    assert {what: a.status_code for what, a in tried.items()} == dict.fromkeys(tried, 401)
    assert len({json.dumps(a.json()["error"]) for a in tried.values()}) == 1
    assert (cloud.calls(agent), cloud.calls(other), counted(agent.owner)) == (0, 0, 0)
    assert sent().status_code == 200


def test_without_a_key_in_the_envelope_nothing_is_on_the_wire(product: Product, cloud: Cloud, backend: Backend) -> None:
    agent = alice(product).deploy()
    body = envelope(agent.owner.account_id)
    del body["idempotencyKey"]
    assert delegated(product, backend, agent.id, body).status_code == 400
    assert (cloud.calls(agent), counted(agent.owner)) == (0, 0)


def test_the_runtime_gate_is_closed_through_this_door_too(product: Product, backend: Backend) -> None:
    free: Account = make_account("charlie", "free")
    agent = make_agent(free, runtime=Runtime.AGENTCORE)
    make_deployment(agent)
    refused = delegated(product, backend, agent.public_id, envelope(public_id(Prefix.ACCOUNT, free.pk)))
    assert (refused.status_code, refused.json()["error"]["details"]["limitType"]) == (402, "runtimeGated")
    assert not Admission.objects.filter(account_id=free.pk).exists()


def test_while_a_key_rotates_both_are_taken_and_no_other_source_s(own: Product, own_cloud: Cloud) -> None:
    agent = customer(own).deploy()
    old, new, crm = Backend.listed(own.env["DELEGATED_SOURCES"])
    assert (old.source, new.source) == ("shop", "shop")
    mixed = Backend("shop", crm.key)
    tried = [delegated(own, b, agent.id, envelope(agent.owner.account_id)) for b in (old, new, crm, mixed)]
    assert [answer.status_code for answer in tried] == [200, 200, 200, 401]
    assert own_cloud.calls(agent) == 3
    receipts = agent.owner.call("GET", "/v1/invocations").json()["items"]
    assert Counter(receipt["delegatedBy"] for receipt in receipts) == {"shop": 2, "crm": 1}


def test_the_guides_example_works_as_it_is_printed(product: Product, cloud: Cloud, backend: Backend) -> None:
    agent = alice(product).deploy()
    (program,) = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    settings = {"WHS_URL": product.url, "WHS_SOURCE": backend.source, "WHS_KEY": backend.key.hex()}
    run = subprocess.run(
        [sys.executable, "-c", program, agent.id, agent.owner.account_id, "order-4711", "good morning"],
        env={"PATH": os.environ["PATH"], **settings}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "good morning" in json.loads(run.stdout)["output"]["text"]
    assert cloud.calls(agent) == 1
