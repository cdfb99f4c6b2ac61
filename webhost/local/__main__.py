"""`python -m webhost.local`: the one way in which this repository starts anything.

    up                            everything, until Ctrl-C; the data are kept
    run [--keep] -- COMMAND       COMMAND with PostgreSQL, Valkey and all settings
    product [--keep] -- COMMAND   COMMAND beside a running product
    lock                          write the Node side's lock file anew
    clean                         delete the local data

Without --keep, `run` and `product` work on data of their own, which go when COMMAND ends.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from types import FrameType

from webhost.local import environment, node, vendor
from webhost.local.processes import LocalServiceError
from webhost.local.product import Product
from webhost.local.stack import Stack
from webhost.local.up import up

_ENDINGS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def main(arguments: list[str]) -> int:
    """Do what the command line says and return the exit code."""
    for number in _ENDINGS:
        if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:  # nohup
            signal.signal(number, _end)
    options = _parser().parse_args(arguments)
    try:
        return _do(options)
    except LocalServiceError as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("Stopped.")
        return 0 if options.verb == "up" else 130


def _do(options: argparse.Namespace) -> int:
    if options.verb == "up":
        up()
    elif options.verb == "lock":
        node.lock()
        modules = node.install(environment.STATE / "node").modules
        vendor.copy_vendored(modules, environment.REPOSITORY / "static")
    elif options.verb == "clean":
        Stack(environment.STATE).remove()
    else:
        kind = Stack if options.verb == "run" else Product
        return _run_beside(kind, options.command, keep=options.keep)
    return 0


def _run_beside(kind: type[Stack], command: list[str], *, keep: bool) -> int:
    directory = environment.STATE if keep else _passing_folder()
    stack = kind(directory, os.environ)
    try:
        with stack:
            address = f"http://127.0.0.1:{stack.environment['LOCAL_WEB_PORT']}"
            return _run(command, stack.environment | {"WHS_URL": address})
    finally:
        if not keep:
            stack.remove()


def _passing_folder() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="webhost-"))
    folder.chmod(0o711)  # PostgreSQL, which is another user where we are root, has its data below it
    return folder


def _run(command: list[str], settings: dict[str, str]) -> int:
    """Run a command in the foreground; what would end us ends it first."""
    process = subprocess.Popen(command, env=settings)
    try:
        return process.wait()
    except KeyboardInterrupt:
        process.terminate()
        return process.wait()


def _end(*_: int | FrameType | None) -> None:
    for ending in _ENDINGS:  # from now on we are busy stopping, which is bounded in time
        signal.signal(ending, signal.SIG_IGN)
    raise KeyboardInterrupt


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m webhost.local", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    verbs = parser.add_subparsers(dest="verb", required=True)
    for verb in ["up", "lock", "clean"]:
        verbs.add_parser(verb)
    for verb in ["run", "product"]:
        one = verbs.add_parser(verb)
        one.add_argument("--keep", action="store_true", help="use the data of `make up`")
        one.add_argument("command", nargs="+")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
