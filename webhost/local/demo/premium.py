"""AgentCore: gated, entitled, estimated, downgraded; the same bundle on both runtimes."""

from __future__ import annotations

import os
import time
from collections import Counter
from typing import Any

import requests

from webhost.local.demo.people import Customer, Support, bundle_of, expect, manage, say

# What the sweep has: its own ten seconds, and the provider's.
_WITHDRAWN_WITHIN = 45
# What makes, starts or runs something at AWS.
_GIVING = ("Create", "Put", "Start", "Invoke", "Update", "Attach")


def _made_at_aws() -> Counter[str]:
    """Return the calls that made or ran something at the local AWS so far."""
    seen = requests.get(f"{os.environ['AWS_ENDPOINT_URL']}/local/calls", timeout=10).json()
    operations = ((name, count) for name, count in seen["counts"].items() if name.split(".")[-1].startswith(_GIVING))
    return Counter(dict(operations))


def _text(answer: requests.Response) -> str:
    body: dict[str, Any] = answer.json()
    return str(body.get("output", {}).get("text") or body.get("error", {}).get("message"))


def _gated(url: str) -> tuple[Customer, dict[str, Any]]:
    """Try every door to AgentCore on the free tier: none opens, and AWS hears of none."""
    say("\n== AgentCore: the free tier is refused at every door ==")
    erin = Customer(url, "erin")
    before = _made_at_aws()
    created = erin.call("POST", "/v1/agents", json={"name": "premium", "runtimeProvider": "agentcore"})
    expect("creating is refused", created.status_code == 402)
    agent = erin.deploy("assistant", "tools")
    here = erin.invoke(agent["id"], "go")
    unavailable = "code interpreter: unavailable | browser: unavailable"
    expect("on Cloudflare the same bundle runs without tools", _text(here) == unavailable, _text(here))
    switched = erin.call("PATCH", f"/v1/agents/{agent['id']}", json={"runtimeProvider": "agentcore"})
    expect("switching is refused", switched.status_code == 402)
    check = erin.call(
        "POST", "/v1/limits/check", json={"runtimeProvider": "agentcore", "capabilities": ["codeInterpreter"]}
    )
    expect("asking beforehand says so too", check.json().get("allowed") is False)
    made = _made_at_aws() - before
    expect("nothing was made or run at AWS", not made, dict(made))
    return erin, agent


def _entitled(erin: Customer, support: Support, agent: dict[str, Any]) -> None:
    say("\n== The tier is raised: the same bundle on AgentCore, with its tools ==")
    support.tier(erin, "enterprise", "The customer bought Enterprise.")
    erin.call("PATCH", f"/v1/agents/{agent['id']}", json={"runtimeProvider": "agentcore"})
    erin.redeploy(agent, "tools")
    answer = erin.invoke(agent["id"], "go", quiet=False)
    both = "code interpreter: 42 | browser: opened"
    expect("it computes and browses", _text(answer) == both, _text(answer))
    receipt = erin.call("GET", f"/v1/invocations/{answer.json()['invocationId']}", quiet=True).json()
    expect("the receipt says what was held and used", receipt["usage"]["toolCalls"] >= 2, receipt["usage"])
    off = erin.invoke(agent["id"], "go", options={"tools": "off"})
    expect("with tools off it uses none", "unavailable" in _text(off) and "42" not in _text(off), _text(off))
    turns = [erin.invoke(agent["id"], "go", sessionId="demo").status_code for _ in range(2)]
    listed = erin.call("GET", f"/v1/agents/{agent['id']}/sessions", quiet=True).json()["items"]
    expect("its sessions are listed", turns == [200, 200] and "demo" in {s["sessionId"] for s in listed}, len(listed))
    python = erin.deploy("python", "python", runtime="agentcore")
    said = _text(erin.invoke(python["id"], "one two three"))
    expect("a Python agent runs there too", said == "one two three", said)


def _estimated(erin: Customer, support: Support, agent: dict[str, Any]) -> None:
    say("\n== An estimate that does not fit is refused before it costs money ==")
    support.override(erin, "maxTokensPerPeriod", 20_000, "A budget.")
    before = _made_at_aws()
    refused = erin.invoke(agent["id"], "A long one, please.", quiet=False, options={"maxTokens": 50_000})
    details = refused.json()["error"]["details"]
    expect(
        "402, and it says that it is an estimate",
        refused.status_code == 402 and details["limitType"] == "tokens" and details["estimate"] >= 50_000,
        details.get("estimate"),
    )
    expect("nothing ran", not (_made_at_aws() - before)["bedrock-agentcore.InvokeAgentRuntime"])


def _downgraded(erin: Customer, support: Support, agent: dict[str, Any]) -> None:
    say("\n== A downgrade to Pro, which has no tools: before, while they are withdrawn, and after ==")
    before = _text(erin.invoke(agent["id"], "go"))
    support.tier(erin, "pro", "The customer went down to Pro.")
    refused = erin.invoke(agent["id"], "go", quiet=False)
    error = refused.json()["error"]
    expect(
        "while they are withdrawn: 402, retryable",
        refused.status_code == 402 and error["retryable"] and "Retry-After" in refused.headers,
        refused.headers.get("Retry-After"),
    )
    deadline = time.monotonic() + _WITHDRAWN_WITHIN
    after = refused
    while after.status_code == 402 and time.monotonic() < deadline:
        time.sleep(1)
        after = erin.invoke(agent["id"], "go")
    say(f"   before: {before}\n   then:   402 {error['message']}\n   after:  {_text(after)}")
    expect("before, it had them", before == "code interpreter: 42 | browser: opened")
    expect("after, it runs without", _text(after) == "code interpreter: unavailable | browser: unavailable")


def _gone(erin: Customer, support: Support, agent: dict[str, Any]) -> None:
    say("\n== A downgrade to Free: what is deployed on AgentCore stays, and is not run ==")
    support.tier(erin, "free", "The customer left Pro.")
    before = _made_at_aws()
    refused = erin.invoke(agent["id"], "go", quiet=False)
    streamed = erin.call("POST", f"/v1/invoke/{agent['id']}/stream", quiet=True, json={"input": {"prompt": "go"}})
    upload = {"bundle": ("tools.zip", bundle_of("tools"), "application/zip")}
    deployed = erin.call("POST", f"/v1/agents/{agent['id']}/deployments", quiet=True, files=upload)
    named = refused.json()["error"]["details"]["limitType"] == "runtimeGated"
    codes = [refused.status_code, streamed.status_code, deployed.status_code]
    expect("invoke, stream and deploy answer 402", codes == [402] * 3 and named, codes)
    made = _made_at_aws() - before
    expect("nothing on the wire", not made, dict(made))
    verdict = manage("verify_usage", "--account", erin.id)
    expect("what erin used is proven", verdict.returncode == 0, verdict.stdout.strip()[-120:])


def tell(url: str, support: Support) -> None:
    """Tell the story of the premium runtime."""
    erin, agent = _gated(url)
    _entitled(erin, support, agent)
    _estimated(erin, support, agent)
    _downgraded(erin, support, agent)
    _gone(erin, support, agent)
