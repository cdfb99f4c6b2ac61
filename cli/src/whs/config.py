"""Who is signed in where: one file below the user's config folder, which nobody else can read at any moment."""

from __future__ import annotations

import contextlib
import json
import os
import stat
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import platformdirs

from whs.errors import LocalError, UsageError

DEFAULT_URL: Final = "https://webhost.systems"
_OTHERS: Final = 0o077


@dataclass(frozen=True)
class Config:
    """What is kept: the address used last, and a token for each address."""

    url: str | None = None
    tokens: Mapping[str, str] = field(default_factory=dict)


def config_path() -> Path:
    """Return where the config is kept; WHS_CONFIG_DIR names another folder."""
    folder = os.environ.get("WHS_CONFIG_DIR")
    return (Path(folder) if folder else platformdirs.user_config_path("whs", appauthor=False)) / "config.json"


def load_config(path: Path, warn: Callable[[str], None]) -> Config:
    """Read the config; a file that others could read is closed to them, with a warning.

    Raises LocalError for a file that somebody else owns: they could have put any address into it.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return Config()
    except OSError as error:
        raise LocalError("CONFIG", f"{path} cannot be read: {error.strerror}.") from None
    with os.fdopen(descriptor, encoding="utf-8") as file:
        _require_private(path, descriptor, warn)
        try:
            kept = json.load(file)
            return Config(kept["url"], {str(url): str(one["token"]) for url, one in kept["profiles"].items()})
        except (ValueError, KeyError, TypeError, AttributeError):
            raise UsageError(f"{path} is damaged.", todo="Delete it and run `whs login`.") from None


def save_config(path: Path, config: Config) -> None:
    """Write the config so that it is whole and private at every moment."""
    profiles = {url: {"token": token} for url, token in sorted(config.tokens.items())}
    text = json.dumps({"url": config.url, "profiles": profiles}, indent=2) + "\n"
    folder = path.parent
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if os.name == "posix" and folder.stat().st_mode & _OTHERS:
            folder.chmod(0o700)
        # Made with mode 0600 under a name that did not exist, then moved: there is no moment in between.
        descriptor, passing = tempfile.mkstemp(dir=folder, prefix=".config-")
    except OSError as error:
        raise LocalError("CONFIG", f"{folder} cannot be written: {error.strerror}.") from None
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        Path(passing).replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            Path(passing).unlink()
        raise


def _require_private(path: Path, descriptor: int, warn: Callable[[str], None]) -> None:
    """Judge and mend the very file that was opened, not whatever has its name by then."""
    if os.name != "posix":
        return  # there the user's profile folder has an access list
    found = os.fstat(descriptor)
    if found.st_uid != os.geteuid():
        raise LocalError("CONFIG", f"{path} belongs to somebody else; it is not used.")
    if stat.S_IMODE(found.st_mode) & _OTHERS:
        os.fchmod(descriptor, 0o600)
        warn(
            f"{path} could be read by others, and is closed to them now. If others use this machine, revoke the token."
        )
