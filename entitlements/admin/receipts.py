"""What the ledger leaves for people to read: refusals and audited corrections. Read-only."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.db.models import OuterRef, QuerySet, Subquery
from django.http import HttpRequest

from entitlements.admin.base import ReadOnlyAdmin, account_ids_like
from entitlements.models import Account, Adjustment, Denial
from webhost.errors import NotFoundError
from webhost.ids import Prefix, parse_id, public_id


class OfAccountAdmin(ReadOnlyAdmin):
    """Rows that name an account by its id only, shown with its address."""

    search_help_text = "E-mail address, acc_ or agt_ id, trace id"

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        """Add the address; an account that is gone leaves its rows."""
        rows: QuerySet[Any] = super().get_queryset(request)
        email = Subquery(Account.objects.filter(pk=OuterRef("account_id")).values("email")[:1])
        annotated: QuerySet[Any] = rows.annotate(email=email)
        return annotated

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        """Find by what support has on the phone."""
        term = search_term.strip()
        if not term:
            return queryset, False
        if term.startswith("trc_"):
            return queryset.filter(trace_id=term), False
        if term.startswith("agt_"):
            try:
                return queryset.filter(agent_id=parse_id(Prefix.AGENT, term)), False
            except NotFoundError:
                return queryset.none(), False
        return queryset.filter(account_id__in=account_ids_like(term)), False

    @admin.display(description="account", ordering="email")
    def account(self, row: Any) -> str:
        """Show the address, or the id of an account that is gone."""
        return row.email or public_id(Prefix.ACCOUNT, row.account_id)


@admin.register(Denial)
class DenialAdmin(OfAccountAdmin):
    """How often an account met a limit, minute by minute, with the last agent and trace."""

    list_display = ("minute", "account", "limit_type", "count", "agent", "trace_id")
    list_filter = ("limit_type", "period")
    search_fields = ("trace_id",)
    fields = ("minute", "account", "limit_type", "period", "count", "agent", "trace_id")
    readonly_fields = fields

    @admin.display(description="last agent")
    def agent(self, denial: Denial) -> str:
        """Show the last agent that met the limit."""
        return public_id(Prefix.AGENT, denial.agent_id) if denial.agent_id else "-"


@admin.register(Adjustment)
class AdjustmentAdmin(OfAccountAdmin):
    """Audited corrections of usage."""

    list_display = ("created_at", "account", "period", "requests", "tokens", "compute_ms", "actor", "reason")
    list_filter = ("period",)
    search_fields = ("reason",)
    fields = (
        "created_at", "account", "period", "requests", "tokens", "compute_ms", "tool_calls", "code_ms",
        "browser_sessions", "actor", "reason",
    )  # fmt: skip
    readonly_fields = fields
