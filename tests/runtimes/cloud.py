"""What the tests of the Cloudflare runtime stand on: a local Cloudflare, a place for reports, small agents."""

from __future__ import annotations

import http.client
import json
import os
import secrets
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from pathlib import Path
from typing import Any
from uuid import UUID

import requests
from django.conf import settings
from django.test import override_settings

from runtimes.bundle import Bundle, prepare_bundle, read_bundle
from runtimes.providers.base import Answer, Invocation, StreamEvent, Target
from runtimes.providers.cloudflare import CloudflareProvider, script_name
from tests.factories import example, zip_of
from webhost import signing
from webhost.ids import Prefix, new_id, public_id
from webhost.local.processes import Child, free_port, wait_for_port


@dataclass
class Reports:
    """A place that takes reports as the telemetry edge does, and fails on demand."""

    port: int = field(default_factory=free_port)
    taken: list[tuple[dict[str, str], bytes]] = field(default_factory=list)
    refuse_next: int = 0

    @contextmanager
    def listening(self) -> Iterator[Reports]:
        reports = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                refused = reports.refuse_next > 0
                if refused:
                    reports.refuse_next -= 1
                else:
                    reports.taken.append(({k.lower(): v for k, v in self.headers.items()}, body))
                self.send_response(503 if refused else 202)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *args: Any) -> None: ...

        with ThreadingHTTPServer(("127.0.0.1", self.port), Handler) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            yield self
            server.shutdown()

    def of(self, invocation: Invocation, seconds: float = 10) -> dict[str, Any]:
        """Wait for the report of an invocation, check its signature, return it."""
        wanted = public_id(Prefix.INVOCATION, invocation.invocation_id)
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            for headers, body in list(self.taken):
                event: dict[str, Any] = json.loads(body)
                if event["invocationId"] == wanted:
                    deployment = headers["x-telemetry-deployment-id"]
                    key = signing.deployment_key("k1", signing.Purpose.TELEMETRY, deployment)
                    assert key
                    assert signing.verify(key, body, headers["x-telemetry-signature"])
                    assert event["deploymentId"] == deployment
                    return event
            time.sleep(0.02)
        raise AssertionError(f"No report of {wanted} within {seconds} s.")

    def count(self, invocation: Invocation) -> int:
        wanted = public_id(Prefix.INVOCATION, invocation.invocation_id)
        return sum(json.loads(body)["invocationId"] == wanted for _, body in list(self.taken))


class Cloud:
    """A local Cloudflare of the tests' own, and the adapter that speaks to it."""

    def __init__(self, directory: Path, reports: Reports) -> None:
        self.reports = reports
        self.directory = directory
        self.port = free_port()
        self.token = secrets.token_urlsafe(24)
        self.account = secrets.token_hex(16)
        self.url = f"http://127.0.0.1:{self.port}"
        self.provider = CloudflareProvider()
        keys = ",".join(f"{name}:{key.hex()}" for name, key in settings.ROOT_KEYS.items())
        environment = {
            "PATH": os.environ["PATH"],
            "CLOUDFLARE_API_TOKEN": self.token,
            "ROOT_KEYS": keys,
            "PUBLIC_URL": f"http://127.0.0.1:{reports.port}",
            "NODE_MODULES_DIR": settings.NODE_MODULES_DIR,
            "PYTHONPATH": str(settings.BASE_DIR),
        }
        command = [sys.executable, "-m", "webhost.local.cloudflare", "--port", str(self.port)]
        command += ["--directory", str(directory / "cloud")]
        self.child = Child("cloud", command, directory / "cloud.log", environment=environment)

    @contextmanager
    def running(self) -> Iterator[Cloud]:
        with override_settings(
            CLOUDFLARE_API_URL=f"{self.url}/client/v4",
            CLOUDFLARE_ACCOUNT_ID=self.account,
            CLOUDFLARE_API_TOKEN=self.token,
            CLOUDFLARE_NAMESPACE="whs",
            CLOUDFLARE_DISPATCH_URL=f"{self.url}/invoke",
        ):
            self.start()
            try:
                yield self
            finally:
                self.child.stop()

    def start(self) -> None:
        self.child.start()
        wait_for_port(self.port, "cloud", 20, self.child)

    def calls(self) -> dict[str, Any]:
        seen: dict[str, Any] = requests.get(f"{self.url}/local/calls", timeout=5).json()
        return seen

    def plan(self, **fault: Any) -> None:
        answer = requests.post(f"{self.url}/local/faults", json=fault, timeout=5)
        assert answer.status_code == 200, answer.text

    def forget_faults(self) -> None:
        requests.delete(f"{self.url}/local/faults", timeout=5)

    def kill_processes(self) -> None:
        """Kill every workerd, as a crash of the machine would, and wait until they are gone."""
        killed = self.calls()["processes"]
        for pid in killed.values():
            os.kill(pid, signal.SIGKILL)
        until(lambda: not self.calls()["processes"].items() & killed.items())

    def invocations(self, target: Target) -> int:
        return int(self.calls()["invocations"]["byScript"].get(script_name(target), 0))

    def deployed(self, bundle: Bundle | bytes, **changes: Any) -> Deployed:
        """Deploy a bundle for a new agent of alice's."""
        if isinstance(bundle, bytes):
            bundle = built(bundle)
        target = replace(new_target(bundle), **changes)
        self.provider.deploy(target, bundle)
        self.provider.activate(target)
        return Deployed(self, target)

    def agent(self, code: str, files: Mapping[str, str] | None = None, **config: Any) -> Deployed:
        """Deploy an agent whose entrypoint has this TypeScript."""
        return self.deployed(agent_zip(code, files, **config))

    def post(self, path: str, headers: Mapping[str, str], body: bytes) -> tuple[int, dict[str, Any]]:
        """Call the platform Worker as somebody who found its address."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        connection.request("POST", path, body, dict(headers))
        answer = connection.getresponse()
        text = answer.read()
        connection.close()
        return answer.status, json.loads(text)


@dataclass
class Deployed:
    """A deployment on the local Cloudflare."""

    cloud: Cloud
    target: Target

    def invocation(self, prompt: str = "hello", session: str = "s1", **more: Any) -> Invocation:
        body = {
            "input": {"messages": [{"role": "user", "content": prompt}]},
            "sessionId": session,
            "options": {},
            "metadata": {},
            "capabilities": {"memory": False, "codeInterpreter": False, "browser": False},
            "limits": {"remaining": {"requests": 7}},
        } | more
        return Invocation(new_id(), public_id(Prefix.TRACE, new_id()), json.dumps(body).encode())

    def invoke(self, prompt: str = "hello", session: str = "s1", **more: Any) -> Answer:
        return self.cloud.provider.invoke(self.target, self.invocation(prompt, session, **more))

    def stream(self, prompt: str = "hello", session: str = "s1") -> list[StreamEvent]:
        return list(self.cloud.provider.stream(self.target, self.invocation(prompt, session)))

    @property
    def script(self) -> str:
        return script_name(self.target)

    @property
    def pid(self) -> int:
        return int(self.cloud.calls()["processes"][self.script])

    def version(self, bundle: Bundle | bytes) -> Deployed:
        """Deploy a new version of the same agent."""
        if isinstance(bundle, bytes):
            bundle = built(bundle)
        changes = {"version": self.target.version + 1, "deployment_id": new_id()}
        return self.cloud.deployed(bundle, agent_id=self.target.agent_id, **changes)


def built(content: bytes) -> Bundle:
    return prepare_bundle(read_bundle(BytesIO(content)))


def agent_zip(code: str, files: Mapping[str, str] | None = None, **config: Any) -> bytes:
    values = {"name": "agent", "entrypoint": "agent.ts", "runtime": "cloudflare", "protocol": "invoke/v1"} | config
    return zip_of({"agent.config.json": json.dumps(values), "agent.ts": code} | dict(files or {}))


def new_target(bundle: Bundle) -> Target:
    return Target(
        account_id=UUID(int=1),
        agent_id=new_id(),
        deployment_id=new_id(),
        version=1,
        runtime="cloudflare",
        root_key_id="k1",
        capabilities=frozenset(),
        timeout_seconds=bundle.config.timeout_seconds,
    )


def until(true: Callable[[], bool], seconds: float = 10) -> None:
    """Wait until something is so."""
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "It did not come true in time."
        time.sleep(0.02)


__all__ = ["Cloud", "Deployed", "Reports", "agent_zip", "built", "example", "new_target", "until"]
