"""One workerd process: started on demand, asked whether it lives, drained when something newer serves."""

from __future__ import annotations

import os
import re
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException
from pathlib import Path

from webhost.local.processes import Child

# Cloudflare allows one second of computing; a busy laptop needs more time for that.
START_SECONDS = 10.0
_UNCAUGHT = re.compile(r"Uncaught .+|.*(?:No such module|No such file|does not provide an export).*")


class ScriptError(Exception):
    """A script does not start; the message is what workerd says about it."""


class UnixConnection(HTTPConnection):
    """HTTP over a Unix socket, which no user code can reach and which needs no free port."""

    def __init__(self, path: Path, timeout: float | None = None) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        """Connect to the process that listens there."""
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


@dataclass
class Workerd:
    """A running configuration. `fingerprint` says of what; `cpu_seconds` for how long it may not answer."""

    label: str
    fingerprint: str
    binary: Path
    config: Path
    log: Path
    sockets: tuple[Path, ...]
    environment: Mapping[str, str]
    cpu_seconds: float = 30.0
    _child: Child | None = field(default=None, init=False, repr=False)
    _calls: int = field(default=0, init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False, repr=False)
    used_at: float = field(default_factory=time.monotonic, init=False)
    answered_at: float = field(default_factory=time.monotonic, init=False)

    @property
    def pid(self) -> int:
        """The process id."""
        return self._child.pid if self._child else 0

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self._child is not None and self._child.alive

    @property
    def calls(self) -> int:
        """How many calls it is working on."""
        return self._calls

    @contextmanager
    def call(self) -> Iterator[Path]:
        """Count a call while it lasts, so that nothing stops the process under it; yields its address."""
        with self._lock:
            self._calls += 1
            if self._calls == 1:
                self.answered_at = time.monotonic()
        try:
            yield self.sockets[0]
        finally:
            with self._lock:
                self._calls -= 1
                self.used_at = time.monotonic()

    def start(self) -> None:
        """Start and wait until it answers. Raises ScriptError when the scripts in it do not start."""
        for path in self.sockets:
            path.unlink(missing_ok=True)
        self.log.unlink(missing_ok=True)
        command = [str(self.binary), "serve", "-I", "/", str(self.config)]
        self._child = Child(f"workerd {self.label}", command, self.log, environment=self.environment, patience=2)
        self._child.start()
        deadline = time.monotonic() + START_SECONDS
        # It listens before it has loaded the scripts, and answers only after.
        while not self.check_answers(patience=max(0.1, deadline - time.monotonic())):
            if time.monotonic() > deadline:
                self._child.kill()
                raise ScriptError("Script startup exceeded CPU time limit.")
            if not self._child.alive:
                raise ScriptError(self._complaint())
            time.sleep(0.003)
        self.config.unlink(missing_ok=True)

    def stop(self) -> None:
        """Stop the process; what it was doing is lost."""
        if self._child is not None:
            self._child.kill()
        # Only the first socket is its own; another may be listening on the shared one by now.
        for path in (self.sockets[0], self.log, self.config):
            path.unlink(missing_ok=True)

    def check_answers(self, patience: float = 1.0) -> bool:
        """Whether its event loop turns: one call that loops for ever stops all others."""
        connection = UnixConnection(self.sockets[0], timeout=patience)
        try:
            connection.request("GET", "/")
            connection.getresponse().read()
        except (OSError, HTTPException):
            return False
        finally:
            connection.close()
        self.answered_at = time.monotonic()
        return True

    def _complaint(self) -> str:
        text = self.log.read_text(errors="replace") if self.log.exists() else ""
        match = _UNCAUGHT.search(text)
        return (match[0] if match else text.strip().rpartition("\n")[2])[:500]


def environment(root_keys: str, public_url: str, secrets: Mapping[str, str]) -> dict[str, str]:
    """Return the only environment a process gets: the platform Worker's keys, and the vault's secrets."""
    kept = {name: os.environ[name] for name in ("SSL_CERT_FILE", "SSL_CERT_DIR") if name in os.environ}
    return {"ROOT_KEYS": root_keys, "PUBLIC_URL": public_url, **kept, **secrets}
