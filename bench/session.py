"""One session: make the cast, start the systems, go the rounds, measure the parts, write it down."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from django.core.management import call_command

from bench import holds, layers, load, processes, readme
from bench.cast import make_cast, make_premium_callers
from bench.findings import targets
from bench.holds import Holds
from bench.load import BenchError, Load
from bench.processes import Server
from bench.rounds import FULL, QUICK, Bench, System, as_plain
from entitlements import ledger
from webhost import db

_TARGETS = {
    System.GATEWAY: "webhost.wsgi:application",
    System.FLOOR: "bench.floor:application",
    System.BARE: "bench.bare:application",
}


def measure(
    upstream: Server, logs: Path, environment: Mapping[str, str], *, quick: bool, out: Path | None, machine: str
) -> str:
    """Measure everything and return the page. Raises BenchError when anything was not exact."""
    size = QUICK if quick else FULL
    _prepare()
    cast = make_cast(size.accounts)
    node = environment["NODE_BINARY"]
    with ExitStack() as running:
        servers = {System.UPSTREAM: upstream}
        servers |= {s: processes.web_server(s, target, logs, environment) for s, target in _TARGETS.items()}
        for server in servers.values():
            server.start()
            running.callback(server.stop)
        load.run(node, servers[System.GATEWAY].url, Load([load.invocation(cast.spent)], 1, 1))  # all it has
        samples, rounds = Bench(node, servers, cast, size).run(_say)
        for system in _TARGETS:
            servers[system].stop()
        processing = layers.process_all()
        _say(f"{processing.reports:,} reports processed")
        slow = None
        if size.slow_calls:
            server = processes.web_server("slow", _TARGETS[System.GATEWAY], logs, environment, threads=512)
            slow = layers.slow_calls(node, server, cast.hot, size.slow_calls)
    machine = f"{machine}, {_database()}"
    held = _measured_holds(quick=quick, machine=machine)
    admit = layers.admit_layer(cast.many[0], size.layer_calls, 1 if quick else 5)
    found = targets(samples, admit, processing, slow)
    command = f"python -m bench{' --quick' if quick else ''}"
    page = readme.render(samples, found, admit, processing, command=command, machine=machine, rounds=rounds, size=size)
    page += readme.render_holds(held)
    if out:
        results = {
            "command": command,
            "at": datetime.now(UTC).isoformat(timespec="seconds"),
            "machine": machine,
            "rounds": rounds,
            "size": asdict(size),
            "targets": [asdict(t) for t in found],
            "admitLayer": asdict(admit),
            "processing": asdict(processing),
            "slowCalls": slow and asdict(slow),
            "holds": held.as_plain(),
            "samples": as_plain(samples),
        }
        (out / "results.json").write_text(json.dumps(results, indent=1) + "\n")
        (out / "README.md").write_text(page)
    return page


def measure_holds(*, quick: bool, out: Path | None, machine: str) -> str:
    """Measure what a hold costs and return its part of the page, written in place of the one before."""
    _prepare()
    held = _measured_holds(quick=quick, machine=f"{machine}, {_database()}")
    part = readme.render_holds(held)
    if out:
        results = json.loads((out / "results.json").read_text())
        (out / "results.json").write_text(json.dumps(results | {"holds": held.as_plain()}, indent=1) + "\n")
        page = (out / "README.md").read_text()
        (out / "README.md").write_text(readme.with_holds(page, part))
    return part


def _database() -> str:
    return f"PostgreSQL {db.run('SHOW server_version', {})[0]['server_version'].split()[0]}"


def _prepare() -> None:
    call_command("migrate", verbosity=0)
    call_command("seed_tiers", verbosity=0)


def _measured_holds(*, quick: bool, machine: str) -> Holds:
    size = holds.QUICK if quick else holds.FULL
    samples, rounds = holds.measure(make_premium_callers(1 + size.accounts), size, _say)
    _prove()
    return Holds(samples, size, rounds, machine, datetime.now(UTC))


def _prove() -> None:
    """Raise BenchError unless every counter equals the sum of its admissions after all that."""
    differences = ledger.verify()
    if differences:
        raise BenchError(f"{len(differences)} counters differ from their admissions, the first: {differences[0]}.")


def _say(line: str) -> None:
    print(line, flush=True)
