"""The sidebar: by what somebody at the desk does, and only what they may open."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from django.http import HttpRequest
from django.templatetags.static import static
from django.urls import reverse

# Task -> name -> route -> the model whose view right opens it.
_TASKS: Final[tuple[tuple[str, tuple[tuple[str, str, str], ...]], ...]] = (
    (
        "Customers",
        (
            ("Accounts", "entitlements_account_changelist", "entitlements.account"),
            ("Overrides", "entitlements_override_changelist", "entitlements.override"),
            ("Adjustments", "entitlements_adjustment_changelist", "entitlements.adjustment"),
            ("Statements", "telemetry_usagestatement_changelist", "telemetry.usagestatement"),
        ),
    ),
    (
        "Answers",
        (
            ("Refusals", "entitlements_denial_by_account", "entitlements.denial"),
            ("Refusals by tier", "entitlements_denialfigure_changelist", "entitlements.denialfigure"),
            ("Invocations", "entitlements_admission_changelist", "entitlements.admission"),
            ("Usage reports", "telemetry_report_changelist", "telemetry.report"),
            ("Alerts", "telemetry_alertevent_changelist", "telemetry.alertevent"),
            ("Alert messages", "telemetry_alertdelivery_changelist", "telemetry.alertdelivery"),
        ),
    ),
    (
        "Running",
        (
            ("Agents", "runtimes_agent_changelist", "runtimes.agent"),
            ("Deployments", "runtimes_deployment_changelist", "runtimes.deployment"),
            ("Sessions", "runtimes_agentsession_changelist", "runtimes.agentsession"),
            ("Grants", "runtimes_grant_changelist", "runtimes.grant"),
            ("Tool use", "runtimes_tooluse_changelist", "runtimes.tooluse"),
            ("Secrets", "runtimes_secretname_changelist", "runtimes.secretname"),
            ("Runtime switches", "runtimes_runtimeswitch_changelist", "runtimes.runtimeswitch"),
        ),
    ),
    (
        "Prices",
        (
            ("Tiers", "entitlements_tier_changelist", "entitlements.tier"),
            ("Stripe prices", "entitlements_tierprice_changelist", "entitlements.tierprice"),
            ("Rate cards", "telemetry_ratecard_changelist", "telemetry.ratecard"),
            ("Daily cost", "telemetry_dailycost_changelist", "telemetry.dailycost"),
        ),
    ),
    (
        "Billing",
        (
            ("Stripe customers", "billing_customer_changelist", "billing.customer"),
            ("Subscriptions", "billing_subscription_changelist", "billing.subscription"),
            ("Problems", "billing_billingproblem_changelist", "billing.billingproblem"),
            ("Stripe events", "billing_stripeevent_changelist", "billing.stripeevent"),
            ("Refused deliveries", "billing_refuseddelivery_changelist", "billing.refuseddelivery"),
            ("Reconciliations", "billing_reconciliation_changelist", "billing.reconciliation"),
        ),
    ),
    (
        "Audit",
        (
            ("Audit log", "entitlements_historyentry_changelist", "entitlements.historyentry"),
            ("Unsigned changes", "entitlements_unsignedchange_changelist", "entitlements.unsignedchange"),
        ),
    ),
)


def pages_of(request: HttpRequest) -> Iterator[tuple[str, str, str]]:
    """Return task, name and address of every page that this member of staff may open."""
    for task, entries in _TASKS:
        for name, route, model in entries:
            app, _, kind = model.partition(".")
            # Whoever may change may look, as Django has it.
            if request.user.has_perm(f"{app}.view_{kind}") or request.user.has_perm(f"{app}.change_{kind}"):
                yield task, name, reverse(f"admin:{route}")


def sidebar(request: HttpRequest) -> list[dict[str, Any]]:
    """Return the sidebar as unfold takes it; a task with nothing to open is not there."""
    tasks: dict[str, list[dict[str, str]]] = {}
    for task, name, link in pages_of(request):
        tasks.setdefault(task, []).append({"title": name, "link": link})
    return [{"title": task, "items": items} for task, items in tasks.items()]


def stylesheet(request: HttpRequest) -> str:
    """Return the address of what the admin looks like without JavaScript."""
    del request
    return static("desk.css")


def script(request: HttpRequest) -> str:
    """Return the address of what gives the focus to where work on a page begins."""
    del request
    return static("desk.js")
