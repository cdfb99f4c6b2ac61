"""The audit log as CSV: as it is filtered, all of it, a page of memory at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Final

from entitlements.history.finding import HistoryQuery, pages_of
from entitlements.history.telling import Told, tell
from webhost.spreadsheet import csv_lines

# Where even an export ends: some hundred megabytes.
MOST_EXPORTED: Final = 1_000_000
COLUMNS: Final = (
    "when (UTC)", "kind", "row", "did", "who", "why", "through", "address", "trace", "name", "account",
    "account id", "old -> new",
)  # fmt: skip


def export_lines(query: HistoryQuery, at: datetime) -> Iterator[str]:
    """Yield the lines of a file of everything that a query means as it was at a time, newest first."""
    return csv_lines(_rows(query, at))


def _rows(query: HistoryQuery, at: datetime) -> Iterator[Iterable[str]]:
    yield COLUMNS
    room = MOST_EXPORTED
    for page in pages_of(query, at):
        for told in tell(page[:room]):
            yield _cells(told)
        room -= len(page)
        if room <= 0:
            yield [f"cut after {MOST_EXPORTED:,} entries: give dates to see older ones"]
            return


def _cells(told: Told) -> list[str]:
    entry = told.entry
    return [
        f"{entry.at:%Y-%m-%dT%H:%M:%S.%fZ}", entry.kind, entry.object_id, told.verb, told.actor, told.reason,
        told.source, str(told.notes.get("address") or ""), str(told.notes.get("trace") or ""),
        told.name, told.account, str(entry.account_id or ""),
        "; ".join(f"{change.column}: {change.old} -> {change.new}" for change in told.changes),
    ]  # fmt: skip
