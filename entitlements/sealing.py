"""Seal the history: what every table of it has, whatever app it is of and whenever it came (docs/adr/0019).

Run after every migrate. It makes what is missing and leaves the rest alone, so a tracked model that is new needs
nothing of its own, and what a library put in the place of ours is ours again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from django.db import connection, transaction
from django.db.models import Model
from pghistory.core import event_models

from entitlements.models import Account, HistoryEntry, Tier

_FUNCTIONS: Final = (Path(__file__).parent / "history.sql").read_text()
_VIEW: Final = HistoryEntry._meta.db_table  # noqa: SLF001 - documented
_LOCK: Final = 0x41554449  # of two migrations at once the second waits
# What names a row to people, whatever kind it is: the first of these that it has.
_NAMES: Final = ("email", "name", "key", "price_id", "address", "session_id", "runtime")
_MOST_TIERS: Final = 2  # an account has two
_CONTEXT: Final = "pghistory_context"
_CONTEXT_INDEXES: Final = {
    "history_context_at": "(created_at, id)",
    "history_context_actor": "((metadata ->> 'actor'), created_at, id)",
    "history_context_source": "((metadata ->> 'source'))",
    "history_context_door": "(split_part(metadata ->> 'source', ' ', 1), created_at, id)",
    "history_context_trace": "((metadata ->> 'trace'))",
    "history_context_token": "((metadata ->> 'token'))",
    "history_context_reason": "USING gin (to_tsvector('simple', coalesce(metadata ->> 'reason', '')))",
}


@dataclass(frozen=True)
class Shape:
    """One table of history, and which of its columns mean what. Empty where it has no such column."""

    table: str
    tracked_table: str
    event_label: str
    kind: str
    object_id: str
    account: str
    tiers: tuple[str, ...]
    name: str


def shapes() -> list[Shape]:
    """Return every table of history of every app."""
    models: list[Any] = event_models()
    return sorted((_shape(model) for model in models), key=lambda shape: shape.kind)


def _shape(model: Any) -> Shape:
    tracked: type[Model] = model.pgh_tracked_model
    fields: dict[str, Any] = {f.name: f for f in model._meta.concrete_fields}  # noqa: SLF001 - documented
    accounts = [f.column for name, f in fields.items() if name in {"account", "account_id"}]
    tiers = [f.column for f in fields.values() if f.related_model is Tier and f.name != "pgh_obj"]
    return Shape(
        table=model._meta.db_table,  # noqa: SLF001 - documented
        tracked_table=tracked._meta.db_table,  # noqa: SLF001 - documented
        event_label=model._meta.label,  # noqa: SLF001 - documented
        kind=tracked._meta.label,  # noqa: SLF001 - documented
        object_id="pgh_obj_id" if "pgh_obj" in fields else "id",
        account="id" if tracked is Account else next(iter(accounts), ""),
        tiers=("id",) if tracked is Tier else tuple(tiers[:_MOST_TIERS]),
        name=next((fields[name].column for name in _NAMES if name in fields), ""),
    )


def seal_history() -> None:
    """Make functions, guards, the view over all history and its indexes as they are to be. Safe to repeat."""
    found = shapes()
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(%s)", [_LOCK])
        cursor.execute(_FUNCTIONS)
        _make_view(cursor, found)
        for statement in _missing_guards(cursor, found):
            cursor.execute(statement)
    with connection.cursor() as cursor:
        cursor.execute("SELECT indexname FROM pg_indexes WHERE schemaname = 'public'")
        existing = {name for (name,) in cursor.fetchall()}
        for name, on in _indexes(found):
            if name not in existing:
                # Beside everybody's work: the tables may be large.
                cursor.execute(f"CREATE INDEX CONCURRENTLY IF NOT EXISTS {name} ON {on}")


# --- The view -------------------------------------------------------------------------------------


def view_sql(found: list[Shape]) -> str:
    """Return the view over all history: plain UNION ALL, so that a page reads 50 rows of each index and no more."""
    return f"CREATE VIEW {_VIEW} AS\n" + "\nUNION ALL\n".join(_branch(shape) for shape in found)


def _branch(shape: Shape) -> str:
    tiers = [f"e.{column}" for column in shape.tiers] + ["NULL"] * (_MOST_TIERS - len(shape.tiers))
    account = f"e.{shape.account}" if shape.account else "NULL"
    name = f"e.{shape.name}::text" if shape.name else "NULL::text"
    columns = (
        f"'{shape.event_label}:' || e.pgh_id AS key",
        f"'{shape.kind}'::text AS kind",
        "e.pgh_id AS event_id",
        "e.pgh_created_at AS at",
        "e.pgh_label AS verb",
        f"e.{shape.object_id}::text AS object_id",
        f"{account}::uuid AS account_id",
        f"{tiers[0]}::smallint AS tier_id",
        f"{tiers[1]}::smallint AS other_tier_id",
        f"lower({name}) AS name",
        "e.pgh_context_id AS context_id",
        "to_jsonb(e) AS data",
    )
    return f"SELECT {', '.join(columns)} FROM {shape.table} e"  # noqa: S608 - names of our own models


def _make_view(cursor: Any, found: list[Shape]) -> None:
    sql = view_sql(found)
    digest = hashlib.sha256(sql.encode()).hexdigest()
    cursor.execute("SELECT obj_description(to_regclass(%s), 'pg_class')", [_VIEW])
    if cursor.fetchone()[0] != digest:
        cursor.execute(f"DROP VIEW IF EXISTS {_VIEW}; {sql}; COMMENT ON VIEW {_VIEW} IS '{digest}'")


def _indexes(found: list[Shape]) -> Iterator[tuple[str, str]]:
    for shape in found:
        short = shape.table.removesuffix("event")
        yield f"{short}_history_at", f"{shape.table} (pgh_created_at, pgh_id)"
        yield f"{short}_history_object", f"{shape.table} (({shape.object_id}::text), pgh_id)"
        yield f"{short}_history_verb", f"{shape.table} (pgh_label, pgh_created_at, pgh_id)"
        if shape.account:
            yield f"{short}_history_account", f"{shape.table} ({shape.account}, pgh_created_at, pgh_id)"
        for column in shape.tiers:
            yield f"{short}_history_{column}", f"{shape.table} ({column}, pgh_created_at, pgh_id)"
        if shape.name:
            yield f"{short}_history_name", f"{shape.table} (lower({shape.name}::text) text_pattern_ops)"
    for name, on in _CONTEXT_INDEXES.items():
        yield name, f"{_CONTEXT} {on}"


# --- The guards -----------------------------------------------------------------------------------


def guards(found: list[Shape]) -> Iterator[tuple[str, str, str, str]]:
    """Return every guard as table, name, what it fires on, and its function. History is never emptied or rewritten.

    TRUNCATE of what is tracked would leave no entry, so that is refused as well.
    """
    for shape in found:
        yield shape.table, "refuse_change", "UPDATE OR DELETE", "history_is_append_only"
        yield shape.table, "refuse_truncate", "TRUNCATE", "history_is_append_only"
        yield shape.table, "is_signed", "INSERT", "history_is_signed"
        yield shape.tracked_table, "refuse_truncate", "TRUNCATE", "history_is_append_only"
    yield _CONTEXT, "refuse_change", "UPDATE OR DELETE", "history_is_append_only"
    yield _CONTEXT, "refuse_truncate", "TRUNCATE", "history_is_append_only"
    yield _CONTEXT, "not_by_hand", "INSERT", "history_is_written_by_triggers"
    unsigned = "entitlements_unsignedchange"
    yield unsigned, "not_by_hand", "INSERT", "history_is_written_by_triggers"
    yield unsigned, "refuse_truncate", "TRUNCATE", "history_is_append_only"
    said = "UPDATE OF context_id, at, role, application, address OR DELETE"
    yield unsigned, "refuse_change", said, "history_is_append_only"


def _missing_guards(cursor: Any, found: list[Shape]) -> Iterator[str]:
    cursor.execute("SELECT tgrelid::regclass::text, tgname, tgenabled FROM pg_trigger WHERE NOT tgisinternal")
    rows = cursor.fetchall()
    always = {(table, name) for table, name, enabled in rows if enabled == "A"}
    for table, name, event, function in sorted(set(guards(found))):
        if (table, name) in always:
            continue
        level = "STATEMENT" if event == "TRUNCATE" else "ROW"
        yield (
            f"CREATE OR REPLACE TRIGGER {name} BEFORE {event} ON {table} FOR EACH {level} EXECUTE FUNCTION {function}()"
        )
        # Also where `session_replication_role` switches ordinary triggers off.
        yield f"ALTER TABLE {table} ENABLE ALWAYS TRIGGER {name}"
    yield from _recorders(cursor, found)


def recorders_sql() -> str:
    """Return a query for the triggers that write history: table, name, function, whether that is safe as it is."""
    return (
        "SELECT t.tgrelid::regclass::text, t.tgname, p.oid::regprocedure::text, "
        "t.tgenabled = 'A' AND p.proconfig @> ARRAY['search_path=public, pg_temp'] IS TRUE, p.prosrc "
        "FROM pg_trigger t JOIN pg_proc p ON p.oid = t.tgfoid "
        "WHERE NOT t.tgisinternal AND p.prosrc LIKE '%_pgh_attach_context()%' AND p.proname LIKE 'pgtrigger%'"
    )


def _recorders(cursor: Any, found: list[Shape]) -> Iterator[str]:
    tables = {shape.tracked_table for shape in found}
    cursor.execute(recorders_sql())
    for table, name, function, is_safe, _ in cursor.fetchall():
        if table in tables and not is_safe:
            # Nobody puts a table of their own, such as a temporary one, in the place of history.
            yield f"ALTER FUNCTION {function} SET search_path = public, pg_temp"
            yield f"ALTER TABLE {table} ENABLE ALWAYS TRIGGER {name}"
