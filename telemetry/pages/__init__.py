"""The pages of this app, each in a module of its own."""

from __future__ import annotations

from telemetry.pages import confirm, metrics, usage

urlpatterns = [*confirm.urlpatterns, *metrics.urlpatterns, *usage.urlpatterns]
