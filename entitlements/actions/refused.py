"""Read an account's last refusals, for its own overview and for support."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final
from uuid import UUID

from entitlements.display import Denied
from entitlements.enums import LimitType
from entitlements.models import Denial
from webhost import db

# One range of the unique index per limit: an account that was hammered for years is not read from its beginning.
_LATELY: Final = """
SELECT t.limit_type, s.count, l.minute, l.agent_id, l.trace_id
  FROM unnest(%(types)s::text[]) t (limit_type)
 CROSS JOIN LATERAL (
    SELECT sum(count)::bigint AS count FROM entitlements_denial d
     WHERE d.account_id = %(account)s::uuid AND d.limit_type = t.limit_type AND d.minute >= %(since)s::timestamptz) s
 CROSS JOIN LATERAL (
    SELECT minute, agent_id, trace_id FROM entitlements_denial d
     WHERE d.account_id = %(account)s::uuid AND d.limit_type = t.limit_type AND d.minute >= %(since)s::timestamptz
     ORDER BY minute DESC LIMIT 1) l
 ORDER BY l.minute DESC, t.limit_type
"""
# The first refusal of each day and limit, newest first: two probes of the unique index per day that had any.
_FIRST_OF_DAYS: Final = """
SELECT d.id, t.limit_type, d.minute, d.count, d.agent_id, d.trace_id
  FROM unnest(%(types)s::text[]) t (limit_type)
 CROSS JOIN LATERAL (
    WITH RECURSIVE days AS (
        (SELECT date_trunc('day', minute, 'UTC') AS day FROM entitlements_denial
          WHERE account_id = %(account)s::uuid AND limit_type = t.limit_type AND minute < %(before)s::timestamptz
          ORDER BY minute DESC LIMIT 1)
        UNION ALL
        SELECT (SELECT date_trunc('day', minute, 'UTC') FROM entitlements_denial
                 WHERE account_id = %(account)s::uuid AND limit_type = t.limit_type AND minute < days.day
                 ORDER BY minute DESC LIMIT 1)
          FROM days WHERE days.day IS NOT NULL)
    SELECT f.* FROM days CROSS JOIN LATERAL (
        SELECT id, minute, count, agent_id, trace_id FROM entitlements_denial
         WHERE account_id = %(account)s::uuid AND limit_type = t.limit_type
           AND minute >= days.day AND minute < days.day + interval '1 day'
         ORDER BY minute LIMIT 1) f
     LIMIT %(most)s) d
 ORDER BY d.minute DESC, d.id DESC LIMIT %(most)s
"""


@dataclass(frozen=True)
class RefusedLately:
    """How often one limit refused since some instant, with the last minute, agent and trace."""

    limit_type: LimitType
    count: int
    minute: datetime
    agent_id: UUID | None
    trace_id: str


def refused_since(account_id: UUID, since: datetime) -> Sequence[RefusedLately]:
    """Return the limits an account met since an instant, one line per limit, the last met first."""
    rows = db.run(_LATELY, {"account": account_id, "since": since, "types": [t.value for t in LimitType]})
    return [RefusedLately(**row | {"limit_type": LimitType(row["limit_type"])}) for row in rows]


@dataclass(frozen=True)
class FirstOfDay:
    """The first minute of a day in which a limit refused."""

    id: int
    limit_type: LimitType
    minute: datetime
    count: int
    agent_id: UUID | None
    trace_id: str


def first_refusals(account_id: UUID, before: datetime, *, most: int) -> Sequence[FirstOfDay]:
    """Return the first refusal of each day and limit before an instant, newest first."""
    rows = db.run(
        _FIRST_OF_DAYS,
        {"account": account_id, "before": before, "types": [t.value for t in LimitType], "most": most},
    )
    return [FirstOfDay(**row | {"limit_type": LimitType(row["limit_type"])}) for row in rows]


def last_refusals(account_id: UUID, *, most: int = 10) -> list[Denied]:
    """Return the limits an account met last, one line per limit and minute, newest first."""
    rows = Denial.objects.filter(account_id=account_id).order_by("-minute", "limit_type")[:most]
    return [Denied(LimitType(d.limit_type), d.minute, d.count, d.agent_id, d.trace_id) for d in rows]
