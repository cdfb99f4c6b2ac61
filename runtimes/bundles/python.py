"""Which files of a Python bundle are deployed: all, as they are, once each can be read by its runtime."""

from __future__ import annotations

import json
import posixpath
import re
import struct
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from runtimes.bundles.config import CONFIG_NAME
from runtimes.bundles.model import Module, ModuleKind
from runtimes.confined import Caps, run_confined
from webhost.errors import InvalidRequestError, Issue

MOST_ISSUES: Final = 20
TIME_LIMIT: Final = 20
_MEMORY_LIMIT = 768 * 1024 * 1024
_LARGEST_OUTPUT = 1024 * 1024
_SCRIPT = Path(__file__).with_name("python_check.py")
_LIBRARY = re.compile(r".*\.(?:so(?:\.\d+)*|node)")
_ELF: Final = b"\x7fELF"
# Elf64_Ehdr.e_machine: EM_AARCH64, what AgentCore runs on.
_MACHINE_AT, _ARM64 = 18, 183
_64_BIT, _LITTLE_ENDIAN = 2, 1


def collect(entrypoint: str, files: Mapping[str, bytes]) -> list[Module]:
    """Return the modules to deploy, sorted by name; raises InvalidRequestError that lists every issue."""
    kept = {name: files[name] for name in sorted(files) if name != CONFIG_NAME and not _is_cache(name)}
    sources = {name: content for name, content in kept.items() if name.endswith(".py")}
    issues = [*_file_issues(kept), *_source_issues(entrypoint, sources)][:MOST_ISSUES]
    if issues:
        raise InvalidRequestError(f"{issues[0]['path']}: {issues[0]['message']}", issues=issues)
    return [
        Module(name, content, ModuleKind.PYTHON if name in sources else ModuleKind.DATA)
        for name, content in kept.items()
    ]


def library_problem(name: str, content: bytes) -> str | None:
    """Return why a file of machine code cannot run on arm64 Linux, or None; also for what is no machine code."""
    if not content.startswith(_ELF):
        return "This is no library for Linux on arm64." if _LIBRARY.fullmatch(name) else None
    if len(content) < _MACHINE_AT + 2 or (content[4], content[5]) != (_64_BIT, _LITTLE_ENDIAN):
        return "This is no library for Linux on arm64."
    (machine,) = struct.unpack_from("<H", content, _MACHINE_AT)
    if machine != _ARM64:
        return (
            "This library is not built for arm64, on which agentcore runs: install the packages with "
            "`pip install --platform manylinux2014_aarch64 --only-binary=:all: --target .`."
        )
    return None


def _is_cache(name: str) -> bool:
    return "__pycache__" in posixpath.dirname(name).split("/")


def _file_issues(files: Mapping[str, bytes]) -> Iterator[Issue]:
    for name, content in files.items():
        if name.endswith((".pyc", ".pyo")):
            yield {"path": name, "message": "Compiled Python is not taken; deploy its source."}
        elif problem := library_problem(name, content):
            yield {"path": name, "message": problem}


def _source_issues(entrypoint: str, sources: Mapping[str, bytes]) -> Iterator[Issue]:
    """Check the syntax in a fresh Python, which runs nothing of them; it is this server's version of Python."""
    table = {"entrypoint": entrypoint, "files": [[name, len(content)] for name, content in sources.items()]}
    given = b"".join([json.dumps(table).encode(), b"\n", *sources.values()])
    command = [sys.executable, "-I", "-S", "-W", "ignore", str(_SCRIPT)]
    for problem in json.loads(run_confined(command, given, Caps(TIME_LIMIT, _MEMORY_LIMIT, _LARGEST_OUTPUT))):
        name, line = problem["name"], problem["line"]
        yield {"path": f"{name}:{line}" if line else name, "message": str(problem["text"])[:300]}
