"""Billing: a limit is reached, the tier is bought, the same call passes; what is lost is found."""

from __future__ import annotations

import json
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import requests

from webhost.local.demo.people import Customer, Support, expect, manage, say

_IN_FORCE_WITHIN = 2.0
_PATIENCE = 20.0


def _tier(who: Customer) -> str:
    return str(who.call("GET", "/v1/me", quiet=True).json()["tier"]["slug"])


def _in_force(who: Customer, tier: str) -> float:
    """Wait until a tier is in force; return how long that took."""
    began = time.monotonic()
    while _tier(who) != tier and time.monotonic() - began < _PATIENCE:
        time.sleep(0.05)
    return time.monotonic() - began


def _pay(url: str) -> requests.Response:
    """Fill in Stripe's checkout form, as the customer does in a browser."""
    page = requests.get(url, timeout=10)
    say(f"   the checkout page: {url.split('/c/', maxsplit=1)[0]}/c/pay/… ({page.status_code})")
    return requests.post(url, data={"card": "4242 4242 4242 4242"}, allow_redirects=False, timeout=10)


def tell(url: str, support: Support, stripe_url: str) -> None:
    """Tell this part of the story."""
    say("\n== A limit is reached, the next tier is bought, the same call passes ==")
    frank = Customer(url, "frank")
    support.override(frank, "requestsPerMinute", 100_000, "So that a month fits into some seconds.")
    agent = frank.deploy("echo", "echo")
    with ThreadPoolExecutor(4) as pool:
        seen = Counter(pool.map(lambda _: frank.invoke(agent["id"], "hi").status_code, range(1_005)))
    expect("of 1,005 calls in a month of 1,000 exactly 1,000 pass", seen == {200: 1_000, 402: 5}, dict(seen))
    refused = frank.invoke(agent["id"], "one more", quiet=False)
    action = refused.json()["error"]["details"]["suggestedAction"]
    expect("the refusal names the tier that would do", action.get("tier") == "starter", action)
    opened = frank.call("POST", "/v1/billing/checkout", json={"tier": "starter", "interval": "month"})
    paid = _pay(opened.json()["url"])
    expect("the card is charged and the customer sent back", paid.status_code == 303, paid.headers.get("Location"))
    took = _in_force(frank, "starter")
    expect("the tier is in force within two seconds", took < _IN_FORCE_WITHIN, f"{took:.2f} s")
    again = frank.invoke(agent["id"], "one more", quiet=False)
    expect("the same call passes", again.status_code == 200, again.status_code)
    totals = frank.call("GET", "/v1/billing/usage", quiet=True).json()["totals"]
    expect("what was used stays counted", totals["requests"] == 1_001, totals["requests"])

    say("\n== The plan is ended in the portal: in force as fast, and said ==")
    portal = frank.call("POST", "/v1/billing/portal").json()["url"]
    subscription = _form_value(requests.get(portal, timeout=10).text, "subscription")
    requests.post(portal, data={"do": "cancel", "subscription": subscription}, timeout=10)
    took = _in_force(frank, "free")
    expect("the default tier is in force within two seconds", took < _IN_FORCE_WITHIN, f"{took:.2f} s")
    expect("the call is refused again", frank.invoke(agent["id"], "one more").status_code == 402)

    say("\n== A webhook that is lost: the nightly comparison finds it ==")
    requests.post(f"{stripe_url}/local/faults", json={"fault": "lose_webhooks", "count": 10}, timeout=10)
    _pay(frank.call("POST", "/v1/billing/checkout", json={"tier": "pro", "interval": "year"}).json()["url"])
    requests.delete(f"{stripe_url}/local/faults", timeout=10)
    time.sleep(1)
    expect("nobody told us, so nothing changed", _tier(frank) == "free", _tier(frank))
    report = manage("reconcile_billing")
    say(report.stdout.strip())
    expect(
        "the report names the account, before and after", f"{frank.id} " in report.stdout and "→ Pro" in report.stdout
    )
    expect("what was paid for is in force", _tier(frank) == "pro", _tier(frank))
    once_more = json.loads(manage("reconcile_billing", "--json").stdout)
    expect("a second comparison finds nothing", once_more["drifted"] == [], once_more["drifted"])


def _form_value(page: str, name: str) -> str:
    return page.partition(f'name="{name}" value="')[2].partition('"')[0]
