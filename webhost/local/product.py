"""The whole product as processes: web server, worker, scheduler and local clouds over the local services."""

from __future__ import annotations

import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path

from webhost.local import environment
from webhost.local.processes import Child, LocalServiceError, Service, wait_for_port, wait_until
from webhost.local.stack import Stack

_MANAGE = [sys.executable, str(environment.REPOSITORY / "manage.py")]
_CELERY = [sys.executable, "-m", "celery", "-A", "webhost.celery"]


class Part(StrEnum):
    """A part of the product that can be stopped, killed and started again by itself."""

    POSTGRES = "postgres"
    REDIS = "redis"
    CLOUDFLARE = "cloudflare"
    AGENTCORE = "agentcore"
    STRIPE = "stripe"
    WEB = "web"
    WORKER = "worker"
    BEAT = "beat"


class Product(Stack):
    """A stack with the product running on it.

    `Product(directory)` is a stack of its own. `Product(directory, os.environ)` uses the database, the
    Redis and all else that the caller's environment names.
    """

    def __init__(
        self, directory: Path, given: Mapping[str, str] | None = None, *, web_workers: int = 2, web_threads: int = 128
    ) -> None:
        super().__init__(directory, given)
        self.web_workers = web_workers
        self.web_threads = web_threads
        self._children: dict[Part, Child] = {}

    @property
    def url(self) -> str:
        """The address of pages and API."""
        return f"http://127.0.0.1:{self.environment['LOCAL_WEB_PORT']}"

    @property
    def cloud_url(self) -> str:
        """The address of the local Cloudflare."""
        return f"http://127.0.0.1:{self.environment['LOCAL_CLOUDFLARE_PORT']}"

    @property
    def aws_url(self) -> str:
        """The address of the local AWS."""
        return f"http://127.0.0.1:{self.environment['LOCAL_AGENTCORE_PORT']}"

    @property
    def stripe_url(self) -> str:
        """The address of the local Stripe."""
        return f"http://127.0.0.1:{self.environment['LOCAL_STRIPE_PORT']}"

    @property
    def env(self) -> dict[str, str]:
        """All settings of this product, as environment variables."""
        return self.environment

    @property
    def pids(self) -> dict[Part, int]:
        """The process ids of the parts that run."""
        return {part: member.pid for part in Part if (member := self._member(part)) and member.alive}

    @property
    def web_worker_pids(self) -> list[int]:
        """The process ids of the web server's workers, one of which a test may kill."""
        table = subprocess.run(["ps", "-A", "-o", "pid=,ppid=,args="], capture_output=True, text=True, check=True)
        rows = [line.split(None, 2) for line in table.stdout.splitlines()]
        children = [row for row in rows if len(row) == 3 and int(row[1]) == self.pids[Part.WEB]]
        return [int(pid) for pid, _, arguments in children if "resource_tracker" not in arguments]

    def start(self) -> None:
        """Start the services, bring the database up to date, start all processes, wait until all are ready."""
        super().start()
        self.manage("migrate", "--verbosity", "0")
        self.manage("seed_tiers")
        self.manage("seed_rate_cards")
        self._children = {part: self._child(part) for part in self._commands()}
        for child in self._children.values():
            child.start()
        for part in self._children:
            self._wait_for(part)
        if Part.STRIPE in self._children:
            self.manage("import_prices")

    def stop(self) -> None:
        """Stop everything, in the order that loses nothing; the data stay."""
        # Who gives work stops before who does it.
        for part in [Part.BEAT, Part.WEB, Part.WORKER, Part.STRIPE, Part.CLOUDFLARE, Part.AGENTCORE]:
            if part in self._children:
                self._children[part].stop()
        super().stop()

    def stop_part(self, part: Part) -> None:
        """Stop one part in good order."""
        self._required(part).stop()

    def kill(self, part: Part) -> None:
        """Kill one part, and the processes it started, as a crash would."""
        self._required(part).kill()

    def start_part(self, part: Part) -> None:
        """Start a stopped or killed part again, at the same address, and wait until it is ready."""
        self._required(part).start()
        self._wait_for(part)

    def restart(self, part: Part) -> None:
        """Stop one part in good order and start it again."""
        self.stop_part(part)
        self.start_part(part)

    def manage(self, *arguments: str) -> str:
        """Run a Django command with this product's settings and return what it prints."""
        result = subprocess.run(
            [*_MANAGE, *arguments],
            env=self.environment,
            cwd=environment.REPOSITORY,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        if result.returncode:
            said = result.stdout + result.stderr
            raise LocalServiceError(f"manage.py {' '.join(arguments)} ended with {result.returncode}:\n{said}")
        return result.stdout

    def check_alive(self) -> None:
        """Raise LocalServiceError, with the end of its log, when a part has died by itself."""
        for child in self._children.values():
            if not child.alive:
                raise LocalServiceError(f"{child.name} ended with {child.exit_code}. {child.log} ends:\n{child.tail()}")
        for service in [self.postgres, self.redis]:
            if service is not None and not service.alive:
                raise LocalServiceError(f"{type(service).__name__} ended; see {self.logs}.")

    def _member(self, part: Part) -> Service | None:
        services: dict[Part, Service | None] = {Part.POSTGRES: self.postgres, Part.REDIS: self.redis}
        return services.get(part) or self._children.get(part)

    def _commands(self) -> dict[Part, list[str]]:
        commands: dict[Part, list[str]] = {}
        if port := self.environment.get("LOCAL_CLOUDFLARE_PORT"):
            directory = str(self.directory / "cloudflare")
            commands[Part.CLOUDFLARE] = [
                sys.executable, "-m", "webhost.local.cloudflare", "--port", port, "--directory", directory,
            ]  # fmt: skip
        if port := self.environment.get("LOCAL_AGENTCORE_PORT"):
            directory = str(self.directory / "agentcore")
            commands[Part.AGENTCORE] = [
                sys.executable, "-m", "webhost.local.agentcore", "--port", port, "--directory", directory,
            ]  # fmt: skip
        if port := self.environment.get("LOCAL_STRIPE_PORT"):
            directory = str(self.directory / "stripe")
            commands[Part.STRIPE] = [
                sys.executable, "-m", "webhost.local.stripe", "--port", port, "--directory", directory,
            ]  # fmt: skip
        commands[Part.WEB] = [
            sys.executable, "-m", "granian", "webhost.wsgi:application", "--interface", "wsgi",
            "--host", "127.0.0.1", "--port", self.environment["LOCAL_WEB_PORT"], "--no-ws",
            "--workers", str(self.web_workers), "--blocking-threads", str(self.web_threads),
            "--backpressure", str(self.web_threads), "--backlog", "2048",
            "--respawn-failed-workers", "--respawn-interval", "0.5", "--workers-kill-timeout", "5",
        ]  # fmt: skip
        commands[Part.WORKER] = [
            *_CELERY, "worker", "--pool", "prefork", "--concurrency", "2", "--loglevel", "INFO",
            "--without-gossip", "--without-mingle",
        ]  # fmt: skip
        schedule = str(self.directory / "beat-schedule")
        commands[Part.BEAT] = [*_CELERY, "beat", "--schedule", schedule, "--pidfile", "", "--loglevel", "INFO"]
        return commands

    def _child(self, part: Part) -> Child:
        log = self.logs / f"{part}.log"
        unbuffered = self.environment | {"PYTHONUNBUFFERED": "1"}
        command = self._commands()[part]
        return Child(part, command, log, environment=unbuffered, directory=environment.REPOSITORY)

    def _required(self, part: Part) -> Service:
        member = self._member(part)
        if member is None:
            raise LocalServiceError(f"This product did not start {part} itself.")
        return member

    def _wait_for(self, part: Part) -> None:
        child = self._children.get(part)
        if part == Part.WEB:
            wait_until(lambda: _says_ready(f"{self.url}/readyz"), "The web server", 60, child)
        elif part == Part.CLOUDFLARE:
            wait_for_port(int(self.environment["LOCAL_CLOUDFLARE_PORT"]), "The local Cloudflare", 30, child)
        elif part == Part.AGENTCORE:
            wait_for_port(int(self.environment["LOCAL_AGENTCORE_PORT"]), "The local AWS", 30, child)
        elif part == Part.STRIPE:
            wait_for_port(int(self.environment["LOCAL_STRIPE_PORT"]), "The local Stripe", 30, child)


def _says_ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False
