"""The rounds: every system does every kind of work, in turn, so that a slow minute of the machine hits all alike."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from uuid import UUID

from bench import load
from bench.cast import Cast
from bench.load import BenchError, Load, Request
from bench.processes import Server, cpu_seconds, postgres_process
from webhost import db


class System(StrEnum):
    """What is compared."""

    GATEWAY = "gateway"  # the product
    FLOOR = "floor"  # bare WSGI, the same SQL
    BARE = "bare"  # a bare Django view: no account, no limit
    UPSTREAM = "upstream"  # called directly: what no gateway can beat


class Work(StrEnum):
    """What they do."""

    JSON_32 = "JSON, 32 callers, one account"
    JSON_MANY_32 = "JSON, 32 callers, many accounts"
    JSON_1 = "JSON, 1 caller"
    STREAM_32 = "stream, 32 callers, one account"
    STREAM_1 = "stream, 1 caller"
    REFUSAL_32 = "refusal (402), 32 callers"
    REPORT_32 = "usage report, 32 callers"
    REPORTS_32 = "100 usage reports in one delivery, 8 callers"


@dataclass(frozen=True)
class Size:
    """How much is done."""

    rounds: int
    accounts: int
    calls: int
    single_calls: int
    deliveries: int
    warm_up: int
    layer_calls: int
    slow_calls: int
    budget_seconds: float


FULL = Size(5, 1000, 1500, 300, 40, 400, 3000, 2000, 230)
QUICK = Size(1, 20, 200, 40, 4, 60, 400, 0, 40)


@dataclass(frozen=True)
class Sample:
    """One run. CPU in milliseconds per call, of the system's own processes and of PostgreSQL's."""

    cpu_ms: float
    postgres_ms: float
    per_second: float
    p50: float
    p99: float
    first_byte_p50: float


_FIRST = UUID(int=0)

Samples = dict[Work, dict[System, list[Sample]]]


@dataclass
class Bench:
    """Everything that is running, and who calls."""

    node: str
    servers: Mapping[System, Server]
    cast: Cast
    size: Size
    _last_reported: UUID = _FIRST

    def run(self, say: Callable[[str], None]) -> tuple[Samples, int]:
        """Warm up, then go round until all rounds are done or the time is up; return what was seen, and the rounds."""
        plan = self._plan()
        for work, systems in plan.items():
            for system in systems:
                load.run(self.node, self.servers[system].url, self._load(work, warm_up=True))
        with db.hot_connection() as connection:
            # As autovacuum would within a minute: plans made for empty tables scan them.
            connection.execute("VACUUM (ANALYZE)")
        samples: Samples = defaultdict(lambda: defaultdict(list))
        began = time.monotonic()
        done = 0
        for number in range(self.size.rounds):
            if number and (time.monotonic() - began) * (number + 1) / number > self.size.budget_seconds:
                break
            for work, systems in plan.items():
                for system in systems:
                    samples[work][system].append(self._sample(work, system))
            done += 1
            say(f"round {done} of {self.size.rounds}: {time.monotonic() - began:.0f} s")
        return samples, done

    def _plan(self) -> dict[Work, Sequence[System]]:
        gateway, floor, bare, upstream = System
        return {
            Work.JSON_32: [gateway, floor, bare],
            Work.JSON_MANY_32: [gateway, floor],
            Work.JSON_1: [gateway, floor, bare, upstream],
            Work.STREAM_32: [gateway, floor, bare],
            Work.STREAM_1: [gateway, floor, bare, upstream],
            Work.REFUSAL_32: [gateway, floor],
            Work.REPORT_32: [gateway],
            Work.REPORTS_32: [gateway],
        }

    def _load(self, work: Work, *, warm_up: bool = False) -> Load:
        size, cast = self.size, self.cast
        calls = size.warm_up if warm_up else size.calls
        single = min(size.warm_up, size.single_calls) if warm_up else size.single_calls
        if work is Work.JSON_32:
            return Load([load.invocation(cast.hot)], calls, 32)
        if work is Work.JSON_MANY_32:
            return Load([load.invocation(caller) for caller in cast.many], calls, 32)
        if work is Work.JSON_1:
            return Load([load.invocation(cast.hot)], single, 1)
        if work in (Work.STREAM_32, Work.STREAM_1):
            stream = load.invocation(cast.hot, stream=True)
            return Load([stream], calls if work is Work.STREAM_32 else single, 32 if work is Work.STREAM_32 else 1)
        if work is Work.REFUSAL_32:
            return Load([load.invocation(cast.spent)], calls, 32, expected=402)
        batch = 100 if work is Work.REPORTS_32 else 1
        deliveries = calls if batch == 1 else 2 if warm_up else size.deliveries
        bodies = load.reports(cast.hot, self._unreported(deliveries * batch), batch=batch)
        return Load(bodies, deliveries, 32 if batch == 1 else 8, expected=202)

    def _unreported(self, count: int) -> list[UUID]:
        """Return invocations of the hot account that no report names yet, the oldest first."""
        rows = db.run(
            "SELECT id FROM entitlements_admission WHERE account_id = %(account)s AND id > %(last)s"
            " ORDER BY id LIMIT %(count)s",
            {"account": self.cast.hot.account_id, "last": self._last_reported, "count": count},
        )
        if len(rows) < count:
            raise BenchError(f"Only {len(rows)} invocations to report on, {count} are needed.")
        self._last_reported = rows[-1]["id"]
        return [row["id"] for row in rows]

    def _sample(self, work: Work, system: System) -> Sample:
        given = self._load(work)
        if system is System.UPSTREAM:
            ending = given.ending
            given = Load(
                [Request("/invoke" + ("/stream" if work is Work.STREAM_1 else ""), {}, given.requests[0].body)],
                given.calls, given.callers, ending,
            )  # fmt: skip
        server = self.servers[system]
        root = server.child.pid
        postgres = postgres_process()
        before = self._counted()
        used, used_postgres = cpu_seconds(root), cpu_seconds(postgres)
        answers = load.run(self.node, server.url, given)
        used, used_postgres = cpu_seconds(root) - used, cpu_seconds(postgres) - used_postgres
        self._check(work, system, answers.calls, before)
        return Sample(
            used / answers.calls * 1000,
            used_postgres / answers.calls * 1000,
            answers.per_second,
            answers.p50,
            answers.p99,
            answers.first_byte_p50,
        )

    def _counted(self) -> tuple[int, int]:
        """Return what the counters say was used, and how many calls are still open."""
        row = db.run(
            "SELECT coalesce(sum(used_requests), 0)::bigint AS used, coalesce(sum(in_flight), 0)::bigint AS open"
            "  FROM entitlements_periodcounter",
            {},
        )[0]
        return row["used"], row["open"]

    def _check(self, work: Work, system: System, calls: int, before: tuple[int, int]) -> None:
        """Raise BenchError unless every invocation was counted once, and none of what is none."""
        counts = system in (System.GATEWAY, System.FLOOR) and work in (
            Work.JSON_32, Work.JSON_MANY_32, Work.JSON_1, Work.STREAM_32, Work.STREAM_1,
        )  # fmt: skip
        expected = (before[0] + (calls if counts else 0), before[1])
        deadline = time.monotonic() + 3  # a stream is settled just after its last byte
        while (now := self._counted()) != expected:
            if time.monotonic() > deadline:
                raise BenchError(f"{work} by {system}: counted and open are {now}, {expected} are right.")
            time.sleep(0.05)


def as_plain(samples: Samples) -> dict[str, dict[str, list[dict[str, float]]]]:
    """Return all samples as they are written to the results."""
    return {
        work.value: {system.value: [asdict(s) for s in seen] for system, seen in by_system.items()}
        for work, by_system in samples.items()
    }
