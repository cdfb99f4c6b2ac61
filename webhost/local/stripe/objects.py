"""The objects that localstripe does not have, or has in an older shape; and the store that holds all of them."""

from __future__ import annotations

import pickle
import time
from calendar import monthrange
from collections.abc import Iterable, Mapping, Sequence
from contextvars import ContextVar
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from localstripe import resources
from localstripe.errors import UserError
from localstripe.resources import StripeObject, random_id, store

PINNED: Final = "2026-10-28.endive"
# Since this version the period is on the items, and an invoice names its subscription through its parent.
_MOVED: Final = "2025-03-31"
_NESTED: Final = 10
version: ContextVar[str] = ContextVar("version", default=PINNED)


def is_older() -> bool:
    """Say whether objects are shown in the shape that they had before the period moved."""
    return version.get()[:10] < _MOVED


def missing(kind: str, name: str, param: str = "id") -> UserError:
    """Return Stripe's answer about something that it does not know."""
    about = {"code": "resource_missing", "param": param}
    return UserError(404, f"No such {kind}: '{name}'", about)


def refused(message: str, param: str = "") -> UserError:
    """Return Stripe's answer to a request that is wrong."""
    return UserError(400, message, {"code": "parameter_invalid", "param": param} if param else {})


def known(kind: type[StripeObject], name: Any, param: str = "id") -> Any:
    """Return an object of the store. Raises a 404 that names the parameter."""
    found = store.get(f"{kind.object}:{name}")
    if found is None:
        raise missing(kind.object or "", str(name), param)
    return found


def all_of(kind: type[StripeObject]) -> list[Any]:
    """Return all objects of a kind, newest first."""
    return [value for key, value in reversed(store.items()) if key.startswith(f"{kind.object}:")]


def paged(url: str, found: Sequence[Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return a page of objects, as `limit` and `starting_after` ask."""
    limit = int(given.get("limit", 10))
    start = 0
    if after := given.get("starting_after"):
        start = next((n + 1 for n, one in enumerate(found) if one["id"] == after), len(found))
    page = list(found[start : start + limit])
    return {"object": "list", "url": url, "data": page, "has_more": len(found) > start + limit}


class Disk:
    """Keeps the store in a file, replaced as a whole."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / "stripe.pickle"
        # localstripe writes to one fixed place at every change.
        resources.Store.dump_to_disk = lambda _self: None
        if self._path.exists():
            store.clear()
            store.update(pickle.loads(self._path.read_bytes()))  # noqa: S301 - our own file

    def keep(self) -> None:
        """Write what changed."""
        passing = self._path.with_suffix(".new")
        passing.write_bytes(pickle.dumps(dict(store)))
        passing.replace(self._path)
        self._path.chmod(0o600)


class Customer(resources.Customer):  # type: ignore[misc]  # untyped library
    """A customer, in today's shape."""

    def _export(self, expand: Any = None) -> dict[str, Any]:
        shown: dict[str, Any] = StripeObject._export(self, expand)
        for gone in ("subscriptions", "sources", "tax_ids", "account_balance", "business_vat_id", "currency"):
            shown.pop(gone, None)
        return shown | {"balance": 0, "currency": None}

    @property
    def subscriptions(self) -> None:
        """Nothing: they are listed by themselves."""


class Price(StripeObject):  # type: ignore[misc]  # untyped library
    """What a product costs, and how often."""

    object = "price"
    _id_prefix = "price_"

    def __init__(self, id: str | None = None, **given: Any) -> None:  # noqa: A002 - Stripe's name
        product, recurring = given.pop("product", None), given.pop("recurring", None)
        known(resources.Product, product, "product")
        if recurring is not None and recurring.get("interval") not in {"day", "week", "month", "year"}:
            raise refused("Invalid recurring[interval]", "recurring[interval]")
        amount, currency = given.pop("unit_amount", None), given.pop("currency", None)
        if amount is None or not currency:
            raise refused("Missing required param: unit_amount or currency.", "unit_amount")
        more = {name: given.pop(name, None) for name in ("metadata", "lookup_key", "nickname", "active")}
        if given:
            raise refused(f"Received unknown parameter: {next(iter(given))}", next(iter(given)))
        super().__init__(id)
        self.product = product
        self.recurring = recurring and {"interval_count": 1, "usage_type": "licensed", **recurring}
        self.unit_amount = int(amount)
        self.unit_amount_decimal = str(amount)
        self.currency = currency
        self.type = "recurring" if recurring else "one_time"
        self.billing_scheme = "per_unit"
        self.metadata = more["metadata"] or {}
        self.lookup_key, self.nickname = more["lookup_key"], more["nickname"]
        self.active = more["active"] not in {False, "false"}


def next_period(start: int, interval: str) -> int:
    """Return the end of a period: the same day of the next month or year, or its last."""
    at = datetime.fromtimestamp(start, UTC)
    year, month = (at.year + 1, at.month) if interval == "year" else (at.year + at.month // 12, at.month % 12 + 1)
    day = min(at.day, monthrange(year, month)[1])
    return int(at.replace(year=year, month=month, day=day).timestamp())


class Subscription(StripeObject):  # type: ignore[misc]  # untyped library
    """A subscription with any number of items; each carries its period."""

    object = "subscription"
    _id_prefix = "sub_"

    def __init__(self, customer: str, prices: Iterable[str], *, id: str | None = None, **given: Any) -> None:  # noqa: A002 - Stripe's name
        super().__init__(id)
        self.customer = customer
        self.status = given.get("status", "active")
        self.metadata = given.get("metadata") or {}
        self.cancel_at: int | None = None
        self.cancel_at_period_end = False
        self.canceled_at: int | None = None
        self.ended_at: int | None = None
        self.trial_end = None
        self.pause_collection = None
        self.latest_invoice: str | None = None
        self.collection_method = "charge_automatically"
        self.start_date = self.created
        self._card = given.get("card", "")
        self._items: list[tuple[str, str]] = []
        self._put(prices)
        self._start = given.get("current_period_start") or self.created
        self._end = given.get("current_period_end") or next_period(self._start, self._interval())

    def _put(self, prices: Iterable[str]) -> None:
        kept = {price: item for item, price in self._items}
        self._items = [(kept.get(price) or f"si_{random_id(14)}", price) for price in prices]

    def _interval(self) -> str:
        for _, price in self._items:
            found = store.get(f"price:{price}")
            if found is not None and found.recurring:
                return str(found.recurring["interval"])
        return "month"

    def _all_items(self) -> list[dict[str, Any]]:
        return [self._item(item, price) for item, price in self._items]

    def _item(self, item: str, price: str) -> dict[str, Any]:
        found = store.get(f"price:{price}")
        # One that was made elsewhere, or in the other mode: to be shown all the same.
        shown = found._export() if found is not None else {"id": price, "object": "price", "active": True}
        made = {
            "id": item, "object": "subscription_item", "created": self.created, "quantity": 1, "metadata": {},
            "subscription": self.id, "price": shown,
        }  # fmt: skip
        if is_older():
            return made | {"plan": {"id": price, "object": "plan"}}
        return made | {"current_period_start": self._start, "current_period_end": self._end}

    def _export(self, expand: Any = None) -> dict[str, Any]:
        shown: dict[str, Any] = StripeObject._export(self)
        url = f"/v1/subscription_items?subscription={self.id}"
        shown["items"] = paged(url, self._all_items(), {"limit": _NESTED})
        if is_older():
            shown |= {"current_period_start": self._start, "current_period_end": self._end}
        if expand and "latest_invoice" in expand and self.latest_invoice:
            shown["latest_invoice"] = known(Invoice, self.latest_invoice)._export()
        return shown

    def _change(self, given: Mapping[str, Any]) -> None:
        """Set what a request names; prices as a list of their ids."""
        for name in ("status", "cancel_at", "cancel_at_period_end", "metadata", "pause_collection", "trial_end"):
            if name in given:
                setattr(self, name, given[name])
        if "prices" in given:
            self._put(given["prices"])
        self._start = given.get("current_period_start", self._start)
        self._end = given.get("current_period_end", self._end)
        if self.status in {"canceled", "incomplete_expired"}:
            self.ended_at = self.ended_at or int(time.time())
            self.canceled_at = self.canceled_at or self.ended_at


class Invoice(StripeObject):  # type: ignore[misc]  # untyped library
    """A bill for one period of a subscription."""

    object = "invoice"
    _id_prefix = "in_"

    def __init__(self, subscription: Subscription, status: str, created: int | None = None) -> None:
        super().__init__()
        if created is not None:
            self.created = created
        self.customer = subscription.customer
        self.status = status
        self.currency = "usd"
        prices = [store.get(f"price:{price}") for _, price in subscription._items]
        self.amount_due = sum(price.unit_amount for price in prices if price is not None)
        self.number = f"WHS-{self.id[-6:].upper()}"
        self._subscription = subscription.id
        subscription.latest_invoice = self.id

    def _export(self, expand: Any = None) -> dict[str, Any]:
        del expand
        shown: dict[str, Any] = StripeObject._export(self)
        shown["amount_paid"] = self.amount_due if self.status == "paid" else 0
        shown["hosted_invoice_url"] = f"/i/{self.id}"
        if is_older():
            return shown | {"subscription": self._subscription, "paid": self.status == "paid"}
        details = {"subscription": self._subscription, "metadata": {}}
        return shown | {"parent": {"type": "subscription_details", "subscription_details": details}}


class Session(StripeObject):  # type: ignore[misc]  # untyped library
    """What checkout and portal sessions share: a page of their own."""

    _path = ""

    def __init__(self, address: str, **values: Any) -> None:
        super().__init__()
        for name, value in values.items():
            setattr(self, name, value)
        self._address = address

    def _export(self, expand: Any = None) -> dict[str, Any]:
        del expand
        shown: dict[str, Any] = StripeObject._export(self)
        return shown | {
            "url": f"{self._address}{self._path}{self.id}" if shown.get("status", "open") == "open" else None
        }


class CheckoutSession(Session):
    """A page at which one subscription is bought, once."""

    object = "checkout.session"
    _id_prefix = "cs_test_"
    _path = "/c/pay/"


class PortalSession(Session):
    """A page at which a customer manages what was bought."""

    object = "billing_portal.session"
    _id_prefix = "bps_"
    _path = "/p/session/"
