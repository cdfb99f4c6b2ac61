"""The processes that take part, and what they cost. Linux: it reads /proc."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from webhost import db
from webhost.local.processes import Child, free_port, wait_for_port

_TICKS = os.sysconf("SC_CLK_TCK")
_PPID, _UTIME, _STIME, _CUTIME, _CSTIME = 1, 11, 12, 13, 14  # after the name, proc(5)


def _stat(pid: int) -> list[str] | None:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None


def _family(root: int) -> dict[int, list[str]]:
    """Return the figures of a process and all below it."""
    children = defaultdict(list)
    figures = {}
    for entry in os.scandir("/proc"):
        if entry.name.isdigit() and (stat := _stat(int(entry.name))):
            figures[int(entry.name)] = stat
            children[int(stat[_PPID])].append(int(entry.name))
    found, waiting = {}, [root]
    while waiting:
        pid = waiting.pop()
        if pid in figures:
            found[pid] = figures[pid]
            waiting += children[pid]
    return found


def cpu_seconds(root: int) -> float:
    """Return what a process and all below it have used of the processors, those that have ended included."""
    return sum(int(s[n]) for s in _family(root).values() for n in (_UTIME, _STIME, _CUTIME, _CSTIME)) / _TICKS


def memory_bytes(root: int) -> int:
    """Return the memory that a process and all below it occupy; what they share is counted once (Pss, proc(5))."""
    total = 0
    for pid in _family(root):
        try:
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        except OSError:  # it has just ended
            continue
        total += sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))
    return total


def postgres_root(backend: int) -> int:
    """Return PostgreSQL's first process, from one of its backends'."""
    stat = _stat(backend)
    if stat is None:
        raise RuntimeError("PostgreSQL does not run on this machine: its CPU time cannot be read.")
    return int(stat[_PPID])


def postgres_process() -> int:
    """Return the first process of the PostgreSQL that is in use."""
    return postgres_root(db.run("SELECT pg_backend_pid() AS pid", {})[0]["pid"])


@dataclass
class Server:
    """Something that listens on a port of its own."""

    name: str
    child: Child
    port: int

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start it and wait until it listens."""
        self.child.start()
        wait_for_port(self.port, self.name, 60, self.child)

    def stop(self) -> None:
        """Stop it."""
        self.child.stop()


def upstream(node: str, folder: Path, logs: Path, environment: Mapping[str, str]) -> Server:
    """Return the server that stands for the platform Worker."""
    port = free_port()
    command = [node, str(folder / "upstream.mjs"), str(port)]
    return Server("upstream", Child("upstream", command, logs / "upstream.log", environment=environment), port)


def web_server(name: str, target: str, logs: Path, environment: Mapping[str, str], *, threads: int = 128) -> Server:
    """Return a WSGI application under the product's own server and settings: granian, two workers."""
    port = free_port()
    command = [
        environment["PYTHON"], "-m", "granian", target, "--interface", "wsgi", "--host", "127.0.0.1",
        "--port", str(port), "--no-ws", "--workers", "2", "--blocking-threads", str(threads),
        "--backpressure", str(threads), "--backlog", "2048", "--log-level", "warning",
    ]  # fmt: skip
    folder = Path(__file__).resolve().parent.parent
    return Server(name, Child(name, command, logs / f"{name}.log", environment=environment, directory=folder), port)
