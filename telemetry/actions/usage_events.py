"""The signed reports of an account, newest first, however many there are: every branch goes along an index."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

from django.db import connection
from django.db.models import QuerySet

from runtimes.models import Deployment
from telemetry.models import Report, ReportStatus
from webhost.paging import Page, cursor_after, place_of

_BY: Final = ("id",)
_MOST_DEPLOYMENTS: Final = 1000
_AT_ONCE: Final = 200
_NOT_OWNED_YET: Final = (ReportStatus.PENDING, ReportStatus.PARKED)
_LARGEST_ID: Final = 2**63 - 1
# Neighbours may have come in another order than they were numbered in.
_DISORDER: Final = timedelta(minutes=5)

# Halves the account's reports until one is left: some twenty look-ups by its index, in one statement.
_FIRST_SINCE: Final = """
WITH RECURSIVE s(low, high) AS (
    SELECT min(id), max(id) + 1 FROM telemetry_report WHERE account_id = %(account)s
    UNION ALL
    SELECT CASE WHEN at < %(begin)s THEN middle + 1 ELSE low END, CASE WHEN at < %(begin)s THEN high ELSE middle END
      FROM (SELECT low, high, low + (high - low) / 2 AS middle,
                   (SELECT received_at FROM telemetry_report
                     WHERE account_id = %(account)s AND id >= low + (high - low) / 2 ORDER BY id LIMIT 1) AS at
              FROM s WHERE low < high) halves
)
SELECT low FROM s WHERE low >= high
"""
# An agent may be one of many: the newest of each of its deployments, and of those the newest.
_OF_DEPLOYMENTS: Final = """
SELECT r.id FROM unnest(%(deployments)s::uuid[]) AS d (id) CROSS JOIN LATERAL (
    SELECT id FROM telemetry_report
     WHERE deployment_id = d.id AND id < %(below)s AND id >= %(lowest)s
       AND (%(status)s::text IS NULL OR status = %(status)s)
       AND (%(since)s::timestamptz IS NULL OR received_at >= %(since)s)
       AND (%(until)s::timestamptz IS NULL OR received_at < %(until)s)
     ORDER BY id DESC LIMIT %(most)s) r
 ORDER BY r.id DESC LIMIT %(most)s
"""


@dataclass(frozen=True)
class EventFilter:
    """Which usage events: of one agent, with one status, received in `[since, until)`."""

    agent_id: UUID | None = None
    status: ReportStatus | None = None
    since: datetime | None = None
    until: datetime | None = None


def usage_events(account_id: UUID, chosen: EventFilter, query: Mapping[str, Any]) -> Page[Report]:
    """Return a page of an account's reports, without their bodies; `query` is what PageQuery accepted.

    One that was not judged yet belongs to nobody in its row: those of the account's own deployments are here too.
    Raises InvalidRequestError for a cursor that is not one of ours.
    """
    most = query["limit"] + 1
    below = place_of(Report.objects.all(), query["cursor"], _BY)[0] if query["cursor"] else _LARGEST_ID
    mine = Deployment.objects.filter(account_id=account_id)
    mine = mine.filter(agent_id=chosen.agent_id) if chosen.agent_id else mine
    # Named, not asked for within: only so the planner goes along the indexes of deployments.
    deployments = list(mine.order_by("-created_at").values_list("pk", flat=True)[:_MOST_DEPLOYMENTS])
    if chosen.agent_id and chosen.status in (None, ReportStatus.ACCEPTED):
        ids = _of_deployments(account_id, deployments, chosen, below, most)
    else:
        ids = _of_account(account_id, deployments, chosen, below, most)
    found = list(Report.objects.filter(pk__in=ids).defer("body", "signature").order_by("-id")[:most])
    items = found[: query["limit"]]
    return Page(items, cursor_after(items[-1], _BY) if len(found) > len(items) else None)


def _of_account(account_id: UUID, deployments: Sequence[UUID], chosen: EventFilter, below: int, most: int) -> list[int]:
    """Return the newest that are the account's, and of those that nobody owns yet the newest of its deployments."""
    lowest, highest = _ids_of(account_id, chosen)
    owned = Report.objects.filter(account_id=account_id, id__gte=lowest, id__lt=min(below, highest))
    if chosen.agent_id:
        owned = owned.filter(deployment_id__in=deployments)
    branches = [] if chosen.status in _NOT_OWNED_YET else [owned]
    for status in _NOT_OWNED_YET:
        if chosen.status in (None, status):
            free = Report.objects.filter(account_id=None, deployment_id__in=deployments, status=status, id__lt=below)
            branches.append(free)
    ids: set[int] = set()
    for branch in branches:
        ids.update(_newest(branch, chosen, most))
    return sorted(ids, reverse=True)[:most]


def _newest(rows: QuerySet[Report], chosen: EventFilter, most: int) -> list[int]:
    """Return the newest ids of a branch. Accepted are nearly all: they are picked from the newest of any status.

    Asked for by its status, that of a large account sends the planner along all accounts' reports by number.
    """
    wanted = _chosen(rows, chosen)
    if chosen.status == ReportStatus.ACCEPTED:
        newest = list(rows.order_by("-id").values_list("id", flat=True)[:_AT_ONCE])
        found = list(wanted.filter(pk__in=newest).order_by("-id").values_list("id", flat=True)[:most])
        if len(found) == most or len(newest) < _AT_ONCE:
            return found
    return list(wanted.order_by("-id").values_list("id", flat=True)[:most])


def _chosen(rows: QuerySet[Report], chosen: EventFilter) -> QuerySet[Report]:
    wanted = {"status": chosen.status, "received_at__gte": chosen.since, "received_at__lt": chosen.until}
    return rows.filter(**{name: value for name, value in wanted.items() if value is not None})


def _of_deployments(
    account_id: UUID, deployments: Sequence[UUID], chosen: EventFilter, below: int, most: int
) -> list[int]:
    lowest, highest = _ids_of(account_id, chosen)
    values: dict[str, Any] = {
        "deployments": list(deployments), "below": min(below, highest), "lowest": lowest, "status": chosen.status,
        "since": chosen.since, "until": chosen.until, "most": most,
    }  # fmt: skip
    with connection.cursor() as cursor:
        cursor.execute(_OF_DEPLOYMENTS, values)
        return [row[0] for row in cursor.fetchall()]


def _ids_of(account_id: UUID, chosen: EventFilter) -> tuple[int, int]:
    """Return between which ids the account's reports of a time are, generously; rows say the time exactly."""
    lowest = _first_since(account_id, chosen.since - _DISORDER) if chosen.since else 0
    highest = _first_since(account_id, chosen.until + _DISORDER) if chosen.until else _LARGEST_ID
    # None that is judged came later: what waits behind the last one may still be of that time.
    return lowest, highest if _is_there(account_id, highest) else _LARGEST_ID


def _is_there(account_id: UUID, report_id: int) -> bool:
    return Report.objects.filter(account_id=account_id, id=report_id).exists()


def _first_since(account_id: UUID, at: datetime) -> int:
    with connection.cursor() as cursor:
        cursor.execute(_FIRST_SINCE, {"account": account_id, "begin": at})
        found = cursor.fetchone()
    return int(found[0]) if found else 0
