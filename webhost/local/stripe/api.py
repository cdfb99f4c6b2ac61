"""The API: who may ask, how it is answered, and what of it is ours."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from aiohttp import web
from localstripe import resources
from localstripe.errors import UserError
from localstripe.resources import random_id, store
from localstripe.server import get_api_key, get_post_data, unflatten_data

from webhost.local.stripe.business import Business
from webhost.local.stripe.control import Control
from webhost.local.stripe.objects import (
    PINNED,
    CheckoutSession,
    Customer,
    Invoice,
    PortalSession,
    Price,
    Subscription,
    all_of,
    known,
    paged,
    refused,
    version,
)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
_KEYS: Final = "idempotency:"


def answer(body: Any, status: int = 200) -> web.Response:
    """Return an answer as Stripe gives one."""
    return web.json_response(body, status=status, headers={"Request-Id": f"req_{random_id(14)}"})


def error_answer(error: UserError) -> web.Response:
    """Return Stripe's error shape for what localstripe raises, with the code that it lacks."""
    body = error.body["error"]
    if error.code == 404:
        body.setdefault("code", "resource_missing")
        body.setdefault("param", "id")
    return answer({"error": body}, error.code)


class Api:
    """What is asked of the API, over the business behind it."""

    def __init__(self, business: Business, control: Control, key: str, changed: Callable[[], None]) -> None:
        self._business, self._control, self._key, self._changed = business, control, key, changed

    def routes(self) -> list[web.RouteDef]:
        """Return every route below /v1/."""
        found = []
        for kind, name in ((Customer, "customers"), (resources.Product, "products"), (Price, "prices")):
            found += [
                web.post(f"/v1/{name}", self._made(kind)),
                web.get(f"/v1/{name}", self._listed(kind, f"/v1/{name}")),
                web.get(f"/v1/{name}/{{id}}", self._shown(kind)),
                web.post(f"/v1/{name}/{{id}}", self._updated(kind)),
            ]
        return [
            *found,
            web.delete("/v1/customers/{id}", self._delete_customer),
            web.post("/v1/subscriptions", self._subscribe),
            web.get("/v1/subscriptions", self._subscriptions),
            web.get("/v1/subscriptions/{id}", self._shown(Subscription)),
            web.post("/v1/subscriptions/{id}", self._change),
            web.delete("/v1/subscriptions/{id}", self._cancel),
            web.get("/v1/subscription_items", self._items),
            web.get("/v1/invoices", self._invoices),
            web.get("/v1/invoices/{id}", self._shown(Invoice)),
            web.post("/v1/checkout/sessions", self._checkout),
            web.get("/v1/checkout/sessions", self._listed(CheckoutSession, "/v1/checkout/sessions")),
            web.get("/v1/checkout/sessions/{id}", self._shown(CheckoutSession)),
            web.post("/v1/checkout/sessions/{id}/expire", self._expire),
            web.post("/v1/billing_portal/sessions", self._portal),
            web.get("/v1/events", self._events),
        ]

    @web.middleware
    async def guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Let only our key in, do what faults were planned, repeat no POST, and keep what changed."""
        if not request.path.startswith("/v1/"):
            return await handler(request)
        self._control.saw(request)
        if (fault := self._control.fault_for(request.path)) is not None:
            if fault.seconds:
                await asyncio.sleep(fault.seconds)
            if fault.status:
                return answer({"error": {"type": "api_error", "message": "An error of ours."}}, fault.status)
        if get_api_key(request) != self._key:
            return answer({"error": {"type": "invalid_request_error", "message": "Invalid API Key provided."}}, 401)
        token = version.set(request.headers.get("Stripe-Version", PINNED))
        try:
            return await self._once(request, handler)
        except UserError as error:
            return error_answer(error)
        finally:
            version.reset(token)
            self._changed()

    async def _once(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        key = request.headers.get("Idempotency-Key")
        if request.method != "POST" or not key:
            return await handler(request)
        asked = hashlib.sha256(request.path.encode() + await request.read()).hexdigest()
        before = store.get(_KEYS + key)
        if before is not None:
            if before[0] != asked:
                about = {"type": "idempotency_error", "message": "Keys can only be used with the same parameters."}
                return answer({"error": about}, 400)
            return answer(json.loads(before[1]), before[2])
        try:
            given = await handler(request)
        except UserError as error:
            given = error_answer(error)
        if isinstance(given, web.Response) and given.status < 500:
            store[_KEYS + key] = (asked, given.text, given.status)
        return given

    # --- Any kind ----------------------------------------------------------------------------------

    def _made(self, kind: Any) -> Handler:
        async def make(request: web.Request) -> web.Response:
            given = await get_post_data(request) or {}
            given.pop("expand", None)
            return answer(kind._api_create(**given)._export())

        return make

    def _shown(self, kind: Any) -> Handler:
        async def show(request: web.Request) -> web.Response:
            found = known(kind, request.match_info["id"])
            return answer(_expanded(found._export(), unflatten_data(request.query).get("expand") or []))

        return show

    def _updated(self, kind: Any) -> Handler:
        async def update(request: web.Request) -> web.Response:
            found = known(kind, request.match_info["id"])
            given = await get_post_data(request) or {}
            if "active" in given:
                given["active"] = given["active"] in {True, "true"}
            found._update(**given)
            return answer(found._export())

        return update

    def _listed(self, kind: Any, url: str) -> Handler:
        async def show(request: web.Request) -> web.Response:
            given = unflatten_data(request.query)
            found = [one._export() for one in all_of(kind)]
            for name in ("email", "product", "customer", "status"):
                if name in given:
                    found = [one for one in found if one.get(name) == given[name]]
            if "active" in given:
                found = [one for one in found if one["active"] is (given["active"] == "true")]
            if "lookup_keys" in given:
                found = [one for one in found if one["lookup_key"] in given["lookup_keys"]]
            page = paged(url, found, given)
            wanted = [path.removeprefix("data.") for path in given.get("expand") or []]
            page["data"] = [_expanded(one, wanted) for one in page["data"]]
            return answer(page)

        return show

    # --- Subscriptions -----------------------------------------------------------------------------

    async def _delete_customer(self, request: web.Request) -> web.Response:
        customer = known(Customer, request.match_info["id"])
        for one in all_of(Subscription):
            if one.customer == customer.id and one.status != "canceled":
                self._business.cancel(one)
        self._business.post.tell("customer.deleted", customer)
        del store[f"customer:{customer.id}"]
        return answer({"id": customer.id, "object": "customer", "deleted": True})

    async def _subscribe(self, request: web.Request) -> web.Response:
        given = await get_post_data(request) or {}
        known(Customer, given.get("customer"), "customer")
        prices = [item.get("price") for item in given.get("items") or []]
        for price in prices:
            known(Price, price, "items[0][price]")
        if not prices:
            raise refused("Missing required param: items.", "items")
        made = self._business.subscribe(given["customer"], prices, metadata=given.get("metadata"))
        return answer(made._export())

    async def _subscriptions(self, request: web.Request) -> web.Response:
        given = unflatten_data(request.query)
        found = all_of(Subscription)
        if customer := given.get("customer"):
            known(Customer, customer, "customer")
            found = [one for one in found if one.customer == customer]
        status = given.get("status")
        if status is None:
            found = [one for one in found if one.status not in {"canceled", "incomplete_expired"}]
        elif status != "all":
            found = [one for one in found if one.status == status]
        return answer(paged("/v1/subscriptions", [one._export() for one in found], given))

    async def _change(self, request: web.Request) -> web.Response:
        found = known(Subscription, request.match_info["id"])
        self._business.change(found, _changes(found, await get_post_data(request) or {}))
        return answer(found._export())

    async def _cancel(self, request: web.Request) -> web.Response:
        found = known(Subscription, request.match_info["id"])
        self._business.cancel(found)
        return answer(found._export())

    async def _items(self, request: web.Request) -> web.Response:
        given = unflatten_data(request.query)
        found = known(Subscription, given.get("subscription"), "subscription")
        return answer(paged("/v1/subscription_items", found._all_items(), given))

    async def _invoices(self, request: web.Request) -> web.Response:
        given = unflatten_data(request.query)
        found = [
            one._export() for one in all_of(Invoice)
            if given.get("customer") in {None, one.customer}
            and given.get("subscription") in {None, one._subscription}
            and given.get("status") in {None, one.status}
        ]  # fmt: skip
        return answer(paged("/v1/invoices", found, given))

    # --- Sessions and events -----------------------------------------------------------------------

    async def _checkout(self, request: web.Request) -> web.Response:
        return answer(self._business.checkout_of(await get_post_data(request) or {})._export())

    async def _expire(self, request: web.Request) -> web.Response:
        found = known(CheckoutSession, request.match_info["id"])
        self._business.expire(found)
        return answer(found._export())

    async def _portal(self, request: web.Request) -> web.Response:
        given = await get_post_data(request) or {}
        known(Customer, given.get("customer"), "customer")
        flow = given.get("flow_data")
        if flow and flow.get("type") == "subscription_update_confirm":
            asked = flow["subscription_update_confirm"]
            subscription = known(Subscription, asked.get("subscription"), "flow_data[subscription]")
            if asked["items"][0].get("id") not in {item for item, _ in subscription._items}:
                raise refused("The item is not of this subscription.", "flow_data[items][0][id]")
            known(Price, asked["items"][0].get("price"), "flow_data[items][0][price]")
        made = PortalSession(
            self._business.address, customer=given["customer"], return_url=given.get("return_url"), flow=flow
        )
        return answer(made._export())

    async def _events(self, request: web.Request) -> web.Response:
        given = unflatten_data(request.query)
        found = [json.loads(body) for body in reversed(self._business.post.wire.bodies.values())]
        if kind := given.get("type"):
            found = [one for one in found if one["type"] == kind]
        return answer(paged("/v1/events", found, given))


def _expanded(shown: dict[str, Any], paths: list[str]) -> dict[str, Any]:
    if "product" in paths and isinstance(shown.get("product"), str):
        shown["product"] = known(resources.Product, shown["product"], "product")._export()
    return shown


def _changes(found: Subscription, given: Mapping[str, Any]) -> dict[str, Any]:
    """Read what an update asks for."""
    made: dict[str, Any] = {}
    for name, value in given.items():
        match name:
            case "cancel_at_period_end":
                made[name] = value in {True, "true"}
            case "cancel_at":
                made[name] = int(value) if value else None
            case "metadata" | "pause_collection":
                made[name] = value or None
            case "items":
                prices = dict(found._items)
                for item in value:
                    known(Price, item.get("price"), "items[0][price]")
                    prices[item.get("id") or f"si_{random_id(14)}"] = item["price"]
                made["prices"] = list(prices.values())
            case "proration_behavior" | "expand":
                pass
            case _:
                raise refused(f"Received unknown parameter: {name}", name)
    return made
