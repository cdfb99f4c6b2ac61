"""Deployments and names of secrets for support to look at; what happens to them is their owner's doing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final
from uuid import UUID

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponseBase
from django.template.loader import render_to_string
from django.utils.html import format_html_join
from django.utils.safestring import SafeString

from entitlements.admin.base import ReadOnlyAdmin
from entitlements.admin.listing import SinceByIdFilter, one_of
from entitlements.enums import Runtime
from runtimes.actions.removals import retry_deployment_removal
from runtimes.admin.removals import RemovalAdmin, RemovalFilter
from runtimes.admin.search import found_by_id, found_by_name
from runtimes.enums import DeploymentStatus
from runtimes.models import Deployment, SecretName
from webhost.ids import Prefix

# What apps above show on a deployment's page: a template and its context, or None for who may not see it.
Panel = Callable[[HttpRequest, Deployment], tuple[str, dict[str, Any]] | None]
PANELS: Final[list[Panel]] = []


@admin.register(Deployment)
class DeploymentAdmin(RemovalAdmin):
    """Versions of agents, as they were deployed."""

    removal_asked = "removal_requested_at"
    list_display = ("agent", "version", "runtime_provider", "status", "error_code", "created_at", "public_id")
    list_filter = (
        one_of("status", tuple(DeploymentStatus), "status"), one_of("runtime_provider", tuple(Runtime), "runtime"),
        RemovalFilter, SinceByIdFilter,
    )  # fmt: skip
    list_select_related = ("agent",)
    ordering = ("-pk",)
    sortable_by = ()
    search_fields = ("agent__name",)
    search_help_text = "Beginning of the agent's name, e-mail address, dep_, agt_ or acc_ id"
    change_form_outer_before_template = "runtimes/admin_deployment.html"
    fields = (
        "agent", "public_id", "version", "runtime_provider", "status", "capabilities", "timeout_seconds", "artifact",
        "deployed_sha256", "root_key_id", "said", "keys", "at_provider", "error_code", "error_message", "created_at",
        "finished_at", "removal_requested_at", "removed_at",
    )  # fmt: skip
    readonly_fields = fields

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Deployment], search_term: str
    ) -> tuple[QuerySet[Deployment], bool]:
        """Find by what support has on the phone; of an account through its agents, which are indexed by it."""
        ids = {Prefix.DEPLOYMENT: "pk", Prefix.AGENT: "agent_id"}
        by_id = found_by_id(queryset, search_term, ids, account="agent__account_id")
        if by_id is not None:
            return by_id, False
        return found_by_name(queryset, search_term, agent="agent_id", account="agent__account_id"), False

    def retry_removal(self, object_id: UUID, *, actor: str, reason: str) -> None:
        """Try it, through the action."""
        retry_deployment_removal(object_id, actor=actor, reason=reason)

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponseBase:
        """Show above its fields how its removal stands and what apps above know of it."""
        context = dict(extra_context or {})
        deployment = self.get_object(request, object_id)
        if deployment is not None:
            panels = [panel for ask in PANELS if (panel := ask(request, deployment)) is not None]
            context |= self.removal_context(request, deployment)
            context["panels"] = [render_to_string(template, values, request) for template, values in panels]
        answer: HttpResponseBase = super().change_view(request, object_id, form_url, context)
        return answer

    @admin.display(description="agent.config.json")
    def said(self, deployment: Deployment) -> SafeString | str:
        """Show what the bundle said of itself, as it was checked; it can hold no value of a key."""
        config: dict[str, Any] = deployment.config
        names = ("name", "entrypoint", "runtimes", "protocol", "timeoutSeconds")
        return _lines({name: config[name] for name in names if name in config})

    @admin.display(description="keys that it reads")
    def keys(self, deployment: Deployment) -> SafeString | str:
        """Show the names of the secrets that it asks for, which are nowhere here."""
        return _lines(deployment.config.get("env", {}))

    @admin.display(description="at the provider")
    def at_provider(self, deployment: Deployment) -> SafeString | str:
        """Show what the provider called the things that deploying made."""
        return _lines(deployment.remote)


def _lines(values: dict[str, Any]) -> SafeString | str:
    said = [(name, ", ".join(map(str, v)) if isinstance(v, list) else v) for name, v in sorted(values.items())]
    return format_html_join(SafeString("<br>"), "{}: {}", [(n, v if v != "" else "none") for n, v in said]) or "-"


@admin.register(SecretName)
class SecretNameAdmin(ReadOnlyAdmin):
    """Which secrets are set, and since when. Their values are nowhere in this product."""

    list_display = ("name", "agent", "account", "runtime", "set_at", "rotated_at")
    list_filter = (one_of("runtime", tuple(Runtime), "runtime"),)
    list_select_related = ("agent__account",)
    ordering = ("-pk",)
    sortable_by = ()
    search_fields = ("name",)
    search_help_text = "Name of the secret, beginning of the agent's name, e-mail address, agt_ or acc_ id"
    fields = ("name", "agent", "account", "runtime", "set_at", "rotated_at")
    readonly_fields = fields

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[SecretName], search_term: str
    ) -> tuple[QuerySet[SecretName], bool]:
        """Find by what support has on the phone."""
        by_id = found_by_id(queryset, search_term, {Prefix.AGENT: "agent_id"}, account="agent__account_id")
        if by_id is not None:
            return by_id, False
        named = queryset.filter(name=search_term.strip())
        if search_term.strip() and named.exists():
            return named, False
        return found_by_name(queryset, search_term, agent="agent_id", account="agent__account_id"), False

    @admin.display(description="account")
    def account(self, secret: SecretName) -> str:
        """Show whose it is."""
        return secret.agent.account.email
