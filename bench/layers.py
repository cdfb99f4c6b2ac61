"""Parts on their own: the admit layer beside its raw statement, the processing of reports, and many slow calls."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import psycopg
from django.conf import settings
from psycopg.rows import dict_row

from bench import load
from bench.cast import Caller
from bench.load import Load
from bench.processes import Server, memory_bytes
from bench.statements import ADMIT, numbered
from entitlements import ledger
from entitlements.actions.admit import admit
from telemetry.actions.process import process_reports
from telemetry.actions.roll_up import roll_up
from webhost import db
from webhost.ids import new_id

_THREADS = 8


def _subject(caller: Caller) -> ledger.Subject:
    return ledger.Subject(
        account_id=caller.account_id,
        agent_id=caller.agent_id,
        deployment_id=caller.deployment_id,
        runtime="cloudflare",
        timeout_seconds=60,
    )


def _per_second(one: Callable[[], object], calls: int) -> float:
    """Return how often per second eight threads together get one thing done."""
    with ThreadPoolExecutor(_THREADS) as threads:
        began = time.monotonic()
        for result in [threads.submit(_repeat, one, calls // _THREADS) for _ in range(_THREADS)]:
            result.result()
        return calls // _THREADS * _THREADS / (time.monotonic() - began)


def _repeat(one: Callable[[], object], times: int) -> None:
    for _ in range(times):
        one()


@dataclass(frozen=True)
class AdmitLayer:
    """Admissions per second on one hot account, eight at once."""

    action: float
    raw_sql: float

    @property
    def share(self) -> float:
        """What is left of the raw statement's speed."""
        return self.action / self.raw_sql


def admit_layer(caller: Caller, calls: int, rounds: int) -> AdmitLayer:
    """Measure the action beside its own statement on eight connections, in turn; return the median round."""
    subject = _subject(caller)
    parameters = ledger.admit_parameters(new_id(), subject)
    statement, names = numbered(ADMIT)
    own = threading.local()
    opened: list[psycopg.Connection[dict[str, object]]] = []

    def raw() -> None:
        if not hasattr(own, "connection"):
            own.connection = psycopg.connect(_address(), autocommit=True, row_factory=dict_row, prepare_threshold=1)
            opened.append(own.connection)
        values = parameters | {"id": new_id()}
        psycopg.RawCursor(own.connection).execute(statement, [values[name] for name in names]).fetchall()

    def action() -> None:
        admit(new_id(), subject)

    _per_second(action, calls // 4)
    _per_second(raw, calls // 4)
    seen = [AdmitLayer(_per_second(action, calls), _per_second(raw, calls)) for _ in range(rounds)]
    for connection in opened:
        connection.close()
    return sorted(seen, key=lambda layer: layer.share)[len(seen) // 2]


def _address() -> str:
    given = settings.DATABASES["default"]
    return psycopg.conninfo.make_conninfo(
        host=given["HOST"], port=given["PORT"], user=given["USER"], password=given["PASSWORD"], dbname=given["NAME"]
    )


@dataclass(frozen=True)
class Processing:
    """How fast one process judges reports, folds them in and takes the journal into hours."""

    reports: int
    per_second: float
    per_cpu_second: float
    journal_lines: int
    roll_up_per_second: float


def process_all() -> Processing:
    """Process everything that the rounds have left in the inbox and the journal, in this process."""
    began, used = time.monotonic(), time.process_time()
    reports = process_reports()
    seconds, cpu = time.monotonic() - began, time.process_time() - used
    began = time.monotonic()
    lines = roll_up()
    rolled = time.monotonic() - began
    return Processing(reports, reports / seconds, reports / cpu, lines, lines / rolled)


@dataclass(frozen=True)
class SlowCalls:
    """A thousand two-second calls at once, through two workers."""

    calls: int
    share_of_ideal: float
    connections: int
    megabytes: float


def slow_calls(node: str, server: Server, caller: Caller, calls: int) -> SlowCalls:
    """Have 1,000 callers wait for two seconds each time; every call must be answered."""
    callers, pause = 1000, 2.0
    ours = _connections()
    seen: list[tuple[int, int]] = []
    over = threading.Event()

    def watch() -> None:
        while not over.wait(0.25):
            seen.append((_connections() - ours, memory_bytes(server.child.pid)))

    server.start()
    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        request = load.invocation(caller, prompt=f"sleep {pause * 1000:.0f}")
        answers = load.run(node, server.url, Load([request], calls, callers, seconds=90))
    finally:
        over.set()
        watcher.join()
        server.stop()
    ideal = callers / pause
    return SlowCalls(calls, answers.per_second / ideal, max(n for n, _ in seen), max(m for _, m in seen) / 2**20)


def _connections() -> int:
    rows = db.run(
        "SELECT count(*) AS n FROM pg_stat_activity"
        " WHERE datname = current_database() AND backend_type = 'client backend'",
        {},
    )
    return int(rows[0]["n"])
