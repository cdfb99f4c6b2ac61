"""`python -m bench [--only holds] [--quick] [--out FOLDER]`: measure the product; write results.json and README.md.

It starts all it needs (PostgreSQL and Valkey are used as given where DATABASE_URL and REDIS_URL are set),
and removes it again. About nine minutes; with --only holds, which leaves all else as it was written, four; with
--quick half a minute, whose figures mean little.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import platform
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from bench import processes
from webhost.local.processes import LocalServiceError
from webhost.local.stack import Stack

_HERE = Path(__file__).resolve().parent


def main(arguments: list[str]) -> int:
    """Run it and return the exit code: 1 when anything was not exact or a process did not start."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a smoke test: one short round, nothing written")
    parser.add_argument("--out", type=Path, help="folder of results.json and README.md (bench/; with --quick none)")
    parser.add_argument("--only", choices=["holds"], help="one part alone, put in place of what was written of it")
    options = parser.parse_args(arguments)
    began = time.monotonic()
    out = options.out or (None if options.quick else _HERE)
    try:
        with _stack() as stack:
            page = _measure(stack, only=options.only, quick=options.quick, out=out)
    except LocalServiceError as error:
        print(error, file=sys.stderr)
        return 1
    print(page)
    print(f"{time.monotonic() - began:.0f} s in all.")
    return 0


@contextlib.contextmanager
def _stack() -> Iterator[Stack]:
    """Start the services with data of their own, which go afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="webhost-bench-"))
    folder.chmod(0o711)  # PostgreSQL, which is another user where we are root, has its data below it
    stack = Stack(folder, {"NODE_MODULES_DIR": str(folder), **os.environ})
    try:
        with stack:
            yield stack
    finally:
        stack.remove()


def _measure(stack: Stack, *, only: str | None, quick: bool, out: Path | None) -> str:
    upstream = processes.upstream(stack.environment["NODE_BINARY"], _HERE, stack.logs, stack.environment)
    environment = stack.environment | {
        "CLOUDFLARE_DISPATCH_URL": f"{upstream.url}/invoke",
        "DJANGO_SETTINGS_MODULE": "webhost.settings",
        "PYTHON": sys.executable,
        "LOG_LEVEL": "WARNING",
    }
    os.environ.update(environment)
    import django  # noqa: PLC0415 - its settings are made by the lines above

    django.setup()
    from bench.session import measure, measure_holds  # noqa: PLC0415 - as above

    if only:
        return measure_holds(quick=quick, out=out, machine=_machine())
    return measure(upstream, stack.logs, environment, quick=quick, out=out, machine=_machine())


def _machine() -> str:
    # What others do on it shows in every figure but the ratios.
    busy = f"load average {os.getloadavg()[0]:.1f} before the start"
    return f"{os.cpu_count()} cores, {busy}, Linux, Python {platform.python_version()}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
