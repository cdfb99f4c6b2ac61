"""What a test can do to a product of its own beyond its API: read its books, be its operator, send a crowd."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import django
import psycopg
import requests
from psycopg.rows import dict_row

django.setup()  # a spawned process of the crowd begins here

from tests.backend import ROUTE, Backend  # noqa: E402
from tests.e2e.customers import Agent, Customer  # noqa: E402
from webhost.ids import Prefix, parse_id  # noqa: E402
from webhost.local.product import Product  # noqa: E402
from webhost.signing import Purpose, derive_key, sign  # noqa: E402

_MAKE = """
import json
from tests.factories import make_account, make_tier, make_token
from webhost.ids import Prefix, public_id
tier = make_tier(**{tier!r})
accounts = [make_account("alice", tier) for _ in range({count})]
print(json.dumps([[public_id(Prefix.ACCOUNT, a.pk), make_token(a)] for a in accounts]))
"""


def operate(product: Product, code: str) -> Any:
    """Run Python as the operator would, in a shell on this product; return what its last line says in JSON."""
    said = product.manage("shell", "--verbosity", "0", "-c", code).strip().splitlines()
    return json.loads(said[-1]) if said else None


def customers(product: Product, count: int, **tier: Any) -> list[Customer]:
    """Make customers who share a tier that is unlimited in all that is not said."""
    return [Customer(product.url, *made) for made in operate(product, _MAKE.format(tier=tier, count=count))]


def customer(product: Product, **tier: Any) -> Customer:
    """Make one."""
    return customers(product, 1, **tier)[0]


def deliver(product: Product, *deployments: str) -> None:
    """Put `run_deployment` into the queue once for each of these, as a broker that repeats itself does."""
    ids = [str(parse_id(Prefix.DEPLOYMENT, deployment)) for deployment in deployments]
    operate(
        product,
        f"from webhost.celery import app\nfor i in {ids!r}: app.send_task('runtimes.run_deployment', args=[i])\nprint(1)",
    )


class Books:
    """The rows of a product's database."""

    def __init__(self, product: Product) -> None:
        self._url = product.env["DATABASE_URL"]

    def rows(self, query: str, *parameters: Any, past_triggers: bool = False) -> list[dict[str, Any]]:
        """Run one statement; past every trigger, as somebody with the keys of the database could."""
        with psycopg.connect(self._url, row_factory=dict_row) as connection:
            if past_triggers:
                connection.execute("SET LOCAL session_replication_role = replica")
            cursor = connection.execute(query, parameters)
            return cursor.fetchall() if cursor.description else []

    def counter(self, owner: Customer) -> dict[str, Any]:
        """Return the customer's one counter; nothing used where there is none."""
        rows = self.rows("SELECT * FROM entitlements_periodcounter WHERE account_id = %s", uuid_of(owner))
        return rows[0] if rows else {"used_requests": 0, "in_flight": 0}

    def admissions(self, owner: Customer) -> list[dict[str, Any]]:
        """Return the customer's admissions, oldest first."""
        return self.rows("SELECT * FROM entitlements_admission WHERE account_id = %s ORDER BY id", uuid_of(owner))

    def is_quiet(self, *owners: Customer) -> bool:
        """Whether nothing of theirs is under way, and every report that was received has been judged."""
        pending = self.rows("SELECT count(*) AS n FROM telemetry_report WHERE status = 'pending'")[0]["n"]
        return not pending and not any(self.counter(owner)["in_flight"] for owner in owners)


def uuid_of(owner: Customer) -> UUID:
    """Return a customer's id as the database has it."""
    return parse_id(Prefix.ACCOUNT, owner.account_id)


def report(product: Product, agent: Agent, invocation: str, tokens: int, event: str = "late") -> requests.Response:
    """Send a signed report of an invocation, as the runtime does."""
    roots = dict(pair.split(":") for pair in product.env["ROOT_KEYS"].split(","))
    key = derive_key(bytes.fromhex(roots["k1"]), Purpose.TELEMETRY, agent.deployment)
    body = json.dumps({
        "eventId": f"{event}-{invocation}", "invocationId": invocation, "deploymentId": agent.deployment,
        "timestamp": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "tokens": tokens, "computeMs": 1,
    }).encode()  # fmt: skip
    headers = {
        "Content-Type": "application/json",
        "X-Telemetry-Deployment-Id": agent.deployment,
        "X-Telemetry-Signature": f"v1={sign(key, body)}",
    }
    return requests.post(f"{product.url}/v1/telemetry/report", data=body, headers=headers, timeout=30)


def delegated(
    product: Product, backend: Backend, agent: str, body: Mapping[str, Any] | bytes, *, ago: int = 0
) -> requests.Response:
    """Call an agent as a trusted backend does, signed so many seconds ago."""
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    headers = {"Content-Type": "application/json", **backend.headers(agent, raw, ago=ago)}
    return requests.post(product.url + ROUTE + agent, data=raw, headers=headers, timeout=90)


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


def verified(own: Product, owner: Customer) -> None:
    """Fail unless both proofs hold for a customer."""
    for command in ("verify_ledger", "verify_usage"):
        assert own.manage(command, "--account", owner.account_id).strip().splitlines()[-1] == "equal"


@dataclass(frozen=True)
class Way:
    """One way to call an agent."""

    stream: bool = False
    hang_up: str = ""  # "", "at once", "midway"


_WAYS = [Way(), Way(stream=True), Way(), Way(stream=True, hang_up="midway"), Way(hang_up="at once"), Way(stream=True, hang_up="at once")]  # fmt: skip
_PROMPT = {"wait": 30, "events": 3, "pause": 30}


def offer(n: int, barrier: Any, agents: Sequence[Agent], times: int, threads: int) -> Counter[str]:
    """Be one thread of a crowd that calls each agent so many times, in every way there is; return what was answered."""
    mine = [(agent, way) for way in range(times) for agent in agents][n::threads]
    seen: Counter[str] = Counter()
    barrier.wait()
    for agent, way in mine:
        try:
            seen[_call(agent, _WAYS[way % len(_WAYS)])] += 1
        except (OSError, requests.RequestException) as error:  # its worker was killed
            seen[type(error).__name__] += 1
    return seen


def _call(agent: Agent, way: Way) -> str:
    path = f"/v1/invoke/{agent.id}{'/stream' if way.stream else ''}"
    if way.hang_up == "at once":
        with agent.sent(path, _PROMPT):
            return "hung up"
    if way.hang_up == "midway":
        with agent.streaming(_PROMPT) as reading:
            next(reading.events(), None)
            return str(reading.answer.status)
    return str((agent.stream if way.stream else agent.invoke)(_PROMPT).status_code)
