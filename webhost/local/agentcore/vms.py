"""Sessions: one process each, with the code of its runtime and the credentials of its role."""

from __future__ import annotations

import http.client
import json
import secrets
import shutil
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from webhost.local.agentcore.control import Control
from webhost.local.agentcore.errors import AwsError, Kind
from webhost.local.agentcore.state import Store, Thing
from webhost.local.processes import Child, free_port, release

_STARTS_WITHIN: Final = 30.0
_CREDENTIALS_LAST: Final = timedelta(hours=1)
_WATCHED_EVERY: Final = 0.5


@dataclass(frozen=True)
class RoleCredentials:
    """Credentials of a role, as the metadata service hands them out."""

    role: str
    access_key: str
    secret: str
    token: str
    expires_at: datetime
    issued_at: datetime

    def as_json(self) -> dict[str, str]:
        """Return them in the metadata service's words."""
        return {
            "Code": "Success",
            "LastUpdated": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}",
            "Type": "AWS-HMAC",
            "AccessKeyId": self.access_key,
            "SecretAccessKey": self.secret,
            "Token": self.token,
            "Expiration": f"{self.expires_at:%Y-%m-%dT%H:%M:%SZ}",
        }


@dataclass
class Vm:
    """One session's process."""

    session: str
    runtime: Thing
    child: Child
    folder: Path
    port: int
    role: str
    key: str
    metadata_token: str
    hurry: float
    started: float = field(default_factory=time.monotonic)
    last_used: float = field(default_factory=time.monotonic)

    def ping(self) -> str:
        """Return what it says about itself; nothing while it does not answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=2)
        try:
            connection.request("GET", "/ping")
            return str(json.loads(connection.getresponse().read()).get("status"))
        except (OSError, ValueError, AttributeError, http.client.HTTPException):
            return ""
        finally:
            connection.close()

    def is_over(self) -> bool:
        """Say whether it has been idle or alive for longer than it may."""
        now, life = time.monotonic(), self.runtime.wanted.get("lifecycleConfiguration", {})
        if (now - self.started) * self.hurry > life.get("maxLifetime", 28_800):
            return True
        idle = (now - self.last_used) * self.hurry > life.get("idleRuntimeSessionTimeout", 900)
        # As at AWS, even one that is answering counts as idle when it says that it is merely healthy.
        return idle and self.ping() != "HealthyBusy"

    def end(self) -> None:
        """Kill the process, forget its folder and give its port back."""
        self.child.kill()
        release(self.port)
        shutil.rmtree(self.folder, ignore_errors=True)


class Vms:
    """All sessions that run."""

    def __init__(
        self, store: Store, control: Control, directory: Path,
        *, address: str, region: str, node: str, hurry: float = 1.0,
    ) -> None:  # fmt: skip
        self._store = store
        self._control = control
        self._directory = directory
        self._address = address
        self._region = region
        self._node = node
        self._hurry = hurry
        shutil.rmtree(directory / "sessions", ignore_errors=True)  # those of a cloud that was killed
        self._running: dict[tuple[str, str], Vm] = {}
        self._starting: dict[tuple[str, str], threading.Lock] = {}
        self._credentials: dict[str, RoleCredentials] = {}
        self._lock = threading.Lock()
        threading.Thread(target=self._watch, daemon=True).start()

    def pids(self) -> dict[str, int]:
        """Return the processes that run, by session."""
        with self._lock:
            return {vm.session: vm.child.pid for vm in self._running.values() if vm.child.alive}

    def of(self, runtime: Thing, session: str) -> Vm:
        """Return a session's process, started if it does not run; raises RuntimeClientError where it cannot."""
        place = (runtime.id, session)
        with self._lock:
            starting = self._starting.setdefault(place, threading.Lock())
        with starting:
            vm = self._running.get(place)
            if vm is None or not vm.child.alive:
                vm = self._start(runtime, session)
                with self._lock:
                    self._running[place] = vm
            vm.last_used = time.monotonic()
            return vm

    def _start(self, runtime: Thing, session: str) -> Vm:
        code = runtime.wanted["agentRuntimeArtifact"]["codeConfiguration"]
        # Python without our packages, which are not there at AWS.
        python = [str(Path(sys.executable).resolve()), "-E", "-S", "-B"]
        program = [self._node] if code["runtime"].startswith("NODE") else python
        port, key = free_port(), secrets.token_hex(16)
        environment = {
            **runtime.wanted.get("environmentVariables", {}),
            "HOST": "127.0.0.1",
            "PORT": str(port),
            "AWS_REGION": self._region,
            "AWS_EC2_METADATA_SERVICE_ENDPOINT": f"{self._address}/mmds/{key}",
            "AWS_ENDPOINT_URL_SECRETS_MANAGER": self._address,
            "AWS_ENDPOINT_URL_BEDROCK_AGENTCORE": self._address,
        }
        log = self._directory / "logs" / f"{runtime.id}.log"
        folder = self._directory / "sessions" / key
        shutil.copytree(self._control.code_of(runtime), folder)
        child = Child(session[:12], [*program, code["entryPoint"][-1]], log, environment, folder, patience=1)
        child.start()
        role = runtime.wanted["roleArn"].rsplit("/", 1)[-1]
        vm = Vm(session, runtime, child, folder, port, role, key, secrets.token_hex(16), self._hurry)
        with self._lock:
            self._running[runtime.id, session] = vm  # its metadata is asked for before it is ready
        deadline = time.monotonic() + _STARTS_WITHIN
        while not vm.ping():
            if not child.alive or time.monotonic() > deadline:
                vm.end()
                raise AwsError(Kind.CLIENT, "The runtime did not become healthy.")
            time.sleep(0.03)
        return vm

    def stop(self, runtime: Thing, session: str) -> None:
        """End a session; raises ResourceNotFoundException where none runs."""
        with self._lock:
            vm = self._running.pop((runtime.id, session), None)
        if vm is None or not vm.child.alive:
            raise AwsError(Kind.NOT_FOUND, "There is no such session.")
        vm.end()

    def stop_all(self, runtime: Thing | None = None) -> None:
        """End all sessions, of one runtime or altogether."""
        with self._lock:
            ending = [vm for vm in self._running.values() if runtime is None or vm.runtime.id == runtime.id]
            self._running = {place: vm for place, vm in self._running.items() if vm not in ending}
        for vm in ending:
            with suppress(OSError):
                vm.end()

    def by_key(self, key: str) -> Vm | None:
        """Return the process that a metadata address belongs to."""
        with self._lock:
            return next((vm for vm in self._running.values() if secrets.compare_digest(vm.key, key)), None)

    def credentials_for(self, vm: Vm) -> RoleCredentials:
        """Hand out fresh credentials of the process's role."""
        made = RoleCredentials(
            vm.role, f"ASIA{secrets.token_hex(8).upper()}", secrets.token_urlsafe(30), secrets.token_urlsafe(60),
            datetime.now(UTC) + _CREDENTIALS_LAST, datetime.now(UTC),
        )  # fmt: skip
        with self._lock:
            self._credentials[made.access_key] = made
        return made

    def credentials(self, access_key: str) -> RoleCredentials | None:
        """Return credentials that were handed out and still count; also after their session ended, as at AWS."""
        with self._lock:
            found = self._credentials.get(access_key)
        return found if found is not None and found.expires_at > datetime.now(UTC) else None

    def _watch(self) -> None:
        while True:
            time.sleep(_WATCHED_EVERY)
            with self._lock:
                running = list(self._running.items())
            for place, vm in running:
                if not vm.child.alive or vm.is_over():
                    vm.end()
                    with self._lock:
                        if self._running.get(place) is vm:
                            del self._running[place]


def metadata(vms: Vms, vm: Vm, method: str, path: str, token: str | None) -> tuple[int, Any]:
    """Answer the metadata service of a process (IMDSv2): status, and text or JSON."""
    if method == "PUT" and path == "/latest/api/token":
        return 200, vm.metadata_token
    if method != "GET" or token is None or not secrets.compare_digest(token, vm.metadata_token):
        return 401, "Unauthorized"
    roles = "/latest/meta-data/iam/security-credentials/"
    if path == roles:
        return 200, vm.role
    if path == roles + vm.role:
        return 200, vms.credentials_for(vm).as_json()
    return 404, "Not Found"
