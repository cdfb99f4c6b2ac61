"""Lines of CSV for spreadsheets: one at a time, and nobody's text is taken for a formula."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator


class _Echo:
    """Gives a line of CSV back instead of writing it anywhere."""

    def write(self, line: str) -> str:
        return line


def csv_lines(rows: Iterable[Iterable[object]]) -> Iterator[str]:
    """Yield each row as a line; numbers stay numbers, texts that a spreadsheet would calculate are marked."""
    writer = csv.writer(_Echo())
    for row in rows:
        yield writer.writerow([_plain(cell) if isinstance(cell, str) else cell for cell in row])


def _plain(cell: str) -> str:
    return f"'{cell}" if len(cell) > 1 and cell.startswith(("=", "+", "-", "@", "\t", "\r")) else cell
