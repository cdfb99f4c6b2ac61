"""Tell what entries of the audit log changed: old and new values for people, and rows by the names they had."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from functools import cache
from typing import Any, Final

from django.apps import apps
from django.contrib.auth.models import Group
from django.db import connection, models
from pghistory.core import event_models
from pghistory.models import Context

from entitlements.models import Account, HistoryEntry, Tier

VERBS: Final[Mapping[str, str]] = {
    "insert": "created", "update": "changed", "delete": "deleted", "stop": "stopped",
}  # fmt: skip
# What names a row to people, whatever kind it is; the history's own name column is for searching.
_NAMES: Final = ("email", "name", "key", "price_id", "session_id", "address", "runtime", "version", "reason")
# Columns that move with everything else and tell a reader nothing.
_NOISE: Final = frozenset({"version"})
_LIMITS: Final = frozenset({"requests_per_minute", "value"})
_OF_HISTORY: Final = frozenset({"pgh_id", "pgh_created_at", "pgh_label", "pgh_obj_id", "pgh_context_id"})
_MEMBERSHIP: Final = "entitlements.GroupMembership"
# What each row was before: the entry that precedes in its own history, one index look each.
_BEFORE: Final = f"""
SELECT w.key, b.data FROM unnest(%s::text[], %s::text[], %s::text[], %s::int[]) AS w(key, kind, object_id, event_id)
 CROSS JOIN LATERAL (SELECT data FROM {HistoryEntry._meta.db_table} h
                      WHERE h.kind = w.kind AND h.object_id = w.object_id AND h.event_id < w.event_id
                      ORDER BY h.event_id DESC LIMIT 1) b
"""  # noqa: S608, SLF001 - the view's own name


@dataclass(frozen=True)
class Change:
    """One column, before and after, ready to show."""

    column: str
    label: str
    old: str
    new: str


@dataclass(frozen=True)
class Told:
    """One entry, ready to show."""

    entry: HistoryEntry
    kind: str
    name: str
    verb: str
    account: str
    actor: str
    reason: str
    source: str
    notes: Mapping[str, Any]
    changes: tuple[Change, ...]
    state: tuple[tuple[str, str], ...]


def tell(entries: Sequence[HistoryEntry]) -> list[Told]:
    """Return entries ready to show; a handful of queries, however many there are."""
    before = _before([e for e in entries if e.verb != "insert"])
    contexts = Context.objects.in_bulk({e.context_id for e in entries if e.context_id is not None})
    names = _Names([*(e.data for e in entries), *before.values()])
    return [_told(entry, before.get(entry.key), contexts.get(entry.context_id), names) for entry in entries]


def _told(entry: HistoryEntry, before: Mapping[str, Any] | None, context: Context | None, names: _Names) -> Told:
    notes: Mapping[str, Any] = context.metadata if context is not None else {}
    columns = _columns(entry.kind)
    data = {name: value for name, value in entry.data.items() if name not in _OF_HISTORY}
    changes: list[Change] = []
    if entry.verb not in {"insert", "delete"} and before is not None:
        changed = [n for n in sorted(data) if n in before and before[n] != data[n] and n not in _NOISE]
        changes = [
            Change(n, _label(columns, n), names.shown(columns, n, before[n]), names.shown(columns, n, data[n]))
            for n in changed
        ]
    return Told(
        entry=entry,
        kind=_kind(entry.kind),
        name=names.row(entry),
        verb=VERBS.get(entry.verb, entry.verb),
        account=names.account(entry.account_id) if entry.account_id else "",
        actor=str(notes.get("actor") or _nobody(str(notes.get("source") or ""))),
        reason=str(notes.get("reason") or "no reason given"),
        source=str(notes.get("source") or "not recorded"),
        notes=notes,
        changes=tuple(changes),
        state=tuple((_label(columns, name), names.shown(columns, name, data[name])) for name in sorted(data)),
    )


def _nobody(source: str) -> str:
    """Say who it was where nobody is named."""
    if source in {"page", "api"}:
        return "somebody not signed in"
    return "the platform" if source else "not recorded"


def _before(entries: Iterable[HistoryEntry]) -> dict[str, Mapping[str, Any]]:
    asked = [(e.key, e.kind, e.object_id, e.event_id) for e in entries]
    if not asked:
        return {}
    with connection.cursor() as cursor:
        cursor.execute(_BEFORE, [list(column) for column in zip(*asked, strict=True)])
        found = cursor.fetchall()
    return {key: json.loads(data) for key, data in found}


@cache
def _columns(kind: str) -> Mapping[str, models.Field[Any, Any]]:
    """Return the columns that a kind's history has, or had, by their names."""
    histories: list[Any] = event_models()
    found = [h for h in histories if h.pgh_tracked_model._meta.label == kind]  # noqa: SLF001 - documented
    return {f.column: f for event in found for f in event._meta.concrete_fields}  # noqa: SLF001 - documented


def _label(columns: Mapping[str, models.Field[Any, Any]], name: str) -> str:
    field = columns.get(name)
    return str(field.verbose_name) if field is not None else name.removesuffix("_id").replace("_", " ")


def _kind(kind: str) -> str:
    if kind == _MEMBERSHIP:
        return "group"
    try:
        return str(apps.get_model(kind)._meta.verbose_name)  # noqa: SLF001 - documented
    except LookupError:
        return kind  # of a table that is no longer tracked


class _Names:
    """The names of what rows point to, as they are now or were last: read once for all rows of a page."""

    def __init__(self, rows: Iterable[Mapping[str, Any]]) -> None:
        rows = list(rows)
        accounts = {str(row[c]) for row in rows for c in ("account_id", "created_by_id") if row.get(c)}
        tiers = {row[c] for row in rows for c in ("tier_id", "billing_tier_id", "support_tier_id") if row.get(c)}
        groups = {row["group_id"] for row in rows if row.get("group_id")}
        self._accounts = {str(pk): email for pk, email in _of(Account, accounts, "email")}
        self._tiers = dict(_of(Tier, tiers, "name"))
        self._groups = dict(_of(Group, groups, "name"))
        self._accounts |= _gone("entitlements.Account", accounts - self._accounts.keys(), "email")
        gone = _gone("entitlements.Tier", {str(pk) for pk in tiers - self._tiers.keys()}, "name")
        self._tiers |= {int(pk): f"{name} (deleted)" for pk, name in gone.items()}

    def account(self, pk: Any) -> str:
        """Name an account, also one that is gone."""
        return str(self._accounts.get(str(pk), pk))

    def row(self, entry: HistoryEntry) -> str:
        """Name a row as it was then."""
        data = entry.data
        if entry.kind == _MEMBERSHIP:
            return f"{self._groups.get(data['group_id'], data['group_id'])} of {self.account(data['account_id'])}"
        return next((str(data[name]) for name in _NAMES if data.get(name) not in (None, "")), entry.object_id)

    def shown(self, columns: Mapping[str, models.Field[Any, Any]], name: str, value: Any) -> str:
        """Show a stored value: an empty limit is unlimited, an empty anything else is nothing."""
        field = columns.get(name)
        related = field.related_model if field is not None else None
        if value is None:
            return "unlimited" if name.startswith("max_") or name in _LIMITS else "none"
        if related is Tier:
            return str(self._tiers.get(value, f"tier {value} (deleted)"))
        if related is Account or name == "account_id":
            return self.account(value)
        return _plain(field, value)


def _plain(field: Any, value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(field, models.DateTimeField):
        return f"{datetime.fromisoformat(value):%Y-%m-%d %H:%M:%S}"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{Decimal(str(value)):,f}"
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    return str(value) if value != "" else "empty"


def _of(model: Any, pks: set[Any], name: str) -> Iterable[tuple[Any, str]]:
    found: Iterable[tuple[Any, str]] = model.objects.filter(pk__in=pks).values_list("pk", name) if pks else ()
    return found


def _gone(kind: str, pks: Iterable[str], name: str) -> dict[str, str]:
    """Return what rows were last called that are no longer there."""
    missing = list(pks)
    if not missing:
        return {}
    last = HistoryEntry.objects.filter(kind=kind, object_id__in=missing, verb="delete").order_by("event_id")
    return {entry.object_id: str(entry.data[name]) for entry in last}
