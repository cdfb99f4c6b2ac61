"""Things break under load, for real: a web process, the worker, PostgreSQL, Redis. On a product of its own."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pytest
import requests
from psycopg.rows import dict_row

from tests.e2e.customers import Agent, Cloud, Customer, puppet, until
from tests.factories import example
from webhost.ids import Prefix, parse_id
from webhost.local.processes import LocalServiceError
from webhost.local.product import Part, Product

pytestmark = pytest.mark.slow

GRACE = 2  # seconds that an admission may be overdue, beyond its deployment's timeout
EVERY = 10  # seconds between two looks for what is overdue


class Faulty:
    """The product that is hurt, its customers, and a look at its database."""

    def __init__(self, product: Product) -> None:
        self.product, self.cloud = product, Cloud(product)

    def customer(self, **tier: int | None) -> Customer:
        """Make a customer whose tier is unlimited in all that is not said."""
        email = f"alice-{secrets.token_hex(6)}@example.com"
        made = json.loads(self.product.manage("create_account", email, "--token", "test"))
        slug = f"t-{secrets.token_hex(6)}"
        columns = {"slug": slug, "name": slug, "is_public": False, "max_tool_calls_per_period": 0, **tier}
        fixed = {
            "description": "", "is_default": False, "version": 1, "agentcore_enabled": False, "memory_enabled": False,
            "code_interpreter_enabled": False, "browser_enabled": False, "telemetry_retention_days": 30,
            "logs_retention_days": 7,
        }  # fmt: skip
        values = fixed | columns
        self.sql(
            f"""WITH t AS (INSERT INTO entitlements_tier (rank, {", ".join(values)})
                           SELECT max(rank) + 1, {", ".join(f"%({name})s" for name in values)} FROM entitlements_tier
                           RETURNING id)
                UPDATE entitlements_account SET billing_tier_id = t.id FROM t WHERE entitlements_account.id = %(account)s
                RETURNING 1""",
            **values, account=parse_id(Prefix.ACCOUNT, made["id"]),
        )  # fmt: skip
        return Customer(self.product.url, made["id"], made["token"])

    def sql(self, query: str, **parameters: Any) -> list[dict[str, Any]]:
        """Ask the product's database."""
        with psycopg.connect(self.product.env["DATABASE_URL"], autocommit=True, row_factory=dict_row) as connection:
            found = connection.execute(query, parameters)
            return found.fetchall() if found.description else []

    def admissions(self, agent: Agent) -> list[dict[str, Any]]:
        """Return an agent's admissions, the oldest first."""
        return self.sql(
            "SELECT * FROM entitlements_admission WHERE agent_id = %(agent)s ORDER BY id",
            agent=parse_id(Prefix.AGENT, agent.id),
        )

    def counter(self, customer: Customer) -> dict[str, Any]:
        """Return the customer's counter; zeros where there is none."""
        rows = self.sql(
            "SELECT * FROM entitlements_periodcounter WHERE account_id = %(account)s",
            account=parse_id(Prefix.ACCOUNT, customer.account_id),
        )
        return rows[0] if rows else {"used_requests": 0, "in_flight": 0, "used_tokens": 0}

    def proven(self, command: str, *arguments: str) -> str:
        """Return what verify_ledger or verify_usage prints, also when it finds a difference."""
        try:
            return self.product.manage(command, *arguments).strip()
        except LocalServiceError as error:
            return str(error)


@pytest.fixture(scope="module")
def _stack() -> Iterator[Product]:
    folder = Path(tempfile.mkdtemp(prefix="webhost-faults-"))
    folder.chmod(0o711)
    product = Product(folder, {"OVERDUE_GRACE_SECONDS": str(GRACE), "DEPLOY_DEADLINE_SECONDS": "60"})
    try:
        with product:
            yield product
    finally:
        if logs := os.environ.get("KEEP_LOGS"):
            shutil.copytree(product.logs, f"{logs}-faults", dirs_exist_ok=True)
        product.remove()


@pytest.fixture
def faulty(_stack: Product) -> Iterator[Faulty]:
    found = Faulty(_stack)
    yield found
    for part in Part:  # whatever a test killed is there again for the next
        if part not in _stack.pids:
            _stack.start_part(part)
    found.cloud.forgive()
    until(lambda: _ready(_stack), 30)


def _ready(product: Product) -> bool:
    try:
        return requests.get(f"{product.url}/readyz", timeout=5).status_code == 200
    except requests.RequestException:
        return False


class TestAWebProcessThatIsKilled:
    @pytest.mark.case("LIM-04")
    def test_between_admission_and_settlement_leaves_nothing_stuck_and_counts_once(self, faulty: Faulty) -> None:
        customer = faulty.customer(max_concurrent_invocations=4, max_requests_per_period=5)
        agent = customer.deploy(puppet(timeout_seconds=5))
        with ThreadPoolExecutor(4) as crowd:
            calls = [crowd.submit(_quietly, lambda: agent.invoke({"wait": 3000})) for _ in range(4)]
            assert until(lambda: faulty.cloud.calls(agent) == 4)
            for pid in faulty.product.web_worker_pids:
                os.kill(pid, signal.SIGKILL)
            answers = [call.result() for call in calls]
        assert answers == [None] * 4
        assert faulty.counter(customer)["in_flight"] == 4
        assert until(lambda: _ready(faulty.product), 30)  # the server has replaced its workers
        assert until(lambda: faulty.counter(customer)["in_flight"] == 0, 5 + GRACE + EVERY + 10)
        rows = faulty.admissions(agent)
        assert [row["outcome"] for row in rows] == ["expired"] * 4
        counter = faulty.counter(customer)
        assert counter["used_requests"] == faulty.cloud.calls(agent) == 4
        # The runtime's own signed reports still tell what was used until it noticed.
        assert until(lambda: all(row["reports"] == 1 for row in faulty.admissions(agent)))
        assert (
            faulty.counter(customer)["used_tokens"]
            == sum(row["charged_tokens"] for row in faulty.admissions(agent))
            > 0
        )
        assert [agent.invoke({}).status_code for _ in range(2)] == [200, 402]
        assert faulty.proven("verify_ledger") == "equal"

    def test_in_the_middle_of_streams_counts_each_once(self, faulty: Faulty) -> None:
        customer = faulty.customer()
        agent = customer.deploy(puppet(timeout_seconds=5))
        with ThreadPoolExecutor(3) as crowd:
            calls = [crowd.submit(_quietly, lambda: agent.stream({"events": 20, "pause": 200})) for _ in range(3)]
            assert until(lambda: faulty.cloud.calls(agent) == 3)
            for pid in faulty.product.web_worker_pids:
                os.kill(pid, signal.SIGKILL)
            assert [call.result() for call in calls] == [None] * 3
        assert until(lambda: faulty.counter(customer)["in_flight"] == 0, 5 + GRACE + EVERY + 10)
        counter = faulty.counter(customer)
        assert (counter["used_requests"], faulty.cloud.calls(agent)) == (3, 3)
        assert until(lambda: faulty.counter(customer)["used_tokens"] > 0)
        assert faulty.proven("verify_ledger") == "equal"

    def test_its_idempotency_keys_tell_what_became_of_the_call_and_nothing_runs_twice(self, faulty: Faulty) -> None:
        customer = faulty.customer()
        agent = customer.deploy(puppet(timeout_seconds=5))
        key = secrets.token_hex(8)
        with ThreadPoolExecutor(1) as crowd:
            call = crowd.submit(_quietly, lambda: agent.invoke({"wait": 3000}, key=key))
            assert until(lambda: faulty.cloud.calls(agent) == 1)
            for pid in faulty.product.web_worker_pids:
                os.kill(pid, signal.SIGKILL)
            assert call.result() is None
        assert until(lambda: _ready(faulty.product), 30)
        repeated = agent.invoke({"wait": 3000}, key=key)
        assert (repeated.status_code, repeated.json()["error"]["retryable"]) == (409, True)
        assert until(lambda: faulty.counter(customer)["in_flight"] == 0, 5 + GRACE + EVERY + 10)
        told = agent.invoke({"wait": 3000}, key=key)
        assert told.status_code == 409
        assert told.json()["error"]["details"]["outcome"] == "expired"
        assert faulty.cloud.calls(agent) == 1


def _quietly(call: Any) -> int | None:
    """Return the status of an answer, or None where there was no whole one."""
    try:
        return int(call().status_code)
    except requests.RequestException:
        return None


class TestPostgresRestarted:
    def test_calls_meanwhile_are_503_or_served_and_counted_never_served_uncounted(self, faulty: Faulty) -> None:
        customer = faulty.customer()
        agent = customer.deploy(puppet(timeout_seconds=5))
        assert agent.invoke({}).status_code == 200
        stop, answers = threading.Event(), []

        def call() -> None:
            while not stop.is_set():
                answers.append(_response(agent))

        callers = [threading.Thread(target=call) for _ in range(4)]
        for caller in callers:
            caller.start()
        time.sleep(0.5)
        faulty.product.kill(Part.POSTGRES)
        time.sleep(1)
        away = _response(agent)
        faulty.product.start_part(Part.POSTGRES)
        assert until(lambda: agent.invoke({}).status_code == 200, 30)
        time.sleep(1)
        stop.set()
        for caller in callers:
            caller.join()
        codes = Counter(a.status_code for a in answers if a is not None)
        assert set(codes) <= {200, 503}
        assert codes[503] > 0
        assert away is not None
        assert (away.status_code, away.json()["error"]["code"]) == (503, "INTERNAL")
        assert away.json()["error"]["retryable"] is True
        assert int(away.headers["Retry-After"]) > 0
        assert agent.invoke({}).status_code == 200
        assert until(lambda: faulty.counter(customer)["in_flight"] == 0, 5 + GRACE + EVERY + 10)
        counter = faulty.counter(customer)
        served = faulty.cloud.calls(agent)
        # One may have been counted whose answer was lost before the call was made; none was made uncounted.
        assert served <= counter["used_requests"] <= served + 4
        assert faulty.proven("verify_ledger") == "equal"

    def test_while_it_is_away_nothing_reaches_a_provider(self, faulty: Faulty) -> None:
        agent = faulty.customer().deploy()
        assert agent.invoke().status_code == 200
        faulty.product.stop_part(Part.POSTGRES)
        try:
            answers = [agent.invoke(), agent.stream()]
        finally:
            faulty.product.start_part(Part.POSTGRES)
        assert [a.status_code for a in answers] == [503, 503]
        assert faulty.cloud.calls(agent) == 1
        assert until(lambda: agent.invoke().status_code == 200, 30)


def _response(agent: Agent) -> requests.Response | None:
    try:
        return agent.invoke({})
    except requests.RequestException:
        return None


@pytest.mark.case("LIM-06")
class TestRedisStopped:
    def test_limits_stay_exact_and_reports_are_in_the_totals_within_90_seconds(self, faulty: Faulty) -> None:
        customer = faulty.customer(max_requests_per_period=10)
        agent = customer.deploy(puppet())
        assert [agent.invoke({}).status_code for _ in range(5)] == [200] * 5
        faulty.product.kill(Part.REDIS)
        try:
            began = time.monotonic()
            with ThreadPoolExecutor(20) as crowd:
                codes = Counter(a.status_code for a in crowd.map(lambda _: agent.invoke({"tokens": 2}), range(20)))
            took = time.monotonic() - began
            assert codes == {200: 5, 402: 15}
            assert took < 15
            assert faulty.counter(customer)["used_requests"] == faulty.cloud.calls(agent) == 10
        finally:
            faulty.product.start_part(Part.REDIS)
        assert until(lambda: all(row["reports"] for row in faulty.admissions(agent)), 90)
        assert until(lambda: _by_runtime(customer) == 10, 30)
        assert faulty.proven("verify_usage", "--account", customer.account_id).endswith("equal")

    def test_a_report_that_came_while_it_was_away_is_in_the_totals_within_90_seconds(self, faulty: Faulty) -> None:
        """Nobody but the runtime knows what was used: the web process died, and so did Redis."""
        customer = faulty.customer()
        agent = customer.deploy(puppet(timeout_seconds=5))
        with ThreadPoolExecutor(1) as crowd:
            call = crowd.submit(_quietly, lambda: agent.invoke({"wait": 2000}))
            assert until(lambda: faulty.cloud.calls(agent) == 1)
            for pid in faulty.product.web_worker_pids:
                os.kill(pid, signal.SIGKILL)
            faulty.product.kill(Part.REDIS)
            assert call.result() is None
        assert until(lambda: _ready(faulty.product) or faulty.product.web_worker_pids, 30)
        kept = until(lambda: faulty.sql(
            "SELECT id FROM telemetry_report WHERE deployment_id = %(d)s",
            d=parse_id(Prefix.DEPLOYMENT, agent.deployment)), 30)  # fmt: skip
        assert kept, "The report was not kept while Redis was away."
        faulty.product.start_part(Part.REDIS)
        assert until(lambda: faulty.admissions(agent)[0]["reports"] == 1, 90)
        assert faulty.counter(customer)["used_tokens"] == faulty.admissions(agent)[0]["charged_tokens"] > 0


def _by_runtime(customer: Customer) -> int:
    return sum(row["requests"] for row in customer.usage()["byRuntime"])


@pytest.mark.case("API-01")
class TestAWorkerThatIsKilled:
    def test_in_the_middle_of_a_deploy_is_resumed_within_a_bound_and_another_deploy_is_not_blocked(
        self, faulty: Faulty
    ) -> None:
        customer = faulty.customer()
        agent = customer.create()
        faulty.cloud.fail_api("slow", seconds=5, method="PUT")
        accepted = customer.upload(agent, example("echo")).json()
        claimed = "SELECT 1 FROM runtimes_deployment WHERE id = %(d)s AND claimed_until IS NOT NULL"
        assert until(lambda: faulty.sql(claimed, d=parse_id(Prefix.DEPLOYMENT, accepted["id"])))
        faulty.product.kill(Part.WORKER)
        assert customer.deployment(accepted["id"])["status"] == "deploying"
        assert customer.upload(agent, example("echo")).status_code == 409
        faulty.product.start_part(Part.WORKER)
        ended = until(lambda: (d := customer.deployment(accepted["id"]))["status"] != "deploying" and d, 120)
        assert ended
        assert ended["status"] == "active"
        assert Agent(customer, agent, accepted["id"]).invoke().status_code == 200
        again = customer.upload(agent, puppet())
        assert again.status_code == 202
        assert until(lambda: customer.deployment(again.json()["id"])["status"] == "active", 60)

    def test_that_never_comes_back_in_time_ends_as_failed_and_the_next_deploy_works(self, faulty: Faulty) -> None:
        customer = faulty.customer()
        agent = customer.create()
        faulty.product.kill(Part.WORKER)
        accepted = customer.upload(agent, example("echo")).json()
        faulty.sql(
            "UPDATE runtimes_deployment SET deadline_at = now() WHERE id = %(d)s",
            d=parse_id(Prefix.DEPLOYMENT, accepted["id"]),
        )
        faulty.product.start_part(Part.WORKER)
        ended = until(lambda: (d := customer.deployment(accepted["id"]))["status"] != "deploying" and d, 90)
        assert ended
        assert ended["status"] in {"failed", "active"}
        again = customer.upload(agent, example("echo"))
        assert again.status_code == 202
        assert until(lambda: customer.deployment(again.json()["id"])["status"] == "active", 60)


STORM = """
import json, random, sys
import django
django.setup()
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
import requests
from tests.e2e.customers import Agent, Customer

given = json.loads(sys.stdin.read())
agents = [Agent(Customer(a["url"], a["account_id"], a["token"]), a["id"], a["deployment"]) for a in given["agents"]]
rng = random.Random(given["seed"])
jobs = [(agent, n % 4 == 0) for agent in agents for n in range(given["each"])]
rng.shuffle(jobs)

def call(job):
    agent, stream = job
    ask = {"events": 3, "pause": 20, "tokens": 5}
    for _ in range(20):
        try:
            answer = agent.stream(ask) if stream else agent.invoke(ask)
        except requests.RequestException:
            return agent.id, "lost"
        if answer.status_code not in (429, 503):
            return agent.id, str(answer.status_code)
    return agent.id, "gave up"

seen = {agent.id: Counter() for agent in agents}
with ThreadPoolExecutor(10) as crowd:
    for agent, what in crowd.map(call, jobs):
        seen[agent][what] += 1
print(json.dumps(seen))
"""


class TestTheStorm:
    """Threads in two processes on ten accounts, each offered three times its limit, some streams, one process killed."""

    LIMIT = 12

    def test_afterwards_ledger_and_usage_are_equal_and_every_alteration_is_named(self, faulty: Faulty) -> None:
        agents = [
            faulty.customer(max_requests_per_period=self.LIMIT).deploy(puppet(timeout_seconds=5)) for _ in range(10)
        ]
        given = [
            {"url": a.owner.url, "account_id": a.owner.account_id, "token": a.owner.token, "id": a.id, "deployment": a.deployment}
            for a in agents
        ]  # fmt: skip
        crowds = [
            subprocess.Popen(
                [sys.executable, "-c", STORM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=os.environ.copy()
            )
            for _ in range(2)
        ]  # fmt: skip
        for seed, crowd in enumerate(crowds):
            assert crowd.stdin is not None
            crowd.stdin.write(json.dumps({"agents": given, "each": self.LIMIT * 3 // 2, "seed": seed}))
            crowd.stdin.close()
        total = "SELECT count(*) AS n FROM entitlements_admission WHERE account_id = ANY (%(a)s)"
        accounts = [parse_id(Prefix.ACCOUNT, a.owner.account_id) for a in agents]
        assert until(lambda: faulty.sql(total, a=accounts)[0]["n"] > 20, 30)
        os.kill(faulty.product.web_worker_pids[0], signal.SIGKILL)
        seen: dict[str, Counter[str]] = {}
        for crowd in crowds:
            assert crowd.stdout is not None
            for agent, counts in json.loads(crowd.stdout.read()).items():
                seen[agent] = seen.get(agent, Counter()) + Counter(counts)
            crowd.wait(10)
        lost = sum(counts["lost"] for counts in seen.values())
        assert lost > 0, "The killed process had nothing to do."
        assert until(lambda: all(faulty.counter(a.owner)["in_flight"] == 0 for a in agents), 5 + GRACE + EVERY + 20)
        for agent in agents:
            counts = seen[agent.id]
            assert set(counts) <= {"200", "402", "lost"}, counts
            counter = faulty.counter(agent.owner)
            assert counter["used_requests"] == self.LIMIT
            # Admitted just before its process died, a call may not have been made; none was made uncounted.
            calls = faulty.cloud.calls(agent)
            assert counts["200"] <= calls <= self.LIMIT
            assert calls + counts["lost"] >= self.LIMIT
        assert faulty.proven("verify_ledger") == "equal"
        assert until(lambda: faulty.proven("verify_usage").startswith("equal"), 60)
        self.alterations_are_named(faulty, agents[0])

    def alterations_are_named(self, faulty: Faulty, agent: Agent) -> None:
        account = parse_id(Prefix.ACCOUNT, agent.owner.account_id)
        admission = next(row for row in faulty.admissions(agent) if row["reports"] and row["charged_tokens"])
        shown = f"inv_{admission['id'].hex}"
        report = faulty.sql("SELECT * FROM telemetry_report WHERE invocation_id = %(i)s LIMIT 1", i=admission["id"])[0]
        hour = faulty.sql("SELECT * FROM telemetry_usagehour WHERE account_id = %(a)s LIMIT 1", a=account)[0]
        alterations = {
            "counter altered": ("UPDATE entitlements_periodcounter SET used_tokens = used_tokens + 1 WHERE account_id = %(a)s",
                                "verify_ledger", agent.owner.account_id),
            "counter deleted": ("DELETE FROM entitlements_periodcounter WHERE account_id = %(a)s",
                                "verify_ledger", agent.owner.account_id),
            "admission altered": ("UPDATE entitlements_admission SET charged_tokens = charged_tokens - 1 WHERE id = %(i)s",
                                  "verify_usage", shown),
            "admission deleted": ("DELETE FROM entitlements_admission WHERE id = %(i)s", "verify_usage", shown),
            "report altered": ("UPDATE telemetry_report SET body = body || ' '::bytea WHERE id = %(r)s",
                               "verify_usage", f"report {report['id']}"),
            "report deleted": ("DELETE FROM telemetry_report WHERE id = %(r)s", "verify_usage", shown),
            "roll-up altered": ("UPDATE telemetry_usagehour SET tokens = tokens + 1 WHERE id = %(h)s",
                                "verify_usage", f"roll-up {hour['hour']:%Y-%m-%dT%H:00Z}"),
            "roll-up deleted": ("DELETE FROM telemetry_usagehour WHERE id = %(h)s",
                                "verify_usage", f"roll-up {hour['hour']:%Y-%m-%dT%H:00Z}"),
        }  # fmt: skip
        parameters = {"a": account, "i": admission["id"], "r": report["id"], "h": hour["id"]}
        for what, (statement, command, named) in alterations.items():
            with self.altered(faulty, statement, parameters):
                said = faulty.proven(command, "--account", agent.owner.account_id)
            assert named in said, f"{what}: {said}"
            assert "differ" in said, f"{what}: {said}"
        assert faulty.proven("verify_ledger") == "equal"
        assert faulty.proven("verify_usage").startswith("equal")

    @staticmethod
    def altered(faulty: Faulty, statement: str, parameters: Mapping[str, Any]) -> Any:
        """Change rows past every trigger, and put back what was there."""
        return Altered(faulty, statement, parameters)


class Altered:
    """A table with one row changed past every trigger, until the block ends."""

    def __init__(self, faulty: Faulty, statement: str, parameters: Mapping[str, Any]) -> None:
        self.faulty, self.statement, self.parameters = faulty, statement, parameters
        words = statement.split()
        self.table = words[1] if words[0] == "UPDATE" else words[2]
        self.where = statement[statement.index("WHERE") :]

    def _run(self, *statements: str) -> None:
        with psycopg.connect(self.faulty.product.env["DATABASE_URL"]) as connection:
            connection.execute("SET LOCAL session_replication_role = replica")
            for statement in statements:
                connection.execute(statement, self.parameters)

    def __enter__(self) -> None:
        self._run(
            "DROP TABLE IF EXISTS kept", f"CREATE TABLE kept AS SELECT * FROM {self.table} {self.where}", self.statement
        )

    def __exit__(self, *_: object) -> None:
        columns = self.faulty.sql(
            """SELECT attname FROM pg_attribute WHERE attrelid = %(t)s::regclass AND attnum > 0 AND attgenerated = ''
                AND NOT attisdropped""", t=self.table,
        )  # fmt: skip
        names = ", ".join(f'"{row["attname"]}"' for row in columns)
        self._run(
            f"DELETE FROM {self.table} {self.where}",
            f"INSERT INTO {self.table} ({names}) OVERRIDING SYSTEM VALUE SELECT {names} FROM kept",
            "DROP TABLE kept",
        )
