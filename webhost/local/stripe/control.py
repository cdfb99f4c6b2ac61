"""What tests and demos do to this Stripe beside its API: see calls, plan faults, hold deliveries, force states."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Final

import aiohttp
from aiohttp import web
from localstripe.resources import store

from webhost.local.stripe.business import Business
from webhost.local.stripe.objects import Invoice, Subscription, known

_FIELDS: Final = (
    "status", "prices", "current_period_start", "current_period_end", "cancel_at", "cancel_at_period_end",
    "trial_end", "pause_collection", "metadata",
)  # fmt: skip


@dataclass
class Fault:
    """How the next calls of the API fare."""

    status: int = 0
    seconds: float = 0.0
    count: int = 1
    path: str = "/v1/"


class Control:
    """The routes below /local/, and what they set."""

    def __init__(self, business: Business, changed: Callable[[], None]) -> None:
        self._business, self._changed = business, changed
        self._faults: list[Fault] = []
        self._calls: Counter[str] = Counter()
        self.away = asyncio.Event()
        self.away_seconds = 0.0

    def saw(self, request: web.Request) -> None:
        """Count a call by its method and its path's pattern."""
        resource = request.match_info.route.resource
        self._calls[f"{request.method} {resource.canonical if resource else request.path}"] += 1

    def fault_for(self, path: str) -> Fault | None:
        """Take the next fault that was planned for a path."""
        for fault in self._faults:
            if path.startswith(fault.path):
                fault.count -= 1
                if fault.count <= 0:
                    self._faults.remove(fault)
                return fault
        return None

    def routes(self) -> list[web.RouteDef]:
        """Return every route below /local/."""
        return [
            web.get("/local/calls", self._seen),
            web.delete("/local/calls", self._forget),
            web.post("/local/faults", self._plan),
            web.delete("/local/faults", self._forgive),
            web.post("/local/release", self._release),
            web.get("/local/events/{id}", self._body),
            web.post("/local/events/{id}/deliver", self._deliver),
            web.post("/local/subscriptions", self._force),
            web.patch("/local/subscriptions/{id}", self._alter),
            web.post("/local/subscriptions/{id}/renew", self._renew),
            web.post("/local/subscriptions/{id}/pay", self._pay),
            web.post("/local/invoices", self._invoice),
        ]

    async def _seen(self, _request: web.Request) -> web.Response:
        post = self._business.post
        return web.json_response(
            {
                "total": sum(self._calls.values()),
                "calls": dict(self._calls),
                "deliveries": [asdict(one) for one in post.log],
                "pending": [one.event_id for one in post.wire.pending],
                "held": post.wire.held,
            }
        )

    async def _forget(self, _request: web.Request) -> web.Response:
        self._calls.clear()
        self._business.post.log.clear()
        return web.json_response({})

    async def _plan(self, request: web.Request) -> web.Response:
        plan = await request.json()
        post = self._business.post
        match plan["fault"]:
            case "lose_webhooks":
                post.to_lose = int(plan.get("count", 1))
            case "hold_webhooks":
                post.is_holding = True
            case "api_version":
                post.event_version = plan["version"]
            case "status":
                self._faults.append(Fault(plan["status"], 0, plan.get("count", 1), plan.get("path", "/v1/")))
            case "slow":
                self._faults.append(Fault(0, plan["seconds"], plan.get("count", 1), plan.get("path", "/v1/")))
            case "refuse":
                self.away_seconds = plan["seconds"]
                self.away.set()
            case unknown:
                return web.json_response({"error": f"There is no fault {unknown}."}, status=400)
        return web.json_response({})

    async def _forgive(self, _request: web.Request) -> web.Response:
        self._faults.clear()
        self._business.post.to_lose = 0
        return web.json_response({})

    async def _release(self, request: web.Request) -> web.Response:
        given = await request.json()
        return web.json_response(
            {"released": self._business.post.release(given.get("order", "as_made"), given.get("times", 1))}
        )

    async def _body(self, request: web.Request) -> web.Response:
        return web.Response(body=self._business.post.wire.bodies[request.match_info["id"]])

    async def _deliver(self, request: web.Request) -> web.Response:
        given = await request.json() if request.can_read_body else {}
        event, count, post = request.match_info["id"], given.get("count", 1), self._business.post
        if event not in post.wire.bodies:
            return web.json_response({"error": "There is no such event."}, status=404)
        async with aiohttp.ClientSession() as session:
            if given.get("at_once"):
                statuses = await asyncio.gather(*(post.post(session, event) for _ in range(count)))
            else:
                statuses = [await post.post(session, event) for _ in range(count)]
        return web.json_response({"statuses": list(statuses)})

    async def _force(self, request: web.Request) -> web.Response:
        given = await request.json()
        event = given.get("event", "customer.subscription.created")
        made = Subscription(given["customer"], given.get("prices", []), id=given.get("id"))
        made._change(_fields(given))
        told = self._business.post.tell(event, made) if event else None
        self._changed()
        return web.json_response({"id": made.id, "event": told})

    async def _alter(self, request: web.Request) -> web.Response:
        given = await request.json()
        found = known(Subscription, request.match_info["id"])
        found._change(_fields(given))
        event = given.get("event", "customer.subscription.updated")
        told = self._business.post.tell(event, found) if event else None
        self._changed()
        return web.json_response({"id": found.id, "event": told})

    async def _renew(self, request: web.Request) -> web.Response:
        invoice = self._business.renew(known(Subscription, request.match_info["id"]))
        self._changed()
        return web.json_response({"invoice": invoice.id})

    async def _pay(self, request: web.Request) -> web.Response:
        self._business.pay(known(Subscription, request.match_info["id"]))
        self._changed()
        return web.json_response({})

    async def _invoice(self, request: web.Request) -> web.Response:
        given = await request.json()
        made = Invoice(known(Subscription, given["subscription"]), given.get("status", "open"), given.get("created"))
        store[f"invoice:{made.id}"] = made
        self._changed()
        return web.json_response({"id": made.id})


def _fields(given: dict[str, Any]) -> dict[str, Any]:
    return {name: given[name] for name in _FIELDS if name in given}
