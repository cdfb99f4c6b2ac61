"""The local Stripe as a server of its own, and what a test does to it."""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import requests
import stripe

from webhost.local import environment
from webhost.local.processes import Child, free_port, wait_for_port


def signature(body: bytes, secret: str, *, at: float | None = None) -> str:
    """Sign as Stripe does."""
    seconds = int(time.time() if at is None else at)
    return f"t={seconds},v1={hmac.new(secret.encode(), b'%d.%s' % (seconds, body), hashlib.sha256).hexdigest()}"


class LocalStripe:
    """A local Stripe on a port of its own, below a folder."""

    def __init__(self, folder: Path, public_url: str, *, key: str, secret: str) -> None:
        self.port, self.key, self.secret = free_port(), key, secret
        settings = os.environ | {
            "PUBLIC_URL": public_url, "STRIPE_SECRET_KEY": key, "STRIPE_WEBHOOK_SECRETS": secret, "PYTHONUNBUFFERED": "1",
        }  # fmt: skip
        command = [sys.executable, "-m", "webhost.local.stripe", "--port", str(self.port), "--directory", str(folder)]
        self._child = Child("stripe", command, folder / "stripe.log", settings, environment.REPOSITORY)

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start it and wait until it listens."""
        self._child.start()
        wait_for_port(self.port, "The local Stripe", 30, self._child)

    def stop(self) -> None:
        """Stop it; its state stays."""
        self._child.stop()

    def kill(self) -> None:
        """Kill it, as a crash would."""
        self._child.kill()

    def client(self) -> stripe.StripeClient:
        """Return Stripe's own library, pointed here."""
        return stripe.StripeClient(self.key, base_addresses={"api": self.url}, max_network_retries=0)

    def local(self, method: str, where: str, /, **given: Any) -> Any:
        """Call a route below /local/."""
        answer = requests.request(method, f"{self.url}/local{where}", json=given or None, timeout=10)
        answer.raise_for_status()
        return answer.json()

    def customer(self, email: str = "alice@example.com") -> str:
        """Make a customer; return its id."""
        return str(self.client().v1.customers.create({"email": email}).id)

    def force(
        self, customer: str, status: str = "active", prices: tuple[str, ...] = ("price_local_pro_month",), **more: Any
    ) -> str:
        """Make a subscription in any state; return its id."""
        made = self.local("POST", "/subscriptions", customer=customer, status=status, prices=list(prices), **more)
        return str(made["id"])

    def change(self, subscription: str, **fields: Any) -> str | None:
        """Change one, with an event; return the event's id."""
        told = self.local("PATCH", f"/subscriptions/{subscription}", **fields)["event"]
        return None if told is None else str(told)

    def hold(self) -> None:
        """Keep back what is made from now on."""
        self.local("POST", "/faults", fault="hold_webhooks")

    def release(self, order: Any = "as_made", times: int = 1) -> None:
        """Deliver what was kept back."""
        self.local("POST", "/release", order=order, times=times)

    def lose(self, count: int) -> None:
        """Never deliver the next so many."""
        self.local("POST", "/faults", fault="lose_webhooks", count=count)

    def fail(self, status: int, path: str = "/v1/subscriptions", count: int = 1) -> None:
        """Let calls of the API fail."""
        self.local("POST", "/faults", fault="status", status=status, path=path, count=count)

    def redeliver(self, event: str, count: int = 1, *, at_once: bool = False) -> list[int]:
        """Deliver an event again; return what was answered."""
        return list(self.local("POST", f"/events/{event}/deliver", count=count, at_once=at_once)["statuses"])

    def calls(self) -> dict[str, Any]:
        """Return what was asked and delivered."""
        return dict(self.local("GET", "/calls"))

    def events(self, kind: str | None = None) -> list[dict[str, Any]]:
        """Return events, newest first."""
        given: dict[str, Any] = {"limit": 100} | ({"type": kind} if kind else {})
        found = self.client().v1.events.list(given).to_dict()["data"]  # type: ignore[arg-type]
        return [dict(event) for event in found]

    def body_of(self, event: str) -> bytes:
        """Return the bytes of an event."""
        return requests.get(f"{self.url}/local/events/{event}", timeout=10).content

    def made_event(
        self, customer: str, kind: str = "customer.subscription.updated", *, created: int | None = None, **more: Any
    ) -> bytes:
        """Make the bytes of an event that this Stripe knows nothing of."""
        thing = {"id": "sub_x", "object": "subscription", "customer": customer, **more.pop("object", {})}
        event = {
            "id": f"evt_{os.urandom(8).hex()}", "object": "event", "type": kind, "livemode": False,
            "created": int(time.time()) if created is None else created, "data": {"object": thing}, **more,
        }  # fmt: skip
        return json.dumps(event).encode()
