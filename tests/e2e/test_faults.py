"""Parts that die: no call goes uncounted, none is counted twice, nothing stays half-done, whatever is killed when."""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import requests

from tests.e2e import story
from tests.e2e.customers import Agent, Cloud, Customer, puppet, until
from tests.e2e.story import Books, customer, customers, deliver, operate, report, uuid_of
from tests.entitlements.crowd import crowd
from webhost.ids import Prefix, parse_id
from webhost.local.processes import LocalServiceError
from webhost.local.product import Part, Product

pytestmark = pytest.mark.slow

_HASTE = {"OVERDUE_GRACE_SECONDS": "2", "DEPLOY_LEASE_SECONDS": "8"}


@pytest.fixture(scope="module")
def own() -> Iterator[Product]:
    """A product that is killed piece by piece, in more of a hurry than usual to find that out."""
    folder = Path(tempfile.mkdtemp(prefix="webhost-faults-"))
    folder.chmod(0o711)
    running = Product(folder, _HASTE)
    try:
        with running:
            yield running
    finally:
        running.remove()


@pytest.fixture
def cloud(own: Product) -> Iterator[Cloud]:
    """Its Cloudflare, without leftover faults."""
    found = Cloud(own)
    yield found
    found.forgive()


@pytest.fixture(scope="module")
def books(own: Product) -> Books:
    """Its database."""
    return Books(own)


def in_threads(times: int, agent: Agent, prompt: Any = "{}") -> list[Future[requests.Response]]:
    """Call an agent so many times at once, in the background."""
    pool = ThreadPoolExecutor(times)
    return [pool.submit(agent.invoke, prompt) for _ in range(times)]


def ready(own: Product) -> bool:
    """Whether the product says that it can serve."""
    try:
        return requests.get(f"{own.url}/readyz", timeout=15).status_code == 200
    except requests.RequestException:
        return False


def reached(books: Books, owner: Customer) -> int:
    """Return how many of the calls that count reached the provider for certain.

    An admission that nobody settled and no runtime reported counts as well, but its gateway may have been
    killed before it called, or while the call was on its way.
    """
    return sum(
        row["charged_requests"] for row in books.admissions(owner) if row["outcome"] != "expired" or row["reports"]
    )


def verified(own: Product) -> None:
    """Fail unless both proofs hold for every account of the product."""
    assert own.manage("verify_ledger").strip() == "equal"
    assert own.manage("verify_usage").strip().startswith("equal (")


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
        verified(own)


@pytest.mark.case("LIM-06")
class TestPostgresIsAway:
    def test_nothing_is_served_until_it_is_back(self, own: Product, cloud: Cloud, books: Books) -> None:
        agent = customer(own, max_requests_per_period=1).deploy(puppet())
        own.stop_part(Part.POSTGRES)
        try:
            answers = [call.result() for call in in_threads(8, agent)] + [agent.stream("{}")]
        finally:
            own.start_part(Part.POSTGRES)
        for answer in answers:
            error = answer.json()["error"]
            assert (answer.status_code, error["code"], error["retryable"]) == (503, "INTERNAL", True)
            assert int(answer.headers["Retry-After"]) > 0
        assert cloud.calls(agent) == 0
        assert until(lambda: ready(own), 30)
        assert [agent.invoke("{}").status_code for _ in range(2)] == [200, 402]
        assert (cloud.calls(agent), books.counter(agent.owner)["used_requests"]) == (1, 1)

    @pytest.mark.case("LIM-04")
    def test_calls_under_way_while_it_restarts_are_all_counted(self, own: Product, cloud: Cloud, books: Books) -> None:
        agent = customer(own).deploy(puppet(timeout_seconds=6))
        calls = in_threads(8, agent, {"wait": 1500})
        assert until(lambda: cloud.calls(agent) == 8)
        more = in_threads(8, agent, {"wait": 500})  # some of which are being admitted when it stops
        own.restart(Part.POSTGRES)
        statuses = Counter(call.result().status_code for call in calls + more)
        assert set(statuses) <= {200, 503}
        assert until(lambda: ready(own), 30)
        assert agent.invoke("{}").status_code == 200
        assert until(lambda: books.is_quiet(agent.owner), 40)
        assert cloud.calls(agent) == reached(books, agent.owner) >= 9
        # No usage was lost with its settlement: the runtime reported until somebody listened.
        rows = books.admissions(agent.owner)
        assert all(row["charged_tokens"] for row in rows if row["outcome"] != "expired" or row["reports"])
        assert sum(row["charged_requests"] for row in rows) == books.counter(agent.owner)["used_requests"]
        verified(own)


@pytest.mark.case("LIM-06")
class TestTheCacheIsForgotten:
    def test_what_was_used_stays_used(self, own: Product, cloud: Cloud) -> None:
        agent = customer(own, max_requests_per_period=3).deploy(puppet())
        assert [agent.invoke("{}").status_code for _ in range(2)] == [200, 200]
        operate(own, "from django.core.cache import cache; cache.clear(); print(1)")
        assert [agent.invoke("{}").status_code for _ in range(3)] == [200, 402, 402]
        operate(own, "from django.core.cache import cache; cache.clear(); print(1)")
        assert (agent.invoke("{}").status_code, agent.stream("{}").status_code) == (402, 402)
        assert cloud.calls(agent) == 3


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
    def test_the_limit_is_exact(self, own: Product, cloud: Cloud, books: Books, agent: Agent) -> None:
        served = cloud.calls(agent)
        statuses = Counter(call.result().status_code for call in in_threads(12, agent, {"tokens": 1}))
        assert statuses == {200: 5, 402: 7}
        assert cloud.calls(agent) - served <= 5  # the new version may serve by now
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
        verified(own)


def uploads(cloud: Cloud) -> int:
    """Return how many scripts were sent to the provider."""
    return int(cloud.seen()["api"]["byKind"].get("PUT script", 0))


def pointer(books: Books, agent: Agent) -> Any:
    """Return the deployment that serves an agent."""
    row = books.rows("SELECT active_deployment_id FROM runtimes_agent WHERE id = %s", parse_id(Prefix.AGENT, agent.id))
    return f"dep_{row[0]['active_deployment_id'].hex}"


def accepted(agent: Agent, bundle: bytes | None = None) -> Agent:
    """Upload a new version; return the agent as it will be."""
    answer = agent.owner.upload(agent.id, bundle or puppet())
    assert answer.status_code == 202, answer.text
    return Agent(agent.owner, agent.id, answer.json()["id"])


def ended(agent: Agent, seconds: float = 60) -> dict[str, Any]:
    """Wait until a deployment is no longer `deploying`; return how it ended."""
    found = until(lambda: (d := agent.owner.deployment(agent.deployment))["status"] != "deploying" and d, seconds)
    assert found, "It is still deploying."
    return found


_IN_A_TRANSACTION = """
import io, json, time, urllib.request
from uuid import UUID
from django.db import transaction
from runtimes.actions.agents import create_agent
from runtimes.actions.deployments import accept_deployment
from tests.e2e.customers import puppet
from webhost.ids import new_id
def uploads():
    seen = json.load(urllib.request.urlopen({cloud!r} + "/local/calls"))
    return seen["api"]["byKind"].get("PUT script", 0)
before = uploads()
try:
    with transaction.atomic():
        agent = create_agent(UUID({account!r}), new_id(), name="held", description="", runtime="cloudflare")
        deployment = accept_deployment(agent, io.BytesIO(puppet()))
        time.sleep(2)
        meanwhile = uploads() - before
        if {rollback}:
            raise InterruptedError
except InterruptedError:
    pass
print(json.dumps([agent.public_id, deployment.public_id, meanwhile]))
"""


@pytest.mark.case("API-01")
class TestDeployTasks:
    def test_one_that_is_delivered_four_times_at_once_deploys_once(
        self, own: Product, cloud: Cloud, books: Books
    ) -> None:
        first = customer(own).deploy(puppet())
        sent = uploads(cloud)
        cloud.fail_api("slow", method="PUT", seconds=4)
        second = accepted(first)
        deliver(own, *[second.deployment] * 3)
        assert ended(second)["status"] == "active"
        assert (uploads(cloud) - sent, pointer(books, first)) == (1, second.deployment)

    def test_one_that_is_delivered_again_later_does_nothing(self, own: Product, cloud: Cloud, books: Books) -> None:
        agent = customer(own).deploy(puppet())
        sent, lines = uploads(cloud), told(agent)
        deliver(own, *[agent.deployment] * 2)
        time.sleep(2)
        assert (uploads(cloud), told(agent), pointer(books, agent)) == (sent, lines, agent.deployment)

    def test_a_stale_one_does_not_overwrite_what_came_after_it(self, own: Product, cloud: Cloud, books: Books) -> None:
        first = customer(own).deploy(puppet())
        cloud.fail_api("slow", method="PUT", seconds=10)
        sent = uploads(cloud)
        second = accepted(first)
        assert until(lambda: uploads(cloud) == sent + 1)
        # Its worker is so slow that the deployment is given up, and the next version is deployed meanwhile.
        expire(books, second)
        deliver(own, second.deployment)
        assert ended(second)["error"]["code"] == "DeadlineExceeded"
        third = accepted(first)
        assert ended(third)["status"] == "active"
        deliver(own, first.deployment, second.deployment)
        assert until(lambda: present(own, second), 20), "The slow upload has landed at last."
        assert until(lambda: not present(own, second), 20), "What nobody wants any more is removed again."
        assert pointer(books, first) == third.deployment
        assert first.owner.deployment(second.deployment)["status"] == "failed"
        assert third.invoke("{}").status_code == 200
        assert cloud.calls(third) == 1

    @pytest.mark.parametrize("rollback", [False, True], ids=["committed", "rolled back"])
    def test_nothing_is_sent_before_the_commit_nor_after_a_rollback(
        self, own: Product, cloud: Cloud, books: Books, rollback: bool
    ) -> None:
        owner = customer(own)
        sent = uploads(cloud)
        agent_id, deployment, meanwhile = operate(
            own, _IN_A_TRANSACTION.format(cloud=own.cloud_url, account=str(uuid_of(owner)), rollback=rollback)
        )
        assert meanwhile == 0
        agent = Agent(owner, agent_id, deployment)
        if rollback:
            time.sleep(2)
            assert uploads(cloud) == sent
            assert owner.call("GET", f"/v1/agents/{agent_id}").status_code == 404
        else:
            assert ended(agent)["status"] == "active"
        assert "DoesNotExist" not in (own.logs / "worker.log").read_text()

    def test_a_worker_killed_half_way_leaves_nothing_half_done(self, own: Product, cloud: Cloud, books: Books) -> None:
        lucky, late = [one.deploy(puppet()) for one in customers(own, 2)]
        sent = uploads(cloud)
        cloud.fail_api("slow", method="PUT", seconds=4, times=2)
        resumed, given_up = accepted(lucky), accepted(late)
        assert until(lambda: uploads(cloud) == sent + 2)
        own.kill(Part.WORKER)
        books.rows(
            "UPDATE runtimes_deployment SET deadline_at = now() WHERE id = %s",
            parse_id(Prefix.DEPLOYMENT, given_up.deployment),
        )
        own.start_part(Part.WORKER)
        # What served before goes on serving, and a new version has to wait.
        assert (lucky.invoke("{}").status_code, late.invoke("{}").status_code) == (200, 200)
        assert (cloud.calls(lucky), cloud.calls(late)) == (1, 1)
        refused = lucky.owner.upload(lucky.id, puppet())
        assert (refused.status_code, refused.json()["error"]["retryable"]) == (409, True)
        # Both end within the worker's lease and a sweep: one was resumed, the other's time was up.
        assert ended(resumed, 45)["status"] == "active"
        assert ended(given_up, 45)["error"]["code"] == "DeadlineExceeded"
        assert uploads(cloud) == sent + 2, "What the killed worker had uploaded is adopted."
        assert (pointer(books, lucky), pointer(books, late)) == (resumed.deployment, late.deployment)
        assert until(lambda: not present(own, given_up), 20)
        assert ended(accepted(late))["status"] == "active"


def told(agent: Agent) -> int:
    """Return how many lines a deployment's log has."""
    return len(agent.owner.call("GET", f"/v1/deployments/{agent.deployment}/logs").json()["items"])


def expire(books: Books, agent: Agent) -> None:
    """Let a deployment's time be up, and its worker's as well."""
    books.rows(
        "UPDATE runtimes_deployment SET deadline_at = now(), claimed_until = now() - interval '1 second' WHERE id = %s",
        parse_id(Prefix.DEPLOYMENT, agent.deployment),
    )


def present(own: Product, agent: Agent) -> bool:
    """Whether the provider has the script of a deployment."""
    env = own.env
    answer = requests.get(
        f"{env['CLOUDFLARE_API_URL']}/accounts/{env['CLOUDFLARE_ACCOUNT_ID']}/workers/dispatch/namespaces/"
        f"{env['CLOUDFLARE_NAMESPACE']}/scripts/{agent.script}",
        headers={"Authorization": f"Bearer {env['CLOUDFLARE_API_TOKEN']}"},
        timeout=10,
    )
    return answer.status_code == 200


_LIMIT = 12
_THREADS = 24
_PROOFS = """
import io, json
from django.core.management import CommandError, call_command
said = []
for account in {accounts!r}:
    for name in ["verify_ledger", "verify_usage"]:
        out = io.StringIO()
        try:
            call_command(name, account=account, stdout=out)
        except CommandError as error:
            out.write(str(error))
        said.append(out.getvalue().strip())
print(json.dumps(said))
"""


def proofs(own: Product, agents: list[Agent]) -> list[tuple[str, str]]:
    """Return what verify_ledger and verify_usage say of each agent's account."""
    said = operate(own, _PROOFS.format(accounts=[agent.owner.account_id for agent in agents]))
    return list(zip(said[::2], said[1::2], strict=True))


@pytest.mark.case("LIM-01", "LIM-04")
class TestAStorm:
    """Threads in two processes, ten accounts, three times their limit, streams, hang-ups, one process killed."""

    @pytest.fixture(scope="class")
    def storm(self, own: Product, books: Books) -> list[Agent]:
        owners = customers(own, 10, max_requests_per_period=_LIMIT)
        with ThreadPoolExecutor(4) as pool:
            agents = list(pool.map(lambda owner: owner.deploy(puppet(timeout_seconds=5)), owners))
        with ThreadPoolExecutor(1) as pool:
            raging = pool.submit(crowd, story.offer, agents, 3 * _LIMIT, _THREADS, processes=2, threads=_THREADS // 2)
            assert until(lambda: sum(books.counter(one)["used_requests"] for one in owners) > 20, 60)
            os.kill(own.web_worker_pids[0], signal.SIGKILL)
            seen = sum(raging.result(), Counter())
        assert seen["402"], seen
        assert until(lambda: books.is_quiet(*owners), 60)
        return agents

    def test_every_account_got_exactly_its_limit(self, storm: list[Agent], books: Books) -> None:
        assert [books.counter(agent.owner)["used_requests"] for agent in storm] == [_LIMIT] * 10
        assert [agent.owner.usage()["totals"]["requests"] for agent in storm] == [_LIMIT] * 10
        assert [agent.invoke("{}").status_code for agent in storm] == [402] * 10

    def test_what_counts_is_what_reached_the_provider(self, storm: list[Agent], cloud: Cloud, books: Books) -> None:
        for agent in storm:
            assert reached(books, agent.owner) <= cloud.calls(agent) <= _LIMIT
        unsure = sum(_LIMIT - reached(books, agent.owner) for agent in storm)
        assert unsure <= _THREADS, "Only calls of the one killed process."
        outcomes = Counter(row["outcome"] for agent in storm for row in books.admissions(agent.owner))
        assert outcomes["open"] == 0
        assert outcomes["succeeded"] > 0
        assert outcomes["failed"] > 0, "Those who hung up."

    def test_ledger_and_usage_are_equal_for_each_account(self, storm: list[Agent], own: Product) -> None:
        for ledger, usage in proofs(own, storm):
            assert (ledger, usage.splitlines()[-1]) == ("equal", "equal")
        verified(own)

    def test_each_row_that_is_altered_or_deleted_is_named(self, storm: list[Agent], own: Product, books: Books) -> None:
        rows = [Rows(books, agent) for agent in storm]
        expected = [
            rows[0].spoil("counter", "UPDATE entitlements_periodcounter SET used_requests = used_requests + 1"),
            rows[1].spoil("admission", "UPDATE entitlements_admission SET charged_tokens = charged_tokens + 7"),
            rows[2].spoil("report", "UPDATE telemetry_report SET body = body || ' '::bytea"),
            rows[3].spoil("roll-up", "UPDATE telemetry_usagehour SET tokens = tokens + 1"),
            rows[4].spoil("counter", "DELETE FROM entitlements_periodcounter"),
            rows[5].spoil("admission", "DELETE FROM entitlements_admission"),
            rows[6].spoil("report", "DELETE FROM telemetry_report"),
            rows[7].spoil("roll-up", "DELETE FROM telemetry_usagehour"),
        ]
        said = proofs(own, storm)
        for index, (kind, name) in enumerate(expected):
            ledger, usage = said[index]
            assert name in usage, (kind, usage)
            assert (ledger == "equal") == (kind in ("report", "roll-up")), (kind, ledger)
        assert [(ledger, usage.splitlines()[-1]) for ledger, usage in said[8:]] == [("equal", "equal")] * 2
        # The same for all accounts at once.
        named = {command: complaint(own, command) for command in ("verify_ledger", "verify_usage")}
        for index, (kind, name) in enumerate(expected):
            account = storm[index].owner.account_id
            assert f"{account} " in named["verify_usage"]
            assert name in named["verify_usage"]
            assert (f"counter {account} " in named["verify_ledger"]) == (kind in ("counter", "admission"))
        assert not any(agent.owner.account_id in said for agent in storm[8:] for said in named.values())


def complaint(own: Product, command: str) -> str:
    """Return what a command of the operator's says when it fails."""
    with pytest.raises(LocalServiceError) as failure:
        own.manage(command)
    return str(failure.value)


class Rows:
    """The rows of one account, to spoil one of."""

    def __init__(self, books: Books, agent: Agent) -> None:
        self._books, self._agent = books, agent
        self._account = uuid_of(agent.owner)

    def spoil(self, kind: str, statement: str) -> tuple[str, str]:
        """Change or delete one row of a kind; return the kind, and the name that the proof must call it by."""
        if kind == "counter":
            self._books.rows(f"{statement} WHERE account_id = %s", self._account, past_triggers=True)
            return kind, "counter "
        if kind == "roll-up":
            self._books.rows(f"{statement} WHERE account_id = %s", self._account, past_triggers=True)
            return kind, f"roll-up {time.strftime('%Y-%m-%dT', time.gmtime())}"
        admission = next(row["id"] for row in self._books.admissions(self._agent.owner) if row["reports"])
        if kind == "admission":
            self._books.rows(f"{statement} WHERE id = %s", admission, past_triggers=True)
            return kind, f"admission inv_{admission.hex}"
        (row,) = self._books.rows(
            "SELECT id FROM telemetry_report WHERE invocation_id = %s AND status = 'accepted'", admission
        )
        self._books.rows(f"{statement} WHERE id = %s", row["id"], past_triggers=True)
        # A report that is gone cannot be named; the admission that it was folded into is.
        return kind, f"admission inv_{admission.hex}" if statement.startswith("DELETE") else f"report {row['id']}:"
