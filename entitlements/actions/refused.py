"""Read refusals: an account's last ones, who met what in a span of time, and how many met which limit by day."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any, Final
from uuid import UUID

from django.db import connection, transaction

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


# The span is read from the index by time alone; the last agent and trace only of the rows that are shown.
_BY_ACCOUNT: Final = """
WITH met AS (
    SELECT account_id, limit_type, sum(count) AS refusals, count(*) AS minutes,
           min(minute) AS first, max(minute) AS last
      FROM entitlements_denial
     WHERE minute >= %(since)s
       AND (%(accounts)s::uuid[] IS NULL OR account_id = ANY (%(accounts)s::uuid[]))
       AND (%(limit_type)s::text IS NULL OR limit_type = %(limit_type)s)
       AND (%(tier)s::text IS NULL OR tier = %(tier)s)
     GROUP BY account_id, limit_type
     ORDER BY refusals DESC, last DESC, account_id, limit_type LIMIT %(most)s
)
SELECT met.*, a.email, d.agent_id, d.trace_id, d.tier
  FROM met
  LEFT JOIN entitlements_account a ON a.id = met.account_id
  LEFT JOIN entitlements_denial d
         ON d.account_id = met.account_id AND d.limit_type = met.limit_type AND d.minute = met.last
 ORDER BY met.refusals DESC, met.last DESC, met.account_id, met.limit_type
"""
# Day by day, so that each fits into memory; OFFSET 0 keeps the planner from sorting by the database's collation.
# An account counts once a day and limit, however often it was refused: once under each tier that judged it, and for
# all tiers together where it is marked as the first of its rows.
_BY_DAY: Final = """
SELECT (d.start AT TIME ZONE 'UTC')::date AS day, f.*
  FROM generate_series(%(since)s::timestamptz, %(until)s::timestamptz, interval '24 hours') AS d(start)
 CROSS JOIN LATERAL (
    SELECT limit_type, tier, count(*) AS accounts, count(*) FILTER (WHERE is_first) AS firsts,
           sum(refusals) AS refusals
      FROM (SELECT limit_type, tier, refusals,
                   row_number() OVER (PARTITION BY account_id, limit_type) = 1 AS is_first
              FROM (SELECT limit_type COLLATE "C" AS limit_type, tier COLLATE "C" AS tier, account_id,
                           sum(count) AS refusals
                      FROM entitlements_denial
                     WHERE minute >= d.start AND minute < d.start + interval '24 hours'
                     GROUP BY 1, 2, 3 OFFSET 0) met) marked
     GROUP BY 1, 2) f
"""
# A month of everybody's refusals is grouped in memory; with the usual 4 MB it goes over the disk.
_ROOM: Final = "SET LOCAL work_mem = '64MB'"


def last_refusals(account_id: UUID, *, most: int = 10) -> list[Denied]:
    """Return the limits an account met last, one line per limit and minute, newest first."""
    rows = Denial.objects.filter(account_id=account_id).order_by("-minute", "limit_type")[:most]
    return [Denied(LimitType(d.limit_type), d.minute, d.count, d.agent_id, d.trace_id) for d in rows]


@dataclass(frozen=True)
class Met:
    """One limit that one account met in a span of time: how often, and by which tier it was judged last."""

    account_id: UUID
    email: str | None
    limit_type: LimitType
    refusals: int
    minutes: int
    first: datetime
    last: datetime
    tier: str
    agent_id: UUID | None
    trace_id: str


def refusals_by_account(
    since: datetime,
    *,
    accounts: Sequence[UUID] | None = None,
    limit_type: str | None = None,
    tier: str | None = None,
    most: int = 100,
) -> list[Met]:
    """Return who met which limit since an instant, the most refused first; of all accounts, or of these."""
    given = {
        "since": since, "accounts": None if accounts is None else list(accounts), "limit_type": limit_type,
        "tier": tier, "most": most,
    }  # fmt: skip
    return [
        Met(**{**row, "limit_type": LimitType(row["limit_type"]), "refusals": int(row["refusals"])})
        for row in _rows(_BY_ACCOUNT, given)
    ]


@dataclass(frozen=True)
class Figure:
    """How many accounts met one limit on one day (UTC), how often; by slug of tier, an empty one not recorded."""

    day: date
    limit_type: LimitType
    accounts: int
    refusals: int
    by_tier: Mapping[str, int]
    refusals_by_tier: Mapping[str, int]


def figures_by_day(since: datetime, until: datetime) -> list[Figure]:
    """Return the figures of every limit and day between, the newest day first; numbers and no names.

    `since` is a midnight (UTC); the day of `until` counts whole.
    """
    found: dict[tuple[date, LimitType], list[dict[str, Any]]] = defaultdict(list)
    for row in _rows(_BY_DAY, {"since": since, "until": until}):
        found[row["day"], LimitType(row["limit_type"])].append(row)
    order = {limit_type: place for place, limit_type in enumerate(LimitType)}
    return [
        Figure(
            day, limit_type, sum(row["firsts"] for row in rows), sum(int(row["refusals"]) for row in rows),
            {row["tier"]: row["accounts"] for row in rows}, {row["tier"]: int(row["refusals"]) for row in rows},
        )
        for (day, limit_type), rows in sorted(found.items(), key=lambda i: (-i[0][0].toordinal(), order[i[0][1]]))
    ]  # fmt: skip


def _rows(query: str, parameters: Mapping[str, Any]) -> list[dict[str, Any]]:
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(_ROOM)
        cursor.execute(query, parameters)
        names = [column.name for column in cursor.description or ()]
        return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
