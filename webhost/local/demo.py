"""`make demo`: the main job, end to end, through public interfaces only.

Prints each call and its answer in short and ends 1 if any expectation fails. It speaks HTTP with the API
and, as support would, with the admin; and it runs two of the operator's commands: one that makes
accounts, one that proves the usage.
"""

from __future__ import annotations

import io
import json
import os
import re
import secrets
import subprocess
import sys
import time
import zipfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from uuid import UUID

import requests

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
LIMIT = 10
FIRST_CALLS = 30
SETTLE_SECONDS = 30
_failed: list[str] = []


def say(text: str) -> None:
    """Print a line of the story."""
    print(text, flush=True)


def expect(what: str, true: object, seen: object = "") -> None:
    """Print whether it came true, and remember when not."""
    say(f"   {'ok  ' if true else 'FAIL'} {what}{f'  [{seen}]' if seen != '' else ''}")
    if not true:
        _failed.append(what)


def manage(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run one of the operator's commands on the running product's database."""
    return subprocess.run(
        [sys.executable, str(ROOT / "manage.py"), *arguments], capture_output=True, text=True, check=False, cwd=ROOT
    )


def bundle_of(example: str) -> bytes:
    """Zip an example as a developer would."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted((EXAMPLES / example).rglob("*")):
            if path.is_file() and path.suffix != ".md":
                archive.write(path, path.relative_to(EXAMPLES / example).as_posix())
    return content.getvalue()


class Customer:
    """A customer of the running product: an account with a token, speaking the API."""

    def __init__(self, url: str, name: str) -> None:
        made = json.loads(
            manage("create_account", f"{name}-{secrets.token_hex(4)}@example.com", "--token", "demo").stdout
        )
        self.url, self.id, self.email = url, str(made["id"]), str(made["email"])
        self.token, self.password = str(made["token"]), str(made["password"])

    def call(self, method: str, path: str, *, quiet: bool = False, **options: Any) -> requests.Response:
        """Send one request and print it with its answer in short."""
        answer = requests.request(
            method, self.url + path, headers={"Authorization": f"Bearer {self.token}"}, timeout=60, **options
        )
        if not quiet:
            text = " ".join(answer.text.split())
            say(f"-> {method} {path}\n<- {answer.status_code} {text[:300]}{'…' if len(text) > 300 else ''}")
        return answer

    def deploy(self, name: str, example: str) -> dict[str, Any]:
        """Create an agent, upload a bundle, and wait until it serves."""
        agent: dict[str, Any] = self.call("POST", "/v1/agents", json={"name": name}).json()
        began = time.monotonic()
        accepted = self.call(
            "POST",
            f"/v1/agents/{agent['id']}/deployments",
            files={"bundle": (f"{example}.zip", bundle_of(example), "application/zip")},
        ).json()
        deployment = accepted
        while deployment.get("status") == "deploying" and time.monotonic() - began < 60:
            time.sleep(0.1)
            deployment = self.call("GET", f"/v1/deployments/{accepted['id']}", quiet=True).json()
        active = deployment.get("status") == "active"
        expect(f"{name} is active", active, f"{time.monotonic() - began:.1f} s")
        if not active:
            self.call("GET", f"/v1/deployments/{accepted.get('id')}")
            sys.exit("Without a deployment the story ends here.")
        return agent

    def invoke(self, agent: str, prompt: str, *, quiet: bool = True, **more: Any) -> requests.Response:
        """Invoke an agent once."""
        return self.call("POST", f"/v1/invoke/{agent}", quiet=quiet, json={"input": {"prompt": prompt}, **more})


class Support:
    """Somebody on support, at work in the admin."""

    def __init__(self, url: str) -> None:
        made = json.loads(manage("create_account", f"stella-{secrets.token_hex(4)}@example.com", "--staff").stdout)
        self.url, self.http = url, requests.Session()
        self.email, self.password = str(made["email"]), str(made["password"])
        page = self.http.get(f"{url}/admin/login/", timeout=30)
        self.http.post(
            f"{url}/admin/login/?next=/admin/",
            data={"username": made["email"], "password": made["password"], "csrfmiddlewaretoken": _token(page.text)},
            headers={"Referer": f"{url}/admin/login/"},
            timeout=30,
        )

    def override(self, customer: Customer, key: str, value: int, reason: str) -> None:
        """Set one value for one customer, with a reason."""
        account = str(UUID(customer.id.removeprefix("acc_")))
        page = self.http.get(f"{self.url}/admin/entitlements/override/add/", timeout=30)
        answer = self.http.post(
            f"{self.url}/admin/entitlements/override/add/",
            data={
                "account": account, "key": key, "value": value, "reason": reason,
                "ends_at_0": "", "ends_at_1": "", "csrfmiddlewaretoken": _token(page.text),
            },
            headers={"Referer": f"{self.url}/admin/"},
            allow_redirects=False,
            timeout=30,
        )  # fmt: skip
        expect(f"support sets {key} to {value}: {reason}", answer.status_code == 302, answer.status_code)


def _token(page: str) -> str:
    match = re.search(r'name="csrfmiddlewaretoken" value="([^"]+)"', page)
    return match[1] if match else ""


def events_of(answer: requests.Response) -> list[tuple[str, dict[str, Any]]]:
    """Read server-sent events."""
    found = []
    for block in answer.text.split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.splitlines() if ": " in line)
        if "event" in fields:
            found.append((fields["event"], json.loads(fields.get("data", "{}"))))
    return found


def limits_are_exact(url: str, support: Support) -> Customer:
    """N of N+1 calls one after another, and N of 30 first calls at once."""
    say("\n== A customer deploys a TypeScript agent and uses it up to its limit ==")
    alice = Customer(url, "alice")
    alice.call("GET", "/v1/me")
    agent = alice.deploy("tokens", "tokens")
    support.override(alice, "maxRequestsPerPeriod", LIMIT, "The demo's small limit.")
    first = alice.invoke(agent["id"], "What is a quota?", quiet=False)
    expect("the first call is answered", first.status_code == 200, first.headers.get("RateLimit", ""))
    codes = Counter([200]) if first.ok else Counter([first.status_code])
    refusal = first
    for n in range(LIMIT):
        refusal = alice.invoke(agent["id"], f"Question {n + 2}")
        codes[refusal.status_code] += 1
    expect(f"exactly {LIMIT} of {LIMIT + 1} calls are admitted", codes == {200: LIMIT, 402: 1}, dict(codes))
    say(f"   the refusal: {json.dumps(refusal.json(), indent=2)}")
    details = refusal.json()["error"]["details"]
    expect(
        "it names the limit, the numbers and the way out",
        (details["limitType"], details["current"], details["limit"]) == ("requests", LIMIT, LIMIT)
        and "resetsAt" in details and "suggestedAction" in details,
    )  # fmt: skip
    check = alice.call("POST", "/v1/limits/check", json={"agentId": agent["id"]})
    expect("asking beforehand gives the same answer", check.json().get("allowed") is False)

    say(f"\n== {FIRST_CALLS} first calls of a new customer, all at once, limit {LIMIT} ==")
    bob = Customer(url, "bob")
    agent_b = bob.deploy("echo", "echo")
    support.override(bob, "maxRequestsPerPeriod", LIMIT, "The demo's small limit.")
    support.override(bob, "maxConcurrentInvocations", 1000, "Thirty at once.")
    support.override(bob, "requestsPerMinute", 1000, "Thirty at once.")
    with ThreadPoolExecutor(FIRST_CALLS) as crowd:
        codes = Counter(a.status_code for a in crowd.map(lambda _: bob.invoke(agent_b["id"], "hi"), range(FIRST_CALLS)))
    expect(
        f"exactly {LIMIT} of {FIRST_CALLS} are admitted",
        codes == {200: LIMIT, 402: FIRST_CALLS - LIMIT},
        dict(codes),
    )
    support.override(alice, "maxRequestsPerPeriod", LIMIT + 10, "The customer bought ten more.")
    again = alice.invoke(agent["id"], "And now?")
    expect("after support raised the limit the next call passes", again.status_code == 200, again.status_code)
    return alice


def tokens_are_enforced(url: str, support: Support) -> None:
    """One call may cross the budget of tokens; the next is refused and names it."""
    say("\n== Tokens: one call may cross the budget, the next is refused ==")
    dave = Customer(url, "dave")
    agent = dave.deploy("tokens", "tokens")
    support.override(dave, "maxTokensPerPeriod", 5, "A small budget.")
    crossing = dave.invoke(agent["id"], "This one may cross the budget.")
    refused = dave.invoke(agent["id"], "This one may not.", quiet=False)
    expect("the call that crosses is answered", crossing.status_code == 200, crossing.json().get("usage"))
    expect(
        "the next is 402 and names tokens",
        refused.status_code == 402 and refused.json()["error"]["details"]["limitType"] == "tokens",
    )


def sessions_and_streams(alice: Customer) -> dict[str, Any]:
    """Sessions live in a Durable Object; streams stream. Returns the agent that streams."""
    say("\n== Sessions and streams ==")
    agent = alice.deploy("session", "session")
    turns = [alice.invoke(agent["id"], "again", sessionId="demo").json()["output"]["text"] for _ in range(2)]
    expect("a session counts its turns", turns[0] != turns[1], turns)
    agent = alice.deploy("streaming", "streaming")
    answer = alice.call("POST", f"/v1/invoke/{agent['id']}/stream", json={"input": {"prompt": "stream this"}})
    kinds = [kind for kind, _ in events_of(answer)]
    expect("a stream tells meta, deltas, usage, done", kinds[0] == "meta" and kinds[-2:] == ["usage", "done"], kinds)
    return agent


def gates_are_closed(alice: Customer, agent: dict[str, Any]) -> None:
    """Try every door to AgentCore: the free tier has none."""
    say("\n== AgentCore is not in the free tier ==")
    answer = alice.call("POST", "/v1/agents", json={"name": "premium", "runtimeProvider": "agentcore"})
    expect(
        "creating is refused and says what unlocks it",
        answer.status_code == 402 and answer.json()["error"]["details"]["limitType"] == "runtimeGated",
        answer.json()["error"]["details"].get("suggestedAction"),
    )
    answer = alice.call("PATCH", f"/v1/agents/{agent['id']}", json={"runtimeProvider": "agentcore"})
    expect("switching is refused", answer.status_code == 402)


def usage_is_proven(alice: Customer) -> None:
    """Ledger, roll-ups and signed reports say the same."""
    say("\n== Usage is proven ==")
    usage: dict[str, Any] = {}
    deadline = time.monotonic() + SETTLE_SECONDS
    verdict = manage("verify_usage", "--account", alice.id)
    while time.monotonic() < deadline and verdict.returncode:
        time.sleep(1)
        verdict = manage("verify_usage", "--account", alice.id)
    usage = alice.call("GET", "/v1/billing/usage").json()
    say("-> manage.py verify_usage\n<- " + "\n   ".join((verdict.stdout + verdict.stderr).strip().splitlines()))
    expect("ledger, roll-ups and signed reports are equal", verdict.returncode == 0)
    total = usage["totals"]["requests"]
    rows = sum(row["requests"] for row in usage["byRuntime"])
    expect("the API's total is the sum of its runtimes", total == rows, f"{total} = {rows}")
    ledger = manage("verify_ledger")
    expect("every counter equals its admissions", ledger.returncode == 0, (ledger.stdout + ledger.stderr).strip())


def main() -> int:
    """Tell the story; return 1 if any of it is not true."""
    url = os.environ.get("WHS_URL") or os.environ["PUBLIC_URL"]
    support = Support(url)
    alice = limits_are_exact(url, support)
    tokens_are_enforced(url, support)
    agent = sessions_and_streams(alice)
    gates_are_closed(alice, agent)
    usage_is_proven(alice)
    say(f"\n{len(_failed)} expectations failed: {', '.join(_failed)}" if _failed else "\nEverything as promised.")
    return 1 if _failed else 0


if __name__ == "__main__":
    sys.exit(main())
