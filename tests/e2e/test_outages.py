"""Parts that die while calls are under way: none goes uncounted, none counts twice, and no report is lost."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import requests

from tests.e2e.customers import Agent, Cloud, puppet, until
from tests.e2e.story import Books, customer, in_threads, operate, reached, ready, report, uuid_of, verified
from webhost.local.product import Part, Product

pytestmark = pytest.mark.slow


@pytest.mark.case("LIM-04")
class TestAWebWorkerKilledBetweenAdmissionAndSettlement:
    @pytest.fixture(scope="class")
    def killed(self, own: Product, books: Books) -> Agent:
        """A call whose web worker was killed while its agent worked."""
        agent = customer(own, max_requests_per_period=2).deploy(puppet(timeout_seconds=4))
        (call,) = in_threads(1, agent, {"wait": 2000})
        assert until(lambda: Cloud(own).calls(agent) == 1)
        for pid in own.web_worker_pids:  # one of them has it
            os.kill(pid, signal.SIGKILL)
        with pytest.raises(requests.RequestException):
            call.result()
        assert [row["outcome"] for row in books.admissions(agent.owner)] == ["open"]
        assert books.counter(agent.owner)["in_flight"] == 1
        return agent

    def test_it_is_closed_as_overdue_and_counts_once(self, killed: Agent, own: Product, books: Books) -> None:
        assert until(lambda: books.counter(killed.owner)["in_flight"] == 0, 30)
        (admission,) = books.admissions(killed.owner)
        assert admission["outcome"] == "expired"
        assert (books.counter(killed.owner)["used_requests"], Cloud(own).calls(killed)) == (1, 1)

    def test_the_product_answers_again_and_the_rest_of_the_limit_is_there(self, killed: Agent, own: Product) -> None:
        assert until(lambda: ready(own), 30)
        assert [killed.invoke("{}").status_code for _ in range(2)] == [200, 402]

    def test_the_runtimes_own_report_is_folded_in(self, killed: Agent, books: Books) -> None:
        def first() -> dict[str, Any]:
            return books.admissions(killed.owner)[0]

        assert until(lambda: first()["reports"] == 1)
        assert first()["charged_tokens"] > 0

    def test_a_later_report_still_corrects_it(self, killed: Agent, own: Product, books: Books) -> None:
        admission = books.admissions(killed.owner)[0]
        before = books.counter(killed.owner)["used_tokens"]
        assert report(own, killed, f"inv_{admission['id'].hex}", tokens=500).status_code == 202
        assert until(lambda: books.counter(killed.owner)["used_tokens"] == before - admission["charged_tokens"] + 500)
        verified(own, killed.owner)


@pytest.mark.case("LIM-04")
class TestPostgresIsRestarted:
    def test_calls_under_way_while_it_restarts_are_all_counted(
        self, own: Product, own_cloud: Cloud, books: Books
    ) -> None:
        agent = customer(own).deploy(puppet(timeout_seconds=6))
        calls = in_threads(8, agent, {"wait": 1500})
        assert until(lambda: own_cloud.calls(agent) == 8)
        more = in_threads(8, agent, {"wait": 500})  # some of which are being admitted when it stops
        own.restart(Part.POSTGRES)
        statuses = Counter(call.result().status_code for call in calls + more)
        assert set(statuses) <= {200, 503}
        assert until(lambda: ready(own), 30)
        assert agent.invoke("{}").status_code == 200
        assert until(lambda: books.is_quiet(agent.owner), 40)
        assert own_cloud.calls(agent) == reached(books, agent.owner) >= 9
        # No usage was lost with its settlement: the runtime reported until somebody listened.
        rows = books.admissions(agent.owner)
        assert all(row["charged_tokens"] for row in rows if row["outcome"] != "expired" or row["reports"])
        assert sum(row["charged_requests"] for row in rows) == books.counter(agent.owner)["used_requests"]
        verified(own, agent.owner)


@pytest.mark.case("LIM-06")
class TestTheCacheIsForgotten:
    def test_what_was_used_stays_used(self, own: Product, own_cloud: Cloud) -> None:
        agent = customer(own, max_requests_per_period=3).deploy(puppet())
        assert [agent.invoke("{}").status_code for _ in range(2)] == [200, 200]
        operate(own, "from django.core.cache import cache; cache.clear(); print(1)")
        assert [agent.invoke("{}").status_code for _ in range(3)] == [200, 402, 402]
        operate(own, "from django.core.cache import cache; cache.clear(); print(1)")
        assert (agent.invoke("{}").status_code, agent.stream("{}").status_code) == (402, 402)
        assert own_cloud.calls(agent) == 3


def reported(books: Books, agent: Agent) -> tuple[int, int]:
    """Return the tokens in the totals that the customer sees, and in the hours."""
    hours = books.rows(
        "SELECT coalesce(sum(tokens), 0)::int AS n FROM telemetry_usagehour WHERE account_id = %s", uuid_of(agent.owner)
    )
    return agent.owner.usage()["totals"]["tokens"], hours[0]["n"]


@pytest.mark.case("LIM-06")
class TestRedisIsAway:
    @pytest.fixture(scope="class")
    def agent(self, own: Product) -> Agent:
        return customer(own, max_requests_per_period=10).deploy(puppet())

    @pytest.fixture(scope="class")
    def away(self, own: Product, agent: Agent) -> Iterator[tuple[str, float]]:
        """Redis is stopped; a new version and a report have come since. Yields the version, and when that was."""
        own.stop_part(Part.REDIS)
        began = time.monotonic()
        invocation = agent.owner.last_receipt()["id"]
        assert report(own, agent, invocation, tokens=3000, event="away").status_code == 202
        accepted = agent.owner.upload(agent.id, puppet(timeout_seconds=50))
        assert accepted.status_code == 202, accepted.text
        yield accepted.json()["id"], began
        own.start_part(Part.REDIS)

    def test_while_it_is_there_a_report_is_in_the_totals_within_5_seconds(
        self, own: Product, books: Books, agent: Agent
    ) -> None:
        assert [agent.invoke({"tokens": 1}).status_code for _ in range(5)] == [200] * 5
        assert report(own, agent, agent.owner.last_receipt()["id"], tokens=1000, event="here").status_code == 202
        assert until(lambda: reported(books, agent) == (1004, 1004), 5), reported(books, agent)

    @pytest.mark.usefixtures("away")
    def test_the_limit_is_exact(self, own: Product, own_cloud: Cloud, books: Books, agent: Agent) -> None:
        served = own_cloud.calls(agent)
        statuses = Counter(call.result().status_code for call in in_threads(12, agent, {"tokens": 1}))
        assert statuses == {200: 5, 402: 7}
        assert own_cloud.calls(agent) - served <= 5  # the new version may serve by now
        assert books.counter(agent.owner)["used_requests"] == 10

    def test_a_report_is_in_the_totals_within_90_seconds(
        self, books: Books, agent: Agent, away: tuple[str, float]
    ) -> None:
        assert until(lambda: reported(books, agent) == (3009, 3009), 90), reported(books, agent)
        assert time.monotonic() - away[1] < 90

    @pytest.mark.case("API-01")
    def test_a_deployment_becomes_active(self, agent: Agent, away: tuple[str, float]) -> None:
        assert until(lambda: agent.owner.deployment(away[0])["status"] == "active", 60)


@pytest.mark.case("LIM-06")
class TestRedisIsBack:
    def test_everything_goes_on(self, own: Product, books: Books) -> None:
        agent = customer(own).deploy(puppet())
        assert agent.invoke({"tokens": 1}).status_code == 200
        assert report(own, agent, agent.owner.last_receipt()["id"], tokens=1000, event="back").status_code == 202
        assert until(lambda: reported(books, agent) == (1000, 1000), 5), reported(books, agent)
        verified(own, agent.owner)
