"""Changes that nobody signed: what raw SQL did. Support says, with a reason, that it was in order."""

from __future__ import annotations

from typing import Any

from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponseBase
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString
from unfold.views import ChangeList

from entitlements.actions.unsigned import acknowledge_unsigned, what_changed
from entitlements.admin.base import ReadOnlyAdmin, ReasonActionForm, actor_of
from entitlements.admin.receipts import BoundedPaginator
from entitlements.models import UnsignedChange
from webhost.errors import WebhostError


class AcknowledgedFilter(admin.SimpleListFilter):
    """Filter by whether somebody looked at it."""

    title = "acknowledged"
    parameter_name = "acknowledged"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        """Offer both."""
        return [("no", "not yet"), ("yes", "yes")]

    def queryset(self, request: HttpRequest, queryset: QuerySet[UnsignedChange]) -> QuerySet[UnsignedChange]:
        """Keep one of both."""
        if self.value() not in {"no", "yes"}:
            return queryset
        return queryset.filter(acknowledged_at__isnull=self.value() == "no")


class WhatChangedList(ChangeList):  # type: ignore[misc]  # untyped library
    """A list whose rows know what they changed: one query a page."""

    def get_results(self, request: HttpRequest) -> None:
        """Read a page, and what its rows changed."""
        super().get_results(request)
        rows: list[Any] = list(self.result_list)  # type: ignore[has-type]  # untyped library
        what = what_changed(row.pk for row in rows)
        for row in rows:
            row.what = what.get(row.pk, "")
        self.result_list = rows


@admin.action(description="Acknowledge the selected changes", permissions=["acknowledge"])
def acknowledge_selected(
    modeladmin: UnsignedChangeAdmin, request: HttpRequest, queryset: QuerySet[UnsignedChange]
) -> None:
    """Acknowledge each, with the reason beside the action."""
    try:
        ids = list(queryset.values_list("pk", flat=True))
        count = acknowledge_unsigned(ids, actor=actor_of(request), reason=request.POST.get("why", "")[:500])
    except WebhostError as error:
        modeladmin.message_user(request, error.message, messages.ERROR)
    else:
        modeladmin.message_user(request, f"{count:,} acknowledged.", messages.SUCCESS)


@admin.register(UnsignedChange)
class UnsignedChangeAdmin(ReadOnlyAdmin):
    """Transactions that changed what is tracked and gave neither author nor reason."""

    actions = (acknowledge_selected,)  # type: ignore[assignment]  # ReadOnlyAdmin has none
    action_form = ReasonActionForm
    list_display = ("when", "what", "role", "address", "application", "told", "acknowledged")
    list_filter = (AcknowledgedFilter,)
    ordering = ("-at", "-context_id")
    sortable_by = ()
    list_per_page = 50
    list_max_show_all = 50
    paginator = BoundedPaginator
    fields = (
        "when", "role", "address", "application", "entries", "told", "acknowledged",
    )  # fmt: skip
    readonly_fields = fields

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> Any:
        """Tell what changed."""
        return WhatChangedList

    def has_acknowledge_permission(self, request: HttpRequest) -> bool:
        """Let those acknowledge who may change them; looking needs less."""
        return bool(request.user.has_perm("entitlements.change_unsignedchange"))

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponseBase:
        """Show the list, or run its one action."""
        if request.method == "POST" and not self.has_acknowledge_permission(request):
            raise PermissionDenied
        # Past ReadOnlyAdmin, which takes no POST at all.
        answer: HttpResponseBase = super(ReadOnlyAdmin, self).changelist_view(request, extra_context)
        return answer

    @admin.display(description="when (UTC)")
    def when(self, row: UnsignedChange) -> str:
        """Show the instant, to the second."""
        return f"{row.at:%Y-%m-%d %H:%M:%S}"

    @admin.display(description="what")
    def what(self, row: Any) -> SafeString:
        """Show some of what changed; lead to all of it."""
        return format_html('<a href="{}">{}</a>', _entries_of(row), row.what or "see the audit log")

    @admin.display(description="what changed")
    def entries(self, row: UnsignedChange) -> SafeString:
        """Lead to what changed."""
        return format_html('<a href="{}">its entries in the audit log</a>', _entries_of(row))

    @admin.display(description="told support (UTC)")
    def told(self, row: UnsignedChange) -> str:
        """Show when support was written to."""
        return f"{row.mailed_at:%Y-%m-%d %H:%M}" if row.mailed_at else "not yet"

    @admin.display(description="acknowledged")
    def acknowledged(self, row: UnsignedChange) -> str:
        """Show who said when and why that it is in order."""
        if row.acknowledged_at is None:
            return "no"
        return f"{row.acknowledged_at:%Y-%m-%d %H:%M} by {row.acknowledged_by}: {row.acknowledged_reason}"


def _entries_of(row: UnsignedChange) -> str:
    return f"{reverse('admin:entitlements_historyentry_changelist')}?context={row.pk}"
