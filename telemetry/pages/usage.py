"""What an account used in any month or days of one, by agent, deployment, runtime or day; the same as CSV."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any, Final
from urllib.parse import urlencode
from uuid import UUID

from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse, HttpResponseBase, HttpResponseRedirect, StreamingHttpResponse
from django.shortcuts import render
from django.urls import path
from django.utils import timezone
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET

from entitlements.display import RUNTIME_NAMES
from entitlements.enums import Runtime
from entitlements.models import PeriodCounter
from entitlements.whose import account_of
from runtimes.models import Agent, Deployment
from runtimes.pages.frame import Refused
from telemetry import rules
from telemetry.actions.breakdown import MEASURES, Breakdown, Days, Group, Line, breakdown_of, month_of
from telemetry.display import dollars
from webhost.charts import Chart, Series
from webhost.errors import InvalidRequestError
from webhost.ids import Prefix, public_id
from webhost.period import key_of, parse_key, period_of
from webhost.spreadsheet import csv_lines

_MOST_LINES: Final = 200  # on a page; the file has them all
_ASKS: Final = ("period", "from", "to", "by")
_HEADINGS: Final = {
    "requests": "Requests", "tokens": "Tokens", "compute_ms": "Compute (ms)", "tool_calls": "Tool calls",
    "code_ms": "Code execution (ms)", "browser_sessions": "Browser sessions",
}  # fmt: skip
_GROUPS: Final = {Group.AGENT: "Agent", Group.DEPLOYMENT: "Deployment", Group.RUNTIME: "Runtime", Group.DAY: "Day"}


@dataclass(frozen=True)
class Row:
    """One line of the table: what it stands for, its public id where there is one, where it leads, its sums."""

    name: str
    line: Line
    id: str = ""
    href: str = ""

    @property
    def figures(self) -> list[tuple[str, int]]:
        """Return each heading with its figure."""
        named = [(heading, getattr(self.line.quantities, m)) for m, heading in _HEADINGS.items()]
        return [*named, ("Errors", self.line.errors)]

    @property
    def cost(self) -> str:
        """The estimated cost."""
        return dollars(self.line.cost)


@never_cache
@login_required
@require_GET
def show_usage(request: HttpRequest) -> HttpResponse:
    """Show lines that add up to what the ledger counts, a chart by day, and where the file is."""
    account = account_of(request)
    group, refused = _group(request), None
    try:
        days = _days(request)
    except InvalidRequestError as error:
        refused, days = Refused("days", error), _month_at_least(request)
    found = breakdown_of(account.pk, days, group)
    rows = _rows(account.pk, found, group)
    context: dict[str, Any] = {
        "days": days,
        "periods": _periods(account.pk, days.period),
        "given": {name: request.GET.get(name, "")[:10] for name in ("from", "to")},
        "groups": [(g.value, heading.lower()) for g, heading in _GROUPS.items()],
        "group": group.value,
        "heading": _GROUPS[group],
        "headings": [*_HEADINGS.values(), "Errors"],
        "rows": rows[:_MOST_LINES],
        "hidden": max(len(rows) - _MOST_LINES, 0),
        "extra": _extra_rows(found),
        "total": Row("Total", found.total),
        "is_empty": found.is_empty,
        "charts": [] if found.is_empty else _charts(found),
        "file": "" if refused else f"/usage/csv/?{_query(days, group)}",
        "refused": refused,
    }
    return render(request, "telemetry/usage.html", context)


@never_cache
@login_required
@require_GET
def download_usage(request: HttpRequest) -> HttpResponseBase:
    """Send the same table as CSV, line by line; what cannot be answered goes back to the page, which says why."""
    account, group = account_of(request), _group(request)
    try:
        days = _days(request)
    except InvalidRequestError:
        given = {name: request.GET[name][:40] for name in _ASKS if name in request.GET}
        return HttpResponseRedirect(f"/usage/?{urlencode(given)}")
    found = breakdown_of(account.pk, days, group)
    rows = [*_rows(account.pk, found, group), *_extra_rows(found), Row("Total", found.total)]
    answer = StreamingHttpResponse(csv_lines(_cells(rows, group)), content_type="text/csv; charset=utf-8")
    span = key_of(days.period) if days.is_month else f"{days.first}-to-{days.last}"
    answer["Content-Disposition"] = f'attachment; filename="usage-{span}-by-{group.value}.csv"'
    return answer


# --- What is asked for -------------------------------------------------------------------------------


def _group(request: HttpRequest) -> Group:
    asked = request.GET.get("by", "")
    return Group(asked) if asked in list(Group) else Group.AGENT


def _days(request: HttpRequest) -> Days:
    """Read the month and the days within it; raises InvalidRequestError."""
    month = _month(request)
    first, last = _day(request, "from", month.first), _day(request, "to", month.last)
    for name, day in (("from", first), ("to", last)):
        if not month.first <= day <= month.last:
            said = f"{day} is not in {key_of(month.period)}. Leave both days empty for the whole month."
            raise InvalidRequestError(said, path=name)
    if first > last:
        raise InvalidRequestError("The first day is not after the last.", path="to")
    return Days(first, last)


def _month(request: HttpRequest) -> Days:
    text = request.GET.get("period", "")
    return month_of(parse_key(text) if text else period_of(timezone.now()))


def _month_at_least(request: HttpRequest) -> Days:
    """Return the month where only the days are wrong, else the present one."""
    try:
        return _month(request)
    except InvalidRequestError:
        return month_of(period_of(timezone.now()))


def _day(request: HttpRequest, name: str, default: date) -> date:
    text = request.GET.get(name, "")
    try:
        return date.fromisoformat(text) if text else default
    except ValueError:
        raise InvalidRequestError("A day reads 2026-11-30.", path=name) from None


def _query(days: Days, group: Group) -> str:
    asked = {"period": key_of(days.period), "by": group.value}
    return urlencode(asked if days.is_month else asked | {"from": str(days.first), "to": str(days.last)})


def _periods(account_id: UUID, shown: date) -> list[tuple[str, date]]:
    """Return the months with usage, the present and the shown one, the newest first."""
    used = PeriodCounter.objects.filter(account_id=account_id).values_list("period", flat=True)
    return [(key_of(p), p) for p in sorted({*used, shown, period_of(timezone.now())}, reverse=True)]


# --- What is shown -----------------------------------------------------------------------------------


def _rows(account_id: UUID, found: Breakdown, group: Group) -> list[Row]:
    """Name each line; what was used most comes first, days in their order."""
    if group is Group.DAY:
        return [Row(day, found.lines[day]) for day in sorted(found.lines)]
    named = _NAMERS[group](account_id, found)
    return sorted(named, key=lambda row: (-row.line.quantities.requests, row.name, row.id))


def _runtimes(_: UUID, found: Breakdown) -> list[Row]:
    return [Row(RUNTIME_NAMES[Runtime(key)], line) for key, line in found.lines.items()]


def _agents(account_id: UUID, found: Breakdown) -> list[Row]:
    # The account's own only: a name of somebody else's never shows.
    own = Agent.objects.filter(account_id=account_id, pk__in=list(found.lines)).only("name", "deleted_at")
    known = {str(agent.pk): agent for agent in own}
    rows = []
    for key, line in found.lines.items():
        agent, id_ = known.get(key), public_id(Prefix.AGENT, UUID(key))
        is_kept = agent is not None and agent.deleted_at is None
        name = agent.name if agent is not None else id_
        rows.append(
            Row(name if is_kept else f"{name} (deleted)", line, id_, f"/agents/{id_}/metrics/" if is_kept else "")
        )
    return rows


def _deployments(account_id: UUID, found: Breakdown) -> list[Row]:
    own = Deployment.objects.filter(account_id=account_id, agent__account_id=account_id, pk__in=list(found.lines))
    known = {str(d.pk): d for d in own.select_related("agent").only("version", "agent__name", "agent__deleted_at")}
    rows = []
    for key, line in found.lines.items():
        deployment, id_ = known.get(key), public_id(Prefix.DEPLOYMENT, UUID(key))
        if deployment is None:
            rows.append(Row(f"{id_} (deleted)", line, id_))
            continue
        agent = deployment.agent
        name = f"{agent.name}, version {deployment.version}"
        is_kept = agent.deleted_at is None
        href = f"/agents/{agent.public_id}/metrics/?range=day&deployment={id_}" if is_kept else ""
        rows.append(Row(name if is_kept else f"{name} (deleted)", line, id_, href))
    return rows


_NAMERS: Final = {Group.AGENT: _agents, Group.DEPLOYMENT: _deployments, Group.RUNTIME: _runtimes}


def _extra_rows(found: Breakdown) -> list[Row]:
    extra = [Row("Still running", found.running), Row("Adjusted by support", found.adjusted)]
    return [row for row in extra if any(getattr(row.line.quantities, m) for m in MEASURES)]


def _charts(found: Breakdown) -> list[Chart]:
    days = list(found.days)
    times = [Days(day, day).start for day in days]
    lines = [found.by_day.get(day, Line(rules.Quantities())) for day in days]
    return [
        Chart("requests", "Requests and errors by day", times, [
            Series("Requests", [line.quantities.requests for line in lines]),
            Series("Errors", [line.errors for line in lines]),
        ]),
        Chart("tokens", "Tokens by day", times, [Series("Tokens", [line.quantities.tokens for line in lines])]),
    ]  # fmt: skip


def _cells(rows: Sequence[Row], group: Group) -> Iterator[Iterable[object]]:
    yield [_GROUPS[group], "Id", *_HEADINGS.values(), "Errors", "Cost (USD, estimated)"]
    for row in rows:
        yield [row.name, row.id, *(figure for _, figure in row.figures), rules.exact(row.line.cost)]


urlpatterns = [
    path("usage/", show_usage, name="usage_page"),
    path("usage/csv/", download_usage, name="usage_csv"),
]
