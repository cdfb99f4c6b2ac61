"""What the ledger leaves for people to read: receipts and audited corrections. Read-only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final
from uuid import UUID

from django.contrib import admin
from django.db.models import OuterRef, QuerySet, Subquery
from django.http import HttpRequest

from entitlements.admin.base import ReadOnlyAdmin, account_ids_like
from entitlements.admin.listing import BoundedPaginator, SinceByIdFilter, one_of, since
from entitlements.display import duration
from entitlements.enums import Outcome, Runtime
from entitlements.models import Account, Adjustment, Admission
from entitlements.models.ledger import WENT_WRONG
from webhost.errors import NotFoundError
from webhost.ids import Prefix, parse_id, public_id

__all__ = ["AdjustmentAdmin", "AdmissionAdmin", "BoundedPaginator", "OfAccountAdmin"]


# Whose an agent is, as the app above knows that has agents; it is asked where rows are indexed by account only.
OWNERS_OF_AGENTS: Final[list[Callable[[UUID], UUID | None]]] = []


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
            # Named a second time as the index of trace ids has it: without the empty ones.
            return queryset.filter(trace_id=term).exclude(trace_id=""), False
        if term.startswith("agt_"):
            try:
                return queryset.filter(agent_id=parse_id(Prefix.AGENT, term)), False
            except NotFoundError:
                return queryset.none(), False
        return queryset.filter(account_id__in=account_ids_like(term)), False

    # Not sorted by: that would compute it for every row of the table.
    @admin.display(description="account")
    def account(self, row: Any) -> str:
        """Show the address, or the id of an account that is gone."""
        return row.email or public_id(Prefix.ACCOUNT, row.account_id)


class OutcomeFilter(admin.SimpleListFilter):
    """Filter invocations by how they ended; what went wrong has small indexes of its own."""

    title = "how it ended"
    parameter_name = "outcome"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        """Offer what went wrong together, then each."""
        return [("wrong", "Went wrong"), *((o.value, o.value) for o in Outcome)]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """Keep one outcome, or all that are not good."""
        value = self.value()
        if value == "wrong":
            return queryset.filter(outcome__in=WENT_WRONG)
        return queryset.filter(outcome=value) if value in list(Outcome) else queryset


@admin.register(Admission)
class AdmissionAdmin(OfAccountAdmin):
    """The receipt of each invocation: whose, of what, who called for it, how it ended, what counts."""

    list_display = (
        "invocation", "admitted_at", "account", "runtime", "outcome", "error_class", "latency", "charged_tokens",
        "caller", "trace_id",
    )  # fmt: skip
    list_filter = (SinceByIdFilter, OutcomeFilter, one_of("runtime", tuple(Runtime), "runtime"))
    search_fields = ("trace_id",)
    search_help_text = "inv_ id, e-mail address, acc_ or agt_ id, trace id"
    # By time, and by the primary key's index; of one account by that one's, which goes month by month.
    ordering = ("-pk",)
    sortable_by = ("invocation",)
    fields = (
        "invocation", "account", "agent", "deployment", "caller", "runtime", "source", "tier", "tier_version",
        "overrides", "admitted_at", "settled_at", "outcome", "error_class", "latency", "trace_id", "session_id",
        "limit_requests", "then_requests", "charged_requests", "charged_tokens", "compute", "charged_tool_calls",
        "code", "charged_browser_sessions",
    )  # fmt: skip
    readonly_fields = fields

    def get_ordering(self, request: HttpRequest) -> tuple[str, ...]:
        """Go the way that an index goes."""
        term = request.GET.get("q", "").strip()
        if term.startswith("agt_"):
            return ("-period", "-pk")
        is_of_account = term.startswith("acc_") or "@" in term
        return ("-period", "-pk") if is_of_account and len(account_ids_like(term)) == 1 else self.ordering

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        """Find by the invocation's own id too; an agent's are found among its account's."""
        term = search_term.strip()
        try:
            if term.startswith("agt_"):
                agent_id = parse_id(Prefix.AGENT, term)
                owners = [found for ask in OWNERS_OF_AGENTS if (found := ask(agent_id)) is not None]
                return queryset.filter(account_id__in=owners[:1], agent_id=agent_id), False
            if not term.startswith("inv_"):
                return super().get_search_results(request, queryset, search_term)
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

    @admin.display(description="took")
    def latency(self, receipt: Admission) -> str:
        """Show how long it took."""
        return duration(receipt.latency_ms)

    @admin.display(description="charged compute")
    def compute(self, receipt: Admission) -> str:
        """Show the compute that counts, exactly and readably."""
        return f"{duration(receipt.charged_compute_ms)} ({receipt.charged_compute_ms:,} ms)"

    @admin.display(description="charged code execution")
    def code(self, receipt: Admission) -> str:
        """Show the code execution that counts, exactly and readably."""
        return f"{duration(receipt.charged_code_ms)} ({receipt.charged_code_ms:,} ms)"

    @admin.display(description="called by")
    def caller(self, receipt: Admission) -> str:
        """Show the trusted backend that called for the account, its token, or that nobody is known: its session."""
        if receipt.delegated_by:
            return f"source {receipt.delegated_by}"
        return public_id(Prefix.TOKEN, receipt.token_id) if receipt.token_id else "-"


@admin.register(Adjustment)
class AdjustmentAdmin(OfAccountAdmin):
    """Audited corrections of usage."""

    list_display = ("created_at", "account", "period", "requests", "tokens", "compute_ms", "actor", "reason")
    list_filter = (since("created_at"),)
    ordering = ("-pk",)
    search_fields = ("reason",)
    search_help_text = "E-mail address or acc_ id"
    fields = (
        "created_at", "account", "period", "requests", "tokens", "compute_ms", "tool_calls", "code_ms",
        "browser_sessions", "actor", "reason",
    )  # fmt: skip
    readonly_fields = fields

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        """Find by account: a correction names no agent and no trace."""
        term = search_term.strip()
        return (queryset.filter(account_id__in=account_ids_like(term)) if term else queryset), False
