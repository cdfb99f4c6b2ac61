"""Child processes that write to a log file, stop when told, and die with their parent."""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Protocol

# Linux sends the death signal when the *thread* that started a child ends, so all children are
# started by this one thread, which lives as long as the process.
_starter = ThreadPoolExecutor(max_workers=1, thread_name_prefix="children")
_LEASH = Path(__file__).with_name("leash.py")


class LocalServiceError(Exception):
    """A local service did not start, or died; the message says what to look at."""


class Service(Protocol):
    """What can be started, stopped in good order, and killed."""

    @property
    def pid(self) -> int:
        """The process id of its main process."""

    @property
    def alive(self) -> bool:
        """Whether it runs at this moment."""

    def start(self) -> None:
        """Start it."""

    def stop(self) -> None:
        """Stop it in good order."""

    def kill(self) -> None:
        """Stop it as a crash would."""


@dataclass(frozen=True)
class Identity:
    """The operating-system user that a child runs as."""

    uid: int
    gid: int


@dataclass
class Child:
    """A program with a name, a log file and a leash.

    It runs in a process group of its own, so that Ctrl-C in a terminal reaches only the parent,
    which then stops its children in order.
    """

    name: str
    command: Sequence[str]
    log: Path
    environment: Mapping[str, str] | None = None
    directory: Path | None = None
    identity: Identity | None = None
    stop_signal: signal.Signals = signal.SIGTERM
    patience: float = 10.0
    _process: subprocess.Popen[bytes] | None = field(default=None, init=False, repr=False)
    _group_killed: bool = field(default=True, init=False, repr=False)

    @property
    def pid(self) -> int:
        """The process id of the running program."""
        if self._process is None:
            raise LocalServiceError(f"{self.name} was not started.")
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether the program runs at this moment."""
        return self._process is not None and self._process.poll() is None

    @property
    def exit_code(self) -> int | None:
        """How the program ended; None while it runs or when it never did."""
        return None if self._process is None else self._process.poll()

    def start(self) -> None:
        """Start the program and return at once. Raises LocalServiceError when it runs already."""
        if self.alive:
            raise LocalServiceError(f"{self.name} runs already, as process {self.pid}.")
        self._process = _starter.submit(self._spawn).result()
        self._group_killed = False

    def stop(self) -> None:
        """Ask the program to stop, wait, and after `patience` seconds kill it and all it started."""
        if self._process is None:
            return
        if self._process.poll() is None:
            self._process.send_signal(self.stop_signal)
            try:
                self._process.wait(self.patience)
            except subprocess.TimeoutExpired:
                self.kill()
        self._kill_group()  # what a program left behind when it stopped

    def kill(self) -> None:
        """Kill the program and everything in its process group at once, as a crash would."""
        if self._process is not None:
            self._kill_group()
            self._process.wait()

    def tail(self, lines: int = 15) -> str:
        """Return the end of the log, to show in an error."""
        if not self.log.exists():
            return "(nothing logged)"
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def _spawn(self) -> subprocess.Popen[bytes]:
        program = shutil.which(self.command[0])
        if program is None:
            raise LocalServiceError(f"{self.name}: there is no program {self.command[0]}.")
        identity = f"{self.identity.uid}:{self.identity.gid}" if self.identity else "-"
        leash = [sys.executable, "-I", "-S", str(_LEASH), str(os.getpid()), str(int(self.stop_signal)), identity]
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            return subprocess.Popen(
                [*leash, program, *self.command[1:]],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=None if self.environment is None else dict(self.environment),
                cwd=self.directory,
                start_new_session=True,
            )

    def _kill_group(self) -> None:
        if self._group_killed:
            return  # by now the number may be somebody else's
        self._group_killed = True
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)


def wait_until(ready: Callable[[], bool], what: str, seconds: float, child: Child | None = None) -> None:
    """Wait until `ready` holds.

    Raises LocalServiceError, with the end of the child's log, when time is up or the child has died.
    """
    deadline = time.monotonic() + seconds
    while not ready():
        log = f"\n{child.log} ends:\n{child.tail()}" if child else ""
        if child is not None and not child.alive:
            raise LocalServiceError(f"{what}: the process ended with {child.exit_code}.{log}")
        if time.monotonic() > deadline:
            raise LocalServiceError(f"{what}: not ready after {seconds:g} seconds.{log}")
        time.sleep(0.05)


def wait_for_port(port: int, what: str, seconds: float, child: Child | None = None) -> None:
    """Wait until something on this machine accepts connections on a port."""
    wait_until(lambda: accepts(port), what, seconds, child)


def accepts(port: int) -> bool:
    """Whether something on this machine accepts connections on a port."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1):
            return True
    except OSError:
        return False


# Held open, and so locked, until this process ends.
_claims: dict[int, IO[str]] = {}


def claim(port: int) -> bool:
    """Keep a port for servers of this process until it ends; say whether it was there to be had.

    A stack chooses its ports minutes before its last server listens on one. Until then a port is free for
    everybody, so whoever chooses one through this module leaves claimed ones alone.
    """
    if port in _claims:
        return True
    folder = Path(tempfile.gettempdir()) / f"webhost-ports-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    claimed = (folder / str(port)).open("w")
    try:
        fcntl.flock(claimed, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        claimed.close()
        return False
    _claims[port] = claimed
    return True


def release(port: int) -> None:
    """Give a claimed port back."""
    if claimed := _claims.pop(port, None):
        claimed.close()


def is_free(port: int) -> bool:
    """Whether a server could listen on this loopback port now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def free_port() -> int:
    """Return a free loopback port and claim it for this process.

    From below the range that systems give to outgoing connections (32768 and up on Linux), so that
    none of those takes it before the server listens.
    """
    for _ in range(200):
        port = random.randint(20_000, 32_000)  # to avoid collisions, not to be secret
        if claim(port) and is_free(port):
            return port
    raise LocalServiceError("No free port between 20000 and 32000 on this machine.")
