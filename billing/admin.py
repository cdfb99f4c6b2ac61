"""Django admin of this app: prices are added and withdrawn with a reason, events replayed; all else is read."""

from __future__ import annotations

import json
from typing import Any, ClassVar

from django import forms
from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponseBase
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from unfold.admin import ModelAdmin
from unfold.widgets import UnfoldAdminTextInputWidget

from billing import account  # noqa: F401 - adds to the account's page
from billing.actions import prices
from billing.actions.apply import replay_event
from billing.models import (
    BillingProblem,
    Customer,
    EventState,
    Reconciliation,
    RefusedDelivery,
    StripeEvent,
    Subscription,
)
from billing.rules import ProblemKind, Status
from entitlements.admin.base import ActionAdmin, ReadOnlyAdmin, ReasonActionForm, account_ids_like, actor_of
from entitlements.admin.listing import BoundedPaginator, one_of, since, since_by_serial
from entitlements.models import TierPrice
from webhost.errors import WebhostError


class PriceForm(forms.ModelForm):  # type: ignore[type-arg]  # generic for the type checker only
    """A price of a tier. What it costs is read from Stripe, not typed."""

    why = forms.CharField(
        label="reason", max_length=500, widget=UnfoldAdminTextInputWidget(), help_text="Why, for the audit log."
    )

    class Meta:
        model = TierPrice
        fields = ("tier", "price_id", "is_sold")


@admin.register(TierPrice)
class TierPriceAdmin(ActionAdmin):
    """Which Stripe price buys which tier."""

    form = PriceForm
    list_display = ("tier", "price_id", "interval", "amount", "is_sold")
    list_filter = ("tier", "interval", "is_sold")
    list_select_related = ("tier",)
    search_fields = ("price_id", "tier__name")
    search_help_text = "price_ id, or the name of a tier"
    fields = ("why", "tier", "price_id", "is_sold")

    def get_readonly_fields(self, request: HttpRequest, obj: TierPrice | None = None) -> tuple[str, ...]:
        """Let nobody turn a price that is paid into another tier's."""
        return ("tier", "price_id") if obj is not None else ()

    def has_delete_permission(self, request: HttpRequest, obj: TierPrice | None = None) -> bool:
        """Nobody deletes: who pays it would be a riddle. Stop selling it instead."""
        return False

    def save_model(self, request: HttpRequest, obj: TierPrice, form: PriceForm, change: bool) -> None:  # noqa: FBT001 - Django's hook
        """Save through the actions."""
        data, actor = form.cleaned_data, actor_of(request)
        if change:
            saved = prices.sell_price(obj.pk, sold=data["is_sold"], actor=actor, reason=data["why"])
        else:
            saved = prices.add_price(
                data["tier"], data["price_id"].strip(), is_sold=data["is_sold"], actor=actor, reason=data["why"]
            )
        obj.pk = saved.pk

    @admin.display(description="amount")
    def amount(self, price: TierPrice) -> str:
        """Show what it costs."""
        return "-" if price.amount_cents is None else f"{price.amount_cents / 100:,.2f} {price.currency.upper()}"


class _OfCustomerAdmin(ReadOnlyAdmin):
    """Rows that belong to a customer, found by what support has on the phone."""

    search_help_text = "E-mail address, acc_ id, or any id of Stripe's"
    search_fields = ("pk",)
    account_path = "account_id"
    id_paths: ClassVar[tuple[str, ...]] = ()

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        """Find by account, or by one of Stripe's ids."""
        term = search_term.strip()
        if not term:
            return queryset, False
        # Only what looks like an id of Stripe's is looked for among those.
        for path in self.id_paths if "_" in term and "@" not in term else ():
            found = queryset.filter(**{path: term})
            if found.exists():
                return found, False
        return queryset.filter(**{f"{self.account_path}__in": account_ids_like(term)}), False


@admin.register(Customer)
class CustomerAdmin(_OfCustomerAdmin):
    """Accounts that are customers at Stripe."""

    list_display = ("customer_id", "account", "created_at", "read_at", "look_again_at")
    ordering = ("-pk",)
    sortable_by = ("read_at", "look_again_at")
    list_select_related = ("account",)
    id_paths = ("customer_id", "subscriptions__pk")


@admin.register(Subscription)
class SubscriptionAdmin(_OfCustomerAdmin):
    """Subscriptions as they were when they were last read."""

    list_display = ("id", "account", "status", "tier", "period_end", "ends_on", "grace_ends")
    list_filter = (one_of("status", tuple(Status), "status"), "tier")
    sortable_by = ()
    list_select_related = ("account", "tier")
    id_paths = ("pk", "customer__customer_id")


@admin.register(BillingProblem)
class BillingProblemAdmin(_OfCustomerAdmin):
    """What Stripe says and we cannot act on."""

    list_display = ("kind", "detail", "account", "opened_at", "closed_at")
    list_filter = (("closed_at", admin.EmptyFieldListFilter), one_of("kind", tuple(ProblemKind), "kind"))
    list_select_related = ("customer__account",)
    account_path = "customer__account_id"
    id_paths = ("customer__customer_id",)

    @admin.display(description="account")
    def account(self, problem: BillingProblem) -> str:
        """Name the account."""
        return str(problem.customer.account)


@admin.action(description="Replay: read Stripe again for these events (needs a reason)", permissions=["change"])
def replay_selected(modeladmin: StripeEventAdmin, request: HttpRequest, queryset: QuerySet[StripeEvent]) -> None:
    """Apply events once more. Harmless: what is read is how things are now."""
    reason = request.POST.get("why", "").strip()
    if not reason:
        modeladmin.message_user(request, "A replay needs a reason.", messages.ERROR)
        return
    for event in queryset.order_by("id"):
        try:
            changed = replay_event(event.pk, actor=actor_of(request), reason=reason)
        except WebhostError as error:
            modeladmin.message_user(request, f"{event.event_id}: {error.message}", messages.ERROR)
        else:
            said = "changed the account" if changed else "changed nothing"
            modeladmin.message_user(request, f"{event.event_id} was replayed and {said}.", messages.SUCCESS)


@admin.register(StripeEvent)
class StripeEventAdmin(ModelAdmin):  # type: ignore[misc]  # untyped library
    """The inbox. An event can be replayed and never edited."""

    actions = (replay_selected,)
    action_form = ReasonActionForm
    list_display = ("event_id", "type", "state", "outcome", "customer_id", "created_at", "received_at", "deliveries")
    list_filter = (one_of("state", tuple(EventState.values), "state"), since_by_serial("received_at"))
    ordering = ("-pk",)
    sortable_by = ()
    search_fields = ("event_id",)
    search_help_text = "evt_, cus_ or sub_ id, or what else an event is about"
    show_full_result_count = False
    paginator = BoundedPaginator
    readonly_fields = (
        "event_id", "type", "api_version", "customer_id", "object_id", "created_at", "received_at", "deliveries",
        "state", "outcome", "attempts", "next_try_at", "finished_at", "said",
    )  # fmt: skip
    fields = readonly_fields

    def get_queryset(self, request: HttpRequest) -> QuerySet[StripeEvent]:
        """Leave the bodies where they are; the page of one event reads its own."""
        events: QuerySet[StripeEvent] = super().get_queryset(request)
        return events.defer("body")

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[StripeEvent], search_term: str
    ) -> tuple[QuerySet[StripeEvent], bool]:
        """Find by one of Stripe's ids, exactly as it is: each is indexed so."""
        term = search_term.strip()
        if not term:
            return queryset, False
        column = {"evt": "event_id", "cus": "customer_id"}.get(term.partition("_")[0], "object_id")
        return queryset.filter(**{column: term}), False

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Nobody adds."""
        return False

    def has_delete_permission(self, request: HttpRequest, obj: StripeEvent | None = None) -> bool:
        """Nobody deletes."""
        return False

    def changeform_view(
        self,
        request: HttpRequest,
        object_id: str | None = None,
        form_url: str = "",
        extra_context: dict[str, Any] | None = None,
    ) -> HttpResponseBase:
        """Show one event; nothing about it is saved here."""
        if request.method == "POST":
            raise PermissionDenied
        context = {"show_save": False, "show_save_and_continue": False, **(extra_context or {})}
        answer: HttpResponseBase = super().changeform_view(request, object_id, form_url, context)
        return answer

    @admin.display(description="what Stripe said")
    def said(self, event: StripeEvent) -> SafeString:
        """Show which fields of which object it named; a body may hold an address, which is shown to nobody."""
        thing = json.loads(bytes(event.body)).get("data", {}).get("object", {})
        names = ("id", "object", "status", "customer", "subscription", "cancel_at", "cancel_at_period_end")
        return format_html_join(
            format_html("<br>"), "{}: {}", ((name, str(thing[name])) for name in names if name in thing)
        )


@admin.register(RefusedDelivery)
class RefusedDeliveryAdmin(ReadOnlyAdmin):
    """Deliveries that were not Stripe's, or not for us."""

    list_display = ("minute", "reason", "count", "address", "trace_id")
    list_filter = (since("minute"),)
    search_fields = ("trace_id",)
    search_help_text = "Trace id"

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[RefusedDelivery], search_term: str
    ) -> tuple[QuerySet[RefusedDelivery], bool]:
        """Find by the trace, exactly."""
        return (queryset.filter(trace_id=search_term.strip()) if search_term.strip() else queryset), False


@admin.register(Reconciliation)
class ReconciliationAdmin(ReadOnlyAdmin):
    """What the nightly comparisons with Stripe found."""

    list_display = ("started_at", "finished_at", "customers", "drift", "unreadable", "nobodys")

    @admin.display(description="drifted")
    def drift(self, report: Reconciliation) -> int:
        """Count what was not as Stripe says."""
        return len(report.drifted)

    @admin.display(description="not read")
    def unreadable(self, report: Reconciliation) -> int:
        """Count what could not be read."""
        return len(report.unread)

    @admin.display(description="nobody's")
    def nobodys(self, report: Reconciliation) -> int:
        """Count live subscriptions of strangers."""
        return len(report.strangers)
