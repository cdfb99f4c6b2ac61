"""Agents, deployments and names of secrets for support to look at; what happens to them is their owner's doing."""

from __future__ import annotations

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest

from entitlements.admin.base import ReadOnlyAdmin
from runtimes.admin.search import found_by_id
from runtimes.models import Agent, Deployment, SecretName
from webhost.ids import Prefix


@admin.register(Agent)
class AgentAdmin(ReadOnlyAdmin):
    """Customers' agents."""

    list_display = ("name", "account", "runtime_provider", "shown_status", "created_at", "public_id")
    list_filter = (
        "runtime_provider", ("disabled_at", admin.EmptyFieldListFilter), ("deleted_at", admin.EmptyFieldListFilter),
    )  # fmt: skip
    list_select_related = ("account",)
    search_fields = ("name", "account__email")
    search_help_text = "Name, e-mail address, agt_ or acc_ id"
    fields = (
        "name", "public_id", "account", "description", "runtime_provider", "shown_status", "active_deployment",
        "last_error", "created_at", "disabled_at", "deleted_at", "removed_at",
    )  # fmt: skip
    readonly_fields = fields

    def get_queryset(self, request: HttpRequest) -> QuerySet[Agent]:
        """Fetch deployments along: a status follows from them."""
        agents: QuerySet[Agent] = super().get_queryset(request)
        return agents.prefetch_related("deployments")

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Agent], search_term: str
    ) -> tuple[QuerySet[Agent], bool]:
        """Find by what support has on the phone."""
        by_id = found_by_id(queryset, search_term, {Prefix.AGENT: "pk"}, account="account_id")
        if by_id is not None:
            return by_id, False
        found: tuple[QuerySet[Agent], bool] = super().get_search_results(request, queryset, search_term)
        return found

    @admin.display(description="status")
    def shown_status(self, agent: Agent) -> str:
        """Show where it stands; a deleted one says so first."""
        return "deleted" if agent.deleted_at else str(agent.status)


@admin.register(Deployment)
class DeploymentAdmin(ReadOnlyAdmin):
    """Versions of agents, as they were deployed."""

    list_display = ("agent", "version", "runtime_provider", "status", "error_code", "created_at", "public_id")
    list_filter = ("status", "runtime_provider")
    list_select_related = ("agent",)
    search_fields = ("agent__name", "agent__account__email")
    search_help_text = "Agent's name, e-mail address, dep_, agt_ or acc_ id"
    fields = (
        "agent", "public_id", "version", "runtime_provider", "status", "capabilities", "timeout_seconds", "artifact",
        "deployed_sha256", "root_key_id", "config", "remote", "error_code", "error_message", "created_at",
        "finished_at", "removal_requested_at", "removed_at",
    )  # fmt: skip
    readonly_fields = fields

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Deployment], search_term: str
    ) -> tuple[QuerySet[Deployment], bool]:
        """Find by what support has on the phone."""
        ids = {Prefix.DEPLOYMENT: "pk", Prefix.AGENT: "agent_id"}
        by_id = found_by_id(queryset, search_term, ids, account="account_id")
        if by_id is not None:
            return by_id, False
        found: tuple[QuerySet[Deployment], bool] = super().get_search_results(request, queryset, search_term)
        return found


@admin.register(SecretName)
class SecretNameAdmin(ReadOnlyAdmin):
    """Which secrets are set, and since when. Their values are nowhere in this product."""

    list_display = ("name", "agent", "account", "runtime", "set_at", "rotated_at")
    list_filter = ("runtime",)
    list_select_related = ("agent__account",)
    search_fields = ("name", "agent__name", "agent__account__email")
    search_help_text = "Name of the secret or the agent, e-mail address, agt_ or acc_ id"
    fields = ("name", "agent", "account", "runtime", "set_at", "rotated_at")
    readonly_fields = fields

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[SecretName], search_term: str
    ) -> tuple[QuerySet[SecretName], bool]:
        """Find by what support has on the phone."""
        by_id = found_by_id(queryset, search_term, {Prefix.AGENT: "agent_id"}, account="agent__account_id")
        if by_id is not None:
            return by_id, False
        found: tuple[QuerySet[SecretName], bool] = super().get_search_results(request, queryset, search_term)
        return found

    @admin.display(description="account", ordering="agent__account__email")
    def account(self, secret: SecretName) -> str:
        """Show whose it is."""
        return secret.agent.account.email
