"""Signed usage reports: what was accepted, what was not and why; never what they said besides figures."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest

from entitlements.admin.base import ReadOnlyAdmin, account_ids_like
from entitlements.admin.listing import GivenFilter, one_of, since_by_serial
from runtimes.admin.deployments import PANELS
from runtimes.models import Deployment
from telemetry.models import Report, ReportStatus
from telemetry.rules import Reason
from webhost.errors import NotFoundError
from webhost.ids import Prefix, parse_id, public_id

_MOST_COUNTED = 10_000
_MOST_DEPLOYMENTS = 200


class ReasonFilter(admin.SimpleListFilter):
    """Filter reports by why they were not accepted."""

    title = "why not"
    parameter_name = "reason"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        """Offer every reason, by its place: they are sentences."""
        return [(reason.name.lower(), reason.value.partition(":")[0]) for reason in Reason]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Report]) -> QuerySet[Report]:
        """Keep one reason among the rejected, which are few; a malformed one names its field behind it."""
        reason = next((r for r in Reason if r.name.lower() == self.value()), None)
        if reason is None:
            return queryset
        return queryset.filter(status=ReportStatus.REJECTED, reason__startswith=reason.value)


class DeploymentFilter(GivenFilter):
    """The reports of one deployment: `dep_...`."""

    title = "one deployment"
    parameter_name = "deployment"

    def queryset(self, request: HttpRequest, queryset: QuerySet[Report]) -> QuerySet[Report]:
        """Keep one deployment's."""
        return _of(queryset, Prefix.DEPLOYMENT, self.value())


class AgentFilter(GivenFilter):
    """The reports of one agent's deployments: `agt_...`."""

    title = "one agent"
    parameter_name = "agent"

    def queryset(self, request: HttpRequest, queryset: QuerySet[Report]) -> QuerySet[Report]:
        """Keep one agent's."""
        return _of(queryset, Prefix.AGENT, self.value())


def _of(rows: QuerySet[Report], prefix: Prefix, text: str | None) -> QuerySet[Report]:
    """Keep what an id names, and nothing where it is none."""
    if not text:
        return rows
    try:
        found = parse_id(prefix, text)
    except NotFoundError:
        return rows.none()
    if prefix == Prefix.AGENT:
        # Named, not asked for within: only so the planner goes along the index of a deployment's reports.
        mine = Deployment.objects.filter(agent_id=found).order_by("-version").values_list("pk", flat=True)
        return rows.filter(deployment_id__in=list(mine[:_MOST_DEPLOYMENTS]))
    return rows.filter(**{"deployment_id" if prefix == Prefix.DEPLOYMENT else "invocation_id": found})


@admin.register(Report)
class ReportAdmin(ReadOnlyAdmin):
    """Signed reports, as they came and what became of them. Bodies are shown to nobody."""

    list_display = ("received_at", "event", "status", "reason", "invocation", "deployment", "facts", "attempts")
    list_filter = (
        one_of("status", tuple(ReportStatus.values), "status"), ReasonFilter, since_by_serial("received_at"),
        DeploymentFilter, AgentFilter,
    )  # fmt: skip
    ordering = ("-pk",)
    sortable_by = ()
    search_fields = ("status",)
    search_help_text = "dep_, inv_, agt_ or acc_ id, or the account's e-mail address"
    fields = (
        "received_at", "processed_at", "event", "status", "reason", "attempts", "invocation", "deployment", "facts",
        "key_id", "signature", "delivery_id", "item",
    )  # fmt: skip
    readonly_fields = fields
    list_per_page = 50

    def get_queryset(self, request: HttpRequest) -> QuerySet[Report]:
        """Leave the bodies where they are."""
        reports: QuerySet[Report] = super().get_queryset(request)
        return reports.defer("body")

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Report], search_term: str
    ) -> tuple[QuerySet[Report], bool]:
        """Find by what support has on the phone."""
        del request
        term = search_term.strip()
        if not term:
            return queryset, False
        for prefix in (Prefix.DEPLOYMENT, Prefix.INVOCATION, Prefix.AGENT):
            if term.startswith(f"{prefix.value}_"):
                return _of(queryset, prefix, term), False
        return queryset.filter(account_id__in=account_ids_like(term)), False

    @admin.display(description="event id")
    def event(self, report: Report) -> str:
        """Show the event id as text."""
        return bytes(report.event_id).decode(errors="replace")

    @admin.display(description="invocation")
    def invocation(self, report: Report) -> str:
        """Show the public id."""
        return public_id(Prefix.INVOCATION, report.invocation_id) if report.invocation_id else "-"

    @admin.display(description="deployment")
    def deployment(self, report: Report) -> str:
        """Show the public id."""
        return public_id(Prefix.DEPLOYMENT, report.deployment_id)


def counts_of(request: HttpRequest, deployment: Deployment) -> tuple[str, dict[str, Any]] | None:
    """Say on a deployment's page how many of its reports became what; counted as far as anybody reads a number."""
    if not request.user.has_perm("telemetry.view_report"):
        return None
    mine = Report.objects.filter(deployment_id=deployment.pk).order_by()
    counts = {status: mine.filter(status=status)[:_MOST_COUNTED].count() for status in ReportStatus.values}
    shown = [(status, f"{n:,}" if n < _MOST_COUNTED else f"{n:,} or more") for status, n in counts.items()]
    return "telemetry/admin_reports_of.html", {"counts": shown, "deployment": deployment}


PANELS.append(counts_of)
