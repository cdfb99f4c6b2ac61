"""The values a bundle passes through: what was uploaded, and what is deployed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from runtimes.bundles.config import AgentConfig


class ModuleKind(StrEnum):
    """How a runtime takes a module. A built bundle of TypeScript is all `esm`, one of Python `python` and `data`."""

    ESM = "esm"
    PYTHON = "python"
    TEXT = "text"
    DATA = "data"
    JSON = "json"


@dataclass(frozen=True)
class Module:
    """One file of what is deployed."""

    name: str
    content: bytes
    kind: ModuleKind = ModuleKind.ESM


@dataclass(frozen=True)
class Source:
    """A bundle as it was uploaded, checked: its files, and the sha256 of the very bytes that were read."""

    config: AgentConfig
    files: Mapping[str, bytes]
    source_sha256: str


@dataclass(frozen=True)
class Bundle:
    """A bundle ready to deploy, its modules sorted by name.

    JavaScript imports nothing outside of it but the runtime's own; Python brings its packages along.
    """

    entrypoint: str
    modules: tuple[Module, ...]
    config: AgentConfig
    source_sha256: str
    deployed_sha256: str

    @property
    def is_python(self) -> bool:
        """Whether this is a Python agent; otherwise it is one of JavaScript modules."""
        return self.config.is_python
