"""What the ledger leaves for people to read: receipts, refusals and audited corrections. Read-only."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

from django.contrib import admin
from django.core.paginator import Paginator
from django.db.models import OuterRef, QuerySet, Subquery
from django.http import HttpRequest

from entitlements.admin.base import ReadOnlyAdmin, account_ids_like
from entitlements.models import Account, Adjustment, Admission, Denial
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


# Generic for the type checker only.
if TYPE_CHECKING:
    _Paginator = Paginator[Any]
else:
    _Paginator = Paginator


class BoundedPaginator(_Paginator):
    """Counts no further than anybody turns pages: the table has a row for every invocation."""

    most = 10_000

    @cached_property
    def count(self) -> int:
        """Return how many there are, or the most that are shown."""
        rows = cast("QuerySet[Any]", self.object_list)
        return rows[: self.most].count()


@admin.register(Admission)
class AdmissionAdmin(OfAccountAdmin):
    """The receipt of each invocation: whose, of what, who called for it, how it ended, what counts."""

    list_display = (
        "invocation",
        "admitted_at",
        "account",
        "runtime",
        "outcome",
        "caller",
        "charged_tokens",
        "trace_id",
    )
    search_fields = ("trace_id",)
    search_help_text = "inv_ id, e-mail address, acc_ or agt_ id, trace id"
    ordering = ("-pk",)  # by time, and by the primary key's index
    paginator = BoundedPaginator
    fields = (
        "invocation", "account", "agent", "deployment", "caller", "runtime", "source", "tier", "tier_version",
        "overrides", "admitted_at", "settled_at", "outcome", "error_class", "latency_ms", "trace_id", "session_id",
        "limit_requests", "then_requests", "charged_requests", "charged_tokens", "charged_compute_ms",
        "charged_tool_calls", "charged_code_ms", "charged_browser_sessions",
    )  # fmt: skip
    readonly_fields = fields

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        """Find by the invocation's own id too."""
        term = search_term.strip()
        if not term.startswith("inv_"):
            return super().get_search_results(request, queryset, search_term)
        try:
            return queryset.filter(pk=parse_id(Prefix.INVOCATION, term)), False
        except NotFoundError:
            return queryset.none(), False

    @admin.display(description="invocation", ordering="pk")
    def invocation(self, receipt: Admission) -> str:
        """Show the public id."""
        return public_id(Prefix.INVOCATION, receipt.pk)

    @admin.display(description="agent")
    def agent(self, receipt: Admission) -> str:
        """Show the public id."""
        return public_id(Prefix.AGENT, receipt.agent_id)

    @admin.display(description="deployment")
    def deployment(self, receipt: Admission) -> str:
        """Show the public id."""
        return public_id(Prefix.DEPLOYMENT, receipt.deployment_id)

    @admin.display(description="called by")
    def caller(self, receipt: Admission) -> str:
        """Show the trusted backend that called for the account, its token, or that nobody is known: its session."""
        if receipt.delegated_by:
            return f"source {receipt.delegated_by}"
        return public_id(Prefix.TOKEN, receipt.token_id) if receipt.token_id else "-"


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
