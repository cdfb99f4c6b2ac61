"""A storm through the front door, a killed process in the middle of it; then the books are proven, and spoilt."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.e2e.customers import Agent, Cloud, puppet, until
from tests.e2e.story import Books, customers, offer, operate, reached, uuid_of
from tests.entitlements.crowd import crowd
from webhost.local.processes import LocalServiceError
from webhost.local.product import Product

pytestmark = pytest.mark.slow


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
            raging = pool.submit(crowd, offer, agents, 3 * _LIMIT, _THREADS, processes=2, threads=_THREADS // 2)
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

    def test_what_counts_is_what_reached_the_provider(self, storm: list[Agent], own_cloud: Cloud, books: Books) -> None:
        for agent in storm:
            assert reached(books, agent.owner) <= own_cloud.calls(agent) <= _LIMIT
        unsure = sum(_LIMIT - reached(books, agent.owner) for agent in storm)
        assert unsure <= _THREADS, "Only calls of the one killed process."
        outcomes = Counter(row["outcome"] for agent in storm for row in books.admissions(agent.owner))
        assert outcomes["open"] == 0
        assert outcomes["succeeded"] > 0
        assert outcomes["failed"] > 0, "Those who hung up."

    def test_ledger_and_usage_are_equal_for_each_account(self, storm: list[Agent], own: Product) -> None:
        for ledger, usage in proofs(own, storm):
            assert (ledger, usage.splitlines()[-1]) == ("equal", "equal")

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
