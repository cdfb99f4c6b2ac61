"""The pages of this app, each in a module of its own."""

from __future__ import annotations

from telemetry.pages import alerts, confirm, metrics, usage

urlpatterns = [*alerts.urlpatterns, *confirm.urlpatterns, *metrics.urlpatterns, *usage.urlpatterns]
