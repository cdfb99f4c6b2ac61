"""Lists in pages: `limit` and an opaque `cursor` in, `items` and `nextCursor` out."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Generic, Literal, TypeVar

from django.core.exceptions import ValidationError
from django.db.models import BooleanField, Model, QuerySet
from django.db.models.expressions import RawSQL
from rest_framework import serializers
from rest_framework.response import Response

from webhost.errors import InvalidRequestError

_DEFAULT_PAGE = 25
_LARGEST_PAGE = 100
_LONGEST_CURSOR = 200

M = TypeVar("M", bound=Model)


class PageQuery(serializers.Serializer[Any]):
    """How much of a list, from where."""

    limit = serializers.IntegerField(required=False, default=_DEFAULT_PAGE, min_value=1, max_value=_LARGEST_PAGE)
    cursor = serializers.CharField(
        required=False,
        default="",
        allow_blank=True,
        max_length=_LONGEST_CURSOR,
        help_text="nextCursor of the page before.",
    )


@dataclass(frozen=True)
class Page(Generic[M]):
    """Some rows of a list, and where the next page starts."""

    items: list[M]
    next_cursor: str | None


@cache
def page_of(item: type[serializers.Serializer[Any]]) -> type[serializers.Serializer[Any]]:
    """Return the output serializer of a page of these items: items, nextCursor."""
    name = item.__name__.removesuffix("Output")
    return type(
        f"{name}Page",
        (serializers.Serializer,),
        {
            "__doc__": f"A page of {name}.",
            "items": item(many=True),
            "nextCursor": serializers.CharField(allow_null=True, help_text="Null on the last page."),
        },
    )


def paginate(
    rows: QuerySet[M], query: Mapping[str, Any], *, by: str | tuple[str, ...], last: M | None = None
) -> Page[M]:
    """Return one page of rows, newest first by fields that are unique together; flat in the length of the list.

    `query` is what PageQuery accepted; `last`, a row that is in no table, comes after all of them.
    Raises InvalidRequestError for a cursor that is not one of ours.
    """
    fields = (by,) if isinstance(by, str) else by
    limit: int = query["limit"]
    rows = rows_after(rows, query["cursor"], fields)
    found = list(rows.order_by(*(f"-{name}" for name in fields))[: limit + 1])
    if last is not None and len(found) <= limit:
        found.append(last)
    items = found[:limit]
    is_last = len(found) <= limit
    return Page(items, None if is_last else cursor_after(items[-1], fields))


def rows_after(rows: QuerySet[M], cursor: str, fields: tuple[str, ...]) -> QuerySet[M]:
    """Return the rows that come after a cursor, which may be empty; raises InvalidRequestError for none of ours."""
    if not cursor:
        return rows
    return rows_beside(rows, "<", place_of(rows, cursor, fields), fields)


def rows_beside(
    rows: QuerySet[M], side: Literal["<", ">="], place: Sequence[Any], fields: tuple[str, ...]
) -> QuerySet[M]:
    """Return the rows on one side of a place: values of the fields, compared as a row."""
    names = ", ".join(f"{rows.model._meta.db_table}.{name}" for name in fields)  # noqa: SLF001 - documented
    places = ", ".join(["%s"] * len(fields))
    # Compared as a row, the database goes straight to the place in the index.
    there = RawSQL(f"({names}) {side} ({places})", list(place), output_field=BooleanField())  # noqa: S611 - our own names
    return rows.filter(there)


def cursor_after(row: Model, fields: tuple[str, ...]) -> str:
    """Return the cursor of what comes after a row."""
    return _write_cursor([getattr(row, name) for name in fields])


def _write_cursor(values: list[Any]) -> str:
    return base64.urlsafe_b64encode(json.dumps([str(value) for value in values]).encode()).decode().rstrip("=")


def place_of(rows: QuerySet[Any], cursor: str, fields: tuple[str, ...]) -> list[Any]:
    """Return the values of the fields that a cursor names; raises InvalidRequestError for one that is none of ours."""
    try:
        padded = cursor.encode("ascii") + b"=" * (-len(cursor) % 4)
        texts = json.loads(base64.b64decode(padded, altchars=b"-_", validate=True))
        return [_value(rows, name, text) for name, text in zip(fields, texts, strict=True)]
    except (binascii.Error, ValueError, TypeError, ValidationError) as error:
        raise InvalidRequestError("This cursor is not one of ours.", path="cursor") from error


def _value(rows: QuerySet[Any], name: str, text: str) -> Any:
    field = rows.model._meta.get_field(name)  # noqa: SLF001 - documented
    value = field.to_python(text if isinstance(text, str) else None)
    if value is None:
        raise ValueError(name)
    field.run_validators(value)  # a number out of the column's range
    return value


def page_response(page: Page[Any], item: type[serializers.Serializer[Any]]) -> Response:
    """Answer with a page."""
    return Response({"items": item(page.items, many=True).data, "nextCursor": page.next_cursor})
