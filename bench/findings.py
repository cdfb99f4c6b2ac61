"""What the samples say: medians, ratios within a round, and each target with what was reached."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

from bench.layers import AdmitLayer, Processing, SlowCalls
from bench.rounds import Sample, Samples, System, Work


@dataclass(frozen=True)
class Target:
    """One target of ours, and what this run reached."""

    what: str
    target: str
    reached: str
    met: bool


def medians(seen: list[Sample]) -> Sample:
    """Return the median of each figure."""
    return Sample(*(median(getattr(s, name) for s in seen) for name in Sample.__dataclass_fields__))


def ratio(numerator: list[Sample], denominator: list[Sample], figure: Callable[[Sample], float]) -> float:
    """Return the median over rounds of one figure's ratio: each round is compared with itself only."""
    return median(figure(n) / figure(d) for n, d in zip(numerator, denominator, strict=True) if figure(d))


def _cpu(sample: Sample) -> float:
    return sample.cpu_ms


def _both(sample: Sample) -> float:
    return sample.cpu_ms + sample.postgres_ms


def _speed(sample: Sample) -> float:
    return sample.per_second


def targets(samples: Samples, admit: AdmitLayer, processing: Processing, slow: SlowCalls | None) -> list[Target]:
    """Return every target that this run can judge."""
    invoke = samples[Work.JSON_32]
    gateway = invoke[System.GATEWAY]
    postgres = median(s.postgres_ms for s in gateway)
    hot = ratio(gateway, samples[Work.JSON_MANY_32][System.GATEWAY], _speed)
    refusal = ratio(samples[Work.REFUSAL_32][System.GATEWAY], gateway, _cpu)
    refusal_all = ratio(samples[Work.REFUSAL_32][System.GATEWAY], gateway, _both)
    single = ratio(samples[Work.REPORT_32][System.GATEWAY], gateway, _cpu)
    each = ratio(samples[Work.REPORTS_32][System.GATEWAY], gateway, _cpu) / 100
    stream = samples[Work.STREAM_1]
    first = median(
        ours.first_byte_p50 - theirs.first_byte_p50
        for ours, theirs in zip(stream[System.GATEWAY], stream[System.UPSTREAM], strict=True)
    )
    beside = ratio(gateway, invoke[System.FLOOR], _cpu)
    beside_stream = ratio(samples[Work.STREAM_32][System.GATEWAY], samples[Work.STREAM_32][System.FLOOR], _cpu)
    found = [
        Target("invoke JSON, gateway CPU beside the floor", "<= 1.6x", f"{beside:.2f}x", beside <= 1.6),
        Target("invoke stream, gateway CPU beside the floor", "(none)", f"{beside_stream:.2f}x", met=True),
        Target("PostgreSQL per invocation", "<= 0.6 ms", f"{postgres:.2f} ms", postgres <= 0.6),
        Target("one account beside many, calls/s", ">= 95 %", f"{hot:.0%}", hot >= 0.95),
        Target("refusal, CPU beside an invocation", "<= 0.6x", f"{refusal:.2f}x", refusal <= 0.6),
        Target("the same, with PostgreSQL's", "(none)", f"{refusal_all:.2f}x", met=True),
        Target("report, CPU beside an invocation", "<= 0.7x", f"{single:.2f}x", single <= 0.7),
        Target("report in a delivery of 100, each", "<= 0.05x", f"{each:.3f}x", each <= 0.05),
        Target("stream, first byte after the upstream's", "<= 10 ms", f"{first:.1f} ms", first <= 10),
        Target(
            "admit layer beside raw SQL, one account, 8 at once", ">= 80 %", f"{admit.share:.0%}", admit.share >= 0.8
        ),
        Target(
            "reports processed, per second of a worker's CPU",
            ">= 10,000",
            f"{processing.per_cpu_second:,.0f} ({processing.per_second:,.0f}/s by the clock)",
            processing.per_cpu_second >= 10_000,
        ),
    ]
    if slow:
        found += [
            Target("1,000 two-second calls at once, share of ideal", ">= 65 %", f"{slow.share_of_ideal:.0%}",
                   slow.share_of_ideal >= 0.65),
            Target("the same: connections", "<= 16", str(slow.connections), slow.connections <= 16),
            Target("the same: memory", "<= 350 MB", f"{slow.megabytes:.0f} MB", slow.megabytes <= 350),
        ]  # fmt: skip
    return found
