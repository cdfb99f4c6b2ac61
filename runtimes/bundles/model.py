"""The values a bundle passes through: what was uploaded, and what is deployed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from runtimes.bundles.config import AgentConfig


class ModuleKind(StrEnum):
    """How a runtime takes a module. A built bundle is all `esm`; the rest is for what adapters add."""

    ESM = "esm"
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
    """A bundle ready to deploy. Modules are sorted by name and import nothing outside of it but the runtime's own."""

    entrypoint: str
    modules: tuple[Module, ...]
    config: AgentConfig
    source_sha256: str
    deployed_sha256: str
