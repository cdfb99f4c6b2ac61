"""The billing page: tiers side by side, what is paid for and until when, and the ways to Stripe's own pages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from http import HTTPStatus
from typing import Any

from django.conf import settings
from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import render
from django.urls import path
from django.utils import timezone
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET, require_POST

from billing import rules
from billing.actions import checkout
from billing.columns import Column, columns_of, rows_of
from billing.models import Customer, Subscription
from entitlements.actions.standing import AccountStanding, read_standing
from entitlements.enums import Interval
from entitlements.models import Account
from entitlements.whose import account_of
from webhost.errors import WebhostError

_SAID_OF_RETURN: Mapping[str, str] = {
    "done": "Thank you. Your tier changes as soon as Stripe confirms the payment, usually within seconds: "
    "reload this page to see it.",
    "left": "Nothing was bought.",
}


@dataclass(frozen=True)
class Notice:
    """One sentence about what is paid for, and how urgent it is."""

    text: str
    level: str = "info"


def _columns(look: AccountStanding, suggested: str) -> list[Column]:
    """Return the tiers that are offered and the account's own."""
    shown = sorted({t.slug: t for t in (*look.offered, look.tier)}.values(), key=lambda t: t.rank)
    return columns_of(shown, current=look.tier.slug, suggested=suggested)


def _day(at: datetime) -> str:
    return f"{at:%-d %B %Y, %H:%M} UTC"


def notices_of(look: AccountStanding, subscriptions: list[Subscription], now: datetime) -> list[Notice]:
    """Return what an account should know: an end that is arranged, a payment that failed, a tier set by hand."""
    found = []
    if look.tier_source == "support":
        until = f" until {_day(look.tier_until)}" if look.tier_until else ""
        found.append(Notice(f"{look.tier.name} was set by our support{until}; what you pay for counts after that."))
    for subscription in subscriptions:
        name = subscription.tier.name if subscription.tier else "Your plan"
        if subscription.grace_ends and subscription.grace_ends > now:
            ends = _day(subscription.grace_ends)
            text = f"Your last payment failed. {name} ends on {ends} unless it is paid: see your invoices."
            found.append(Notice(text, "error"))
        elif subscription.status in {rules.Status.PAST_DUE, rules.Status.UNPAID}:
            found.append(Notice(f"{name} is not in force, because an invoice is unpaid: see your invoices.", "error"))
        elif subscription.status == rules.Status.PAUSED:
            found.append(Notice(f"{name} is paused.", "error"))
        elif subscription.status in rules.PAID and subscription.ends_on and subscription.ends_on > now:
            found.append(Notice(f"{name} ends on {_day(subscription.ends_on)}. You can keep it in the billing portal."))
    return found


def _render(request: HttpRequest, account: Account, *, said: str = "", status: int = HTTPStatus.OK) -> HttpResponse:
    look = read_standing(account.pk)
    customer = Customer.objects.filter(account=account).first()
    subscriptions = list(
        Subscription.objects.filter(account=account).exclude(status__in=rules.OVER).select_related("tier")
    )
    columns = _columns(look, request.GET.get("tier", ""))
    context: dict[str, Any] = {
        "look": look,
        "columns": columns,
        "rows": rows_of(columns),
        "subscriptions": subscriptions,
        "customer": customer,
        "notices": notices_of(look, subscriptions, timezone.now()),
        "returned": _SAID_OF_RETURN.get(request.GET.get("checkout", ""), ""),
        "said": said,
        "support_email": settings.SUPPORT_EMAIL,
    }
    return render(request, "billing/billing.html", context, status=status)


@never_cache
@login_required
@require_GET
def billing(request: HttpRequest) -> HttpResponse:
    """Show what is paid for, and what can be bought."""
    return _render(request, account_of(request))


@never_cache
@login_required
@require_POST
def buy(request: HttpRequest) -> HttpResponse:
    """Lead to the page at Stripe at which the tier of the form is bought."""
    account = account_of(request)
    interval = request.POST.get("interval", "")
    try:
        chosen = Interval(interval) if interval in set(Interval) else Interval.MONTH
        return HttpResponseRedirect(checkout.open_checkout(account, request.POST.get("tier", "")[:40], chosen))
    except WebhostError as error:
        return _render(request, account, said=error.message, status=int(error.status))


@never_cache
@login_required
@require_POST
def manage(request: HttpRequest) -> HttpResponse:
    """Lead to the customer's portal at Stripe."""
    account = account_of(request)
    try:
        return HttpResponseRedirect(checkout.open_portal(account))
    except WebhostError as error:
        return _render(request, account, said=error.message, status=int(error.status))


urlpatterns = [
    path("billing/", billing, name="billing_page"),
    path("billing/checkout/", buy, name="billing_buy"),
    path("billing/portal/", manage, name="billing_manage"),
]
