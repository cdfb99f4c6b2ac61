"""Recompute an account's month from admissions and signed bytes, and name every row that is off."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Any, Final
from uuid import UUID

from entitlements import ledger
from entitlements.enums import Capability, Outcome, Source
from runtimes.rules import tool_evidence
from telemetry.actions.closing import statement_stands
from telemetry.actions.process import read_signed
from telemetry.actions.roll_up import roll_up
from telemetry.actions.usage import RETENTION_ACTOR
from telemetry.events import Event
from telemetry.models import UsageStatement
from telemetry.proof import (
    MEASURES,
    TOOL_MEASURES,
    Observed,
    Settled,
    charge_problems,
    outcome_problem,
    read_settlement,
)
from telemetry.rules import KNOWN_FOR, Owner, attribution_holds, bucket_of, is_trusted, made_at_of
from webhost import db
from webhost.db import HotConnection
from webhost.ids import Prefix, public_id
from webhost.period import ends_at, key_of, period_of, starts_at
from webhost.signing import verify_settlement

ALL_MEASURES: Final = ("requests", *MEASURES)

_ADMISSIONS = "SELECT * FROM entitlements_admission WHERE account_id = %(account)s AND period = %(period)s ORDER BY id"
_REPORTS = """
SELECT r.*, coalesce(d.body, r.body) AS signed, o.agent_id, o.account_id AS owner_id, o.runtime_provider, o.root_key_id
  FROM telemetry_report r
  LEFT JOIN telemetry_delivery d ON d.id = r.delivery_id
  LEFT JOIN runtimes_deployment o ON o.id = r.deployment_id
 WHERE r.status = 'accepted' AND (
       r.invocation_id IN (SELECT id FROM entitlements_admission WHERE account_id = %(account)s AND period = %(period)s)
       OR r.account_id = %(account)s AND r.received_at >= %(start)s AND r.received_at < %(late)s)
 ORDER BY r.id
"""
_TOOLS = """
SELECT * FROM runtimes_tooluse
 WHERE invocation_id IN (SELECT id FROM entitlements_admission WHERE account_id = %(account)s AND period = %(period)s)
 ORDER BY id
"""
_NAMED_ELSEWHERE = "SELECT id FROM entitlements_admission WHERE id = ANY(%(ids)s)"
_HOURS = f"""
SELECT hour, deployment_id, min(runtime) AS runtime, {", ".join(f"sum({m})::bigint AS {m}" for m in ALL_MEASURES)},
       sum(errors)::bigint AS errors
  FROM (SELECT hour, deployment_id, runtime, {", ".join(ALL_MEASURES)}, errors FROM telemetry_usagehour
         WHERE account_id = %(account)s AND hour >= %(start)s AND hour < %(end)s
         UNION ALL
        SELECT hour, deployment_id, runtime, {", ".join(ALL_MEASURES)}, errors FROM entitlements_movement
         WHERE account_id = %(account)s AND hour >= %(start)s AND hour < %(end)s) parts
 GROUP BY 1, 2 ORDER BY 1, 2
"""  # noqa: S608 - composed of constants
_DETAILS = """
SELECT hour, deployment_id, errors, errors_by_class, latency_buckets FROM telemetry_usagehour
 WHERE account_id = %(account)s AND hour >= %(start)s AND hour < %(end)s
"""
_JOURNAL = "SELECT count(*) AS n FROM entitlements_movement WHERE account_id = %(account)s"
_ADJUSTED = f"""
SELECT {", ".join(f"coalesce(sum({m}), 0)::bigint AS {m}" for m in ALL_MEASURES)} FROM entitlements_adjustment
 WHERE account_id = %(account)s AND period = %(period)s AND actor <> %(actor)s
"""  # noqa: S608 - composed of constants
_CARRIED = """
SELECT count(*) AS n FROM entitlements_adjustment
 WHERE account_id = %(account)s AND period = %(period)s AND actor = %(actor)s
"""
_COUNTER = "SELECT * FROM entitlements_periodcounter WHERE account_id = %(account)s AND period = %(period)s"


@dataclass(frozen=True)
class Finding:
    """A row that is not what it was, and how that shows."""

    row: str
    problem: str

    def __str__(self) -> str:
        return f"{self.row}: {self.problem}"


@dataclass(frozen=True)
class Proof:
    """What was compared, and what was found; nothing found is the proof."""

    findings: Sequence[Finding]
    admissions: int
    reports: int
    hours: int


def verify_usage(account_id: UUID, period: date) -> Proof:
    """Recompute a month of one account from admissions and signed bytes; return every difference.

    Settlements, reports and statements are checked against their signatures; each admission against the
    largest that was observed of it; the counter and the hours against the admissions. Safe beside traffic:
    everything is read in one snapshot.
    """
    roll_up()
    findings = [
        Finding(f"counter {key_of(period)}", _counter_problem(d))
        for d in ledger.verify(account_id=account_id, since=period)
        if d.period == period
    ]
    end = ends_at(period)
    parameters = {
        "account": account_id, "period": period, "start": starts_at(period), "end": end,
        "late": end + KNOWN_FOR, "actor": RETENTION_ACTOR,
    }  # fmt: skip
    with db.hot_connection() as connection, connection.transaction():
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
        admissions = {r["id"]: r for r in connection.execute(_ADMISSIONS, parameters)}
        reports = connection.execute(_REPORTS, parameters).fetchall()
        tool_uses = connection.execute(_TOOLS, parameters).fetchall()
        elsewhere = _elsewhere(connection, [r["invocation_id"] for r in reports], admissions)
        hours = connection.execute(_HOURS, parameters).fetchall()
        details = connection.execute(_DETAILS, parameters).fetchall()
        is_rolled_up = not _count(connection, _JOURNAL, parameters)
        is_carried = bool(_count(connection, _CARRIED, parameters))
        counter = connection.execute(_COUNTER, parameters).fetchone()
        adjusted = connection.execute(_ADJUSTED, parameters).fetchone()

    evidence: dict[UUID, list[Observed]] = defaultdict(list)
    findings += _check_reports(reports, evidence)
    if not is_carried:  # what retention took, its statement stands for
        findings += _check_missing(reports, admissions, elsewhere, period)
    tools: dict[UUID, dict[str, int]] = {}
    findings += _check_tools(tool_uses, tools)
    for row in admissions.values():
        findings += _check_admission(row, evidence[row["id"]], tools.get(row["id"]))
    if is_carried:
        findings += _check_hours_by_counter(hours, counter or {}, adjusted or {})
    else:
        findings += _check_hours(hours, admissions.values())
        if is_rolled_up:
            findings += _check_details(details, admissions.values())
    findings += [
        Finding(f"statement {s}", "its signature does not fit")
        for s in UsageStatement.objects.filter(account_id=account_id, period=period)
        if not statement_stands(s)
    ]
    return Proof(findings, len(admissions), len(reports), len(hours))


def _count(connection: HotConnection, query: str, parameters: Mapping[str, Any]) -> int:
    row = connection.execute(query, parameters).fetchone()
    return int(row["n"]) if row else 0


def _elsewhere(connection: HotConnection, ids: Sequence[UUID | None], here: Mapping[UUID, Any]) -> set[UUID]:
    others = list({i for i in ids if i is not None and i not in here})
    return {r["id"] for r in connection.execute(_NAMED_ELSEWHERE, {"ids": others})} if others else set()


def _counter_problem(difference: ledger.Difference) -> str:
    counter, admissions = difference.counter, difference.admissions or {}
    if counter is None:
        return "it is gone, and its admissions are there"
    adjusted = difference.adjustments or {}
    off = []
    for name in counter:
        if name.startswith(("used_", "held_")) or name == "in_flight":
            other = (admissions.get(name) or 0) + (adjusted.get(name.removeprefix("used_")) or 0)
            if counter[name] != other:
                off.append(f"{name} is {counter[name]}, its admissions and adjustments say {other}")
    return "; ".join(off)


# --- Reports -------------------------------------------------------------------------------------------


def _check_reports(reports: Sequence[Mapping[str, Any]], evidence: dict[UUID, list[Observed]]) -> Iterator[Finding]:
    batches: dict[tuple[Any, ...], tuple[bool, Sequence[Any]]] = {}
    for row in reports:
        name = f"report {row['id']}"
        problem, event = _read_report(row, batches)
        if problem:
            yield Finding(name, problem)
        if event is not None:
            trusted = is_trusted(row["runtime_provider"])
            evidence[event.invocation_id].append(Observed(event.measures(), trusted, row["processed_at"]))


def _read_report(
    row: Mapping[str, Any], batches: dict[tuple[Any, ...], tuple[bool, Sequence[Any]]]
) -> tuple[str, Event | None]:
    if row["root_key_id"] is None:
        return "its deployment is gone", None
    key = (row["delivery_id"] or -row["id"], row["deployment_id"], row["signature"])  # a batch is read once
    if key not in batches:
        batches[key] = read_signed(row["deployment_id"], row["root_key_id"], bytes(row["signed"]), row["signature"])
    fits, items = batches[key]
    if not fits:
        return "its signature does not fit its bytes", None
    event = items[row["item"]] if 0 <= row["item"] < len(items) else None
    if not isinstance(event, Event):
        return "its bytes are not an event", None
    owner = Owner(
        row["deployment_id"], row["agent_id"], row["owner_id"], row["runtime_provider"], row["root_key_id"]
    )  # fmt: skip
    said = (event.event_id, event.invocation_id, event.facts, row["owner_id"])
    if said != (bytes(row["event_id"]), row["invocation_id"], row["facts"], row["account_id"]):
        return "the row says something else than its signed bytes", event
    return ("" if attribution_holds(owner, event) else "its origin is not what its deployment says"), event


def _check_missing(
    reports: Sequence[Mapping[str, Any]], admissions: Mapping[UUID, Any], elsewhere: set[UUID], period: date
) -> Iterator[Finding]:
    """Name admissions that are gone although a report of theirs is there; their month is when either was made."""
    for row in reports:
        invocation = row["invocation_id"]
        if invocation is None or invocation in admissions or invocation in elsewhere:
            continue
        made_at = made_at_of(invocation)
        if period in {period_of(at) for at in (made_at, row["received_at"]) if at is not None}:
            name = public_id(Prefix.INVOCATION, invocation)
            yield Finding(f"admission {name}", f"it is gone, and report {row['id']} was folded into it")


# --- Admissions ----------------------------------------------------------------------------------------


def _check_tools(uses: Sequence[Mapping[str, Any]], tools: dict[UUID, dict[str, int]]) -> Iterator[Finding]:
    """Check the control plane's signature over each tool session that it saw, and add them up by invocation."""
    for row in uses:
        said = tool_evidence(
            row["kind"], row["remote_id"], row["deployment_id"], row["invocation_id"], row["code_ms"]
        )  # fmt: skip
        if not verify_settlement(said.encode(), row["mac"]):
            yield Finding(f"tool use {row['id']}", "its signature does not fit what it says")
        seen = tools.setdefault(row["invocation_id"], dict.fromkeys(TOOL_MEASURES, 0))
        seen["tool_calls"] += 1
        seen["code_ms"] += row["code_ms"]
        seen["browser_sessions"] += row["kind"] == Capability.BROWSER


def _check_admission(
    row: Mapping[str, Any], observed: Sequence[Observed], tools: Mapping[str, int] | None
) -> Iterator[Finding]:
    name = f"admission {public_id(Prefix.INVOCATION, row['id'])}"
    settled: Settled | None = None
    if row["settlement"]:
        settled = read_settlement(row["settlement"], row["id"])
        if settled is None or not verify_settlement(row["settlement"].encode(), row["settlement_mac"]):
            yield Finding(name, "the gateway's signature does not fit its settlement")
    if row["reports"] != len(observed):
        yield Finding(name, f"{row['reports']} reports were folded in, {len(observed)} are there with a signature")
    problem = outcome_problem(
        Outcome(row["outcome"]), settled, is_reported=row["source"] == Source.REPORT, reports=len(observed)
    )
    if problem:
        yield Finding(name, problem)
    if row["charged_requests"] != (0 if row["outcome"] == Outcome.VOIDED else 1):
        yield Finding(name, f"charged_requests is {row['charged_requests']}")
    if period_of(row["admitted_at"]) != row["period"]:
        yield Finding(name, f"it was admitted at {row['admitted_at']:%Y-%m-%dT%H:%M:%SZ}, outside its period")
    for problem in charge_problems(row, settled, observed, tools):
        yield Finding(name, problem)


# --- Hours ---------------------------------------------------------------------------------------------


def _hour_name(hour: datetime, deployment_id: UUID) -> str:
    return f"roll-up {hour.astimezone(UTC):%Y-%m-%dT%H:00Z} {public_id(Prefix.DEPLOYMENT, deployment_id)}"


def _closed(admissions: Any) -> Iterator[tuple[tuple[datetime, UUID], Mapping[str, Any]]]:
    for row in admissions:
        if row["outcome"] not in (Outcome.OPEN, Outcome.VOIDED):
            hour = row["admitted_at"].astimezone(UTC).replace(minute=0, second=0, microsecond=0)
            yield (hour, row["deployment_id"]), row


def _check_hours(hours: Sequence[Mapping[str, Any]], admissions: Any) -> Iterator[Finding]:
    expected: dict[tuple[datetime, UUID], dict[str, Any]] = {}
    for key, row in _closed(admissions):
        sums = expected.setdefault(key, {**dict.fromkeys((*ALL_MEASURES, "errors"), 0), "runtime": row["runtime"]})
        for measure in ALL_MEASURES:
            sums[measure] += row[f"charged_{measure}"]
        sums["errors"] += row["outcome"] != Outcome.SUCCEEDED
    for hour in hours:
        key = (hour["hour"].astimezone(UTC), hour["deployment_id"])
        sums = expected.pop(key, dict.fromkeys((*ALL_MEASURES, "errors"), 0))
        off = [f"{n} is {hour[n]}, its admissions say {sums[n]}" for n in sums if hour[n] != sums[n]]
        if off:
            yield Finding(_hour_name(*key), "; ".join(off))
    for key in expected:
        yield Finding(_hour_name(*key), "it is gone, and its admissions are there")


def _check_details(details: Sequence[Mapping[str, Any]], admissions: Any) -> Iterator[Finding]:
    """Compare error classes and latencies; only where nothing is left to roll up."""
    errors: dict[tuple[datetime, UUID], int] = defaultdict(int)
    latencies: dict[tuple[datetime, UUID], dict[int, int]] = defaultdict(lambda: defaultdict(int))
    for key, row in _closed(admissions):
        errors[key] += row["outcome"] != Outcome.SUCCEEDED
        if row["latency_ms"] is not None:
            latencies[key][bucket_of(row["latency_ms"])] += 1
    for row in details:
        key = (row["hour"].astimezone(UTC), row["deployment_id"])
        if sum(row["errors_by_class"].values()) != errors[key]:
            yield Finding(_hour_name(*key), f"its error classes add up to {sum(row['errors_by_class'].values())}")
        if {i: n for i, n in enumerate(row["latency_buckets"]) if n} != dict(latencies[key]):
            yield Finding(_hour_name(*key), "its latencies are not those of its admissions")


def _check_hours_by_counter(
    hours: Sequence[Mapping[str, Any]], counter: Mapping[str, Any], adjusted: Mapping[str, Any]
) -> Iterator[Finding]:
    """After retention, when nothing runs any more: the hours add up to the counter, but for staff's corrections."""
    for measure in ALL_MEASURES:
        total = sum(h[measure] for h in hours)
        right = counter.get(f"used_{measure}", 0) - adjusted.get(measure, 0)
        if total != right:
            yield Finding(
                "roll-ups", f"their {measure} add up to {total}, the counter without corrections says {right}"
            )
