"""Bundle npm packages with the developer's own esbuild, for Workers and for Node.

The service resolves nothing outside of a bundle, and runs nothing of it. So dependencies are bundled here, where
the developer's lock file and tools are.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from whs.building.project import TEXT
from whs.errors import LocalError

# The modules that Node has under their bare names, which both runtimes know as node:... only.
_BUILTINS: Final = (
    "assert", "async_hooks", "buffer", "child_process", "cluster", "console", "constants", "crypto", "dgram",
    "diagnostics_channel", "dns", "domain", "events", "fs", "http", "http2", "https", "inspector", "module", "net",
    "os", "path", "perf_hooks", "process", "punycode", "querystring", "readline", "stream", "string_decoder", "timers",
    "tls", "trace_events", "tty", "url", "util", "v8", "vm", "wasi", "worker_threads", "zlib",
)  # fmt: skip
# A Worker is a browser without a page, and what packages publish for browsers runs in Node as well.
_ANYWHERE: Final = ("--conditions=worker,browser,module", "--main-fields=browser,module,main")
_NODE_ONLY: Final = ("--conditions=node,module", "--main-fields=module,main")
# CommonJS packages ask for Node's modules with require(), which no ES module has: give them one.
_REQUIRE: Final = re.compile(rb'\b__require\("(?:node:[a-z0-9_/]+)"\)')
_GIVE_REQUIRE: Final = (
    b'import { createRequire as __whsCreateRequire } from "node:module";\n'
    b'const require = __whsCreateRequire("file:///agent.mjs");\n'
)
_PATIENCE_SECONDS: Final = 120


def find_esbuild(folder: Path) -> Path:
    """Return the esbuild of the project, of a folder above it (a workspace), or of the PATH."""
    for place in [folder.resolve(), *folder.resolve().parents]:
        program = place / "node_modules" / ".bin" / "esbuild"
        if program.exists():
            return program
    if found := shutil.which("esbuild"):
        return Path(found)
    raise LocalError(
        "BUILD_FAILED", "There is a package.json, and no esbuild to bundle its packages with.",
        todo=f"Run `npm install --save-dev esbuild` in {folder}, then build again.",
    )  # fmt: skip


def bundle(program: Path, folder: Path, entrypoint: str, runtimes: Sequence[str]) -> bytes:
    """Return one ES module with everything in it that the entrypoint reaches.

    Raises LocalError with what esbuild says: its own words name file and line.
    """
    command = [
        str(program.absolute()), entrypoint, "--bundle", "--format=esm", "--platform=neutral", "--target=es2022",
        "--charset=utf8", "--log-level=error", "--color=false", '--define:process.env.NODE_ENV="production"',
        "--external:node:*", "--external:cloudflare:*", *(f"--alias:{name}=node:{name}" for name in _BUILTINS),
        *(f"--loader:{suffix}=text" for suffix in sorted(TEXT)),
        *(_ANYWHERE if "cloudflare" in runtimes else _NODE_ONLY),
    ]  # fmt: skip
    try:
        done = subprocess.run(
            command, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, timeout=_PATIENCE_SECONDS, check=False
        )
    except FileNotFoundError:
        raise LocalError("BUILD_FAILED", f"{program} does not start.", todo="Install Node.js 22 or newer.") from None
    except subprocess.TimeoutExpired:
        raise LocalError("BUILD_FAILED", f"esbuild did not end within {_PATIENCE_SECONDS} seconds.") from None
    if done.returncode:
        raise LocalError(
            "BUILD_FAILED", f"esbuild cannot bundle {entrypoint}:\n{_words(done.stderr)}", todo=_todo(done.stderr)
        )
    return _GIVE_REQUIRE + done.stdout if _REQUIRE.search(done.stdout) else done.stdout


def _words(told: bytes) -> str:
    """Return what esbuild says, without the trace of the script that npm puts in front of it."""
    said = told.decode("utf-8", "replace").split("\nnode:", 1)[0].strip()
    return said[:4_000] or "It ended without a word."


def _todo(told: bytes) -> str:
    if b"env: " in told and b"node" in told:
        return "Install Node.js 22 or newer: esbuild's own script needs it."
    if b"Could not resolve" in told:
        return "Run `npm install` for what is missing, or correct the import."
    return ""
