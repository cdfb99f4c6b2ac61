"""Which process serves which script. As at Cloudflare, old and new serve side by side until the old is done."""

from __future__ import annotations

import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from webhost.local.cloudflare.config import SECRET_VARIABLE, script_config, state_config
from webhost.local.cloudflare.scripts import Script, Scripts
from webhost.local.cloudflare.workerd import ScriptError, Workerd, environment

_IDLE_SECONDS = 900.0
_MOST_PROCESSES = 60
_DRAIN_SECONDS = 330.0
_TICK_SECONDS = 0.5
_STATE = ""


@dataclass(frozen=True)
class Settings:
    """What all processes of this cloud share."""

    directory: Path
    workerd: Path
    root_keys: str
    public_url: str


class Fleet:
    """The processes of one namespace's scripts, and the one that keeps the platform's Durable Objects."""

    def __init__(self, settings: Settings, scripts: Scripts) -> None:
        self._settings = settings
        self._scripts = scripts
        # Short, because a Unix socket's path is limited to about 100 bytes.
        self._run = Path(tempfile.mkdtemp(prefix="whs-cloud-"))
        self._numbers = count(1)
        self._lock = threading.Lock()
        self._starting: dict[str, threading.Lock] = {}
        self._serving: dict[str, Workerd] = {}
        self._draining: list[tuple[Workerd, float]] = []
        self._stopped = threading.Event()
        self._state_socket = self._run / "state.sock"
        self._reaper = threading.Thread(target=self._tend, name="fleet", daemon=True)

    def start(self) -> None:
        """Start the process that keeps state, and the thread that looks after all of them."""
        with self._process(_STATE):
            pass
        self._reaper.start()

    def stop(self) -> None:
        """Stop every process."""
        self._stopped.set()
        with self._lock:
            everything = [*self._serving.values(), *(process for process, _ in self._draining)]
            self._serving.clear()
            self._draining.clear()
        for process in everything:
            process.stop()
        shutil.rmtree(self._run, ignore_errors=True)

    def pids(self) -> dict[str, int]:
        """Return the process ids by script; the one that keeps state is called `state`."""
        with self._lock:
            return {name or "state": process.pid for name, process in self._serving.items() if process.alive}

    @contextmanager
    def serving(self, name: str) -> Iterator[Path]:
        """Yield the address of the process that serves a script, starting it when none does.

        A script that is not there is answered by the platform Worker alone.
        """
        with self._process(_STATE) as state:
            if self._scripts.find(name) is None:
                yield state
                return
            with self._process(name) as address:
                yield address

    @contextmanager
    def _process(self, name: str) -> Iterator[Path]:
        while True:
            process = self._ensure(name)
            with process.call() as address:
                with self._lock:
                    current = self._serving.get(name) is process
                if current:
                    yield address
                    return
            # Replaced between the two: nothing was sent, take the newer one.

    def _ensure(self, name: str) -> Workerd:
        with self._lock:
            one_at_a_time = self._starting.setdefault(name, threading.Lock())
        with one_at_a_time:
            script = self._scripts.get(name) if name else None
            wanted = self._fingerprint(script)
            with self._lock:
                process = self._serving.get(name)
            if process is not None and process.alive and process.fingerprint == wanted:
                return process
            return self._replace(name, self._started(script, wanted))

    def publish(self, script: Script) -> None:
        """Start a script, and only then let it be what calls see. Raises ScriptError when it does not start."""
        if not self._runs_by_itself(script):
            self._scripts.save(script)
            return
        process = self._started(script, self._fingerprint(script))
        self._scripts.save(script)
        self._replace(script.name, process)

    def forget(self, name: str) -> None:
        """Stop serving a script that was deleted; its calls under way may end."""
        self._replace(name, None)

    def _runs_by_itself(self, script: Script) -> bool:
        # A vault has no way to the platform; it runs inside the processes that use it.
        return any(binding["type"] == "service" for binding in script.bindings)

    def _replace(self, name: str, process: Workerd | None) -> Workerd:
        with self._lock:
            old = self._serving.pop(name, None)
            if process is not None:
                self._serving[name] = process
            if old is not None:
                self._draining.append((old, time.monotonic() + _DRAIN_SECONDS))
        return process  # type: ignore[return-value]  # None only where nobody looks

    def _vault(self, script: Script) -> Script | None:
        for binding in script.bindings:
            agent = binding.get("props", {}).get("agent", "")
            if agent:
                return self._scripts.find(f"s-{agent.removeprefix('agt_')}")
        return None

    def _fingerprint(self, script: Script | None) -> str:
        if script is None:
            return _STATE
        vault = self._vault(script)
        return f"{script.etag} {script.revision} {vault.revision if vault else '-'}"

    def _started(self, script: Script | None, fingerprint: str) -> Workerd:
        number = next(self._numbers)
        settings = self._settings
        socket, config = self._run / f"{number}.sock", self._run / f"{number}.capnp"
        secrets: dict[str, str] = {}
        sockets: tuple[Path, ...] = (socket,)
        if script is None:
            sockets = (socket, self._state_socket)
            objects = settings.directory / "objects"
            objects.mkdir(exist_ok=True)
            text = state_config(settings.public_url, socket, self._state_socket, objects)
        else:
            vault = self._vault(script)
            together = (script, vault) if vault else (script,)
            for binding in [b for member in together for b in member.bindings if b["type"] == "secret_text"]:
                secrets[SECRET_VARIABLE.format(binding["name"])] = binding["text"]
            sources = tuple(self._scripts.source(member) for member in together)
            text = script_config(sources, settings.public_url, socket, self._state_socket)
        config.write_text(text)
        process = Workerd(
            label=script.name if script else "state",
            fingerprint=fingerprint,
            binary=settings.workerd,
            config=config,
            log=self._run / f"{number}.log",
            sockets=sockets,
            environment=environment(settings.root_keys, settings.public_url, secrets),
            cpu_seconds=script.cpu_ms / 1000 if script else 30.0,
        )
        try:
            process.start()
        except ScriptError:
            process.stop()
            raise
        return process

    def _tend(self) -> None:
        while not self._stopped.wait(_TICK_SECONDS):
            self._stop_drained()
            self._kill_stuck()
            self._stop_idle()

    def _stop_drained(self) -> None:
        now = time.monotonic()
        with self._lock:
            done = [item for item in self._draining if item[0].calls == 0 or now > item[1] or not item[0].alive]
            self._draining = [item for item in self._draining if item not in done]
        for process, _ in done:
            process.stop()

    def _kill_stuck(self) -> None:
        """Stand in for the CPU limit: one endless loop would otherwise hold a script for ever."""
        with self._lock:
            busy = [p for p in (*self._serving.values(), *(d for d, _ in self._draining)) if p.alive and p.calls]
        for process in busy:
            stuck = not process.check_answers()
            if stuck and time.monotonic() - process.answered_at > process.cpu_seconds:
                process.stop()

    def _stop_idle(self) -> None:
        now = time.monotonic()
        with self._lock:
            idle = [(p.used_at, n) for n, p in self._serving.items() if n and p.calls == 0]
            too_many = len(self._serving) - _MOST_PROCESSES
            gone = [n for i, (at, n) in enumerate(sorted(idle)) if i < too_many or now - at > _IDLE_SECONDS]
        for name in gone:
            self.forget(name)
