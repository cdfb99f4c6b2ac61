"""bench/desk/README.md: what the support desk costs the database, at three sizes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

_TARGET_MS: Final = {"impact preview": 5_000}
_PAGE_MS: Final = 300
_HEAD: Final = """# What the support desk costs the database

Written by `python -m bench.desk` (`make bench-desk`). Do not edit.

Machine: {machine}. Each size is a PostgreSQL of its own with so many accounts and fifty times as many admissions of
the last thirty days (bench/desk/seed.py; the books agree, says `verify_ledger`). Every page is opened three times
through Django itself; the middle one counts. Milliseconds are what the page waits for the database. One account in a
hundred has a hundred times the calls of the others; the busy one is one of those.

Targets (design, performance): an admin list and the account page within 300 ms, an impact preview within 5 s, at
100,000 accounts and 5,000,000 admissions.

"""


def render(measured: Mapping[int, list[dict[str, Any]]], *, machine: str) -> str:
    """Return the page."""
    sizes = sorted(measured)
    by_size = {size: {cost["page"]: cost for cost in measured[size]} for size in sizes}
    head = "| page | queries | " + " | ".join(f"ms at {size:,}" for size in sizes) + " | target | |\n"
    lines = [head, "|---|---|" + "---|" * (len(sizes) + 2) + "\n"]
    lines += [_line(page, by_size, sizes) for page in by_size[sizes[-1]]]
    missed = [page for page, cost in by_size[sizes[-1]].items() if cost["database_ms"] > _target(page)]
    said = f"\nMissed at {sizes[-1]:,}: {', '.join(missed)}.\n" if missed else f"\nAll are met at {sizes[-1]:,}.\n"
    return _HEAD.format(machine=machine) + "".join(lines) + said


def _target(page: str) -> float:
    return next((target for name, target in _TARGET_MS.items() if page.startswith(name)), _PAGE_MS)


def _line(page: str, by_size: Mapping[int, Mapping[str, dict[str, Any]]], sizes: list[int]) -> str:
    largest = by_size[sizes[-1]][page]
    figures = " | ".join(
        f"{by_size[size][page]['database_ms']:,.0f}" if page in by_size[size] else "-" for size in sizes
    )
    target = _target(page)
    met = "met" if largest["database_ms"] <= target else "**missed**"
    return f"| {page} | {largest['queries']} | {figures} | {target:,} | {met} |\n"
