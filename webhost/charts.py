"""Charts as values: drawn by static/charts.js from JSON in the page, and told by a table beside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any


@dataclass(frozen=True)
class Series:
    """One line of a chart; None is a gap, not 0."""

    label: str
    values: Sequence[int | float | None]


@dataclass(frozen=True)
class Chart:
    """What templates/parts/chart.html shows.

    `times` are the left ends of its buckets (UTC), `bucket` their width in words: minute, hour or day. `unit` stands
    behind each figure ("ms"), empty for plain counts; `kind` is "bars" for what adds up, "lines" for what does not.
    """

    id: str
    title: str
    times: Sequence[datetime]
    series: Sequence[Series]
    bucket: str = "day"
    unit: str = ""
    kind: str = "bars"

    @property
    def data(self) -> dict[str, Any]:
        """Return what the script draws, for `json_script`: times in seconds since 1970."""
        return {
            "times": [int(at.timestamp()) for at in self.times],
            "series": [{"label": s.label, "values": list(s.values)} for s in self.series],
            "bucket": self.bucket,
            "unit": self.unit,
            "kind": self.kind,
        }

    @property
    def data_id(self) -> str:
        """The id of the element that holds `data`."""
        return f"{self.id}-data"

    @property
    def time_format(self) -> str:
        """How a time is written in the table, as Django's `date` filter reads it."""
        return "j M Y" if self.bucket == "day" else "j M, H:i"

    @property
    def rows(self) -> list[tuple[datetime, list[int | float | None]]]:
        """Return the table: newest first, without the buckets in which nothing happened."""
        columns = [s.values for s in self.series]
        rows = [(at, [column[n] for column in columns]) for n, at in enumerate(self.times)]
        return [row for row in reversed(rows) if any(row[1])]
