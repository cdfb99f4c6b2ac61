"""What this app adds to an account's page in the admin: what Stripe says, and the events that moved it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final
from uuid import UUID

from django.contrib.postgres.expressions import ArraySubquery
from django.db.models import OuterRef, Q
from django.db.models.functions import JSONObject
from django.http import HttpRequest

from billing.models import BillingProblem, Customer, EventState, StripeEvent, Subscription
from entitlements.admin.sections import SECTIONS, TIMELINE, Before, Fact, Moment, Section, Source, page_of_row
from entitlements.models import Account

_MOST: Final = 5
_TIMES: Final = ("ends_on", "period_end", "grace_ends")


def stripe_section(request: HttpRequest, account: Account) -> Section | None:
    """Say who the account is at Stripe, what it pays for, and what an operator has to look at."""
    if not request.user.has_perm("billing.view_customer"):
        return None
    subscriptions = Subscription.objects.filter(customer_id=OuterRef("pk")).order_by("-created_at")
    problems = BillingProblem.objects.filter(customer_id=OuterRef("pk"), closed_at__isnull=True).order_by("-opened_at")
    says = {"id": "pk", "status": "status", "tier": "tier__name", **{t: t for t in _TIMES}}
    customer = (
        Customer.objects.filter(account_id=account.pk)
        .annotate(
            paid=ArraySubquery(subscriptions.values(row=JSONObject(**says))[:_MOST]),
            open_problems=ArraySubquery(problems.values(row=JSONObject(id="pk", kind="kind", detail="detail"))[:_MOST]),
        )
        .first()
    )
    if customer is None:
        return Section("Stripe", (), "Not a customer at Stripe: it never began a checkout.")
    facts = [Fact("Customer", customer.customer_id, page_of_row("billing_customer", customer.pk))]
    if customer.read_at is not None:
        facts.append(Fact("Last read", f"{customer.read_at:%Y-%m-%d %H:%M}"))
    facts += [_subscription(row) for row in customer.paid] or [Fact("Subscription", "none")]
    facts += [
        Fact("Problem", f"{p['kind']}: {p['detail']}", page_of_row("billing_billingproblem", p["id"]), is_bad=True)
        for p in customer.open_problems
    ]
    return Section("Stripe", facts)


def _subscription(row: Mapping[str, Any]) -> Fact:
    ends_on, period_end, grace_ends = (_minute(row[name]) for name in _TIMES)
    said = [row["status"], row["tier"] or "no tier of ours"]
    if ends_on:
        said.append(f"ends {ends_on}")
    elif period_end:
        said.append(f"paid until {period_end}")
    if grace_ends:
        said.append(f"unpaid, kept until {grace_ends}")
    return Fact("Subscription", ", ".join(said), page_of_row("billing_subscription", row["id"]), bool(grace_ends))


def _minute(text: str | None) -> str:
    return "" if text is None else f"{datetime.fromisoformat(text).astimezone(UTC):%Y-%m-%d %H:%M}"


def webhook_moments(account_id: UUID, before: Before, most: int) -> Sequence[Moment]:
    """Return the events of Stripe that moved the account: those that changed nothing are left out."""
    customers = Customer.objects.filter(account_id=account_id).values("customer_id")
    events = StripeEvent.objects.filter(customer_id__in=customers, state=EventState.DONE).exclude(
        Q(outcome__startswith="unchanged") | Q(outcome__startswith="ignored")
    )
    return [
        Moment(
            row.received_at, str(row.pk), f"Stripe {row.type}: {row.outcome or 'applied'}",
            who="Stripe", source=row.event_id, url=page_of_row("billing_stripeevent", row.pk),
        )
        for row in before.rows(events.defer("body"), "received_at", "pk")[:most]
    ]  # fmt: skip


SECTIONS.append(stripe_section)
TIMELINE.append(Source("webhook", "Stripe", "billing.view_stripeevent", webhook_moments))
