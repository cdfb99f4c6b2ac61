"""The page that a confirmation link opens. Nothing changes by opening it: link scanners open everything."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import path
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods

from entitlements.models import Account
from telemetry.actions.alert_targets import confirm_target, target_of_link
from telemetry.models import AlertTarget
from webhost.errors import NotFoundError


@never_cache
@require_http_methods(["GET", "POST"])
def confirm(request: HttpRequest, link: str) -> HttpResponse:
    """Ask whether this address wants alerts; take the answer."""
    try:
        target: AlertTarget | None = confirm_target(link) if request.method == "POST" else target_of_link(link)
    except NotFoundError:
        target = None
    owner = Account.objects.filter(pk=target.account_id).first() if target else None
    context = {"target": target, "owner": owner, "done": request.method == "POST"}
    return render(request, "telemetry/confirm_alerts.html", context, status=200 if target else 404)


urlpatterns = [path("alerts/confirm/<str:link>/", confirm, name="confirm_alerts")]
