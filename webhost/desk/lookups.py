"""Where the search box looks: one indexed, bounded query for each kind of thing that a term may name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from django.contrib import admin
from django.db.models import Model, Q
from django.db.models.fields.json import KT
from django.db.models.functions import Lower
from django.http import HttpRequest
from django.urls import reverse
from pghistory.models import Context

from billing.models import Customer, RefusedDelivery, StripeEvent, Subscription
from entitlements import rules
from entitlements.actions.lookup import accounts_like
from entitlements.display import LABELS, label_of, shown
from entitlements.enums import LimitType
from entitlements.models import Account, Admission, ApiToken, Denial, HistoryEntry, Override, Tier, TierPrice
from runtimes.models import Agent, AgentSession, Deployment
from telemetry.models import AlertEvent, Report
from webhost.desk.terms import Term
from webhost.ids import Prefix, public_id

MOST: Final = 20


@dataclass(frozen=True)
class Hit:
    """Something that was found: what it is called, what tells it from its likes, and its page."""

    title: str
    detail: str
    url: str


@dataclass(frozen=True)
class Lookup:
    """One kind of thing: who may view `page` finds it. A second choice is asked only where nothing else was found."""

    kind: str
    page: type[Model]
    find: Callable[[Term], Iterable[Hit]]
    is_second_choice: bool = False


@dataclass(frozen=True)
class Found:
    """The hits of one kind; `more` where there are others beyond those."""

    kind: str
    hits: Sequence[Hit]
    more: bool


def search(request: HttpRequest, term: Term) -> list[Found]:
    """Return what a term names, by kind, of what this member of staff may view."""
    looked = [lookup for lookup in LOOKUPS if _may_view(request, lookup.page)]
    found = [_found(lookup, term) for lookup in looked if not lookup.is_second_choice]
    if not any(f.hits for f in found):
        found = [_found(lookup, term) for lookup in looked if lookup.is_second_choice]
    return [f for f in found if f.hits]


def _found(lookup: Lookup, term: Term) -> Found:
    hits = list(lookup.find(term))
    return Found(lookup.kind, hits[:MOST], more=len(hits) > MOST)


def _may_view(request: HttpRequest, model: type[Model]) -> bool:
    page = admin.site.get_model_admin(model)
    return page.has_view_permission(request)


def _page(row: Model) -> str:
    return reverse(f"admin:{row._meta.app_label}_{row._meta.model_name}_change", args=[row.pk])  # noqa: SLF001 - documented


def _list(model: type[Model], query: str) -> str:
    return f"{reverse(f'admin:{model._meta.app_label}_{model._meta.model_name}_changelist')}?{query}"  # noqa: SLF001 - documented


def _by_pk(model: type[Any], prefix: Prefix, *related: str) -> Callable[[Term], Iterable[Any]]:
    """Return the rows whose UUID a term is."""

    def rows(term: Term) -> Iterable[Any]:
        found = term.names(prefix)
        return model.objects.select_related(*related).filter(pk=found) if found else ()

    return rows


# --- Customers -------------------------------------------------------------------------------------


def _accounts(term: Term) -> Iterable[Hit]:
    rows = accounts_like(term.text, most=MOST + 1) if term.is_words else _by_pk(Account, Prefix.ACCOUNT)(term)
    for account in rows:
        yield Hit(account.email, f"{account.public_id}{'' if account.is_active else ', disabled'}", _page(account))


def _tokens(term: Term) -> Iterable[Hit]:
    found = term.names(Prefix.TOKEN)
    for token in ApiToken.objects.select_related("user").filter(id=found) if found else ():
        yield Hit(f"API token {token.name}", f"of {token.user}", _page(token.user))


def _overrides(term: Term) -> Iterable[Hit]:
    if term.override is not None:
        for row in Override.objects.select_related("account").filter(pk=term.override):
            yield Hit(f"{label_of(rules.Key(row.key))}: {shown(row.value)}", f"{row.account}: {row.reason}", _page(row))
    elif term.is_words:
        said = term.text.lower()
        for key in rules.Key:
            if said in key.value.lower() or said in label_of(key).lower():
                yield Hit(f"All overrides of {label_of(key)}", key.value, _list(Override, f"key={key.value}"))


# --- What runs -------------------------------------------------------------------------------------


def _agents(term: Term) -> Iterable[Hit]:
    if term.is_words:
        named = Agent.objects.alias(low=Lower("name")).filter(low__startswith=term.text.lower())
        rows: Iterable[Agent] = named.select_related("account").order_by("-pk")[: MOST + 1]
    else:
        rows = _by_pk(Agent, Prefix.AGENT, "account")(term)
    for agent in rows:
        gone = ", deleted" if agent.deleted_at else ""
        yield Hit(agent.name, f"{agent.public_id} of {agent.account}{gone}", _page(agent))


def _deployments(term: Term) -> Iterable[Hit]:
    for deployment in _by_pk(Deployment, Prefix.DEPLOYMENT, "agent__account")(term):
        yield Hit(str(deployment), f"{deployment.status}, of {deployment.agent.account}", _page(deployment))


def _invocations(term: Term) -> Iterable[Hit]:
    if term.prefix == Prefix.TRACE:
        # Said twice, as the index says it.
        rows: Iterable[Admission] = Admission.objects.filter(trace_id=term.text).exclude(trace_id="")[: MOST + 1]
    else:
        rows = _by_pk(Admission, Prefix.INVOCATION)(term)
    for row in rows:
        how = f"{row.outcome} {row.error_class or ''}".strip()
        yield Hit(public_id(Prefix.INVOCATION, row.pk), f"{row.admitted_at:%Y-%m-%d %H:%M} UTC, {how}", _page(row))


def _sessions(term: Term) -> Iterable[Hit]:
    found = term.names(Prefix.SESSION)
    named = Q(session_id=term.text) if term.prefix == Prefix.SESSION or term.is_words else Q()
    by_id = Q(pk=found) if found else Q()
    if not (named or by_id):
        return
    for row in AgentSession.objects.filter(named | by_id)[: MOST + 1]:
        agent = public_id(Prefix.AGENT, row.agent_id)
        yield Hit(row.session_id, f"of {agent}, last used {row.last_used_at:%Y-%m-%d %H:%M} UTC", _page(row))


# --- Answers ---------------------------------------------------------------------------------------


def _refusals(term: Term) -> Iterable[Hit]:
    if term.prefix != Prefix.TRACE:
        return
    for row in Denial.objects.filter(trace_id=term.text).exclude(trace_id="")[: MOST + 1]:
        label = LABELS[LimitType(row.limit_type)]
        yield Hit(f"{label}, {row.count:,} refused", f"{row.minute:%Y-%m-%d %H:%M} UTC", _page(row))


def _reports(term: Term) -> Iterable[Hit]:
    if term.prefix != Prefix.INVOCATION or term.uuid is None:
        return
    for row in Report.objects.filter(invocation_id=term.uuid).defer("body")[: MOST + 1]:
        detail = f"{row.status} {row.reason}".strip()
        yield Hit(bytes(row.event_id).decode(errors="replace"), detail, _page(row))


def _alerts(term: Term) -> Iterable[Hit]:
    for row in _by_pk(AlertEvent, Prefix.EVENT)(term):
        yield Hit(str(row), f"{row.fired_at:%Y-%m-%d %H:%M} UTC", _page(row))


def _changes(term: Term) -> Iterable[Hit]:
    if term.prefix != Prefix.TRACE:
        return
    # As text, which is how it is indexed (history_context_trace).
    for row in Context.objects.alias(trace=KT("metadata__trace")).filter(trace=term.text)[:1]:
        said: dict[str, Any] = row.metadata
        what = str(said.get("reason") or "no reason given")
        yield Hit(f"Changes by {said.get('actor') or 'nobody named'}", what, _list(HistoryEntry, f"q={term.text}"))


# --- Prices and billing ----------------------------------------------------------------------------


def _tiers(term: Term) -> Iterable[Hit]:
    if not term.is_words:
        return
    named = Q(slug__icontains=term.text) | Q(name__icontains=term.text)
    for tier in Tier.objects.filter(named).order_by("rank")[: MOST + 1]:
        yield Hit(tier.name, f"{tier.slug}{', retired' if tier.retired_at else ''}", _page(tier))


def _prices(term: Term) -> Iterable[Hit]:
    for price in TierPrice.objects.select_related("tier").filter(price_id=term.text) if term.prefix == "price" else ():
        yield Hit(price.price_id, f"{price.tier}, per {price.interval}", _page(price))


def _customers(term: Term) -> Iterable[Hit]:
    for row in Customer.objects.select_related("account").filter(customer_id=term.text) if term.prefix == "cus" else ():
        yield Hit(row.customer_id, f"is {row.account}", _page(row))


def _subscriptions(term: Term) -> Iterable[Hit]:
    for row in Subscription.objects.select_related("account").filter(pk=term.text) if term.prefix == "sub" else ():
        yield Hit(row.pk, f"{row.status}, of {row.account}", _page(row))


def _event_hits(rows: Iterable[StripeEvent]) -> Iterable[Hit]:
    for row in rows:
        yield Hit(row.event_id, f"{row.type}, {row.state} {row.outcome}".strip(), _page(row))


def _events(term: Term) -> Iterable[Hit]:
    return _event_hits(StripeEvent.objects.filter(event_id=term.text).defer("body") if term.prefix == "evt" else ())


def _events_about(term: Term) -> Iterable[Hit]:
    if not term.prefix or term.uuid:
        return ()
    about = (
        StripeEvent.objects.filter(customer_id=term.text)
        if term.prefix == "cus"
        else (StripeEvent.objects.filter(object_id=term.text))
    )
    return _event_hits(about.order_by("-created_at").defer("body")[: MOST + 1])


def _deliveries(term: Term) -> Iterable[Hit]:
    # A row a minute and reason, and only those of the retention: read whole in a moment.
    for row in RefusedDelivery.objects.filter(trace_id=term.text)[:MOST] if term.prefix == Prefix.TRACE else ():
        yield Hit(f"{row.reason}, {row.count:,} refused", f"{row.minute:%Y-%m-%d %H:%M} UTC", _page(row))


LOOKUPS: Final[tuple[Lookup, ...]] = (
    Lookup("Accounts", Account, _accounts),
    Lookup("API tokens", Account, _tokens),
    Lookup("Agents", Agent, _agents),
    Lookup("Deployments", Deployment, _deployments),
    Lookup("Invocations", Admission, _invocations),
    Lookup("Sessions", AgentSession, _sessions),
    Lookup("Refusals", Denial, _refusals),
    Lookup("Alerts", AlertEvent, _alerts),
    Lookup("Tiers", Tier, _tiers),
    Lookup("Overrides", Override, _overrides),
    Lookup("Stripe prices", TierPrice, _prices),
    Lookup("Stripe customers", Customer, _customers),
    Lookup("Subscriptions", Subscription, _subscriptions),
    Lookup("Stripe events", StripeEvent, _events),
    Lookup("Refused deliveries of Stripe", RefusedDelivery, _deliveries),
    Lookup("Audit log", Account, _changes),  # who it was, and why, may name a customer
    Lookup("Usage reports", Report, _reports, is_second_choice=True),
    Lookup("Stripe events", StripeEvent, _events_about, is_second_choice=True),
)
