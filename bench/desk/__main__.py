"""`python -m bench.desk [--sizes 1000 10000 100000] [--seed-only] [--out FILE]`: the support desk at size.

It starts a PostgreSQL of its own for each size, fills it (bench/desk/seed.py), opens every page of the admin there,
and removes it again. About fifteen minutes for all three sizes, and 8 GB of disk for the largest. With --seed-only it
fills the database that DATABASE_URL names and measures nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from bench.desk import readme
from webhost.local.processes import LocalServiceError
from webhost.local.stack import Stack

_HERE: Final = Path(__file__).resolve().parent
_CALLS_EACH: Final = 50  # so that 100,000 accounts have 5,000,000 admissions


def main(arguments: list[str]) -> int:
    """Run it and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.desk", description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=[1_000, 10_000, 100_000], help="accounts")
    parser.add_argument("--seed-only", action="store_true", help="fill DATABASE_URL with the first size, and end")
    parser.add_argument("--here", type=Path, help=argparse.SUPPRESS)  # fill and measure the database that is given
    parser.add_argument("--out", type=Path, default=_HERE / "README.md")
    options = parser.parse_args(arguments)
    if options.seed_only or options.here:
        _here(options.sizes[0], options.here)
        return 0
    try:
        measured = {accounts: _apart(accounts) for accounts in options.sizes}
    except LocalServiceError as error:
        print(error, file=sys.stderr)
        return 1
    page = readme.render(measured, machine=_machine())
    options.out.write_text(page, encoding="utf-8")
    print(page)
    return 0


def _apart(accounts: int) -> dict[str, Any]:
    """Measure one size on a PostgreSQL of its own, in a process of its own: Django is bound to one database."""
    folder = Path(tempfile.mkdtemp(prefix="webhost-desk-"))
    folder.chmod(0o711)  # PostgreSQL, which is another user where we are root, has its data below it
    given = {name: value for name, value in os.environ.items() if name != "DATABASE_URL"}
    stack = Stack(folder, {"NODE_MODULES_DIR": str(folder), **given})
    try:
        with stack:
            result = folder / "result.json"
            command = [sys.executable, "-m", "bench.desk", "--sizes", str(accounts), "--here", str(result)]
            environment = stack.environment | {"DJANGO_SETTINGS_MODULE": "webhost.settings", "LOG_LEVEL": "WARNING"}
            subprocess.run(command, env=environment, check=True)
            found: dict[str, Any] = json.loads(result.read_text(encoding="utf-8"))
            return found
    finally:
        stack.remove()


def _here(accounts: int, result: Path | None) -> None:
    import django  # noqa: PLC0415 - its settings are the environment's

    django.setup()
    from django.core.management import call_command  # noqa: PLC0415 - as above
    from django.test.utils import setup_test_environment  # noqa: PLC0415 - as above

    from bench.desk import measure  # noqa: PLC0415 - as above
    from bench.desk.seed import seed  # noqa: PLC0415 - as above
    from entitlements import ledger  # noqa: PLC0415 - as above

    for command in ("migrate", "seed_tiers", "seed_rate_cards"):
        call_command(command, verbosity=0)
    seed(accounts, accounts * _CALLS_EACH, print)
    if result is None:
        return
    if ledger.verify():
        raise SystemExit("The seeded books do not agree, so nothing that is measured on them counts.")
    setup_test_environment()  # so that answers carry the forms that they show
    result.write_text(json.dumps([asdict(cost) for cost in measure.everything()]), encoding="utf-8")


def _machine() -> str:
    busy = f"load average {os.getloadavg()[0]:.1f} at the end"
    return f"{os.cpu_count()} cores, {busy}, Linux, Python {platform.python_version()}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
