"""The scripts of all namespaces, on disk: modules, bindings, tags. A PUT replaces bindings, as at Cloudflare."""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from http import HTTPStatus
from pathlib import Path
from typing import Any

from webhost.local.cloudflare.config import Part, Source
from webhost.local.cloudflare.replies import ApiError, Code
from webhost.local.cloudflare.uploads import Upload, check_bindings, check_tags


@dataclass(frozen=True)
class Script:
    """A script as it stands. `etag` names its modules, `revision` counts every change."""

    name: str
    etag: str
    revision: int
    modules: tuple[tuple[str, str], ...]
    bindings: tuple[Mapping[str, Any], ...]
    tags: tuple[str, ...]
    compatibility_date: str
    compatibility_flags: tuple[str, ...]
    cpu_ms: int

    def public(self) -> dict[str, Any]:
        """Return what `GET script` tells of it."""
        return {"etag": self.etag, "tags": list(self.tags), "id": self.name, "migration_tag": None}

    def settings(self) -> dict[str, Any]:
        """Return what `GET settings` tells; a secret's value is never among it."""
        shown = [
            {key: value for key, value in binding.items() if not (binding["type"] == "secret_text" and key == "text")}
            for binding in self.bindings
        ]
        return {"bindings": shown, "tags": list(self.tags), "compatibility_date": self.compatibility_date}


def replaced_bindings(
    metadata: Mapping[str, Any], previous: Sequence[Mapping[str, Any]], *, strict: bool
) -> list[dict[str, Any]]:
    """Return the bindings after an upload: those given, those inherited by name, those kept by type.

    Whatever is neither is gone. An inherited binding that never was is silently dropped, or refused
    with 10057 where the caller asked for that (`bindings_inherit=strict`).
    """
    before = {binding["name"]: dict(binding) for binding in previous}
    found: list[dict[str, Any]] = []
    for binding in metadata.get("bindings", []):
        if binding["type"] != "inherit":
            found.append(dict(binding))
        elif (kept := before.get(binding.get("old_name", binding["name"]))) is not None:
            found.append(kept | {"name": binding["name"]})
        elif strict:
            raise ApiError(Code.INHERITANCE, f"There is no binding {binding['name']} to inherit.")
    names = {binding["name"] for binding in found}
    kept_types = set(metadata.get("keep_bindings", []))
    found += [b for name, b in before.items() if b["type"] in kept_types and name not in names]
    return found


class Scripts:
    """All scripts of one namespace in a folder; readable by its owner only, since secrets are among it."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._lock = threading.RLock()
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)

    def get(self, name: str) -> Script:
        """Return a script; raises ApiError 10007."""
        with self._lock:
            try:
                values = json.loads((self._directory / name / "script.json").read_text())
            except FileNotFoundError:
                raise ApiError(Code.NOT_FOUND, "This script does not exist.", HTTPStatus.NOT_FOUND) from None
        pairs = tuple((module, kind) for module, kind in values.pop("modules"))
        for key in ("bindings", "tags", "compatibility_flags"):
            values[key] = tuple(values[key])
        return Script(**values, modules=pairs)

    def find(self, name: str) -> Script | None:
        """Return a script, or None."""
        with contextlib.suppress(ApiError):
            return self.get(name)
        return None

    def all(self) -> list[Script]:
        """Return all scripts by name."""
        return [self.get(path.parent.name) for path in sorted(self._directory.glob("*/script.json"))]

    def source(self, script: Script) -> Source:
        """Return a script as workerd is told of it."""
        folder = self._directory / script.name / script.etag
        return Source(
            name=script.name,
            modules=tuple(Part(name, kind, folder / f"{n}") for n, (name, kind) in enumerate(script.modules)),
            bindings=script.bindings,
            compatibility_date=script.compatibility_date,
            compatibility_flags=script.compatibility_flags,
        )

    def prepare(self, name: str, upload: Upload, *, strict: bool) -> Script:
        """Write an upload's modules and return the script it would become. Nothing serves it yet."""
        digest = hashlib.sha256()
        ordered = sorted(upload.modules, key=lambda part: part.name != upload.metadata["main_module"])
        for part in ordered:
            digest.update(f"{part.name}\0{part.content_type}\0{len(part.content)}\0".encode() + part.content)
        etag = digest.hexdigest()
        folder = self._directory / name / etag
        folder.mkdir(parents=True, exist_ok=True)
        for n, part in enumerate(ordered):
            (folder / f"{n}").write_bytes(part.content)
        metadata = upload.metadata
        previous = self.find(name)
        bindings = replaced_bindings(metadata, previous.bindings if previous else (), strict=strict)
        check_bindings(bindings)
        return Script(
            name=name,
            etag=etag,
            revision=previous.revision + 1 if previous else 1,
            modules=tuple((part.name, part.content_type) for part in ordered),
            bindings=tuple(bindings),
            tags=tuple(metadata.get("tags", [])),
            compatibility_date=metadata["compatibility_date"],
            compatibility_flags=tuple(metadata.get("compatibility_flags", [])),
            cpu_ms=int(metadata.get("limits", {}).get("cpu_ms", 30_000)),
        )

    def save(self, script: Script) -> None:
        """Let a script be what calls see from now on."""
        with self._lock:
            folder = self._directory / script.name
            draft = folder / "script.draft"
            draft.touch(mode=0o600)
            draft.write_text(json.dumps(asdict(script)))
            draft.replace(folder / "script.json")
            for old in folder.iterdir():
                # A process reads its modules while it starts only, and that one started before.
                if old.is_dir() and old.name != script.etag:
                    shutil.rmtree(old, ignore_errors=True)

    def change_secrets(self, name: str, changes: Mapping[str, Mapping[str, Any] | None]) -> Script:
        """Merge secrets into a script's bindings; null deletes. One new revision for all."""
        with self._lock:
            script = self.get(name)
            kept = {binding["name"]: binding for binding in script.bindings}
            for secret, value in changes.items():
                if value is None:
                    kept.pop(secret, None)
                elif value.get("type") != "secret_text" or value.get("name") != secret:
                    raise ApiError(Code.BAD_BODY, "A secret needs its name, text and the type secret_text.")
                else:
                    kept[secret] = {"name": secret, "type": "secret_text", "text": value.get("text")}
            check_bindings(list(kept.values()))
            changed = replace(script, bindings=tuple(kept.values()), revision=script.revision + 1)
            self.save(changed)
            return changed

    def tag(self, name: str, tags: Any) -> None:
        """Replace a script's tags."""
        check_tags(tags)
        with self._lock:
            self.save(replace(self.get(name), tags=tuple(tags)))

    def delete(self, name: str) -> None:
        """Delete a script; raises ApiError 10007 when there is none."""
        with self._lock:
            self.get(name)
            (self._directory / name / "script.json").unlink()
            shutil.rmtree(self._directory / name, ignore_errors=True)
