"""Many at once: processes with threads that work on the same accounts, and a watcher that never looks away."""

from __future__ import annotations

import multiprocessing
import queue
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID, uuid4

import django

django.setup()  # a spawned process begins here

from entitlements import ledger  # noqa: E402
from entitlements.enums import Outcome, Runtime  # noqa: E402
from entitlements.rules import TOOL_BUDGETS  # noqa: E402
from runtimes.actions.agents import create_agent  # noqa: E402
from tests.entitlements.callers import Caller  # noqa: E402
from webhost import db  # noqa: E402
from webhost.errors import WebhostError  # noqa: E402
from webhost.ids import new_id  # noqa: E402

PROCESSES = 2
THREADS = 8
MEASURES = ("tokens", "compute_ms", "tool_calls", "code_ms", "browser_sessions")

_spawn = multiprocessing.get_context("spawn")


def crowd(work: Callable[..., Any], *args: Any, processes: int = PROCESSES, threads: int = THREADS) -> list[Any]:
    """Run work(n, barrier, *args) in threads of several processes at once; return what each returned."""
    barrier, answers = _spawn.Barrier(processes * threads), _spawn.Queue()
    children = [
        _spawn.Process(target=_run_threads, args=(work, range(p * threads, (p + 1) * threads), barrier, answers, args))
        for p in range(processes)
    ]
    for child in children:
        child.start()
    try:
        found = [_next(answers, children) for _ in range(processes * threads)]
    finally:
        for child in children:
            child.join(10)
            child.kill()
    for _, result in found:
        if isinstance(result, BaseException):
            raise result
    return [result for _, result in sorted(found, key=lambda f: f[0])]


def _next(answers: Any, children: Sequence[Any], seconds: float = 120) -> tuple[int, Any]:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            return answers.get(timeout=1)
        except queue.Empty:
            if any(child.exitcode for child in children):
                raise RuntimeError("A process of the crowd died.") from None
    raise TimeoutError("The crowd did not end.")


def _run_threads(work: Callable[..., Any], numbers: range, barrier: Any, answers: Any, args: tuple[Any, ...]) -> None:
    def one(number: int) -> None:
        try:
            result = work(number, barrier, *args)
        except BaseException as error:
            barrier.abort()
            result = error
        finally:
            django.db.connections.close_all()
        answers.put((number, result))

    crew = [threading.Thread(target=one, args=(number,)) for number in numbers]
    for thread in crew:
        thread.start()
    for thread in crew:
        thread.join()
    db.close_hot_pool()


@dataclass
class Seen:
    """What the watcher saw."""

    looks: int = 0
    broken: list[Any] = field(default_factory=list)


@contextmanager
def watched(accounts: Sequence[UUID], extra: str = "") -> Iterator[Seen]:
    """Ask for broken invariants of these accounts without pause; `extra` is one more query that must stay empty."""
    stop, answers, seen = _spawn.Event(), _spawn.Queue(), Seen()
    process = _spawn.Process(target=_watch, args=(list(accounts), extra, stop, answers))
    process.start()
    answers.get(timeout=60)  # it has begun to look
    try:
        yield seen
    finally:
        stop.set()
        seen.looks, seen.broken = answers.get(timeout=60)
        process.join(10)
        process.kill()


def _watch(accounts: list[UUID], extra: str, stop: Any, answers: Any) -> None:
    looks, broken = 0, []
    answers.put("ready")
    while not stop.is_set():
        for account in accounts:
            broken += [str(d) for d in ledger.verify(account_id=account)]
        if extra:
            broken += [str(row) for row in db.run(extra, {"accounts": accounts})]
        looks += 1
    answers.put((looks, broken[:3]))


@contextmanager
def meanwhile(work: Callable[[random.Random], None], *, pause: float = 0.02, seed: int = 7) -> Iterator[None]:
    """Do something again and again in a thread of this process."""
    stop = threading.Event()

    def repeat() -> None:
        rng = random.Random(seed)
        while not stop.wait(pause):
            work(rng)

    thread = threading.Thread(target=repeat)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


# ---------------------------------------------------------------- what the threads of a crowd do


def first_calls(number: int, barrier: Any, callers: Sequence[Caller], calls: int) -> list[Counter[str]]:
    """Meet at each account and call it at once; return what came of it, account by account."""
    results = []
    for caller in callers:
        barrier.wait()
        results.append(Counter(_name(caller.refusal()) for _ in range(calls)))
    return results


def calls_at_once(number: int, barrier: Any, callers: Sequence[Caller], rounds: int) -> int:
    """Run whole calls on a few accounts; return how many were admitted."""
    rng, admitted = random.Random(number), 0
    barrier.wait()
    for _ in range(rounds):
        try:
            admission = rng.choice(callers).admit()
        except WebhostError:
            continue
        admitted += 1
        time.sleep(rng.random() / 200)
        ledger.settle(admission, Outcome.SUCCEEDED, ledger.Usage(tokens=1))
    return admitted


def holds_at_once(number: int, barrier: Any, caller: Caller, tokens: int, rounds: int) -> int:
    """Try to hold tokens; return how often it was possible."""
    barrier.wait()
    return sum(caller.refusal(tokens=tokens) is None for _ in range(rounds))


def agents_at_once(number: int, barrier: Any, accounts: Sequence[UUID], each: int) -> list[Counter[str]]:
    """Create agents in each account at once; return what came of it."""
    results = []
    for account in accounts:
        barrier.wait()
        seen: Counter[str] = Counter()
        for _ in range(each):
            try:
                create_agent(account, new_id(), name=f"a-{uuid4().hex}", description="", runtime=Runtime.CLOUDFLARE)
                seen["created"] += 1
            except WebhostError as error:
                seen[_name(error)] += 1
        results.append(seen)
    return results


def _name(refusal: WebhostError | None) -> str:
    return "admitted" if refusal is None else str(refusal.details.get("limitType", type(refusal).__name__))


class Ring:
    """The last few admissions of each account, shared by all, so that they meet on the same rows."""

    def __init__(self, accounts: int, slots: int) -> None:
        self.slots = slots
        self.shared = _spawn.Array("c", accounts * slots * 16)

    def put(self, account: int, admission: UUID, rng: random.Random) -> None:
        at = (account * self.slots + rng.randrange(self.slots)) * 16
        with self.shared.get_lock():
            self.shared[at : at + 16] = admission.bytes

    def pick(self, account: int, rng: random.Random) -> UUID | None:
        at = (account * self.slots + rng.randrange(self.slots)) * 16
        with self.shared.get_lock():
            raw = bytes(self.shared[at : at + 16])
        return UUID(bytes=raw) if any(raw) else None


@dataclass
class Log:
    """What one thread knows that it did: whom it admitted, and which usage it folded into whom."""

    admitted: list[UUID] = field(default_factory=list)
    evidence: list[tuple[UUID, dict[str, int]]] = field(default_factory=list)
    seen: Counter[str] = field(default_factory=Counter)


VERBS = {"admit": 40, "settle": 25, "observe": 16, "void": 8, "overdue": 3, "adopt": 2, "adjust": 2}


def stir(number: int, barrier: Any, callers: Sequence[Caller], ring: Ring, seconds: float) -> Log:
    """Do random verbs to random accounts for a while."""
    rng, log = random.Random(1000 + number), Log()
    barrier.wait()
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        at = rng.randrange(len(callers))
        verb = rng.choices(list(VERBS), list(VERBS.values()))[0]
        _DO[verb](callers[at], at, ring, rng, log)
        log.seen[verb] += 1
    return log


def stir_alone(callers: Sequence[Caller], seconds: float) -> None:
    """Stir with threads in this process until it is killed."""
    ring, barrier = Ring(len(callers), 3), threading.Barrier(4)
    _run_threads(stir, range(4), barrier, queue.Queue(), (callers, ring, seconds))


def _usage(rng: random.Random) -> dict[str, int]:
    return {measure: rng.choice((0, 0, 1, rng.randrange(40))) for measure in MEASURES}


def _admit(caller: Caller, at: int, ring: Ring, rng: random.Random, log: Log) -> None:
    hold = _usage(rng) if rng.random() < 0.5 else {}
    asked = caller.but(tools=frozenset(t for t in sorted(TOOL_BUDGETS) if rng.random() < 0.3))
    admission = new_id()
    try:
        asked.admit(again=admission, **hold)
    except WebhostError as error:
        log.seen[_name(error)] += 1
        return
    log.admitted.append(admission)
    ring.put(at, admission, rng)


def _settle(caller: Caller, at: int, ring: Ring, rng: random.Random, log: Log) -> None:
    if admission := ring.pick(at, rng):
        usage = _usage(rng)
        ledger.settle(admission, rng.choice((Outcome.SUCCEEDED, Outcome.FAILED)), ledger.Usage(**usage))
        log.evidence.append((admission, usage))


def _observe(caller: Caller, at: int, ring: Ring, rng: random.Random, log: Log) -> None:
    if admission := ring.pick(at, rng):
        usage = _usage(rng)
        if rng.random() < 0.05:
            caller.but(deployment_id=uuid4()).report(admission, **usage)  # somebody else's: counts nothing
        else:
            caller.report(admission, **usage)
            log.evidence.append((admission, usage))


def _void(caller: Caller, at: int, ring: Ring, rng: random.Random, log: Log) -> None:
    if admission := ring.pick(at, rng):
        ledger.void(admission, "ConnectionRefused")


def _overdue(caller: Caller, at: int, ring: Ring, rng: random.Random, log: Log) -> None:
    log.seen["expired"] += ledger.close_overdue(batch=20)


def _adopt(caller: Caller, at: int, ring: Ring, rng: random.Random, log: Log) -> None:
    admission, usage, now = new_id(), _usage(rng), db.run("SELECT now() AS at", {})[0]["at"]
    for _ in range(rng.choice((1, 2))):
        caller.adopt(admission, now, **usage)
    log.admitted.append(admission)
    log.evidence.append((admission, usage))
    ring.put(at, admission, rng)


def _adjust(caller: Caller, at: int, ring: Ring, rng: random.Random, log: Log) -> None:
    now = db.run("SELECT date_trunc('month', now() AT TIME ZONE 'UTC')::date AS period", {})
    caller.adjust(now[0]["period"], requests=rng.choice((0, 1)), tokens=rng.randrange(3))


_DO = {
    "admit": _admit, "settle": _settle, "observe": _observe, "void": _void,
    "overdue": _overdue, "adopt": _adopt, "adjust": _adjust,
}  # fmt: skip


def short_months(number: int, barrier: Any, callers: Sequence[Caller], admit: str, seconds: float) -> Counter[str]:
    """Call around the turns of months that last a second, by the server's own clock."""
    rng, seen = random.Random(number), Counter()
    ledger.SQL["admit"] = admit  # type: ignore[index]  # this process's own
    barrier.wait()
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        admission = new_id()
        judged = ledger.judge(admission, rng.choice(callers).subject)
        if judged is None or not judged.admitted:
            seen["refused"] += 1
            continue
        seen["admitted"] += 1
        time.sleep(rng.random() / 5)
        ledger.settle(admission, Outcome.SUCCEEDED, ledger.NOTHING)
    return seen
