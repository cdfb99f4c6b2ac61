"""What it costs to hold before a call: admit and settle on AgentCore, beside Cloudflare, where nothing is held.

From one process, eight at once, with the product's own actions: what the gateway does for the ledger around a
provider's call, and nothing else of it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from enum import StrEnum
from itertools import count
from statistics import median
from typing import Any, Final
from uuid import UUID

from bench.cast import Caller
from bench.load import BenchError
from bench.processes import cpu_seconds, postgres_process
from entitlements import ledger
from entitlements.actions.admit import admit
from entitlements.enums import Capability, Outcome, Runtime
from runtimes import rules
from runtimes.actions.invoke import need_of, subject_of
from runtimes.providers.base import Target
from webhost import db
from webhost.ids import new_id

_THREADS: Final = 8
_REQUEST: Final = rules.parse_invoke({"input": {"prompt": "Say in a few words what the fox does. " * 3}})
_TOOLS: Final = frozenset({Capability.CODE_INTERPRETER.value, Capability.BROWSER.value})
_QUOTAS: Final = rules.quotas_of(_TOOLS)
_USED: Final = ledger.Usage(tokens=130, compute_ms=900)
_USED_WITH_TOOLS: Final = replace(_USED, tool_calls=2, code_ms=500, browser_sessions=1)


class Way(StrEnum):
    """How a call is admitted and settled."""

    WITHOUT = "no hold (Cloudflare)"
    HELD = "hold in all five measures"
    ESTIMATED = "hold, estimated from the last 50 calls (AgentCore)"


class Accounts(StrEnum):
    """Whose calls they are."""

    ONE = "one account"
    MANY = "many accounts"


@dataclass(frozen=True)
class Size:
    """How much is done. `history` is what each deployment has called before: the estimate reads the last fifty."""

    rounds: int
    accounts: int
    calls: int
    history: int
    budget_seconds: float


FULL: Final = Size(5, 200, 3000, 60, 200)
QUICK: Final = Size(1, 5, 240, 50, 20)


@dataclass(frozen=True)
class Sample:
    """One run. Processor seconds per 1,000 calls, of this process and of PostgreSQL's."""

    cpu_s: float
    postgres_s: float
    per_second: float

    @property
    def both_s(self) -> float:
        """What the two cost together."""
        return self.cpu_s + self.postgres_s


Samples = dict[Accounts, dict[Way, list[Sample]]]


@dataclass(frozen=True)
class Holds:
    """All samples, and how they were taken."""

    samples: Samples
    size: Size
    rounds: int
    machine: str
    at: datetime

    def ratio(self, accounts: Accounts, way: Way, figure: Callable[[Sample], float]) -> float:
        """Return a figure beside the same without a hold: the median of what each round says by itself."""
        by_way = self.samples[accounts]
        return median(figure(w) / figure(o) for w, o in zip(by_way[way], by_way[Way.WITHOUT], strict=True))

    def as_plain(self) -> dict[str, Any]:
        """Return all of it as it is written to the results."""
        return {
            "at": self.at.isoformat(timespec="seconds"),
            "machine": self.machine,
            "rounds": self.rounds,
            "size": asdict(self.size),
            "samples": {
                accounts.value: {way.value: [asdict(s) for s in seen] for way, seen in by_way.items()}
                for accounts, by_way in self.samples.items()
            },
        }


def _target(caller: Caller, way: Way) -> Target:
    holds = way is not Way.WITHOUT
    return Target(
        account_id=caller.account_id,
        agent_id=caller.agent_id,
        deployment_id=caller.deployment_id,
        version=1,
        runtime=Runtime.AGENTCORE if holds else Runtime.CLOUDFLARE,
        root_key_id="",
        capabilities=_TOOLS if holds else frozenset(),
        timeout_seconds=60,
    )


def _call(caller: Caller, way: Way) -> None:
    """Do what the gateway does for the ledger before and after a call."""
    target = _target(caller, way)
    holds = way is not Way.WITHOUT
    tools = _QUOTAS if holds else frozenset()
    estimate = _USED_WITH_TOOLS if way is Way.HELD else need_of(target, _REQUEST, tools)
    admission_id = new_id()
    admit(admission_id, subject_of(target, tools=tools), estimate=estimate)
    if ledger.settle(admission_id, Outcome.SUCCEEDED, _USED_WITH_TOOLS if holds else _USED) is None:
        raise BenchError("What had just been admitted could not be settled.")


def _run(callers: Sequence[Caller], way: Way, calls: int) -> None:
    numbers = count()  # next() of it is one step, so threads share it

    def some() -> None:
        while (number := next(numbers)) < calls:
            _call(callers[number % len(callers)], way)

    with ThreadPoolExecutor(_THREADS) as threads:
        for result in [threads.submit(some) for _ in range(_THREADS)]:
            result.result()


def _sample(callers: Sequence[Caller], way: Way, calls: int) -> Sample:
    postgres = postgres_process()
    used, used_postgres, began = time.process_time(), cpu_seconds(postgres), time.monotonic()
    _run(callers, way, calls)
    seconds = time.monotonic() - began
    used, used_postgres = time.process_time() - used, cpu_seconds(postgres) - used_postgres
    return Sample(used / calls * 1000, used_postgres / calls * 1000, calls / seconds)


def measure(callers: Sequence[Caller], size: Size, say: Callable[[str], None]) -> tuple[Samples, int]:
    """Measure every way in turn, on the first account alone and over the others; return the samples and the rounds.

    Raises BenchError unless the ledger then says exactly what was done, with nothing held and nothing open.
    """
    began = time.monotonic()
    who = {Accounts.ONE: callers[:1], Accounts.MANY: callers[1:]}
    _run(callers, Way.ESTIMATED, size.history * len(callers))
    with db.hot_connection() as connection:
        connection.execute("ANALYZE")  # which PostgreSQL does by itself, at a time of its own choosing
    for way in Way:
        _run(callers, way, size.calls // 10)
    done = size.history * len(callers) + len(Way) * (size.calls // 10)
    samples: Samples = {accounts: {way: [] for way in Way} for accounts in Accounts}
    rounds = 0
    while rounds < size.rounds and (not rounds or time.monotonic() - began < size.budget_seconds):
        for accounts in Accounts:
            for way in _turned(rounds):
                samples[accounts][way].append(_sample(who[accounts], way, size.calls))
                done += size.calls
        rounds += 1
        say(f"holds, round {rounds} of {size.rounds}: {time.monotonic() - began:.0f} s")
    _check([caller.account_id for caller in callers], done)
    return samples, rounds


def _turned(rounds: int) -> list[Way]:
    """Return the ways with another one first each round."""
    ways = list(Way)
    first = rounds % len(ways)
    return ways[first:] + ways[:first]


def _check(accounts: Sequence[UUID], done: int) -> None:
    row = db.run(
        "SELECT sum(used_requests)::bigint AS used, sum(in_flight)::bigint AS open,"
        "       sum(held_tokens + held_compute_ms + held_tool_calls + held_code_ms + held_browser_sessions)::bigint"
        "       AS held"
        "  FROM entitlements_periodcounter WHERE account_id = ANY(%(accounts)s)",
        {"accounts": list(accounts)},
    )[0]
    found = (row["used"], row["open"], row["held"])
    if found != (done, 0, 0):
        raise BenchError(f"Used, open and held are {found}; {(done, 0, 0)} are right.")
