"""Prices, edited with a reason; costs and statements, to read."""

from __future__ import annotations

from typing import Any, ClassVar

from django import forms
from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest

from entitlements.admin.base import (
    DELETED_HERE,
    ActionAdmin,
    ReadOnlyAdmin,
    ReasonForm,
    account_ids_like,
    actor_of,
)  # fmt: skip
from entitlements.admin.listing import one_of, since, since_by_serial
from entitlements.enums import Runtime
from telemetry import rules
from telemetry.actions import rate_cards as actions
from telemetry.models import DailyCost, RateCard, UsageStatement
from webhost.ids import Prefix, public_id


class RateCardForm(ReasonForm):
    """Prices, and why they are changed. One that is far from its peers must be confirmed."""

    unusual = forms.BooleanField(
        required=False,
        label="the unusual price is right",
        help_text="Needed where a price is more than 100 times what any other card of its runtime says.",
    )

    class Meta:
        model = RateCard
        fields = actions.FIELDS

    @staticmethod
    def state_of(row: RateCard) -> str:
        """Return a digest of what can be edited."""
        return actions.rate_card_fingerprint(row)

    def clean(self) -> dict[str, Any] | None:
        """Warn of a mistaken unit before it is saved: 0.15 per million is not 0.15 per token."""
        cleaned = super().clean()
        if self.cleaned_data.get("unusual"):
            return cleaned
        # As they are now, this one too.
        peers = list(RateCard.objects.filter(runtime=self.cleaned_data.get("runtime", "")))
        for name in actions.PRICE_FIELDS:
            price = self.cleaned_data.get(name)
            if price is not None and rules.is_implausible(price, [getattr(card, name) for card in peers]):
                self.add_error(
                    name, "More than 100 times what it was. Check the unit, or tick that the unusual price is right."
                )
        return cleaned


@admin.register(RateCard)
class RateCardAdmin(ActionAdmin):
    """What runtimes are estimated to cost."""

    form = RateCardForm
    list_display = ("runtime", "effective_from", *actions.PRICE_FIELDS)
    list_filter = ("runtime",)
    fieldsets: ClassVar[Any] = (
        ("What changes, and why", {"fields": ("why", "seen", "unusual")}),
        ("For what, from when", {"fields": (("runtime", "effective_from"),)}),
        (
            "US dollars",
            {
                "fields": (
                    ("per_million_requests", "per_million_tokens", "per_million_compute_ms"),
                    ("per_tool_call", "per_code_execution_second", "per_browser_session"),
                ),
                "description": "Mind the unit below each field: the first three are per million.",
            },
        ),
    )

    def save_model(self, request: HttpRequest, obj: RateCard, form: RateCardForm, change: bool) -> None:  # noqa: FBT001 - Django's hook
        """Save through the action."""
        values = {name: form.cleaned_data[name] for name in actions.FIELDS}
        if change:
            saved = actions.change_rate_card(
                obj.pk, values, actor=actor_of(request), reason=form.reason, expected=form.current
            )
        else:
            saved = actions.create_rate_card(values, actor=actor_of(request), reason=form.reason)
        obj.pk = saved.pk

    def delete_model(self, request: HttpRequest, obj: RateCard) -> None:
        """Delete through the action."""
        actions.delete_rate_card(obj.pk, actor=actor_of(request), reason=DELETED_HERE)


@admin.register(DailyCost)
class DailyCostAdmin(ReadOnlyAdmin):
    """What each runtime is estimated to cost, day by day (UTC), and which alarms that raised."""

    list_display = ("day", "runtime", "estimated_cost", "alarm", "computed_at")
    list_filter = (
        one_of("runtime", tuple(Runtime), "runtime"), ("alarm_raised_at", admin.EmptyFieldListFilter), since("day"),
    )  # fmt: skip
    fields = ("day", "runtime", "estimated_cost", "computed_at", "alarm_raised_at", "alarm_raised_for")
    readonly_fields = fields

    @admin.display(description="cost (estimated)", ordering="cost")
    def estimated_cost(self, row: DailyCost) -> str:
        """Show the figure with all its digits."""
        return f"${rules.exact(row.cost)}"

    @admin.display(description="alarm", ordering="alarm_raised_at")
    def alarm(self, row: DailyCost) -> str:
        """Show which threshold it passed, and when support was told."""
        return f"over ${row.alarm_raised_for} at {row.alarm_raised_at:%H:%M}" if row.alarm_raised_at else "-"


@admin.register(UsageStatement)
class UsageStatementAdmin(ReadOnlyAdmin):
    """Signed totals of closed months, and their restatements."""

    list_display = ("period", "account", "number", "totals", "reason", "created_at")
    list_filter = (since_by_serial("created_at"),)
    ordering = ("-pk",)
    sortable_by = ()
    search_fields = ("reason",)
    search_help_text = "E-mail address or acc_ id"
    fields = ("account", "period", "number", "totals", "reason", "created_at", "payload", "mac")
    readonly_fields = fields

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[UsageStatement], search_term: str
    ) -> tuple[QuerySet[UsageStatement], bool]:
        """Find by account."""
        del request
        term = search_term.strip()
        return (queryset.filter(account_id__in=account_ids_like(term)) if term else queryset), False

    @admin.display(description="account")
    def account(self, statement: UsageStatement) -> str:
        """Show the public id."""
        return public_id(Prefix.ACCOUNT, statement.account_id)
