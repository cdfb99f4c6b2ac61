"""Crashes that come together or at the worst moment: what was served is counted, and nothing runs twice."""

from __future__ import annotations

import os
import secrets
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import requests

from tests.e2e.customers import Agent, Cloud, puppet, until
from tests.e2e.story import Books, customer, reached, ready, verified
from webhost.ids import Prefix, parse_id
from webhost.local.product import Part, Product

pytestmark = pytest.mark.slow

# A deployment's timeout, the grace of the product that is hurt, and one round of the task that looks.
OVERDUE = 5 + 2 + 10 + 10


@pytest.fixture(autouse=True)
def _left_whole(own: Product) -> Iterator[None]:
    """Whatever a test killed is there again for the next."""
    yield
    for part in Part:
        if part not in own.pids:
            own.start_part(part)
    assert until(lambda: ready(own), 30)


@pytest.fixture
def calm() -> None:
    """Let time pass: the web server takes a crash within 5.5 seconds of the last for a loop, and gives up."""
    time.sleep(6)


def kill_web_workers(own: Product) -> None:
    """Kill every process that answers requests; the server starts others."""
    for pid in own.web_worker_pids:
        os.kill(pid, signal.SIGKILL)


def status_of(call: Callable[[], requests.Response]) -> int | None:
    """Return the status of an answer, or None where there was no whole one."""
    try:
        return call().status_code
    except requests.RequestException:
        return None


@pytest.mark.usefixtures("calm")
class TestWebProcessesKilled:
    @pytest.mark.case("LIM-04", "API-02")
    def test_in_the_middle_of_streams_and_calls_counts_each_once_and_frees_every_slot(
        self, own: Product, own_cloud: Cloud, books: Books
    ) -> None:
        agent = customer(own, max_concurrent_invocations=4).deploy(puppet(timeout_seconds=5))
        asked = {"events": 20, "pause": 200}
        with ThreadPoolExecutor(4) as crowd:
            calls = [crowd.submit(status_of, lambda c=call: c(asked)) for call in (agent.stream, agent.invoke) * 2]
            assert until(lambda: own_cloud.calls(agent) == 4)
            kill_web_workers(own)
            assert [call.result() for call in calls] == [None] * 4
        assert until(lambda: books.counter(agent.owner)["in_flight"] == 0, OVERDUE)
        assert [row["outcome"] for row in books.admissions(agent.owner)] == ["expired"] * 4
        assert books.counter(agent.owner)["used_requests"] == own_cloud.calls(agent) == 4
        # The runtime noticed that nobody listens, stopped, and told what was used until then.
        assert until(lambda: all(row["reports"] == 1 for row in books.admissions(agent.owner)))
        assert all(row["charged_tokens"] > 0 for row in books.admissions(agent.owner))
        assert until(lambda: agent.invoke({}).status_code == 200, 30)
        verified(own, agent.owner)

    @pytest.mark.case("LIM-04")
    def test_a_repeat_with_the_same_key_hears_what_became_of_the_call_and_nothing_runs_twice(
        self, own: Product, own_cloud: Cloud, books: Books
    ) -> None:
        agent = customer(own).deploy(puppet(timeout_seconds=5))
        key = secrets.token_hex(8)
        with ThreadPoolExecutor(1) as crowd:
            call = crowd.submit(status_of, lambda: agent.invoke({"wait": 3000}, key=key))
            assert until(lambda: own_cloud.calls(agent) == 1)
            kill_web_workers(own)
            assert call.result() is None
        assert until(lambda: ready(own), 30)
        repeated = agent.invoke({"wait": 3000}, key=key)
        assert (repeated.status_code, repeated.json()["error"]["retryable"]) == (409, True)
        assert until(lambda: books.counter(agent.owner)["in_flight"] == 0, OVERDUE)
        told = agent.invoke({"wait": 3000}, key=key)
        assert (told.status_code, told.json()["error"]["details"]["outcome"]) == (409, "expired")
        assert own_cloud.calls(agent) == books.counter(agent.owner)["used_requests"] == 1


@pytest.mark.case("LIM-06")
class TestPostgresKilled:
    def test_every_call_is_served_and_counted_or_503(self, own: Product, own_cloud: Cloud, books: Books) -> None:
        agent = customer(own).deploy(puppet(timeout_seconds=5))
        stop, statuses = threading.Event(), Counter[int | None]()

        def call() -> None:
            while not stop.is_set():
                statuses[status_of(lambda: agent.invoke({}))] += 1

        callers = [threading.Thread(target=call) for _ in range(4)]
        for caller in callers:
            caller.start()
        assert until(lambda: statuses[200] > 10)
        own.kill(Part.POSTGRES)
        time.sleep(2)
        own.start_part(Part.POSTGRES)
        served = statuses[200]
        assert until(lambda: statuses[200] > served + 10, 30)
        stop.set()
        for caller in callers:
            caller.join()
        assert set(statuses) <= {200, 503}
        assert until(lambda: books.is_quiet(agent.owner), 60)
        # Whose admission was kept although its answer was lost has counted without a call; no call went uncounted.
        calls, used = own_cloud.calls(agent), books.counter(agent.owner)["used_requests"]
        assert reached(books, agent.owner) <= calls <= used <= calls + len(callers)
        verified(own, agent.owner)

    def test_while_it_is_away_nothing_reaches_a_provider(self, own: Product, own_cloud: Cloud, books: Books) -> None:
        agent = customer(own).deploy(puppet())
        assert agent.invoke({}).status_code == 200
        own.kill(Part.POSTGRES)
        for refused in (agent.invoke({}), agent.stream({}), agent.invoke({}, key="a")):
            assert (refused.status_code, refused.json()["error"]["code"]) == (503, "INTERNAL")
            assert refused.json()["error"]["retryable"] is True
            assert int(refused.headers["Retry-After"]) > 0
        own.start_part(Part.POSTGRES)
        assert until(lambda: ready(own), 30)
        assert own_cloud.calls(agent) == books.counter(agent.owner)["used_requests"] == 1


@pytest.mark.usefixtures("calm")
class TestTwoAtOnce:
    def test_a_report_that_only_the_runtime_could_make_while_redis_was_away_is_in_the_totals_within_90_seconds(
        self, own: Product, own_cloud: Cloud, books: Books
    ) -> None:
        agent = customer(own).deploy(puppet(timeout_seconds=5))
        with ThreadPoolExecutor(1) as crowd:
            call = crowd.submit(status_of, lambda: agent.invoke({"wait": 2000}))
            assert until(lambda: own_cloud.calls(agent) == 1)
            kill_web_workers(own)
            own.kill(Part.REDIS)
            assert call.result() is None
        received = "SELECT 1 AS one FROM telemetry_report WHERE deployment_id = %s"
        assert until(lambda: books.rows(received, parse_id(Prefix.DEPLOYMENT, agent.deployment)), 40)
        began = time.monotonic()
        own.start_part(Part.REDIS)
        assert until(lambda: books.admissions(agent.owner)[0]["reports"] == 1, 90)
        assert time.monotonic() - began < 90
        charged = books.admissions(agent.owner)[0]["charged_tokens"]
        assert agent.owner.usage()["totals"]["tokens"] == charged > 0


def test_the_agents_of_a_stranger_are_untouched_by_somebodys_storm(
    own: Product, own_cloud: Cloud, books: Books
) -> None:
    """charlie hammers a spent budget; alice's calls are served as ever, and charlie costs no provider call."""
    alice = customer(own).deploy(puppet())
    charlie = customer(own, max_requests_per_period=0).deploy(puppet())
    with ThreadPoolExecutor(8) as crowd:
        refused = Counter(crowd.map(lambda _: charlie.invoke({}).status_code, range(80)))
        served = Counter(crowd.map(lambda _: alice.invoke({}).status_code, range(8)))
    assert (refused, served) == ({402: 80}, {200: 8})
    assert (own_cloud.calls(charlie), own_cloud.calls(alice)) == (0, 8)
    rows = books.rows("SELECT count(*)::int AS n FROM entitlements_denial WHERE account_id = %s", _account(charlie))
    assert rows[0]["n"] <= 2, "One row a minute."


def _account(agent: Agent) -> object:
    return parse_id(Prefix.ACCOUNT, agent.owner.account_id)
