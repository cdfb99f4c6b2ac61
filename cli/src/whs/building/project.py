"""The folder of an agent: its agent.config.json, and which of its files go into a bundle."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from whs.errors import UsageError

CONFIG_NAME: Final = "agent.config.json"
CODE: Final = frozenset({".ts", ".js", ".mts", ".mjs"})
# What the service takes beside code: each becomes a module with a default export.
TEXT: Final = frozenset({".txt", ".md", ".html", ".css", ".csv", ".sql", ".xml", ".yaml", ".yml"})
_NEVER: Final = frozenset({"node_modules", "__pycache__"})
_LEFT_OUT: Final = frozenset({".zip", ".pyc", ".pyo"})
_RUNTIMES: Final = ("cloudflare", "agentcore")


@dataclass(frozen=True)
class Project:
    """An agent as it lies in a folder. Only what building needs is read; the service judges the rest."""

    folder: Path
    config: dict[str, Any]

    @property
    def name(self) -> str:
        """What the agent is called."""
        return str(self.config["name"])

    @property
    def entrypoint(self) -> str:
        """The file that the runtime calls, relative to the folder."""
        return str(self.config["entrypoint"]).removeprefix("./")

    @property
    def is_python(self) -> bool:
        """Whether it is written in Python."""
        return self.entrypoint.endswith(".py")

    @property
    def runtimes(self) -> tuple[str, ...]:
        """Where it may run, the first choice first."""
        named = self.config.get("runtimes", [self.config.get("runtime")])
        return tuple(runtime for runtime in _RUNTIMES if isinstance(named, list) and runtime in named)

    def files(self) -> Iterator[tuple[str, Path]]:
        """Yield the folder's files by their names in a bundle, sorted.

        Left out are hidden files and folders (.env, .git), node_modules, virtual environments, caches and
        zips. Links are refused: what they lead to may be no part of the project.
        """
        for root, folders, names in os.walk(self.folder):
            here = Path(root)
            folders[:] = sorted(name for name in folders if not _is_foreign(here / name))
            for name in sorted([*names, *folders]):
                path = here / name
                if name.startswith(".") or path.suffix in _LEFT_OUT:
                    continue
                if path.is_symlink():
                    raise UsageError(f"{path} is a link.", todo="Put the file itself there.")
                if path.is_file():
                    yield path.relative_to(self.folder).as_posix(), path


def _is_foreign(path: Path) -> bool:
    return path.name.startswith(".") or path.name in _NEVER or (path / "pyvenv.cfg").exists()


def parse_config(raw: bytes, path: Path) -> dict[str, Any]:
    """Return the config that bytes hold; raises UsageError where building could not go on with it."""
    try:
        config = json.loads(raw)
    except ValueError as error:
        raise UsageError(f"{path} cannot be read: {error}.") from None
    if not isinstance(config, dict) or not all(isinstance(config.get(key), str) for key in ("name", "entrypoint")):
        raise UsageError(f"{path} must name the agent's `name` and `entrypoint`.")
    if not Project(path.parent, config).runtimes:
        raise UsageError(f"{path} must name `runtimes`: cloudflare, agentcore, or both.")
    return config


def read_project(folder: Path) -> Project:
    """Read the config of a folder; raises UsageError where that is no agent's."""
    path = folder / CONFIG_NAME
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        raise UsageError(
            f"There is no {CONFIG_NAME} in {folder}.", todo="`whs init` makes a folder to start from."
        ) from None
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}.") from None
    project = Project(folder, parse_config(raw, path))
    if not (folder / project.entrypoint).is_file():
        raise UsageError(f"The entrypoint {project.entrypoint} is not in {folder}.")
    return project
