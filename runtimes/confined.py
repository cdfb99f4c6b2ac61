"""Run a program that reads files nobody vouches for: fresh, with an empty environment and folder, and capped."""

from __future__ import annotations

import contextlib
import logging
import os
import resource
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import IO

from webhost.errors import InvalidRequestError, UnavailableError

logger = logging.getLogger(__name__)

_OVERSTRAINED = frozenset({-signal.SIGXCPU, -signal.SIGABRT, -signal.SIGSEGV, -signal.SIGKILL, -signal.SIGTRAP})


@dataclass(frozen=True)
class Caps:
    """What a program may take: seconds, bytes of memory in each process, bytes of output."""

    seconds: int
    memory: int
    output: int


def run_confined(command: Sequence[str], given: bytes, caps: Caps) -> bytes:
    """Run a program on some input and return its output.

    Raises InvalidRequestError when the caps are not enough for this input, UnavailableError when the program
    does not run at all.
    """
    # Real files, already unlinked: no pipe can fill up, and nothing is left behind by a kill.
    with tempfile.TemporaryFile() as read, tempfile.TemporaryFile() as made, tempfile.TemporaryFile() as said:
        read.write(given)
        read.seek(0)
        ended = _run(command, read, made, said, caps)
        if ended is None:
            raise InvalidRequestError(f"The files take longer than {caps.seconds} s to read.", path="bundle")
        size = made.seek(0, os.SEEK_END)
        if size >= caps.output or ended == -signal.SIGXFSZ:
            raise InvalidRequestError(
                "The files are too large without their types.",
                path="bundle",
                status=HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
            )
        if ended in _OVERSTRAINED:
            raise InvalidRequestError("The files take too much time or memory to read.", path="bundle")
        made.seek(0)
        if ended:
            said.seek(max(0, said.seek(0, os.SEEK_END) - 4000))
            logger.error("%s ended with %s: %s", command[-1], ended, said.read().decode("utf-8", "replace"))
            raise UnavailableError("Bundles cannot be built at the moment.")
        return made.read()


def _run(command: Sequence[str], given: IO[bytes], made: IO[bytes], said: IO[bytes], caps: Caps) -> int | None:
    """Run the program to its end and return how it ended, or None when its time was up."""
    with tempfile.TemporaryDirectory(prefix="whs-") as empty:
        try:
            process = subprocess.Popen(
                command, stdin=given, stdout=made, stderr=said, cwd=empty, env={}, start_new_session=True
            )
        except OSError as error:
            logger.exception("%s does not start.", command[0])
            raise UnavailableError("Bundles cannot be built at the moment.") from error
        try:
            _confine(process.pid, caps)
            return process.wait(caps.seconds)
        except subprocess.TimeoutExpired:
            return None
        finally:
            _end(process)


def _confine(pid: int, caps: Caps) -> None:
    """Cap what the process, and those it starts, may take. Linux only; elsewhere only time is capped."""
    if sys.platform != "linux":
        return
    for limit, most in (
        (resource.RLIMIT_DATA, caps.memory),
        (resource.RLIMIT_FSIZE, caps.output),
        (resource.RLIMIT_CPU, caps.seconds * 2),  # ends it even when we are killed first
        (resource.RLIMIT_CORE, 0),
    ):
        try:
            resource.prlimit(pid, limit, (most, most))
        except ProcessLookupError:  # it has ended already
            return


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the process and those it started."""
    with contextlib.suppress(ProcessLookupError, PermissionError):  # nobody is left; macOS says so in its own way
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
