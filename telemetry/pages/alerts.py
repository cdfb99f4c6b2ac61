"""Whom one's alerts reach: addresses and webhooks, added, removed, and what became of the last messages."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any, Final

from django import forms
from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import render
from django.urls import path, reverse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_POST

from entitlements.display import LABELS
from entitlements.enums import LimitType
from entitlements.models import Account
from entitlements.whose import account_of, unknown_as_404
from telemetry.actions.alert_targets import create_target, remove_target, targets_of
from telemetry.alert_rules import LONGEST_ADDRESS, THRESHOLDS
from telemetry.models import AlertDelivery, AlertKind
from telemetry.webhook import INTERNET, Internet
from webhost.errors import WebhostError
from webhost.ids import Prefix, new_id, parse_id, public_id

_MOST_DELIVERIES: Final = 20
# What webhooks are looked up in; tests have a smaller one.
internet: Internet = INTERNET


class TargetForm(forms.Form):
    """An address or a webhook, and from which thresholds on."""

    kind = forms.ChoiceField(choices=[("email", "E-mail address"), ("webhook", "Webhook")], initial="email")
    address = forms.CharField(max_length=LONGEST_ADDRESS, widget=forms.TextInput(attrs={"autocomplete": "off"}))
    thresholds = forms.TypedMultipleChoiceField(
        choices=[(str(t), f"{t} %") for t in THRESHOLDS],
        coerce=int,
        initial=[str(t) for t in THRESHOLDS],
        error_messages={"required": "Choose at least one."},
    )


@never_cache
@login_required
@require_http_methods(["GET", "POST"])
def alerts(request: HttpRequest) -> HttpResponse:
    """Show targets and their last messages; add one. A webhook's secret is in this answer and nowhere else."""
    account = account_of(request)
    if request.method != "POST":
        return _render(request, account, TargetForm())
    form = TargetForm(request.POST)
    if not form.is_valid():
        return _render(request, account, form, status=HTTPStatus.BAD_REQUEST)
    given = form.cleaned_data
    try:
        target, secret = create_target(
            account,
            AlertKind(given["kind"]),
            given["address"],
            given["thresholds"],
            target_id=new_id(),
            internet=internet,
        )
    except WebhostError as error:
        return _render(request, account, form, said=error.message, status=int(error.status))
    if secret is not None:
        context = {"tab": "alerts", "target": target, "secret": secret}
        return render(request, "telemetry/alert_secret.html", context)
    asked = "" if target.is_own else " It gets a mail first, and nothing more until somebody there agrees."
    messages.success(request, f"{target.address} is added.{asked}")
    return HttpResponseRedirect(reverse("alerts_page"))


@never_cache
@login_required
@require_POST
def remove(request: HttpRequest, target: str) -> HttpResponse:
    """Send nothing there any more."""
    with unknown_as_404():
        remove_target(account_of(request), parse_id(Prefix.ALERT_TARGET, target))
    messages.success(request, "No alerts go there any more.")
    return HttpResponseRedirect(reverse("alerts_page"))


def _render(
    request: HttpRequest, account: Account, form: TargetForm, *, said: str = "", status: int = HTTPStatus.OK
) -> HttpResponse:
    enabled = [t for t in targets_of(account.pk) if t.enabled]
    targets = [
        {"target": t, "id": public_id(Prefix.ALERT_TARGET, t.id), "kind": AlertKind(t.kind).label} for t in enabled
    ]
    deliveries = AlertDelivery.objects.filter(event__account_id=account.pk).select_related("event")
    lines: list[dict[str, Any]] = [
        {"delivery": d, "event": d.event, "label": LABELS[LimitType(d.event.limit_type)]}
        for d in deliveries.order_by("-id")[:_MOST_DELIVERIES]
    ]
    context = {
        "tab": "alerts", "targets": targets, "lines": lines, "form": form, "said": said,
        "is_off": not any(t.is_own for t in enabled),
    }  # fmt: skip
    return render(request, "telemetry/alerts.html", context, status=status)


urlpatterns = [
    path("settings/alerts/", alerts, name="alerts_page"),
    path("settings/alerts/<str:target>/remove/", remove, name="remove_alert"),
]
