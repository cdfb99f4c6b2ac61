"""Close periods: a signed statement of each account's totals, and a restatement for what changed since."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import date, datetime
from typing import Any, Final

from django.db import transaction
from django.utils import timezone

from telemetry.models import UsageStatement
from telemetry.rules import CLOSES_AFTER
from webhost import db
from webhost.ids import Prefix, public_id
from webhost.period import key_of, period_of, previous_period
from webhost.signing import sign_settlement, verify_settlement

MEASURES: Final = ("requests", "tokens", "compute_ms", "tool_calls", "code_ms", "browser_sessions")
_BATCH: Final = 500
# Reports are taken for 35 days and staff may correct a little longer; older periods stand.
_RESTATED_MONTHS: Final = 4

# Counters whose period is over and whose totals are not what was stated last.
_UNSTATED = f"""
SELECT c.account_id, c.period, t.totals, s.number, s.totals AS stated, s.created_at,
       (SELECT j.reason FROM entitlements_adjustment j
         WHERE j.account_id = c.account_id AND j.period = c.period AND j.created_at > s.created_at
           AND j.actor <> 'retention' ORDER BY j.id DESC LIMIT 1) AS adjusted
  FROM entitlements_periodcounter c
 CROSS JOIN LATERAL (SELECT jsonb_build_object({", ".join(f"'{m}', c.used_{m}" for m in MEASURES)}) AS totals) t
  LEFT JOIN LATERAL (SELECT number, totals, created_at FROM telemetry_usagestatement s
                      WHERE s.account_id = c.account_id AND s.period = c.period ORDER BY number DESC LIMIT 1) s ON true
 WHERE c.period >= %(first)s AND c.period <= %(last)s AND c.in_flight = 0 AND s.totals IS DISTINCT FROM t.totals
 ORDER BY c.account_id, c.period LIMIT %(batch)s
"""  # noqa: S608 - composed of constants


def last_closed_period(at: datetime) -> date:
    """Return the latest period that is closed: one ends 72 hours into the next."""
    return previous_period(period_of(at - CLOSES_AFTER))


def first_restated_period(at: datetime) -> date:
    """Return the earliest period that is still restated when its totals change; those before it stand."""
    first = last_closed_period(at)
    for _ in range(_RESTATED_MONTHS):
        first = previous_period(first)
    return first


def payload_of(
    account_id: str, period: date, number: int, totals: Mapping[str, int], *, was: Mapping[str, int] | None, why: str
) -> str:
    """Return what is signed: canonical JSON, sorted and without spaces."""
    said = {"v": 1, "account": account_id, "period": key_of(period), "number": number, "totals": dict(totals)}
    if was is not None:
        said |= {"was": dict(was), "why": why}
    return json.dumps(said, sort_keys=True, separators=(",", ":"))


def close_periods(*, at: datetime | None = None) -> int:
    """Write a signed statement, or restatement, for each account whose closed period has none that fits.

    A correction changes no statement: it is a row of its own with old, new and why. Returns how many were
    written; a repeat writes none.
    """
    now = at or timezone.now()
    months = {"first": first_restated_period(now), "last": last_closed_period(now)}
    written = 0
    while rows := db.run(_UNSTATED, {**months, "batch": _BATCH}):
        added = sum(_state(row, now) for row in rows)
        written += added
        if not added:
            break  # somebody else is at it
    return written


def _state(row: Mapping[str, Any], now: datetime) -> bool:
    number = (row["number"] or 0) + 1
    why = ""
    if row["stated"] is not None:
        why = f"adjusted: {row['adjusted']}"[:300] if row["adjusted"] else "a late signed report"
    totals = {m: int(row["totals"][m]) for m in MEASURES}
    payload = payload_of(
        public_id(Prefix.ACCOUNT, row["account_id"]), row["period"], number, totals, was=row["stated"], why=why
    )
    with transaction.atomic():
        # Two at once: the number is unique, and the second one's statement is the first one's.
        _, created = UsageStatement.objects.get_or_create(
            account_id=row["account_id"],
            period=row["period"],
            number=number,
            defaults={
                "totals": totals,
                "reason": why,
                "payload": payload,
                "mac": sign_settlement(payload.encode()),
                "created_at": now,
            },
        )
    return created


def statement_stands(statement: UsageStatement) -> bool:
    """Say whether a statement still says what was signed."""
    said = json.loads(statement.payload) if verify_settlement(statement.payload.encode(), statement.mac) else {}
    return bool(
        said.get("account") == public_id(Prefix.ACCOUNT, statement.account_id)
        and said.get("period") == key_of(statement.period)
        and said.get("number") == statement.number
        and said.get("totals") == statement.totals
    )
