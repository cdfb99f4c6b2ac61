"""The telemetry app."""

from django.apps import AppConfig


class TelemetryConfig(AppConfig):
    """Signed usage reports: kept, verified, settled, rolled up and retained."""

    name = "telemetry"

    def ready(self) -> None:
        """Have corrections of closed months asked about their statements, in every process."""
        from telemetry.actions import corrections  # noqa: F401, PLC0415 - models have to be ready first
