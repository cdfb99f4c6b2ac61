"""Sessions: who speaks with which agent, since when; support stops them, with a reason."""

from __future__ import annotations

from typing import Any, Final

from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.db.models import BooleanField, QuerySet
from django.db.models.expressions import RawSQL
from django.http import HttpRequest, HttpResponseBase
from django.template.response import TemplateResponse
from django.utils import timezone
from django.utils.text import Truncator

from entitlements.actions.authorship import ChangeSource
from entitlements.admin.base import ReadOnlyAdmin, account_ids_like, actor_of
from entitlements.admin.listing import SinceByIdFilter, one_of
from entitlements.admin.receipts import OfAccountAdmin
from entitlements.enums import Runtime
from runtimes.actions.sessions import stop_session
from runtimes.display import session_status
from runtimes.enums import SessionStatus
from runtimes.models import Agent, AgentSession, Deployment
from webhost.errors import InvalidRequestError, NotFoundError, WebhostError
from webhost.history import noted
from webhost.ids import Prefix, parse_id, public_id

# Each is a call to a provider while somebody waits for the page.
_MOST_AT_ONCE: Final = 50
_SHORT_NAME: Final = 40
# AgentSession.ends_at, as the database says it; least() leaves out a lifetime that is null.
_LIVE: Final = """
now() < least(runtimes_agentsession.last_used_at + make_interval(secs => runtimes_agentsession.idle_seconds),
              runtimes_agentsession.started_at + make_interval(secs => runtimes_agentsession.lifetime_seconds))
"""


class StatusFilter(admin.SimpleListFilter):
    """Filter sessions by where they stand."""

    title = "status"
    parameter_name = "status"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        """Offer every status."""
        return [(status.value, status.value) for status in SessionStatus]

    def queryset(self, request: HttpRequest, queryset: QuerySet[AgentSession]) -> QuerySet[AgentSession]:
        """Compare times with now."""
        if self.value() == SessionStatus.STOPPED:
            return queryset.filter(stopped_at__isnull=False)
        if self.value() not in (SessionStatus.RUNNING, SessionStatus.EXPIRED):
            return queryset
        live = RawSQL(_LIVE, (), output_field=BooleanField())  # noqa: S611 - a constant
        return (
            queryset.filter(stopped_at__isnull=True).alias(live=live).filter(live=self.value() == SessionStatus.RUNNING)
        )


@admin.action(description="Stop the selected sessions", permissions=["stop"])
def stop_selected(
    modeladmin: SessionAdmin, request: HttpRequest, queryset: QuerySet[AgentSession]
) -> TemplateResponse | None:
    """Ask for a confirmation and a reason, then stop each through the action."""
    sessions = list(queryset.order_by("pk")[: _MOST_AT_ONCE + 1])
    if len(sessions) > _MOST_AT_ONCE:
        modeladmin.message_user(request, f"Choose at most {_MOST_AT_ONCE} sessions at a time.", messages.ERROR)
        return None
    reason = request.POST.get("why", "").strip()
    if not (reason and "confirmed" in request.POST):
        context = {
            **modeladmin.admin_site.each_context(request),
            "title": "Stop sessions?",
            "opts": modeladmin.opts,
            "sessions": sessions,
            "missing": "confirmed" in request.POST,
        }
        return TemplateResponse(request, "runtimes/admin_stop_sessions.html", context)
    for session in sessions:
        try:
            _stop(session, actor=actor_of(request), reason=reason)
        except WebhostError as error:
            modeladmin.message_user(request, f"{session.session_id}: {error.message}", messages.ERROR)
        else:
            modeladmin.message_user(request, f"{session.session_id} is stopped.", messages.SUCCESS)
    return None


def _stop(session: AgentSession, *, actor: str, reason: str) -> None:
    agent = Agent.objects.filter(pk=session.agent_id).first()
    if agent is None:
        raise InvalidRequestError("Its agent is gone, and all of it at the provider.")
    # No transaction around it: the action calls a provider.
    with noted(actor=actor, reason=reason[:500], source=ChangeSource.ADMIN.value):
        stop_session(agent, session.session_id, because=f"{reason[:100]} ({actor})")


@admin.register(AgentSession)
class SessionAdmin(OfAccountAdmin):
    """Conversations with agents. On AgentCore each that runs is a microVM that costs money."""

    actions = (stop_selected,)  # type: ignore[assignment]  # ReadOnlyAdmin has none
    list_display = (
        "name", "account", "agent", "runtime", "status", "invocations", "started_at", "last_used_at", "stopped_at",
    )  # fmt: skip
    list_filter = (StatusFilter, one_of("runtime", tuple(Runtime), "runtime"), SinceByIdFilter)
    ordering = ("-pk",)  # as they began, by the primary key
    sortable_by = ()
    list_per_page = 50
    search_fields = ("session_id",)
    search_help_text = "E-mail address; acc_, agt_, dep_ or ses_ id; the name of a session"
    change_form_outer_before_template = "runtimes/admin_session.html"
    fields = (
        "session_id", "public_id", "account", "agent", "deployment", "runtime", "status", "invocations", "started_at",
        "last_used_at", "ends_at", "stopped_at", "stopped_because",
    )  # fmt: skip
    readonly_fields = fields

    def has_stop_permission(self, request: HttpRequest) -> bool:
        """Let those stop sessions who may change them; looking needs less."""
        return bool(request.user.has_perm("runtimes.change_agentsession"))

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponseBase:
        """Show the list, or run its one action."""
        if request.method == "POST" and not self.has_stop_permission(request):
            raise PermissionDenied
        # Past ReadOnlyAdmin, which takes no POST at all.
        answer: HttpResponseBase = super(ReadOnlyAdmin, self).changelist_view(request, extra_context)
        return answer

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponseBase:
        """Offer to stop it, to those who may."""
        context = {"may_stop": self.has_stop_permission(request), **(extra_context or {})}
        answer: HttpResponseBase = super().change_view(request, object_id, form_url, context)
        return answer

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        """Find by what support has on the phone: an id, the name that its caller gave it, or an account.

        Sessions are indexed by their agents, so an account's or a deployment's are those of its agents.
        """
        term = search_term.strip()
        if not term:
            return queryset, False
        try:
            return self._found(queryset, term), False
        except NotFoundError:
            return queryset.none(), False

    @staticmethod
    def _found(rows: QuerySet[Any], term: str) -> QuerySet[Any]:
        prefix = term.partition("_")[0]
        if prefix == Prefix.AGENT:
            return rows.filter(agent_id=parse_id(Prefix.AGENT, term))
        if prefix == Prefix.DEPLOYMENT:
            deployment_id = parse_id(Prefix.DEPLOYMENT, term)
            of_it = Deployment.objects.filter(pk=deployment_id).values("agent_id")
            return rows.filter(agent_id__in=of_it, deployment_id=deployment_id)
        named = rows.filter(session_id=term)
        if prefix == Prefix.SESSION:
            # Our own id of the record, or what the gateway called a session that had no name.
            try:
                return named | rows.filter(pk=parse_id(Prefix.SESSION, term))
            except NotFoundError:
                return named
        if prefix != Prefix.ACCOUNT and named.exists():
            return named
        accounts = [parse_id(Prefix.ACCOUNT, term)] if prefix == Prefix.ACCOUNT else account_ids_like(term)
        return rows.filter(agent_id__in=Agent.objects.filter(account_id__in=accounts).values("pk"))

    @admin.display(description="session")
    def name(self, session: AgentSession) -> str:
        """Show how its caller names it, as far as a list has room."""
        return Truncator(session.session_id).chars(_SHORT_NAME)

    @admin.display(description="id")
    def public_id(self, session: AgentSession) -> str:
        """Show the id that this record is found by."""
        return public_id(Prefix.SESSION, session.pk)

    @admin.display(description="agent")
    def agent(self, session: AgentSession) -> str:
        """Show the public id."""
        return public_id(Prefix.AGENT, session.agent_id)

    @admin.display(description="deployment")
    def deployment(self, session: AgentSession) -> str:
        """Show the version that answered last."""
        return public_id(Prefix.DEPLOYMENT, session.deployment_id)

    @admin.display(description="status")
    def status(self, session: AgentSession) -> str:
        """Show where it stands now."""
        return session_status(session, timezone.now()).value

    @admin.display(description="ends at")
    def ends_at(self, session: AgentSession) -> str:
        """Show when it ends, or ended, by itself."""
        return f"{session.ends_at():%Y-%m-%d %H:%M} UTC"
