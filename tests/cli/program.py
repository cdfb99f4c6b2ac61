"""The command line as its users run it: a program, with a folder, a home and an environment of its own."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from webhost.local import node

WHS = Path(sys.executable).with_name("whs")
# Becomes a program whose controlling terminal is its standard input, as at a prompt.
_AT_TERMINAL = "import os, sys; os.login_tty(0); os.execv(sys.argv[1], sys.argv[1:])"
_NODE = node.node_binary().parent


@dataclass(frozen=True)
class Ended:
    """What a command said, and how it ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Standard output, as one JSON value."""
        return json.loads(self.out)

    @property
    def lines(self) -> list[Any]:
        """Standard output, as a JSON value per line."""
        return [json.loads(line) for line in self.out.splitlines()]


@dataclass(frozen=True)
class Program:
    """Somebody at a prompt."""

    folder: Path
    variables: Mapping[str, str]

    @property
    def environment(self) -> dict[str, str]:
        """What the program sees: nothing of ours but the path to itself and to Node."""
        path = os.pathsep.join([str(WHS.parent), str(_NODE), os.environ["PATH"]])
        plain = {"HOME": str(self.folder / "home"), "PATH": path, "LANG": "C.UTF-8"}
        return {**plain, "WHS_CONFIG_DIR": str(self.folder / "config"), **self.variables}

    def __call__(self, *arguments: str, given: str | bytes = "", **variables: str) -> Ended:
        """Run `whs` with arguments; `given` is its standard input."""
        done = subprocess.run(
            [str(WHS), *arguments], cwd=self.folder, env=self.environment | variables, timeout=120, check=False,
            capture_output=True, input=given.encode() if isinstance(given, str) else given,
        )  # fmt: skip
        return Ended(done.returncode, done.stdout.decode(), done.stderr.decode())

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Start `whs` and do not wait for it."""
        return subprocess.Popen(
            [str(WHS), *arguments], cwd=self.folder, env=self.environment, text=True, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    def at_terminal(self, *arguments: str, asked: str = "", typed: str = "") -> str:
        """Run `whs` at a terminal, type something when it is asked for; return all that the screen shows."""
        ours, its = pty.openpty()
        running = subprocess.Popen(
            [sys.executable, "-c", _AT_TERMINAL, str(WHS), *arguments], cwd=self.folder, env=self.environment,
            stdin=its, stdout=its, stderr=its,
        )  # fmt: skip
        os.close(its)
        shown, is_typed = b"", not asked
        with contextlib.suppress(OSError):  # which is how a terminal says that nobody holds it any more
            while piece := os.read(ours, 4096):
                shown += piece
                if not is_typed and asked.encode() in shown:
                    os.write(ours, f"{typed}\n".encode())
                    is_typed = True
        os.close(ours)
        running.wait(timeout=30)
        return shown.decode()

    def write(self, files: Mapping[str, str | bytes]) -> Path:
        """Write files below its folder."""
        for name, content in files.items():
            path = self.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content.encode() if isinstance(content, str) else content)
        return self.folder
