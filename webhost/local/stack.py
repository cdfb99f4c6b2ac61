"""The services below the product: PostgreSQL, Valkey and the Node side, each only where none is given."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from webhost.local import environment, node
from webhost.local.postgres import Postgres
from webhost.local.processes import LocalServiceError
from webhost.local.redis import Redis


class Stack:
    """PostgreSQL, Valkey and Node's packages, with their state below `directory`.

    `given` are settings from outside. A DATABASE_URL or REDIS_URL among them is used as it is and
    nothing is started in its place. `environment` holds all settings once `start` returned.
    """

    def __init__(self, directory: Path, given: Mapping[str, str] | None = None) -> None:
        self.directory = directory.resolve()
        self.given = dict(given or {})
        self.environment: dict[str, str] = {}
        self.postgres: Postgres | None = None
        self.redis: Redis | None = None
        self._lock: IO[str] | None = None

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def logs(self) -> Path:
        """The folder of the log files."""
        return self.directory / "logs"

    def start(self) -> None:
        """Start what is not given and wait until it answers."""
        self.directory.mkdir(parents=True, exist_ok=True)
        self._take_lock()
        self.logs.mkdir(exist_ok=True)
        kept = environment.keep(self.directory)
        settings = environment.settings_for(self.directory, kept, self.given)
        if "DATABASE_URL" not in settings:
            port, password = kept.port("LOCAL_POSTGRES_PORT"), kept["LOCAL_POSTGRES_PASSWORD"]
            self.postgres = Postgres(self.directory / "postgres", port, password, self.logs / "postgres.log")
            self.postgres.start()
            settings["DATABASE_URL"] = self.postgres.url
        if "REDIS_URL" not in settings:
            port, password = kept.port("LOCAL_REDIS_PORT"), kept["LOCAL_REDIS_PASSWORD"]
            self.redis = Redis(self.directory / "redis", port, password, self.logs / "redis.log")
            self.redis.start()
            settings["REDIS_URL"] = self.redis.url
        if "NODE_MODULES_DIR" not in self.given:
            node.install(environment.STATE / "node")
        self.sign_in_password = kept["LOCAL_SIGN_IN_PASSWORD"]
        inherited = {name: value for name, value in os.environ.items() if name not in environment.SETTINGS}
        self.environment = inherited | settings

    def stop(self) -> None:
        """Stop all that `start` started; the data stay."""
        for service in [self.redis, self.postgres]:
            if service is not None:
                service.stop()
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def remove(self) -> None:
        """Stop, and delete all data."""
        self.stop()
        Postgres(self.directory / "postgres", port=0, password="").remove()
        shutil.rmtree(self.directory, ignore_errors=True)

    def _take_lock(self) -> None:
        if self._lock is not None:
            return
        self._lock = (self.directory / "lock").open("w")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise LocalServiceError(f"A product runs already with its data in {self.directory}.") from None
