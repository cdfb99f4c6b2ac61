"""Limits are exact whoever comes at once: real threads in several processes on real PostgreSQL."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from django.conf import settings
from django.utils import timezone

from entitlements import ledger
from entitlements.models import Account, Admission, Override, PeriodCounter, Tier
from entitlements.tasks import close_overdue
from runtimes.models import Agent
from tests.entitlements import crowd
from tests.entitlements.callers import SUCCEEDED, Caller, alice, receipt, used
from tests.entitlements.crowd import MEASURES, PROCESSES, THREADS, Log, Ring, watched
from tests.factories import make_account, make_tier
from webhost import db

pytestmark = [pytest.mark.usefixtures("live_db"), pytest.mark.slow]

EVERYBODY = PROCESSES * THREADS


@pytest.fixture(autouse=True)
def _nobody_waits_for_nobody() -> Iterator[None]:
    """No test here may end in a deadlock, not even in one that was repeated and went well."""
    before = deadlocks()
    yield
    assert deadlocks() == before


def deadlocks() -> int:
    rows = db.run("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()", {})
    return int(rows[0]["deadlocks"])


class TestFirstCallsOfAMonth:
    CALLS = 2  # each thread makes, so 32 come at once
    TRIES = 4

    @pytest.mark.case("LIM-01")
    def test_exactly_as_many_are_admitted_as_the_limit_says(self) -> None:
        wanted = [
            (field, named, limit)
            for field, named in (("max_requests_per_period", "requests"), ("max_concurrent_invocations", "concurrency"),
                                 ("requests_per_minute", "requestsPerMinute"))
            for limit in (0, 1, 10, None)
            for _ in range(self.TRIES)
        ]  # fmt: skip
        callers = [alice(**{field: limit}) for field, _, limit in wanted]
        results = crowd.crowd(crowd.first_calls, callers, self.CALLS)
        everybody = EVERYBODY * self.CALLS
        for n, (field, named, limit) in enumerate(wanted):
            admitted = everybody if limit is None else limit
            right = +Counter({"admitted": admitted, named: everybody - admitted})
            came = sum((result[n] for result in results), Counter())
            if named == "requestsPerMinute" and came != right:
                continue  # the minute turned meanwhile; test_admit.py has it exactly
            assert came == right, (field, limit)
            counters = PeriodCounter.objects.filter(account_id=callers[n].account_id)
            assert [c.used_requests for c in counters] == ([admitted] if admitted else [])
            assert Admission.objects.filter(account_id=callers[n].account_id).count() == admitted
            assert callers[n].differences() == []

    @pytest.mark.case("LIM-01")
    def test_of_twenty_who_see_one_slot_left_one_gets_it(self) -> None:
        callers = [alice(max_requests_per_period=10) for _ in range(5)]
        for caller in callers:
            for _ in range(9):
                caller.call()
        results = crowd.crowd(crowd.first_calls, callers, 1, threads=10)
        for n, caller in enumerate(callers):
            assert sum((result[n] for result in results), Counter()) == Counter(admitted=1, requests=19)
            assert caller.counter().used_requests == 10


class TestHoldsAndSlots:
    def test_holds_divide_a_budget_exactly(self) -> None:
        caller = alice(max_tokens_per_period=1000)
        assert sum(crowd.crowd(crowd.holds_at_once, caller, 70, 4)) == 14
        assert caller.counter().held_tokens == 980

    def test_never_more_than_the_cap_run_at_once(self) -> None:
        cap = 3
        callers = [alice(max_concurrent_invocations=cap) for _ in range(2)]
        over = f"""SELECT account_id, sum(running) FROM entitlements_admission WHERE account_id = ANY (%(accounts)s)
                    GROUP BY account_id HAVING sum(running) > {cap}"""
        with watched([c.account_id for c in callers], over) as seen:
            admitted = sum(crowd.crowd(crowd.calls_at_once, callers, 40))
        assert seen.broken == []
        assert seen.looks > 10
        assert admitted > cap
        for caller in callers:
            assert (
                max(Admission.objects.filter(account_id=caller.account_id).values_list("then_in_flight", flat=True))
                == cap
            )
            assert (caller.counter().in_flight, caller.differences()) == (0, [])


class TestTheTurnOfTheMonth:
    """Months that last a second, on the server's own clock: the cap on concurrency holds across every turn."""

    SECONDS = 5
    CAP = 3

    def admit(self) -> str:
        """Return the product's own statement with shorter months; nothing else of it is changed."""
        began = int(time.time())
        statement = ledger.SQL["admit"]
        month = f"(date '2000-01-01' + floor(extract(epoch FROM at) - {began})::int)"
        start = f"to_timestamp({began} + (%s - date '2000-01-01'))"
        for long, short in (
            ("(date_trunc('month', at AT TIME ZONE 'UTC'))::date", month),
            ("(w.period - interval '1 month')::date", "w.period - 1"),
            ("(w.period::timestamp AT TIME ZONE 'UTC') + interval '1 min'", f"{start % 'w.period'} + interval '0.2 s'"),
            ("((seen.period + interval '1 month')::timestamp AT TIME ZONE 'UTC')", start % "seen.period + 1"),
        ):
            assert statement.count(long) == 1
            statement = statement.replace(long, short)
        return statement

    def test_never_more_than_the_cap_run_at_once(self) -> None:
        callers = [alice(max_concurrent_invocations=self.CAP) for _ in range(2)]
        accounts = [c.account_id for c in callers]
        over = f"""SELECT account_id, sum(running) FROM entitlements_admission WHERE account_id = ANY (%(accounts)s)
                    GROUP BY account_id HAVING sum(running) > {self.CAP}"""
        with watched(accounts, over) as seen:
            results = crowd.crowd(crowd.short_months, callers, self.admit(), self.SECONDS, threads=4)
        total = sum(results, Counter())
        months = PeriodCounter.objects.filter(account_id__in=accounts).values("period").distinct().count()
        assert seen.broken == []
        assert not Admission.objects.filter(account_id__in=accounts, then_in_flight__gt=self.CAP).exists()
        assert months >= self.SECONDS - 1
        assert total["refused"] > 0
        assert PeriodCounter.objects.filter(account_id__in=accounts, in_flight__gt=0).count() == 0


class TestCapsOnAgents:
    def test_exactly_as_many_are_created_as_the_cap_says(self) -> None:
        limits = (0, 1, 10, None, 10)
        accounts = [make_account("alice", make_tier(max_agents=limit)).id for limit in limits]
        results = crowd.crowd(crowd.agents_at_once, accounts, 2)
        for n, limit in enumerate(limits):
            created = EVERYBODY * 2 if limit is None else limit
            came = sum((result[n] for result in results), Counter())
            assert came == +Counter(created=created, agents=EVERYBODY * 2 - created), limit
            assert Agent.objects.filter(account_id=accounts[n]).count() == created


class TestTheStorm:
    SECONDS = 10

    def test_random_verbs_from_everybody_keep_every_invariant(self) -> None:
        """Three accounts of which all know the same few admissions, and staff with shaking hands."""
        tiers = [make_tier(), make_tier()]
        quick = -settings.OVERDUE_GRACE_SECONDS + 0.3
        callers = []
        for n in range(3):
            account = make_account("alice", tiers[n % 2])
            callers.append(Caller(account.id, account.id, account.id, timeout_seconds=quick))  # type: ignore[arg-type]
        ring = Ring(len(callers), 3)
        overridden = callers[0].account_id
        with watched([c.account_id for c in callers]) as seen, crowd.meanwhile(shaking_hands(tiers, overridden)):
            logs = crowd.crowd(crowd.stir, callers, ring, self.SECONDS, threads=6)
        assert seen.broken == []
        assert seen.looks > 20
        everything = sum((log.seen for log in logs), Counter())
        assert {"admit", "settle", "observe", "void", "adopt", "adjust", "expired", "requests", "tokens"} <= set(
            everything
        )
        assert all(c.differences() == [] for c in callers)
        assert wrong_admissions(callers, logs) == []
        assert judged_by_half_a_tier([c for c in callers if c.account_id != overridden], tiers) == []


def shaking_hands(tiers: list[Tier], account: UUID) -> Any:
    """Return what staff do all the time: raise, lower and lift limits, grant and take back overrides."""

    def edit(rng: random.Random) -> None:
        def pick(*values: int) -> int | None:
            return rng.choice((*values, *[None] * 12))

        Tier.objects.filter(pk=rng.choice(tiers).pk).update(
            max_requests_per_period=pick(1, 500),
            max_tokens_per_period=pick(0, 5, 4000),
            max_compute_ms_per_period=pick(0, 5, 4000),
            max_tool_calls_per_period=pick(0, 4000),
            max_concurrent_invocations=pick(0, 1, 3, 10),
        )
        if rng.random() < 0.3:
            Override.objects.filter(account_id=account).delete()
            Override.objects.create(
                account=Account.objects.get(pk=account), key=rng.choice(("maxRequestsPerPeriod", "maxTokensPerPeriod")),
                value=pick(0, 5, 4000), ends_at=timezone.now() + timedelta(seconds=1), reason="Shaking hands",
            )  # fmt: skip

    return edit


def wrong_admissions(callers: list[Caller], logs: list[Log]) -> list[Any]:
    """Compare every admission with a model of five lines: the largest evidence counts, else the hold if overdue."""
    admitted = {admission for log in logs for admission in log.admitted}
    evidence: dict[UUID, list[dict[str, int]]] = {}
    for log in logs:
        for admission, usage in log.evidence:
            evidence.setdefault(admission, []).append(usage)
    wrong: list[Any] = []
    rows = {row.pk: row for row in Admission.objects.filter(account_id__in=[c.account_id for c in callers])}
    if rows.keys() != admitted:
        wrong.append(("not the same admissions", rows.keys() ^ admitted))
    for admission, row in rows.items():
        seen = evidence.get(admission, [])
        for measure in MEASURES:
            hold = getattr(row, f"held_{measure}") if row.outcome == "expired" and not seen else 0
            right = max((usage[measure] for usage in seen), default=hold)
            if getattr(row, f"charged_{measure}") != right:
                wrong.append((admission, row.outcome, measure, getattr(row, f"charged_{measure}"), right))
        if row.outcome == "voided" and seen:
            wrong.append((admission, "given back in spite of evidence"))
        if row.outcome in {"succeeded", "failed"} and not seen:
            wrong.append((admission, "closed by nobody"))
    return wrong


def judged_by_half_a_tier(callers: list[Caller], tiers: list[Tier]) -> list[Any]:
    """Return admissions whose limits are not those of one whole version of their tier."""
    fields = (
        "max_requests_per_period",
        "max_tokens_per_period",
        "max_compute_ms_per_period",
        "max_concurrent_invocations",
    )
    versions = {
        (event.slug, event.version): tuple(getattr(event, name) for name in fields)
        for event in Tier.pgh_event_model.objects.filter(pgh_obj_id__in=[t.pk for t in tiers])  # type: ignore[attr-defined]
    }
    return [
        row.pk
        for row in Admission.objects.filter(account_id__in=[c.account_id for c in callers], source="gateway")
        if versions[row.tier, row.tier_version]
        != (row.limit_requests, row.limit_tokens, row.limit_compute_ms, row.limit_in_flight)
    ]


DIES = """
import sys, time
from tests.entitlements import crowd
from tests.entitlements.callers import Caller
from uuid import UUID
caller = Caller(*map(UUID, sys.argv[1:4]), timeout_seconds=int(sys.argv[4]))
print(*[caller.admit().hex for _ in range(int(sys.argv[5]))], flush=True)
time.sleep(60)
"""


class TestAProcessThatDies:
    @pytest.mark.case("LIM-04")
    def test_between_admission_and_settlement_costs_a_bounded_wait_and_one_request_each(self) -> None:
        caller = alice(max_concurrent_invocations=3)
        lifetime = 3 - settings.OVERDUE_GRACE_SECONDS  # overdue 3 seconds after its admission
        ids = [str(i) for i in (caller.account_id, caller.agent_id, caller.deployment_id)]
        process = subprocess.Popen(
            [sys.executable, "-c", DIES, *ids, str(lifetime), "3"],
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ.copy(),
        )
        try:
            assert process.stdout is not None
            admissions = [UUID(text) for text in process.stdout.readline().split()]
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()
        assert len(admissions) == 3
        refusal = caller.refusal()
        assert refusal is not None
        assert refusal.details["limitType"] == "concurrency"
        end = time.monotonic() + 10
        while caller.counter().in_flight and time.monotonic() < end:
            time.sleep(0.2)
            close_overdue()
        assert {receipt(a).outcome for a in admissions} == {"expired"}
        assert (caller.counter().used_requests, caller.counter().in_flight) == (3, 0)
        assert caller.refusal() is None
        assert caller.differences() == []

    def test_in_the_middle_of_everything_leaves_no_half_done_verb(self) -> None:
        callers = [alice() for _ in range(2)]
        accounts = [c.account_id for c in callers]
        for _ in range(3):
            process = crowd._spawn.Process(target=crowd.stir_alone, args=(callers, 30))
            process.start()
            end = time.monotonic() + 20
            before = Admission.objects.filter(account_id__in=accounts).count()
            while Admission.objects.filter(account_id__in=accounts).count() < before + 30 and time.monotonic() < end:
                time.sleep(0.02)
            process.kill()
            process.join()
            assert all(c.differences() == [] for c in callers)
        ledger.settle(callers[0].admit(), SUCCEEDED, used(tokens=1))
        assert callers[0].differences() == []
