"""A deployment's zip: our shim at the root, the agent's code in a folder of its own; the same bytes every time."""

from __future__ import annotations

import zipfile
from enum import StrEnum
from functools import cache
from io import BytesIO
from pathlib import Path, PurePosixPath
from typing import Final

from runtimes.bundle import Bundle

SHIMS: Final = Path(__file__).resolve().parent.parent / "shims" / "agentcore"
USER_FOLDER: Final = "bundle"
# Everybody reads, nobody runs: AgentCore refuses other modes than 644 and 755.
_MODE: Final = 0o100644 << 16
_UNIX: Final = 3
_EPOCH: Final = (1980, 1, 1, 0, 0, 0)


class Language(StrEnum):
    """What an agent is written in, under AgentCore's name of what runs it."""

    NODE = "NODE_22"
    PYTHON = "PYTHON_3_13"

    @property
    def entry_point(self) -> str:
        """The shim's own main file."""
        return "main.py" if self == Language.PYTHON else "main.js"

    @property
    def shim(self) -> Path:
        """The folder with our part of the zip."""
        return SHIMS / ("python" if self == Language.PYTHON else "node")


def language_of(bundle: Bundle) -> Language:
    """Return what a built bundle needs to run."""
    return Language.PYTHON if bundle.is_python else Language.NODE


@cache
def _shim(language: Language) -> dict[str, bytes]:
    return {
        path.relative_to(language.shim).as_posix(): path.read_bytes()
        for path in language.shim.rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }


def pack(bundle: Bundle) -> bytes:
    """Return the zip of a bundle. Sorted names, one date and one mode: equal bundles make equal bytes."""
    files = dict(_shim(language_of(bundle)))
    files |= {str(PurePosixPath(USER_FOLDER, module.name)): module.content for module in bundle.modules}
    content = BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for name in sorted(files):
            entry = zipfile.ZipInfo(name, _EPOCH)
            entry.create_system, entry.external_attr = _UNIX, _MODE
            archive.writestr(entry, files[name], zipfile.ZIP_DEFLATED)
    return content.getvalue()
