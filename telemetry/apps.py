"""The telemetry app."""

from django.apps import AppConfig


class TelemetryConfig(AppConfig):
    """Signed usage reports: kept, verified, settled, rolled up and retained."""

    name = "telemetry"
