"""The receipts of invocations: what was decided, by which limits, what was used, how it ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

from django.db.models import QuerySet

from entitlements.enums import Outcome
from entitlements.models import Admission
from runtimes.models import Agent
from webhost.errors import InvalidRequestError, NotFoundError
from webhost.ids import first_id_since
from webhost.paging import cursor_after, paginate, rows_after, rows_beside
from webhost.period import period_of

# What leads the index of an account's receipts.
PLACE: Final = ("period", "id")
_MOST_LOOKED_AT: Final = 20_000
_LATEST: Final = timedelta(hours=73)


@dataclass(frozen=True)
class ReceiptFilter:
    """Which receipts: of one agent, with one outcome, admitted in `[since, until)`."""

    agent_id: UUID | None = None
    outcome: Outcome | None = None
    since: datetime | None = None
    until: datetime | None = None


def receipts_of(account_id: UUID, chosen: ReceiptFilter) -> QuerySet[Admission]:
    """Return an account's receipts, to be listed by period and id, which lead its index.

    Raises NotFoundError for an agent that is not the account's, InvalidRequestError for an empty span.
    """
    if chosen.since and chosen.until and chosen.until <= chosen.since:
        raise InvalidRequestError("`to` is after `from`.", path="to")
    # A deleted agent keeps its receipts.
    if chosen.agent_id and not Agent.objects.filter(pk=chosen.agent_id, account_id=account_id).exists():
        raise NotFoundError
    wanted: dict[str, Any] = {"agent_id": chosen.agent_id, "outcome": chosen.outcome}
    found = Admission.objects.filter(account_id=account_id, **{k: v for k, v in wanted.items() if v is not None})
    # The period leads the index, so a span of time is one of periods too.
    if chosen.since:
        found = found.filter(admitted_at__gte=chosen.since, period__gte=period_of(chosen.since))
    if chosen.until:
        found = found.filter(admitted_at__lt=chosen.until, period__lte=period_of(chosen.until))
    return found


def receipt_of(account_id: UUID, invocation_id: UUID) -> Admission:
    """Return one receipt; raises NotFoundError for nobody's and somebody else's alike."""
    receipt = Admission.objects.filter(pk=invocation_id, account_id=account_id).first()
    if receipt is None:
        raise NotFoundError
    return receipt


def receipts_of_trace(account_id: UUID, trace_id: str) -> QuerySet[Admission]:
    """Return an account's receipts of one trace id, which are few."""
    # Named a second time as the index of trace ids has it: without the empty ones.
    return Admission.objects.filter(account_id=account_id, trace_id=trace_id).exclude(trace_id="")


@dataclass(frozen=True)
class Found:
    """A page of what was found, where to go on, and how far back was looked; None: to the end of the page."""

    items: list[Admission]
    next_cursor: str | None
    looked_back_to: datetime | None = None


def find_receipts(account_id: UUID, chosen: ReceiptFilter, query: Mapping[str, Any]) -> Found:
    """Return a page of receipts, however rare what is looked for: a page looks through 20,000 and says so.

    An index for each filter would be written with every invocation. Raises as receipts_of and paginate do.
    """
    wanted = receipts_of(account_id, chosen)
    edge = None if chosen == ReceiptFilter() else _edge(account_id, chosen, query["cursor"])
    if edge is None:
        page = paginate(wanted, query, by=PLACE)
        return Found(page.items, page.next_cursor)
    page = paginate(rows_beside(wanted, ">=", [edge.period, edge.id], PLACE), query, by=PLACE)
    if page.next_cursor is not None:
        return Found(page.items, page.next_cursor)
    return Found(page.items, cursor_after(edge, PLACE), edge.admitted_at)


def _edge(account_id: UUID, chosen: ReceiptFilter, cursor: str) -> Admission | None:
    """Return the last receipt that one page looks at, None where it looks at all; counted by the index alone."""
    rows = Admission.objects.filter(account_id=account_id)
    rows = rows.filter(period__gte=period_of(chosen.since)) if chosen.since else rows
    if chosen.until:
        # Begun at the end of the span: ids tell when they were made, and a report may tell of a call 72 hours late.
        rows = rows.filter(period__lte=period_of(chosen.until), id__lt=first_id_since(chosen.until + _LATEST))
    ahead = rows_after(rows, cursor, PLACE).order_by("-period", "-id").values_list("id", flat=True)
    ends = list(ahead[_MOST_LOOKED_AT - 1 : _MOST_LOOKED_AT + 1])
    return Admission.objects.get(pk=ends[0]) if len(ends) > 1 else None
