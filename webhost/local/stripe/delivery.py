"""Events, and their way to the product: signed when they are sent, repeated until they are taken."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import aiohttp
from localstripe import resources
from localstripe.resources import random_id, store

from webhost.local.stripe.objects import PINNED, version

_LONGEST_PAUSE: Final = 120.0
_GIVE_UP_AFTER: Final = 60
_LOG: Final = 2000
_STATE: Final = "deliveries:"


@dataclass
class Pending:
    """An event on its way."""

    event_id: str
    attempts: int = 0
    due: float = 0.0


@dataclass
class Wire:
    """What is kept of deliveries: events as their bytes, those under way, those held back."""

    bodies: dict[str, bytes] = field(default_factory=dict)
    pending: list[Pending] = field(default_factory=list)
    held: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Delivered:
    """One attempt: which event, of what type, and what was answered (0: nothing)."""

    event: str
    type: str
    status: int


class Post:
    """Makes events and delivers them in order to one address."""

    def __init__(self, url: str, secret: str, changed: Callable[[], None]) -> None:
        self.url, self.secret = url, secret
        self.log: list[Delivered] = []
        self.is_holding = False
        self.to_lose = 0
        self.event_version = PINNED
        self._changed = changed
        self._wake = asyncio.Event()
        # What localstripe's own customers and products do comes our way, too.
        resources.Event = lambda kind, thing: (kind, thing)
        resources.schedule_webhook = lambda event: self.tell(*event)

    @property
    def wire(self) -> Wire:
        """What is under way; a part of the store, so that it survives a restart."""
        if _STATE not in store:
            store[_STATE] = Wire()
        found: Wire = store[_STATE]
        return found

    def tell(self, kind: str, thing: Any, before: dict[str, Any] | None = None) -> str:
        """Make an event of a thing as it is now, and send it; return its id."""
        token = version.set(self.event_version)
        try:
            data = {"object": thing._export()}
        finally:
            version.reset(token)
        if before is not None:
            data["previous_attributes"] = before
        event: dict[str, Any] = {
            "id": f"evt_{random_id(24)}", "object": "event", "api_version": self.event_version,
            "created": int(time.time()), "livemode": False, "pending_webhooks": 1,
            "request": {"id": f"req_{random_id(14)}", "idempotency_key": None}, "type": kind, "data": data,
        }  # fmt: skip
        self.wire.bodies[event["id"]] = json.dumps(event, separators=(",", ":")).encode()
        if self.to_lose > 0:
            self.to_lose -= 1
        elif self.is_holding:
            self.wire.held.append(event["id"])
        else:
            self.send(event["id"])
        return str(event["id"])

    def send(self, event_id: str) -> None:
        """Put an event on its way."""
        self.wire.pending.append(Pending(event_id))
        self._wake.set()

    def release(self, order: Any = "as_made", times: int = 1) -> int:
        """Let go of what was held back: as made, reversed, or in an order of ids, each so many times."""
        held, self.wire.held = self.wire.held, []
        self.is_holding = False
        chosen = list(reversed(held)) if order == "reversed" else order if isinstance(order, list) else held
        for event_id in chosen:
            for _ in range(times):
                self.send(event_id)
        return len(chosen)

    async def run(self) -> None:
        """Deliver for as long as the server runs, one after the other."""
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=15)) as session:
            while True:
                due = [p for p in self.wire.pending if p.due <= time.time()]
                for pending in due:
                    await self._deliver(session, pending)
                self._changed()
                if not due:
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(self._wake.wait(), 0.2 if self.wire.pending else 3600)
                self._wake.clear()

    async def _deliver(self, session: aiohttp.ClientSession, pending: Pending) -> None:
        status = await self.post(session, pending.event_id)
        pending.attempts += 1
        pending.due = time.time() + min(0.5 * 2 ** (pending.attempts - 1), _LONGEST_PAUSE)
        if 200 <= status < 300 or pending.attempts >= _GIVE_UP_AFTER:
            with contextlib.suppress(ValueError):
                self.wire.pending.remove(pending)

    async def post(self, session: aiohttp.ClientSession, event_id: str) -> int:
        """Send an event once, signed now; return the status, 0 where nobody answered."""
        body = self.wire.bodies[event_id]
        now = int(time.time())
        signature = hmac.new(self.secret.encode(), f"{now}.".encode() + body, hashlib.sha256).hexdigest()
        headers = {
            "Content-Type": "application/json; charset=utf-8",
            "Stripe-Signature": f"t={now},v1={signature}",
            "User-Agent": "Stripe/1.0 (+local)",
        }
        try:
            async with session.post(self.url, data=body, headers=headers, allow_redirects=False) as answer:
                status = answer.status
        except (aiohttp.ClientError, TimeoutError, OSError):
            status = 0
        self.log.append(Delivered(event_id, json.loads(body)["type"], status))
        del self.log[:-_LOG]
        return status
