"""bench/README.md: the table, and how it was made."""

from __future__ import annotations

from bench.findings import Target, medians, ratio
from bench.layers import AdmitLayer, Processing
from bench.rounds import Samples, Size, System, Work

_HEAD = """# What the product costs

Written by `{command}`; every figure is in `results.json`. Do not edit.

Machine: {machine}. Load generator, upstream, PostgreSQL and the system under test share it, so **read the
ratios**: each is taken within a round, and the median of {rounds} rounds is shown. Of the absolute figures the CPU
milliseconds per call (the system's own processes, user and system time) are the robust ones.

| system | what it is |
|---|---|
| gateway | the product: Django, DRF, token, idempotency, trace, resolve, admit, provider, settle, receipts |
| floor | `floor.py`, bare WSGI: the same SQL through a psycopg pool, the same call through urllib3, nothing else |
| bare | `bare.py`, a bare Django view that only calls the provider: no account, no limit, no database |
| upstream | `upstream.mjs`, which answers as the platform Worker does, called directly |

All run under granian (WSGI), 2 workers, on the same PostgreSQL in the same run, and take turns. After every run the
counters are compared with the calls: one that was counted twice, or not, or left open, ends the bench.
"""
_WORK_HEAD = """
| work | system | CPU ms per call | PostgreSQL ms | calls/s | p50 ms | p99 ms | first byte ms | CPU beside floor |
|---|---|---|---|---|---|---|---|---|
"""


def render(
    samples: Samples,
    targets: list[Target],
    admit: AdmitLayer,
    processing: Processing,
    *,
    command: str,
    machine: str,
    rounds: int,
    size: Size,
) -> str:
    """Return the whole page."""
    parts = [_HEAD.format(command=command, machine=machine, rounds=rounds), "\n## Targets\n"]
    parts.append("\n| what | target | reached | |\n|---|---|---|---|\n")
    parts += [f"| {t.what} | {t.target} | {t.reached} | {_mark(t)} |\n" for t in targets]
    parts.append(f"\n## All figures ({size.calls:,} calls a run, one caller {size.single_calls:,})\n")
    parts.append(_WORK_HEAD)
    parts += [_row(samples, work, system) for work, by_system in samples.items() for system in by_system]
    parts.append(
        f"\nAdmissions on one account, 8 at once: {admit.action:,.0f}/s through the action, "
        f"{admit.raw_sql:,.0f}/s through its bare statement, both from one Python process.\n"
        f"Reports: {processing.reports:,} verified again, judged and folded in at {processing.per_second:,.0f}/s; "
        f"{processing.journal_lines:,} journal lines rolled up at {processing.roll_up_per_second:,.0f}/s.\n"
    )
    return "".join(parts)


def _mark(target: Target) -> str:
    return "" if target.target == "(none)" else "met" if target.met else "**missed**"


def _row(samples: Samples, work: Work, system: System) -> str:
    by_system = samples[work]
    found = medians(by_system[system])
    floor = by_system.get(System.FLOOR)
    beside = f"{ratio(by_system[system], floor, lambda s: s.cpu_ms):.2f}x" if floor and system in (
        System.GATEWAY, System.BARE
    ) else ""  # fmt: skip
    cpu = "" if system is System.UPSTREAM else f"{found.cpu_ms:.2f}"
    postgres = f"{found.postgres_ms:.2f}" if system in (System.GATEWAY, System.FLOOR) else ""
    return (
        f"| {work} | {system} | {cpu} | {postgres} | {found.per_second:,.0f} | {found.p50:.1f} | {found.p99:.1f} "
        f"| {found.first_byte_p50:.1f} | {beside} |\n"
    )
