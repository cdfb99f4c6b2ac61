"""bench/README.md: the table, and how it was made."""

from __future__ import annotations

from statistics import median

from bench.findings import Target, medians, ratio
from bench.holds import Holds, Sample, Way
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
_FIGURES = ("cpu_s", "postgres_s", "per_second")
HOLDS_HEADING = "\n## What a hold costs\n"
_HOLDS_HEAD = """
By `python -m bench --only holds` or as a part of the whole, {held.at:%Y-%m-%d}, on {held.machine}.

Admit and settle, one after the other, through the product's own actions, from one process, eight at once;
{size.calls:,} calls a run, {rounds} rounds in turn. Every limit of the tier is set. On Cloudflare nothing is held. On
AgentCore tokens, compute and the three quotas of tools are; the last row of each also reads the deployment's last fifty
calls first, as the gateway does before every call there. A ratio is beside no hold, within a round, and the median is
shown. What the gateway asks AWS about tools, and the record of the session, are not in it. Afterwards nothing was held
or open, and every counter equalled its admissions.

| whose | what | our CPU s per 1,000 | PostgreSQL's | calls/s | ours, ratio | PostgreSQL's, ratio | both, ratio |
|---|---|---|---|---|---|---|---|
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


def render_holds(held: Holds) -> str:
    """Return the part about holds, which is the page's last."""
    size = held.size
    parts = [HOLDS_HEADING, _HOLDS_HEAD.format(held=held, size=size, rounds=held.rounds)]
    for accounts, by_way in held.samples.items():
        for way, seen in by_way.items():
            cpu, postgres, speed = (median(getattr(s, name) for s in seen) for name in _FIGURES)
            cells = ["", "", ""]
            if way is not Way.WITHOUT:
                cells = [f"{held.ratio(accounts, way, f):.2f}x" for f in (_cpu, _postgres, _both)]
            parts.append(
                f"| {accounts} | {way} | {cpu:.2f} | {postgres:.2f} | {speed:,.0f} | {cells[0]} | {cells[1]} "
                f"| {'**' + cells[2] + '**' if cells[2] else ''} |\n"
            )
    return "".join(parts)


def with_holds(page: str, part: str) -> str:
    """Return the page with this part about holds in place of the one that it had."""
    return page.partition(HOLDS_HEADING)[0] + part


def _cpu(sample: Sample) -> float:
    return sample.cpu_s


def _postgres(sample: Sample) -> float:
    return sample.postgres_s


def _both(sample: Sample) -> float:
    return sample.both_s


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
