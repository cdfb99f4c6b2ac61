"""Agents for support: where they stand, what went wrong last, what runs of them; their owner does the rest."""

from __future__ import annotations

from typing import Any, Final
from uuid import UUID

from django.contrib import admin
from django.db.models import Prefetch, QuerySet
from django.http import HttpRequest, HttpResponseBase
from django.utils import timezone

from entitlements.admin.listing import SinceByIdFilter, one_of
from entitlements.admin.receipts import OWNERS_OF_AGENTS
from entitlements.display import duration
from entitlements.enums import Runtime
from entitlements.models import Admission
from entitlements.models.ledger import WENT_WRONG
from runtimes.actions.removals import retry_agent_removal
from runtimes.actions.sessions import list_sessions
from runtimes.admin.removals import RemovalAdmin, RemovalFilter
from runtimes.admin.search import found_by_id, found_by_name
from runtimes.enums import DeploymentStatus
from runtimes.models import Agent, AgentSession, Deployment
from webhost.ids import Prefix, public_id

_MOST_ERRORS: Final = 10
_MOST_SESSIONS: Final = 50
_MOST_DEPLOYMENTS: Final = 20


class StateFilter(admin.SimpleListFilter):
    """Filter by what was done to agents."""

    title = "state"
    parameter_name = "state"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        """Offer the states that a row has by itself."""
        return [("kept", "Kept"), ("disabled", "Disabled"), ("deleted", "Deleted")]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Agent]) -> QuerySet[Agent]:
        """Keep one state."""
        conditions: dict[str, dict[str, bool]] = {
            "kept": {"deleted_at__isnull": True},
            "disabled": {"deleted_at__isnull": True, "disabled_at__isnull": False},
            "deleted": {"deleted_at__isnull": False},
        }
        return queryset.filter(**conditions.get(self.value() or "", {}))


@admin.register(Agent)
class AgentAdmin(RemovalAdmin):
    """Customers' agents."""

    removal_asked = "deleted_at"
    list_display = ("name", "account", "runtime_provider", "shown_status", "created_at", "public_id")
    list_filter = (StateFilter, one_of("runtime_provider", tuple(Runtime), "runtime"), RemovalFilter, SinceByIdFilter)
    list_select_related = ("account",)
    ordering = ("-pk",)
    sortable_by = ()
    search_fields = ("name",)
    search_help_text = "Beginning of the name, e-mail address, agt_ or acc_ id"
    change_form_outer_before_template = "runtimes/admin_agent.html"
    fields = (
        "name", "public_id", "account", "description", "runtime_provider", "shown_status", "active_deployment",
        "last_error", "created_at", "disabled_at", "deleted_at", "removed_at",
    )  # fmt: skip
    readonly_fields = fields

    def get_queryset(self, request: HttpRequest) -> QuerySet[Agent]:
        """Fetch deployments under way along: a status follows from them."""
        agents: QuerySet[Agent] = super().get_queryset(request)
        under_way = Deployment.objects.filter(status=DeploymentStatus.DEPLOYING)
        return agents.prefetch_related(Prefetch("deployments", queryset=under_way))

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Agent], search_term: str
    ) -> tuple[QuerySet[Agent], bool]:
        """Find by what support has on the phone."""
        by_id = found_by_id(queryset, search_term, {Prefix.AGENT: "pk"}, account="account_id")
        if by_id is not None:
            return by_id, False
        return found_by_name(queryset, search_term, agent="pk", account="account_id"), False

    def retry_removal(self, object_id: UUID, *, actor: str, reason: str) -> None:
        """Try it, through the action."""
        retry_agent_removal(object_id, actor=actor, reason=reason)

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponseBase:
        """Show above its fields what went wrong last, what runs, and its versions."""
        context = dict(extra_context or {})
        agent = self.get_object(request, object_id)
        if agent is not None:
            context |= self._look(request, agent)
        answer: HttpResponseBase = super().change_view(request, object_id, form_url, context)
        return answer

    def _look(self, request: HttpRequest, agent: Agent) -> dict[str, Any]:
        may = request.user.has_perm
        wrong = Admission.objects.filter(agent_id=agent.pk, outcome__in=WENT_WRONG).order_by("-pk")[:_MOST_ERRORS]
        running = list_sessions(agent).filter(stopped_at=None).order_by("-last_used_at")[:_MOST_SESSIONS]
        now = timezone.now()
        return {
            **self.removal_context(request, agent),
            "may_see_account": may("entitlements.view_account"),
            "may_see_calls": may("entitlements.view_admission"),
            "may_see_refusals": may("entitlements.view_denial"),
            "may_see_sessions": may("runtimes.view_agentsession"),
            "may_see_deployments": may("runtimes.view_deployment"),
            "may_stop": may("runtimes.change_agentsession"),
            "account_id": public_id(Prefix.ACCOUNT, agent.account_id),
            "wrong": [(public_id(Prefix.INVOCATION, w.pk), duration(w.latency_ms), w) for w in wrong]
            if may("entitlements.view_admission")
            else [],
            "sessions": _live(running, now) if may("runtimes.view_agentsession") else [],
            "versions": agent_versions(agent) if may("runtimes.view_deployment") else [],
            "most_versions": _MOST_DEPLOYMENTS,
        }

    @admin.display(description="status")
    def shown_status(self, agent: Agent) -> str:
        """Show where it stands; a deleted one says so first."""
        return "deleted" if agent.deleted_at else str(agent.status)


def _live(sessions: QuerySet[AgentSession], now: Any) -> list[AgentSession]:
    """Return those whose time is not up. The last used are first, so few are read that ended long ago."""
    return [session for session in sessions if now < session.ends_at()]


def agent_versions(agent: Agent) -> QuerySet[Deployment]:
    """Return an agent's newest deployments, without what they were made of."""
    return Deployment.objects.filter(agent=agent).defer("config", "remote").order_by("-version")[:_MOST_DEPLOYMENTS]


def owner_of(agent_id: UUID) -> UUID | None:
    """Return whose an agent is, deleted or not; None where there is no such agent."""
    return Agent.objects.filter(pk=agent_id).values_list("account_id", flat=True).first()


OWNERS_OF_AGENTS.append(owner_of)
