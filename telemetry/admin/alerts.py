"""What accounts were told about their budgets, and what became of each message. Read-only."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.db.models import OuterRef, QuerySet, Subquery
from django.http import HttpRequest
from unfold.admin import TabularInline

from entitlements.admin.base import ReadOnlyAdmin, account_ids_like
from entitlements.admin.listing import SinceByIdFilter, one_of
from entitlements.models import Account
from entitlements.rules import BUDGETS
from telemetry.models import AlertDelivery, AlertEvent, AlertKind, DeliveryStatus
from webhost.errors import NotFoundError
from webhost.ids import Prefix, parse_id, public_id


def _with_email(rows: QuerySet[Any], account_id: str) -> QuerySet[Any]:
    email = Subquery(Account.objects.filter(pk=OuterRef(account_id)).values("email")[:1])
    annotated: QuerySet[Any] = rows.annotate(email=email)
    return annotated


class DeliveryInline(TabularInline):  # type: ignore[misc]  # untyped library
    """The messages about one event."""

    model = AlertDelivery
    fields = ("kind", "address", "status", "attempts", "last_error", "last_status", "next_try_at", "sent_at")
    readonly_fields = fields
    extra = 0
    can_delete = False

    def has_add_permission(self, request: HttpRequest, obj: AlertEvent | None = None) -> bool:
        """Nobody adds."""
        return False


@admin.register(AlertEvent)
class AlertEventAdmin(ReadOnlyAdmin):
    """Budgets that reached a threshold."""

    list_display = ("fired_at", "account", "limit_type", "threshold", "used", "limit", "period", "recovered_at")
    list_filter = (
        one_of("limit_type", tuple(m.value for m in BUDGETS), "limit"), SinceByIdFilter,
        ("recovered_at", admin.EmptyFieldListFilter),
    )  # fmt: skip
    ordering = ("-pk",)
    sortable_by = ()
    search_fields = ("limit_type",)
    search_help_text = "E-mail address, acc_ or evt_ id"
    fields = (
        "event", "account", "limit_type", "threshold", "used", "limit", "period", "fired_at", "recovered_at",
    )  # fmt: skip
    readonly_fields = fields
    inlines = (DeliveryInline,)

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        """Add the address."""
        return _with_email(super().get_queryset(request), "account_id")

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        """Find by what support has on the phone."""
        term = search_term.strip()
        if term.startswith("evt_"):
            try:
                return queryset.filter(pk=parse_id(Prefix.EVENT, term)), False
            except NotFoundError:
                return queryset.none(), False
        return (queryset.filter(account_id__in=account_ids_like(term)) if term else queryset), False

    @admin.display(description="account")
    def account(self, row: Any) -> str:
        """Show the address, or the id of an account that is gone."""
        return row.email or public_id(Prefix.ACCOUNT, row.account_id)

    @admin.display(description="id")
    def event(self, row: AlertEvent) -> str:
        """Show the id that messages carry."""
        return row.public_id


@admin.register(AlertDelivery)
class AlertDeliveryAdmin(ReadOnlyAdmin):
    """Messages, and their tries."""

    list_display = (
        "created_at", "account", "event", "kind", "address", "status", "attempts", "last_error", "last_status",
        "next_try_at", "sent_at",
    )  # fmt: skip
    list_filter = (
        one_of("status", tuple(DeliveryStatus.values), "status"), one_of("kind", tuple(AlertKind.values), "kind"),
        SinceByIdFilter,
    )  # fmt: skip
    ordering = ("-pk",)
    sortable_by = ()
    list_select_related = ("event",)
    search_fields = ("address",)
    search_help_text = "E-mail address or acc_ id of the account, or evt_ id of the alert"
    fields = list_display
    readonly_fields = fields

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        """Add the account's address."""
        return _with_email(super().get_queryset(request), "event__account_id")

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        """Find by alert, or by account through its alerts."""
        term = search_term.strip()
        if not term:
            return queryset, False
        if term.startswith("evt_"):
            try:
                return queryset.filter(event_id=parse_id(Prefix.EVENT, term)), False
            except NotFoundError:
                return queryset.none(), False
        return queryset.filter(event__account_id__in=account_ids_like(term)), False

    @admin.display(description="account")
    def account(self, row: Any) -> str:
        """Show the address, or the id of an account that is gone."""
        return row.email or public_id(Prefix.ACCOUNT, row.event.account_id)
