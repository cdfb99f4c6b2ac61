"""A customer of a running product, who speaks HTTP only, and the local Cloudflare that tests may ask for faults."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import urlsplit

import requests

from tests.factories import example, zip_of
from webhost.local.product import Product

# An agent that does what its prompt says, in JSON: how many pieces, how far apart, how it fails, what it claims.
PUPPET = """
interface Ask { wait?: number; events?: number; pause?: number; throwAfter?: number; tokens?: number; text?: string }
const pause = (ms: number): Promise<void> => new Promise((done) => setTimeout(done, ms));

export default async function* puppet(request: { input: { messages: { content: string }[] } }): AsyncGenerator<string> {
  const ask: Ask = JSON.parse(request.input.messages.at(-1)!.content);
  if (ask.wait) await pause(ask.wait);
  for (let n = 0; n < (ask.events ?? 1); n++) {
    if (n === ask.throwAfter) throw new Error("as the prompt asked");
    yield ask.text ?? `piece ${n} `;
    if (ask.pause) await pause(ask.pause);
  }
  if (ask.tokens !== undefined) return { usage: { tokens: ask.tokens } } as unknown as undefined;
}
"""
_PATIENCE = 20.0
T = TypeVar("T")


def puppet(*, timeout_seconds: int = 60) -> bytes:
    """Return the bundle of an agent that does what its prompt says."""
    config = {
        "name": "puppet", "entrypoint": "agent.ts", "runtimes": ["cloudflare"], "protocol": "invoke/v1",
        "timeoutSeconds": timeout_seconds,
    }  # fmt: skip
    return zip_of({"agent.config.json": json.dumps(config), "agent.ts": PUPPET})


def until(ask: Callable[[], T], seconds: float = _PATIENCE) -> T:
    """Ask again until the answer is true in Python's sense; return it, or the last one when time is up."""
    end = time.monotonic() + seconds
    while not (answer := ask()) and time.monotonic() < end:
        time.sleep(0.1)
    return answer


@dataclass(frozen=True)
class Customer:
    """Somebody with a token."""

    url: str
    account_id: str
    token: str

    def call(self, method: str, path: str, *, key: str | None = None, **options: Any) -> requests.Response:
        """Send one request, with an Idempotency-Key where one is given."""
        headers = {"Authorization": f"Bearer {self.token}", **options.pop("headers", {})}
        if key:
            headers["Idempotency-Key"] = key
        return requests.request(method, self.url + path, headers=headers, timeout=90, **options)

    def create(self, name: str = "agent") -> str:
        """Create an agent and return its id."""
        answer = self.call("POST", "/v1/agents", json={"name": name})
        assert answer.status_code == 201, answer.text
        return str(answer.json()["id"])

    def upload(self, agent: str, bundle: bytes) -> requests.Response:
        """Send a bundle."""
        files = {"bundle": ("bundle.zip", bundle, "application/zip")}
        return self.call("POST", f"/v1/agents/{agent}/deployments", files=files)

    def deployment(self, deployment: str) -> dict[str, Any]:
        """Return where a deployment stands."""
        return dict(self.call("GET", f"/v1/deployments/{deployment}").json())

    def deploy(self, bundle: bytes | None = None, name: str = "agent") -> Agent:
        """Create an agent, deploy a bundle to it (the echo example), and wait until it serves."""
        agent = self.create(name)
        accepted = self.upload(agent, bundle or example("echo"))
        assert accepted.status_code == 202, accepted.text
        deployment = str(accepted.json()["id"])
        found = until(lambda: (d := self.deployment(deployment))["status"] != "deploying" and d, 60)
        assert found
        assert found["status"] == "active", found
        return Agent(self, agent, deployment)

    def usage(self) -> dict[str, Any]:
        """Return the totals of this period, as the API shows them."""
        return dict(self.call("GET", "/v1/billing/usage").json())

    def receipt(self, invocation: str) -> dict[str, Any]:
        """Return the receipt of an invocation."""
        return dict(self.call("GET", f"/v1/invocations/{invocation}").json())

    def last_receipt(self) -> dict[str, Any]:
        """Return the newest receipt."""
        return dict(self.call("GET", "/v1/invocations").json()["items"][0])


@dataclass(frozen=True)
class Agent:
    """A customer's agent, deployed."""

    owner: Customer
    id: str
    deployment: str

    @property
    def script(self) -> str:
        """Its name at the provider."""
        return f"d-{self.deployment.removeprefix('dep_')}"

    def invoke(self, prompt: str | Mapping[str, Any] = "hello", *, key: str | None = None) -> requests.Response:
        """Invoke it once and wait for the answer."""
        return self.owner.call("POST", f"/v1/invoke/{self.id}", key=key, json=_body(prompt))

    def stream(self, prompt: str | Mapping[str, Any] = "hello", *, key: str | None = None) -> requests.Response:
        """Invoke it once and read the whole stream."""
        return self.owner.call("POST", f"/v1/invoke/{self.id}/stream", key=key, json=_body(prompt))

    @contextmanager
    def streaming(self, prompt: Mapping[str, Any], headers: Mapping[str, str] | None = None) -> Iterator[Reading]:
        """Invoke it once and read its events as they come; hang up on leaving."""
        with self.sent(f"/v1/invoke/{self.id}/stream", prompt, headers) as connection:
            yield Reading(connection.getresponse())

    @contextmanager
    def sent(
        self, path: str, prompt: Mapping[str, Any], headers: Mapping[str, str] | None = None
    ) -> Iterator[http.client.HTTPConnection]:
        """Send a request and do not wait for its answer; hang up on leaving."""
        where = urlsplit(self.owner.url)
        connection = http.client.HTTPConnection(where.hostname or "", where.port, timeout=60)
        try:
            connection.request(
                "POST", path, json.dumps(_body(prompt)),
                {"Authorization": f"Bearer {self.owner.token}", "Content-Type": "application/json", **(headers or {})},
            )  # fmt: skip
            yield connection
        finally:
            connection.close()


class Reading:
    """A stream as its reader sees it: events, and when each came."""

    def __init__(self, answer: http.client.HTTPResponse) -> None:
        self.answer = answer
        self.began = time.monotonic()

    def events(self) -> Iterator[tuple[float, str, dict[str, Any]]]:
        """Wait for each event; return how long it took since the answer began, its name and its data."""
        kind = ""
        for line in self.answer:
            if line.startswith(b"event: "):
                kind = line[7:].strip().decode()
            elif line.startswith(b"data: "):
                yield time.monotonic() - self.began, kind, json.loads(line[6:])


def events_of(answer: requests.Response) -> list[tuple[str, dict[str, Any]]]:
    """Read a whole stream that was answered."""
    blocks = [block.splitlines() for block in answer.content.decode().split("\n\n") if block]
    return [(kind.removeprefix("event: "), json.loads(data.removeprefix("data: "))) for kind, data in blocks]


def _body(prompt: str | Mapping[str, Any]) -> dict[str, Any]:
    return {"input": {"prompt": prompt if isinstance(prompt, str) else json.dumps(prompt, ensure_ascii=False)}}


class Cloud:
    """The local Cloudflare, as a test sees it."""

    def __init__(self, product: Product) -> None:
        self._url, self._env = product.cloud_url, product.env

    def calls(self, agent: Agent) -> int:
        """Return how many invocations of an agent's deployment arrived."""
        return int(self.seen()["invocations"]["byScript"].get(agent.script, 0))

    def seen(self) -> dict[str, Any]:
        """Return all that it counted: calls of its API by kind, invocations by script."""
        return dict(requests.get(f"{self._url}/local/calls", timeout=10).json())

    def process_of(self, agent: Agent) -> int:
        """Return the id of the process that serves an agent, which a test may kill."""
        seen = requests.get(f"{self._url}/local/calls", timeout=10).json()
        return int(seen["processes"][agent.script])

    def fail(self, agent: Agent, fault: str, **more: Any) -> None:
        """Let the next invocation of an agent fail."""
        plan = {"fault": fault, "on": "invoke", "script": agent.script, **more}
        requests.post(f"{self._url}/local/faults", json=plan, timeout=10).raise_for_status()

    def fail_api(self, fault: str, **more: Any) -> None:
        """Let the next call of the management API fail."""
        requests.post(
            f"{self._url}/local/faults", json={"fault": fault, "on": "api", **more}, timeout=10
        ).raise_for_status()

    def forgive(self) -> None:
        """Forget the faults that nobody met."""
        requests.delete(f"{self._url}/local/faults", timeout=10).raise_for_status()

    def be_away(self, seconds: float) -> None:
        """Listen to nobody for a while; returns when nobody is heard any more."""
        self.fail_api("refuse", seconds=seconds)
        headers = {"Authorization": f"Bearer {self._env['CLOUDFLARE_API_TOKEN']}"}
        where, account = urlsplit(self._url), self._env["CLOUDFLARE_ACCOUNT_ID"]
        try:
            requests.get(
                f"{self._env['CLOUDFLARE_API_URL']}/accounts/{account}/workers/dispatch/namespaces",
                headers=headers,
                timeout=5,
            )
        except requests.RequestException:
            pass
        until(lambda: not _listens(where.hostname or "", where.port or 0), 5)

    def be_back(self) -> None:
        """Wait until it listens again."""
        where = urlsplit(self._url)
        assert until(lambda: _listens(where.hostname or "", where.port or 0))


def _listens(host: str, port: int) -> bool:
    connection = http.client.HTTPConnection(host, port, timeout=2)
    try:
        connection.connect()
    except OSError:
        return False
    finally:
        connection.close()
    return True
