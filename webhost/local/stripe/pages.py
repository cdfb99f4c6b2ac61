"""The pages that people see at Stripe: checkout, the portal, an invoice. Plain forms, without JavaScript."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from html import escape
from typing import Any

from aiohttp import web
from localstripe import resources
from localstripe.errors import UserError
from localstripe.resources import store

from webhost.local.stripe.business import CARDS, DECLINED, Business
from webhost.local.stripe.objects import (
    CheckoutSession,
    Invoice,
    PortalSession,
    Price,
    Subscription,
    all_of,
    known,
)

_STYLE = """
:root { color-scheme: light dark; } body { font: 1rem/1.5 system-ui, sans-serif; max-width: 34rem; margin: 2rem auto;
padding: 0 1rem; } label { display: block; margin: .8rem 0; font-weight: 600; } input { display: block; width: 100%;
box-sizing: border-box; padding: .5rem; font: inherit; } button { font: inherit; padding: .5rem 1rem; cursor: pointer; }
form.row { display: inline-block; margin: .2rem .4rem .2rem 0; } .wrong { color: #c0362c; } .soft { opacity: .75; }
section { border: 1px solid; border-radius: .5rem; padding: .6rem 1rem; margin: 1rem 0; }
"""


def page(title: str, body: str, status: int = 200) -> web.Response:
    """Return a page."""
    head = '<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
    html = f"{head}<title>{escape(title)}</title><style>{_STYLE}</style><h1>{escape(title)}</h1>{body}"
    note = '<p class="soft">A Stripe for this machine only. No money moves.</p>'
    return web.Response(text=html + note, content_type="text/html", status=status)


def _named(price: str) -> str:
    found = store.get(f"price:{price}")
    if found is None:
        return price
    name = known(resources.Product, found.product).name
    return f"{name}: ${found.unit_amount / 100:,.2f} a {found.recurring['interval']}"


def _button(text: str, **fields: str) -> str:
    inputs = "".join(f'<input type="hidden" name="{k}" value="{escape(v)}">' for k, v in fields.items())
    return f'<form class="row" method="post">{inputs}<button type="submit">{escape(text)}</button></form>'


class Pages:
    """The pages, over the business behind them."""

    def __init__(self, business: Business, changed: Callable[[], None]) -> None:
        self._business, self._changed = business, changed

    def routes(self) -> list[web.RouteDef]:
        """Return every page."""
        return [
            web.get("/c/pay/{id}", self._checkout),
            web.post("/c/pay/{id}", self._pay),
            web.get("/p/session/{id}", self._portal),
            web.post("/p/session/{id}", self._manage),
            web.get("/i/{id}", self._invoice),
        ]

    async def _checkout(self, request: web.Request) -> web.Response:
        return self._form(request.match_info["id"])

    def _form(self, name: str, said: str = "", status: int = 200) -> web.Response:
        session = store.get(f"checkout.session:{name}")
        if session is None:
            return page("Nothing here", "<p>There is no such checkout.</p>", 404)
        if session.status != "open":
            return page("Checkout", f"<p>This checkout is {escape(session.status)}.</p>", 410)
        lines = "".join(f"<p><strong>{escape(_named(line['price']))}</strong></p>" for line in session._lines)
        wrong = f'<p class="wrong" role="alert">{escape(said)}</p>' if said else ""
        back = f'<p><a href="{escape(session.cancel_url)}">Back</a></p>' if session.cancel_url else ""
        form = (
            '<form method="post"><label>Card number <input name="card" inputmode="numeric" autocomplete="off" '
            'required value="4242 4242 4242 4242"></label><label>Expires <input name="expires" required '
            'value="12 / 34"></label><label>CVC <input name="cvc" inputmode="numeric" required value="123"></label>'
            '<label>Name on the card <input name="name" required value="Alice Example"></label>'
            '<button type="submit">Subscribe</button></form>'
        )
        return page("Subscribe", lines + wrong + form + back, status)

    async def _pay(self, request: web.Request) -> web.Response:
        name = request.match_info["id"]
        session = store.get(f"checkout.session:{name}")
        if not isinstance(session, CheckoutSession) or session.status != "open":
            return self._form(name)
        card = "".join(c for c in str((await request.post()).get("card", "")) if c.isdigit())
        if card == DECLINED:
            return self._form(name, "Your card was declined.", 402)
        if card not in CARDS:
            return self._form(name, "Your card number is invalid.", 402)
        self._business.complete(session, card)
        self._changed()
        return _see(session.success_url.replace("{CHECKOUT_SESSION_ID}", session.id))

    async def _portal(self, request: web.Request) -> web.Response:
        session = store.get(f"billing_portal.session:{request.match_info['id']}")
        if not isinstance(session, PortalSession):
            return page("Nothing here", "<p>There is no such session.</p>", 404)
        if session.flow and session.flow.get("type") == "subscription_update_confirm":
            wanted = session.flow["subscription_update_confirm"]["items"][0]["price"]
            body = f"<p>You change to <strong>{escape(_named(wanted))}</strong>.</p>" + _button("Confirm", do="confirm")
        else:
            body = "".join(self._subscription(s) for s in all_of(Subscription) if s.customer == session.customer)
            bills = [i for i in all_of(Invoice) if i.customer == session.customer]
            body += "<h2>Invoices</h2>" + "".join(
                f'<p><a href="/i/{i.id}">{escape(i.number)}</a> ${i.amount_due / 100:,.2f} {escape(i.status)}</p>'
                for i in bills
            )
        back = f'<p><a href="{escape(session.return_url or "")}">Back to webhost.systems</a></p>'
        return page("Your billing", body + back)

    def _subscription(self, subscription: Subscription) -> str:
        names = ", ".join(escape(_named(price)) for _, price in subscription._items)
        ends = datetime.fromtimestamp(subscription._end, UTC)
        body = f"<h2>{names}</h2><p>{escape(subscription.status)}, until {ends:%Y-%m-%d}"
        keep = bool(subscription.cancel_at_period_end or subscription.cancel_at)
        body += ", then it ends</p>" if keep else "</p>"
        if subscription.status in {"canceled", "incomplete_expired"}:
            return f"<section>{body}</section>"
        of = {"subscription": subscription.id}
        body += _button("Keep it", do="keep", **of) if keep else _button("End it after this period", do="end", **of)
        body += _button("End it now", do="cancel", **of)
        if subscription.status == "past_due":
            body += _button("Pay what is open", do="pay", **of)
        plans = [p for p in all_of(Price) if p.active and p.recurring and p.metadata.get("tier")]
        current = {price for _, price in subscription._items}
        body += "".join(
            _button(f"Change to {_named(p.id)}", do="change", price=p.id, **of) for p in plans if p.id not in current
        )
        return f"<section>{body}</section>"

    async def _manage(self, request: web.Request) -> web.Response:
        session = store.get(f"billing_portal.session:{request.match_info['id']}")
        if not isinstance(session, PortalSession):
            return page("Nothing here", "<p>There is no such session.</p>", 404)
        form = await request.post()
        try:
            self._do(session, {name: str(value) for name, value in form.items()})
        except UserError as error:
            return page("Not done", f"<p>{escape(str(error.body['error'].get('message')))}</p>", error.code)
        self._changed()
        return _see((session.return_url or request.path) if session.flow else request.path)

    def _do(self, session: PortalSession, form: dict[str, Any]) -> None:
        if session.flow and session.flow.get("type") == "subscription_update_confirm":
            asked = session.flow["subscription_update_confirm"]
            subscription = known(Subscription, asked["subscription"])
            item, price = asked["items"][0]["id"], asked["items"][0]["price"]
            prices = [price if i == item else p for i, p in subscription._items]
            self._business.change(subscription, {"prices": prices})
            return
        subscription = known(Subscription, form.get("subscription"))
        if subscription.customer != session.customer:
            raise UserError(404, "No such subscription")
        match form.get("do"):
            case "end":
                # With flexible billing, the default of new subscriptions, the portal sets a day and no flag.
                self._business.change(subscription, {"cancel_at": subscription._end})
            case "keep":
                self._business.change(subscription, {"cancel_at": None, "cancel_at_period_end": False})
            case "cancel":
                self._business.cancel(subscription)
            case "pay":
                subscription._card = ""
                self._business.pay(subscription)
            case "change":
                known(Price, form.get("price"))
                self._business.change(subscription, {"prices": [form["price"]]})

    async def _invoice(self, request: web.Request) -> web.Response:
        found = store.get(f"invoice:{request.match_info['id']}")
        if found is None:
            return page("Nothing here", "<p>There is no such invoice.</p>", 404)
        made = datetime.fromtimestamp(found.created, UTC)
        return page(
            f"Invoice {found.number}", f"<p>{made:%Y-%m-%d}: ${found.amount_due / 100:,.2f}, {found.status}</p>"
        )


def _see(address: str) -> web.Response:
    return web.Response(status=303, headers={"Location": address})
