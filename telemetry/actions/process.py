"""Judge kept reports and fold what is accepted into the ledger.

Each report in one transaction with its effect, never several in one: two admissions locked by one
transaction deadlock with a settlement. They are pipelined instead, with a sync after each, which ends
its transaction. Durability is left to the next flush: a commit that a crash undoes is undone together
with its effect, and the report is pending again.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final
from uuid import UUID

import psycopg

from entitlements.ledger import SQL
from telemetry.events import Event, MalformedError, parse_delivery
from telemetry.rules import Effect, Evidence, KnownInvocation, Owner, Status, Verdict, is_trusted, judge_report
from webhost import db
from webhost.db import HotConnection
from webhost.errors import Issue
from webhost.ids import Prefix, public_id
from webhost.signing import Purpose, deployment_key, verify

logger = logging.getLogger(__name__)

_BATCH: Final = 500
_MOST_ATTEMPTS: Final = 5
_MOST_PASSES: Final = 100
_RETRY_SECONDS: Final = 10
_ONE_AT_A_TIME: Final = 0x77_68_73_01  # advisory lock: "whs", 1

_COLUMNS = "id, deployment_id, event_id, body, delivery_id, item, signature, key_id, received_at, attempts"
_PENDING: Final = f"""
SELECT {_COLUMNS} FROM telemetry_report
 WHERE status = 'pending' AND id > %(after)s AND {{which}} ORDER BY id LIMIT %(batch)s
"""  # noqa: S608 - composed of constants
_FRESH = _PENDING.format(which="attempts = 0")
_AGAIN = _PENDING.format(
    which="attempts > 0 AND processed_at < now() - make_interval(secs => attempts * %(retry)s::float8)"
)
# By the id alone, and then the status: asked for both, the planner takes a small index of pending rows that
# it believes to be empty, and reads all of it for each.
_LOCKED: Final = f"""
SELECT * FROM (SELECT {_COLUMNS}, status FROM telemetry_report WHERE id = %(report)s OFFSET 0 FOR UPDATE SKIP LOCKED) r
 WHERE status = 'pending'
"""  # noqa: S608 - composed of constants
_OWNERS = """
SELECT d.id, d.agent_id, d.account_id, d.runtime_provider, d.root_key_id, a.deleted_at
  FROM runtimes_deployment d JOIN runtimes_agent a ON a.id = d.agent_id WHERE d.id = ANY(%(ids)s)
"""
_ACCEPTED = """
SELECT deployment_id, event_id, facts FROM telemetry_report
 WHERE status = 'accepted' AND (deployment_id, event_id) IN (SELECT * FROM unnest(%(ids)s::uuid[], %(events)s::bytea[]))
"""
_INVOCATIONS = "SELECT id, deployment_id, admitted_at FROM entitlements_admission WHERE id = ANY(%(ids)s)"
_DELIVERIES = "SELECT id, body FROM telemetry_delivery WHERE id = ANY(%(ids)s)"

_CONCLUDE = f"""
WITH mine AS ({_LOCKED})
UPDATE telemetry_report SET status = %(status)s, reason = %(reason)s, processed_at = now(), account_id = %(account)s,
       invocation_id = %(id)s, facts = %(facts)s
 WHERE id = (SELECT id FROM mine)
"""  # noqa: S608 - composed of constants
# The ledger's own statement, guarded by the report's row: whoever holds that, and only while it is
# pending, folds it in. No row back: something moved since it was judged; it is judged again, alone.
_before, _after = SQL["observe"].rsplit("RETURNING", 1)
_ACCEPT = f"""
WITH mine AS ({_LOCKED}), folded AS (
    {_before} AND EXISTS (SELECT FROM mine) RETURNING {_after}
)
UPDATE telemetry_report SET status = 'accepted', processed_at = now(), account_id = %(account)s,
       invocation_id = %(id)s, facts = %(facts)s
 WHERE id = (SELECT id FROM mine) AND EXISTS (SELECT FROM folded)
"""  # noqa: S608 - composed of constants
_FAILED = f"""
WITH mine AS ({_LOCKED})
UPDATE telemetry_report SET attempts = attempts + 1, processed_at = now(), reason = %(reason)s,
       status = CASE WHEN attempts + 1 >= %(most)s THEN 'parked' ELSE status END
 WHERE id = (SELECT id FROM mine) RETURNING status
"""  # noqa: S608 - composed of constants


# A batch is verified and read once, however many of its reports are at hand.
_Shared = dict[tuple[int, str], tuple[bool, Sequence[Event | list[Issue]]]]


@dataclass(frozen=True)
class _Judged:
    row: dict[str, Any]
    verdict: Verdict
    owner: Owner | None
    event: Event | None

    def parameters(self) -> dict[str, Any]:
        event = self.event
        return {
            "report": self.row["id"],
            "status": self.verdict.status.value,
            "reason": self.verdict.reason,
            "account": self.owner.account_id if self.owner else None,
            "id": event.invocation_id if event else None,
            "facts": event.facts if event else "",
        }

    def observed(self) -> dict[str, Any]:
        assert self.owner is not None and self.event is not None  # noqa: S101, PT018 - accepted, so it has both
        return {
            **self.parameters(),
            "deployment": self.owner.deployment_id,
            "trusted": is_trusted(self.owner.runtime),
            "tokens_estimated": self.event.tokens_estimated,
            **self.event.measures(),
        }

    def adopted(self) -> dict[str, Any]:
        assert self.owner is not None and self.event is not None  # noqa: S101, PT018 - accepted, so it has both
        failed = self.event.errors > 0
        return {
            **self.observed(),
            "agent": self.owner.agent_id,
            "runtime": self.owner.runtime,
            "at": self.event.at,
            "outcome": "failed" if failed else "succeeded",
            "error_class": (self.event.error_class or "failed") if failed else None,
            "trace": self.event.trace_id,
        }


def process_reports() -> int:
    """Judge everything that is pending; return how many were concluded. One process at a time does.

    Safe to run twice and at once: each report's own row decides who folds it in. Raises UnavailableError
    when PostgreSQL is away; nothing is lost by that.
    """
    total = 0
    for _ in range(_MOST_PASSES):
        with db.hot_connection() as connection, _alone(connection) as is_mine:
            if not is_mine:
                break
            total += _drain(connection, _AGAIN) + _drain(connection, _FRESH)
        # What was kept after the last look, but woke us before the lock was free, found it taken.
        if not db.run(_FRESH, {"batch": 1, "after": 0}):
            break
    return total


@contextmanager
def _alone(connection: HotConnection) -> Iterator[bool]:
    row = connection.execute("SELECT pg_try_advisory_lock(%s) AS mine", [_ONE_AT_A_TIME]).fetchone()
    if not (row and row["mine"]):
        yield False
        return
    connection.execute("SET synchronous_commit TO off")
    try:
        yield True
    finally:
        if not connection.closed:
            connection.execute("RESET synchronous_commit")
            connection.execute("SELECT pg_advisory_unlock(%s)", [_ONE_AT_A_TIME])


def _drain(connection: HotConnection, query: str) -> int:
    total = after = 0
    while rows := connection.execute(query, {"batch": _BATCH, "after": after, "retry": _RETRY_SECONDS}).fetchall():
        total += _conclude(connection, rows)
        after = rows[-1]["id"]
    return total


# --- Judging -----------------------------------------------------------------------------------------


def _judge(connection: HotConnection, rows: Sequence[dict[str, Any]]) -> list[_Judged]:
    """Read what decides about these reports, four queries for all of them, and ask the rules."""
    owners = {
        r["id"]: Owner(*r.values())
        for r in connection.execute(_OWNERS, {"ids": list({r["deployment_id"] for r in rows})})
    }
    wanted = list({r["delivery_id"] for r in rows if r["delivery_id"] is not None})
    bodies = {r["id"]: r["body"] for r in connection.execute(_DELIVERIES, {"ids": wanted})} if wanted else {}
    shared: _Shared = {}
    read = [_read(row, owners.get(row["deployment_id"]), bodies, shared) for row in rows]
    facts = {
        (r["deployment_id"], bytes(r["event_id"])): r["facts"]
        for r in connection.execute(
            _ACCEPTED, {"ids": [r["deployment_id"] for r in rows], "events": [r["event_id"] for r in rows]}
        )
    }
    named = [event.invocation_id for _, event in read if isinstance(event, Event)]
    known = {
        r["id"]: KnownInvocation(r["deployment_id"], r["admitted_at"])
        for r in connection.execute(_INVOCATIONS, {"ids": named})
    }
    judged = []
    for row, (fits, event) in zip(rows, read, strict=True):
        owner = owners.get(row["deployment_id"])
        key = (row["deployment_id"], bytes(row["event_id"]))
        verdict = judge_report(
            Evidence(
                received_at=row["received_at"],
                owner=owner,
                signature_fits=fits,
                event=event,
                invocation=known.get(event.invocation_id) if isinstance(event, Event) else None,
                accepted_facts=facts.get(key),
            )
        )
        if isinstance(event, Event) and verdict.status is Status.ACCEPTED:
            facts[key] = event.facts  # a repeat further down in the same batch
        judged.append(_Judged(row, verdict, owner, event if isinstance(event, Event) and fits else None))
    return judged


def _read(
    row: dict[str, Any],
    owner: Owner | None,
    bodies: dict[int, bytes],
    shared: _Shared,
) -> tuple[bool, Event | list[Issue]]:
    """Return whether the signature fits, and the event or what is wrong with it."""
    missing: list[Issue] = [{"path": "", "message": "Its bytes are not an event."}]
    if owner is None:
        return False, missing
    if row["delivery_id"] is None:
        fits, items = read_signed(owner.deployment_id, owner.root_key_id, bytes(row["body"]), row["signature"])
    else:
        body = bodies.get(row["delivery_id"])
        if body is None:
            return False, missing
        key = (row["delivery_id"], row["signature"])
        if key not in shared:
            shared[key] = read_signed(owner.deployment_id, owner.root_key_id, bytes(body), row["signature"])
        fits, items = shared[key]
    if not 0 <= row["item"] < len(items):
        return fits, missing
    event = items[row["item"]]
    if isinstance(event, Event) and event.event_id != bytes(row["event_id"]):
        return fits, [{"path": "eventId", "message": "The row names another event than its bytes."}]
    return fits, event


def read_signed(
    deployment_id: UUID, root_key_id: str, body: bytes, signature: str
) -> tuple[bool, Sequence[Event | list[Issue]]]:
    """Return whether a deployment signed these bytes, with the root key that is its own, and what they say."""
    key = deployment_key(root_key_id, Purpose.TELEMETRY, public_id(Prefix.DEPLOYMENT, deployment_id))
    fits = key is not None and verify(key, body, signature)
    try:
        return fits, parse_delivery(body).items
    except MalformedError as error:
        return fits, ([{"path": "", "message": str(error)}],)


# --- Concluding --------------------------------------------------------------------------------------


def _conclude(connection: HotConnection, rows: Sequence[dict[str, Any]]) -> int:
    """Judge these and write every verdict with its effect; what fails together goes one by one."""
    done: set[int] = set()
    try:
        done = _conclude_together(connection, _judge(connection, rows))
    except Exception as error:
        if connection.broken or connection.closed:
            raise
        logger.warning("A batch of reports broke off (%s); going on one by one.", type(error).__name__)
        # psycopg no longer knows which statements a broken pipeline prepared.
        connection.execute("DEALLOCATE ALL")
    for row in rows:
        if row["id"] not in done and _conclude_alone(connection, row["id"]):
            done.add(row["id"])
    return len(done)


def _conclude_together(connection: HotConnection, judged: Sequence[_Judged]) -> set[int]:
    """Write, in one round trip, what folds into an admission that we know or does nothing to the ledger."""
    cursors: list[tuple[int, psycopg.Cursor[dict[str, Any]]]] = []
    with connection.pipeline() as pipeline:
        for report in judged:
            if report.verdict.effect is Effect.ADOPT:
                continue
            if report.verdict.effect is Effect.OBSERVE:
                cursor = connection.execute(_ACCEPT, report.observed())
            else:
                cursor = connection.execute(_CONCLUDE, report.parameters())
            cursors.append((report.row["id"], cursor))
            pipeline.sync()  # ends its transaction
    return {report_id for report_id, cursor in cursors if cursor.rowcount == 1}


def _conclude_alone(connection: HotConnection, report_id: int) -> bool:
    """Judge one report again, on its locked row, and write it; a failure is counted, the fifth parks it."""
    try:
        with connection.transaction():
            rows = connection.execute(_LOCKED, {"report": report_id}).fetchall()
            if not rows:
                return False  # concluded by now, or in somebody else's hands
            (report,) = _judge(connection, rows)
            if report.verdict.effect is Effect.ADOPT:
                if connection.execute(SQL["adopt"], report.adopted()).fetchall():
                    connection.execute(_CONCLUDE, report.parameters())
                    return True
                (report,) = _judge(connection, rows)  # its invocation came to be known a moment ago
            if report.verdict.effect is not Effect.NONE:
                # Strict about the row: an admission that vanished since it was judged is a failure.
                (_,) = connection.execute(SQL["observe"], report.observed()).fetchall()
            connection.execute(_CONCLUDE, report.parameters())
    except Exception as error:
        if connection.broken or connection.closed:
            raise
        _count_failure(connection, report_id, error)
        return False
    return True


def _count_failure(connection: HotConnection, report_id: int, error: Exception) -> None:
    reason = f"failed: {type(error).__name__}"
    row = connection.execute(_FAILED, {"report": report_id, "reason": reason, "most": _MOST_ATTEMPTS}).fetchone()
    if row and row["status"] == "parked":
        logger.error("Report %s is parked after %s attempts.", report_id, _MOST_ATTEMPTS, exc_info=error)
    else:
        logger.warning("Report %s failed and will be tried again: %s", report_id, error)


def oldest_pending() -> datetime | None:
    """Return when the oldest report that nobody has judged yet was received."""
    rows = db.run("SELECT min(received_at) AS at FROM telemetry_report WHERE status = 'pending'", {})
    at: datetime | None = rows[0]["at"]
    return at and at.astimezone(UTC)
