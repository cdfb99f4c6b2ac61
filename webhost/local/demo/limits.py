"""The free tier: exact limits, tokens, sessions and streams, proven usage."""

from __future__ import annotations

import json
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from webhost.local.demo.people import Customer, Support, events_of, expect, manage, say

LIMIT = 10
FIRST_CALLS = 30
SETTLE_SECONDS = 30


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


def sessions_and_streams(alice: Customer) -> None:
    """Sessions live in a Durable Object; streams stream."""
    say("\n== Sessions and streams ==")
    agent = alice.deploy("session", "session")
    turns = [alice.invoke(agent["id"], "again", sessionId="demo").json()["output"]["text"] for _ in range(2)]
    expect("a session counts its turns", turns[0] != turns[1], turns)
    agent = alice.deploy("streaming", "streaming")
    answer = alice.call("POST", f"/v1/invoke/{agent['id']}/stream", json={"input": {"prompt": "stream this"}})
    kinds = [kind for kind, _ in events_of(answer)]
    expect("a stream tells meta, deltas, usage, done", kinds[0] == "meta" and kinds[-2:] == ["usage", "done"], kinds)


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
