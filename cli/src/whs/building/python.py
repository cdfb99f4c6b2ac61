"""Install the packages of a requirements.txt beside the agent, for the machine that will run it, not for this one."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from whs.errors import LocalError

# What AgentCore runs: Python 3.13 on arm64 Linux. Pure packages are the same everywhere.
PYTHON: Final = "3.13"
PLATFORM: Final = "manylinux2014_aarch64"
_PATIENCE_SECONDS: Final = 600


def vendored(requirements: Path) -> dict[str, bytes]:
    """Return the files of the packages by name; raises LocalError with what pip says."""
    with tempfile.TemporaryDirectory(prefix="whs-") as folder:
        target = Path(folder)
        try:
            done = subprocess.run(
                _command(requirements, target), cwd=requirements.parent, stdin=subprocess.DEVNULL, capture_output=True,
                text=True, timeout=_PATIENCE_SECONDS, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise LocalError("BUILD_FAILED", f"pip did not end within {_PATIENCE_SECONDS} seconds.") from None
        if done.returncode:
            raise LocalError(
                "BUILD_FAILED", f"requirements.txt cannot be installed:\n{done.stderr.strip()[-4_000:]}",
                todo=f"Every package must have a wheel that is pure or for Python {PYTHON} on arm64 Linux.",
            )  # fmt: skip
        return {
            path.relative_to(target).as_posix(): path.read_bytes()
            for path in sorted(target.rglob("*"))
            if path.is_file() and not _is_left_out(path.relative_to(target))
        }


def _is_left_out(path: Path) -> bool:
    return (
        path.parts[0] == "bin" or "__pycache__" in path.parts or path.suffix in {".pyc", ".pyo"} or path.name == ".lock"
    )


def _command(requirements: Path, target: Path) -> list[str]:
    wanted = ["--target", str(target), "--only-binary", ":all:", "--python-version", PYTHON, "-r", requirements.name]
    pip = ["--quiet", "--disable-pip-version-check", "--no-compile", "--platform", PLATFORM, "--implementation", "cp"]
    if importlib.util.find_spec("pip"):
        return [sys.executable, "-m", "pip", "install", *pip, *wanted]
    if uv := shutil.which("uv"):
        return [uv, "pip", "install", "--quiet", "--python-platform", "aarch64-manylinux2014", *wanted]
    if python := shutil.which("python3"):
        return [python, "-m", "pip", "install", *pip, *wanted]
    raise LocalError(
        "BUILD_FAILED", "There is neither pip nor uv to install requirements.txt with.", todo="Install one."
    )
