"""What every list shares: counts that end, and filters by time that an index answers, however long the table is."""

from __future__ import annotations

from datetime import datetime, timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Final, cast

from django.contrib import admin
from django.core.paginator import Paginator
from django.db import connection
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils import timezone

from webhost.ids import first_id_since
from webhost.period import period_of

# Generic for the type checker only.
if TYPE_CHECKING:
    _Paginator = Paginator[Any]
else:
    _Paginator = Paginator


class BoundedPaginator(_Paginator):
    """Counts no further than anybody turns pages: some tables have a row for every invocation."""

    most = 10_000

    @cached_property
    def count(self) -> int:
        """Return how many there are, or the most that are shown."""
        rows = cast("QuerySet[Any]", self.object_list)
        return rows[: self.most].count()


LAST_HOUR, LAST_DAY, LAST_WEEK, THIS_MONTH = "hour", "day", "week", "month"
SPANS: Final = {
    LAST_HOUR: "Last hour",
    LAST_DAY: "Last 24 hours",
    LAST_WEEK: "Last 7 days",
    THIS_MONTH: "This month",
}
_LENGTHS: Final = {LAST_HOUR: timedelta(hours=1), LAST_DAY: timedelta(days=1), LAST_WEEK: timedelta(days=7)}


def begin_of(span: str, now: datetime) -> datetime | None:
    """Return when a span begins, None where it is none of ours; a month is the calendar's, in UTC."""
    if span == THIS_MONTH:
        first = period_of(now)
        return now.replace(month=first.month, day=1, hour=0, minute=0, second=0, microsecond=0)
    return now - _LENGTHS[span] if span in _LENGTHS else None


class SinceFilter(admin.SimpleListFilter):
    """Filter by how long ago it was, through an indexed column."""

    title = "when"
    parameter_name = "since"
    column: ClassVar[str] = ""

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        """Offer every span."""
        return list(SPANS.items())

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """Keep what is not older."""
        begin = begin_of(self.value() or "", timezone.now())
        return queryset if begin is None else self.since(queryset, begin)

    def since(self, rows: QuerySet[Any], begin: datetime) -> QuerySet[Any]:
        """Keep the rows from an instant on."""
        return rows.filter(**{f"{self.column}__gte": begin})


def since(by: str) -> type[SinceFilter]:
    """Return a filter by an indexed column of times."""
    return type("SinceFilter", (SinceFilter,), {"column": by})


class SinceByIdFilter(SinceFilter):
    """The same for rows whose primary key is a UUIDv7: it holds the time, so its own index answers."""

    def since(self, rows: QuerySet[Any], begin: datetime) -> QuerySet[Any]:
        """Keep the ids that were made from then on."""
        return rows.filter(pk__gte=first_id_since(begin))


# Halves the range of ids until one is left: some twenty look-ups by primary key, in one statement.
_FIRST_SERIAL = """
WITH RECURSIVE s(low, high) AS (
    SELECT min(id), max(id) + 1 FROM {table}
    UNION ALL
    SELECT CASE WHEN at < %(begin)s THEN middle + 1 ELSE low END, CASE WHEN at < %(begin)s THEN high ELSE middle END
      FROM (SELECT low, high, low + (high - low) / 2 AS middle,
                   (SELECT {column} FROM {table} WHERE id >= low + (high - low) / 2 ORDER BY id LIMIT 1) AS at
              FROM s WHERE low < high) halves
)
SELECT low FROM s WHERE low >= high
"""


class SinceBySerialFilter(SinceFilter):
    """The same for rows that are numbered as they come: the first number of a time is searched for by halves."""

    def since(self, rows: QuerySet[Any], begin: datetime) -> QuerySet[Any]:
        """Keep the numbers that were given from then on."""
        names = {"table": rows.model._meta.db_table, "column": self.column}  # noqa: SLF001 - documented
        with connection.cursor() as cursor:
            cursor.execute(_FIRST_SERIAL.format(**names), {"begin": begin})  # names of our own model
            found = cursor.fetchone()
        # The time as well: neighbours may have come in another order than they were numbered in.
        return rows.filter(pk__gte=found[0], **{f"{self.column}__gte": begin}) if found else rows.none()


def since_by_serial(column: str) -> type[SinceFilter]:
    """Return a filter by a column of times that rises with the row's number."""
    return type("SinceFilter", (SinceBySerialFilter,), {"column": column})


class FixedFilter(admin.SimpleListFilter):
    """Filter by one of the values that a column may have, without asking the table which it has."""

    column: ClassVar[str] = ""
    values: ClassVar[tuple[str, ...]] = ()

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        """Offer what there may be."""
        return [(value, value.replace("_", " ")) for value in self.values]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """Keep one value."""
        return queryset.filter(**{self.column: self.value()}) if self.value() in self.values else queryset


def one_of(column: str, values: tuple[str, ...], title: str) -> type[FixedFilter]:
    """Return a filter by a column's known values."""
    return type("OneOfFilter", (FixedFilter,), {
        "column": column, "values": values, "title": title, "parameter_name": column,
    })  # fmt: skip


class GivenFilter(admin.SimpleListFilter):
    """A filter that comes from a link, and is shown only while it is on."""

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        """Offer what the link gave."""
        given = request.GET.get(self.parameter_name or "")
        return [(given, given)] if given else []
