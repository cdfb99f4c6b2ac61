"""The bench compares like with like, and ends when anything was not exact."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

import bench
from bench import holds, load, processes, readme
from bench.findings import ratio
from bench.holds import Way
from bench.load import BenchError, Load, Request
from bench.processes import Server, cpu_seconds
from bench.rounds import Sample
from webhost.local.node import node_binary


def sample(cpu_ms: float) -> Sample:
    return Sample(cpu_ms, postgres_ms=1, per_second=100, p50=1, p99=2, first_byte_p50=1)


@pytest.fixture
def upstream(tmp_path: Path) -> Iterator[Server]:
    server = processes.upstream(str(node_binary()), Path(bench.__file__).parent, tmp_path, os.environ)
    server.start()
    yield server
    server.stop()


def calls(path: str, *, expected: int = 200, ending: str = "}") -> Load:
    return Load([Request(path, {}, "{}")], calls=20, callers=4, expected=expected, ending=ending, seconds=20)


def test_a_round_is_compared_with_itself_alone() -> None:
    # The second round was three times as slow, for both: a ratio of medians over rounds would not say 2.
    assert ratio([sample(2), sample(6), sample(2.2)], [sample(1), sample(3), sample(1)], lambda s: s.cpu_ms) == 2


def hold(seconds: float) -> holds.Sample:
    return holds.Sample(cpu_s=seconds, postgres_s=seconds, per_second=100)


def held(*rounds: tuple[float, float]) -> holds.Holds:
    """Return what rounds found: what it took without a hold, and with one."""
    by_way = {way: [hold(without if way is Way.WITHOUT else with_one) for without, with_one in rounds] for way in Way}
    samples = dict.fromkeys(holds.Accounts, by_way)
    return holds.Holds(samples, holds.QUICK, len(rounds), "a machine", datetime(2026, 11, 30, tzinfo=UTC))


def test_a_hold_is_compared_with_none_of_the_same_round() -> None:
    found = held((1, 1.5), (4, 6), (1, 1.6))
    assert found.ratio(holds.Accounts.ONE, Way.ESTIMATED, lambda s: s.both_s) == 1.5


def test_a_part_measured_alone_takes_the_place_of_its_own_and_of_nothing_else() -> None:
    before, after = readme.render_holds(held((1, 2))), readme.render_holds(held((1, 3)))
    assert readme.with_holds("# All\n" + before, after) == "# All\n" + after
    assert "**3.00x**" in after


def test_what_a_process_and_its_children_compute_is_counted() -> None:
    burn = "import time\nwhile time.process_time() < 0.35: pass"
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {burn!r}]); print(flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", parent], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert cpu_seconds(process.pid) >= 0.3
        process.communicate(b"\n")


@pytest.mark.parametrize("path", ["/invoke", "/invoke/stream"])
def test_whole_answers_are_taken(upstream: Server, path: str) -> None:
    assert load.run(str(node_binary()), upstream.url, calls(path)).statuses == {200: 20}


@pytest.mark.parametrize("wrong", [{"expected": 402}, {"ending": "never said"}])
def test_other_answers_than_expected_end_the_bench(upstream: Server, wrong: dict[str, object]) -> None:
    with pytest.raises(BenchError):
        load.run(str(node_binary()), upstream.url, calls("/invoke", **wrong))  # type: ignore[arg-type]
