"""The pages of this app, each in a module of its own."""

from __future__ import annotations

from telemetry.pages import confirm, events, invocations, metrics

urlpatterns = [*confirm.urlpatterns, *events.urlpatterns, *invocations.urlpatterns, *metrics.urlpatterns]
