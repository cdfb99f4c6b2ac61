"""The pages of usage: metrics of an agent, invocations with their receipts, usage events, alerts."""

from __future__ import annotations

from telemetry.pages import alerts, confirm, events, invocations, metrics

urlpatterns = [
    *alerts.urlpatterns,
    *confirm.urlpatterns,
    *events.urlpatterns,
    *invocations.urlpatterns,
    *metrics.urlpatterns,
]
