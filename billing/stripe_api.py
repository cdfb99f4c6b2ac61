"""What is asked of Stripe, and its answers as values. The only module that knows the shapes of its objects.

Calls are bounded in time and repeated by the library at most once, with an idempotency key. No call is made
with a database connection on loan from the hot path; the one place that holds a row meanwhile is
actions/apply.py, which says why.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from typing import Any, Final

import stripe
from django.conf import settings
from stripe import StripeClient

from billing import rules
from billing.errors import CustomerGoneError, StripeAwayError, StripeRefusedError

logger = logging.getLogger(__name__)

_TIMEOUT_SECONDS: Final = (3, 10)  # to connect, and for an answer
_PAUSE_SECONDS: Final = 30
_PAGE: Final = 100
_away_until = 0.0


@cache
def _client(key: str, url: str) -> StripeClient:
    return StripeClient(
        key,
        base_addresses={"api": url} if url else {},
        http_client=stripe.RequestsClient(timeout=_TIMEOUT_SECONDS),
        max_network_retries=1,
    )


def client() -> StripeClient:
    """Return the client of the configured account. Raises StripeAwayError where none is configured."""
    if not settings.STRIPE_SECRET_KEY:
        raise StripeAwayError("Payments are not set up here.")
    return _client(settings.STRIPE_SECRET_KEY, settings.STRIPE_API_URL)


@contextmanager
def _asking() -> Iterator[None]:
    """Turn what the library raises into our refusals: away (try again), gone, or refused.

    Who could not reach Stripe costs its process half a minute of not trying: a worker that waits for time-outs
    one event after the other would not keep the books meanwhile.
    """
    global _away_until  # noqa: PLW0603 - one Stripe, one process, one state
    if time.monotonic() < _away_until:
        raise StripeAwayError
    try:
        yield
    except stripe.APIConnectionError as error:
        _away_until = time.monotonic() + _PAUSE_SECONDS
        logger.warning("Stripe cannot be reached; it is left alone for %d seconds.", _PAUSE_SECONDS)
        raise StripeAwayError from error
    except stripe.RateLimitError as error:
        raise StripeAwayError from error
    except stripe.InvalidRequestError as error:
        if error.code == "resource_missing" and error.param in {"customer", "id"}:
            raise CustomerGoneError from error
        logger.exception("Stripe refused a request of ours (%s, %s).", error.code, error.param)
        raise StripeRefusedError from error
    except stripe.StripeError as error:
        if isinstance(error, stripe.AuthenticationError | stripe.PermissionError):
            logger.exception("Stripe does not take our key.")
        raise StripeAwayError from error


# --- Reading --------------------------------------------------------------------------------------


def subscriptions_of(customer_id: str) -> list[rules.Subscription]:
    """Return all subscriptions of a customer as they are now, the ended ones too.

    Raises CustomerGoneError, StripeAwayError.
    """
    with _asking():
        found = client().v1.subscriptions.list({"customer": customer_id, "status": "all", "limit": _PAGE})
        return [_whole(s.to_dict()) for s in found.auto_paging_iter()]


def all_subscriptions() -> dict[str, list[rules.Subscription]]:
    """Return all subscriptions at Stripe that are not over, by customer: a page of a hundred is one call."""
    found: dict[str, list[rules.Subscription]] = {}
    with _asking():
        for subscription in client().v1.subscriptions.list({"limit": _PAGE}).auto_paging_iter():
            raw = subscription.to_dict()
            if raw["status"] not in rules.OVER:
                found.setdefault(id_of(raw.get("customer")), []).append(_whole(raw))
    return found


def _whole(raw: Mapping[str, Any]) -> rules.Subscription:
    """Return a subscription with all its items, and since when it is unpaid."""
    read = read_subscription(raw)
    items = raw.get("items") or {}
    if items.get("has_more"):
        pages = client().v1.subscription_items.list({"subscription": read.id, "limit": _PAGE})
        read = _with(read, items=tuple(_item(i.to_dict()) for i in pages.auto_paging_iter()))
    if read.status == rules.Status.PAST_DUE:
        unpaid = client().v1.invoices.list({"subscription": read.id, "status": "open", "limit": _PAGE})
        read = _with(read, unpaid_since=min((_at(i.created) for i in unpaid.auto_paging_iter()), default=None))
    return read


def _with(subscription: rules.Subscription, **values: Any) -> rules.Subscription:
    return rules.Subscription(**{**vars(subscription), **values})


def read_subscription(raw: Mapping[str, Any]) -> rules.Subscription:
    """Read Stripe's object, of the pinned version of its API or of an older one.

    Since 2025-03-31 the dates of the period are on the items; before, on the subscription.
    """
    items = list((raw.get("items") or {}).get("data") or [])
    starts = _dates(items, "current_period_start") or _dates([raw], "current_period_start")
    ends = _dates(items, "current_period_end") or _dates([raw], "current_period_end")
    return rules.Subscription(
        id=str(raw["id"]),
        status=str(raw["status"]),
        items=tuple(_item(i) for i in items),
        created=_at(raw["created"]),
        period_start=max(starts, default=None),
        # The first to end: what is cancelled at period end ends no later than any of its items.
        period_end=min(ends, default=None),
        cancel_at=_at(raw["cancel_at"]) if raw.get("cancel_at") else None,
        cancel_at_period_end=bool(raw.get("cancel_at_period_end")),
    )


def _item(raw: Mapping[str, Any]) -> rules.Item:
    price = raw.get("price") or raw.get("plan") or {}  # `plan` alone is what very old versions show
    return rules.Item(str(raw.get("id") or ""), id_of(price))


def _dates(objects: Iterable[Mapping[str, Any]], name: str) -> list[datetime]:
    return [_at(o[name]) for o in objects if o.get(name)]


def _at(seconds: int) -> datetime:
    return datetime.fromtimestamp(int(seconds), UTC)


def id_of(value: Any) -> str:
    """Return the id that a field holds, expanded or not; empty where there is none."""
    if isinstance(value, Mapping):
        return str(value.get("id") or "")
    return str(value or "")


@dataclass(frozen=True)
class Price:
    """A recurring price as Stripe says it, and the tier that its metadata, or its product's, names."""

    id: str
    interval: str
    every: int
    amount_cents: int | None
    currency: str
    active: bool
    tier: str


def price_of(price_id: str) -> Price | None:
    """Return a price, or None where Stripe knows none of this id."""
    with _asking():
        try:
            return _price(client().v1.prices.retrieve(price_id, {"expand": ["product"]}).to_dict())
        except stripe.InvalidRequestError as error:
            if error.code == "resource_missing":
                return None
            raise


def recurring_prices() -> list[Price]:
    """Return all recurring prices that are active at Stripe."""
    with _asking():
        found = client().v1.prices.list({"active": True, "limit": _PAGE, "expand": ["data.product"]})
        return [_price(p.to_dict()) for p in found.auto_paging_iter() if p.recurring]


def _price(raw: Mapping[str, Any]) -> Price:
    recurring = raw.get("recurring") or {}
    product = raw.get("product")
    about = product if isinstance(product, Mapping) else {}
    named = (raw.get("metadata") or {}).get("tier") or (about.get("metadata") or {}).get("tier") or ""
    return Price(
        id=str(raw["id"]),
        interval=str(recurring.get("interval") or ""),
        every=int(recurring.get("interval_count") or 1),
        amount_cents=raw.get("unit_amount"),
        currency=str(raw.get("currency") or ""),
        active=bool(raw.get("active")),
        tier=str(named),
    )


# --- Changing -------------------------------------------------------------------------------------


def create_customer(account: str, email: str, name: str) -> str:
    """Make the customer of an account and return its id. Asked twice at once, Stripe makes one."""
    with _asking():
        made = client().v1.customers.create(
            {"email": email, "name": name or email, "metadata": {"account": account}},
            {"idempotency_key": f"customer-{account}-{email}-{name}"[:255]},
        )
        return str(made.id)


def close_checkouts(customer: str) -> None:
    """Close the checkout pages of a customer that are still open, so that two tabs cannot both be paid.

    One that is paid in this moment cannot be closed; then its subscription is there to be read.
    """
    with _asking():
        sessions = client().v1.checkout.sessions
        for session in sessions.list({"customer": customer, "status": "open", "limit": _PAGE}).auto_paging_iter():
            try:
                sessions.expire(session.id)
            except stripe.InvalidRequestError:
                logger.info("Checkout %s was over already.", session.id)


def open_checkout(customer: str, account: str, price: str, *, success_url: str, cancel_url: str) -> str:
    """Return the address of a checkout page for one price."""
    with _asking():
        made = client().v1.checkout.sessions.create({
            "mode": "subscription",
            "customer": customer,
            "client_reference_id": account,
            "line_items": [{"price": price, "quantity": 1}],
            "success_url": success_url,
            "cancel_url": cancel_url,
            "subscription_data": {"metadata": {"account": account}},
        })  # fmt: skip
        return str(made.url)


def open_portal(customer: str, return_url: str, *, change: tuple[str, str, str] | None = None) -> str:
    """Return the address of the customer's portal; with `change` (subscription, item, price) to confirm just that."""
    parameters: dict[str, Any] = {"customer": customer, "return_url": return_url}
    if change is not None:
        subscription, item, price = change
        parameters["flow_data"] = {
            "type": "subscription_update_confirm",
            "subscription_update_confirm": {
                "subscription": subscription,
                "items": [{"id": item, "price": price, "quantity": 1}],
            },
            "after_completion": {"type": "redirect", "redirect": {"return_url": return_url}},
        }
    with _asking():
        made = client().v1.billing_portal.sessions.create(parameters)  # type: ignore[arg-type]  # a plain dict
        return str(made.url)
