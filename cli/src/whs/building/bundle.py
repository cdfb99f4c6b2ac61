"""Which way a folder becomes a bundle: as it is, with npm packages bundled in, or with Python packages beside it."""

from __future__ import annotations

import io
import json
import re
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from whs.building import esbuild, python
from whs.building.archive import pack
from whs.building.project import CODE, CONFIG_NAME, TEXT, Project, parse_config, read_project
from whs.errors import LocalError, UsageError

# An import statement of a package, at the beginning of a line; strings and comments hardly look like it.
_PACKAGE: Final = re.compile(
    r"""^\s*(?:import|export)\b(?:[^'"`;]*?\bfrom)?\s*["']((?!\.{1,2}/|node:|cloudflare:)[^"']+)["']""", re.MULTILINE
)


def build_bundle(folder: Path, say: Callable[[str], None]) -> tuple[Project, bytes]:
    """Build the agent in a folder; raises UsageError or LocalError that says what is missing and what to do."""
    project = read_project(folder)
    if project.is_python:
        files = _python(project, say)
    elif (folder / "package.json").exists():
        files = _bundled(project, say)
    else:
        files = _as_they_are(project)
    return project, pack(files)


def read_bundle(path: Path) -> tuple[Project, bytes]:
    """Read a zip that was built before, for what it says of itself; the service judges it."""
    content = path.read_bytes()
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as opened:
            raw = opened.read(CONFIG_NAME)
    except (zipfile.BadZipFile, KeyError):
        raise UsageError(
            f"{path} is no zip with {CONFIG_NAME} at its top.", todo="Let `whs build` write one."
        ) from None
    return Project(path.parent, parse_config(raw, path)), content


def _config(config: dict[str, Any]) -> bytes:
    return (json.dumps(config, indent=2, ensure_ascii=False) + "\n").encode()


def _bundled(project: Project, say: Callable[[str], None]) -> dict[str, bytes]:
    """Return one file with everything in it, under the entrypoint's name."""
    program = esbuild.find_esbuild(project.folder)
    say(f"Bundling {project.entrypoint} with {program}.")
    name = str(Path(project.entrypoint).with_suffix(".js").as_posix())
    code = esbuild.bundle(program, project.folder, project.entrypoint, project.runtimes)
    return {CONFIG_NAME: _config({**project.config, "entrypoint": name}), name: code}


def _as_they_are(project: Project) -> dict[str, bytes]:
    """Return the sources: the service strips the types and follows relative imports."""
    files = {
        name: path.read_bytes()
        for name, path in project.files()
        if name == CONFIG_NAME or path.suffix in CODE | TEXT | {".json"}
    }
    for name, content in files.items():
        if Path(name).suffix in CODE and (found := _PACKAGE.search(content.decode("utf-8", "replace"))):
            raise UsageError(
                f"{name} imports {found[1]}, and there is no package.json.",
                todo=f"In {project.folder}: npm init -y && npm install {found[1]} && npm install --save-dev esbuild",
            )
    return files


def _python(project: Project, say: Callable[[str], None]) -> dict[str, bytes]:
    own = {name: path.read_bytes() for name, path in project.files()}
    requirements = project.folder / "requirements.txt"
    if not requirements.exists():
        return own
    say("Installing requirements.txt for Python 3.13 on arm64 Linux.")
    packages = python.vendored(requirements)
    if both := sorted(own.keys() & packages.keys()):
        raise LocalError(
            "BUILD_FAILED", f"{both[0]} is a file of the project as well as of a package of requirements.txt."
        )
    return {**packages, **own}
