"""What AgentCore lends to deployments, and what of it they used: evidence, to look at."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest

from entitlements.admin.base import account_ids_like
from entitlements.admin.listing import one_of
from entitlements.admin.receipts import OfAccountAdmin
from entitlements.display import duration
from entitlements.enums import Capability
from runtimes.admin.search import found_by_id, found_by_id_or_account
from runtimes.models import Deployment, Grant, ToolUse
from webhost.ids import Prefix, public_id


@admin.register(Grant)
class GrantAdmin(OfAccountAdmin):
    """Capabilities of deployments: open as long as the provider may have them, closed once they are seen gone."""

    list_display = ("granted_at", "account", "deployment", "capability", "withdrawn_at", "withdrawn_because")
    list_filter = (
        one_of("capability", tuple(Capability), "capability"), ("withdrawn_at", admin.EmptyFieldListFilter),
    )  # fmt: skip
    ordering = ("-pk",)
    sortable_by = ()
    list_select_related = ("deployment__agent",)
    search_fields = ("capability",)
    search_help_text = "E-mail address, acc_, agt_ or dep_ id"
    fields = ("account", "deployment", "capability", "granted_at", "withdrawn_at", "withdrawn_because")
    readonly_fields = fields
    ids: ClassVar[Mapping[Prefix, str]] = {Prefix.AGENT: "deployment__agent_id", Prefix.DEPLOYMENT: "deployment_id"}

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        """Find by what support has on the phone."""
        return found_by_id_or_account(queryset, search_term, self.ids, account="deployment__agent__account_id"), False


@admin.register(ToolUse)
class ToolUseAdmin(OfAccountAdmin):
    """Sessions of tools as the control plane saw them at the provider."""

    list_display = ("started_at", "account", "kind", "invocation", "deployment", "ended_at", "ran", "remote_id")
    list_filter = (one_of("kind", tuple(Capability), "kind"), ("ended_at", admin.EmptyFieldListFilter))
    ordering = ("-pk",)
    sortable_by = ()
    search_fields = ("remote_id",)
    search_help_text = "E-mail address, acc_, dep_ or inv_ id"
    fields = (
        "account", "deployment", "invocation", "kind", "remote_id", "started_at", "ended_at", "ran", "seen_at",
        "mac",
    )  # fmt: skip
    readonly_fields = fields
    ids: ClassVar[Mapping[Prefix, str]] = {Prefix.DEPLOYMENT: "deployment_id", Prefix.INVOCATION: "invocation_id"}

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        """Find by what support has on the phone; of an account through its deployments, which it is indexed by."""
        found = found_by_id(queryset, search_term, self.ids, account="account_id")
        if not search_term.strip() or (found is not None and not search_term.strip().startswith(Prefix.ACCOUNT)):
            return (queryset if found is None else found), False
        of_account = Deployment.objects.filter(agent__account_id__in=account_ids_like(search_term)).values("pk")
        return queryset.filter(deployment_id__in=of_account), False

    @admin.display(description="ran")
    def ran(self, use: ToolUse) -> str:
        """Show how long code ran, as far as it was seen."""
        return duration(use.code_ms)

    @admin.display(description="deployment")
    def deployment(self, use: ToolUse) -> str:
        """Show the public id."""
        return public_id(Prefix.DEPLOYMENT, use.deployment_id)

    @admin.display(description="invocation")
    def invocation(self, use: ToolUse) -> str:
        """Show the public id."""
        return public_id(Prefix.INVOCATION, use.invocation_id)
