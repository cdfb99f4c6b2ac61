"""The billing app."""

from django.apps import AppConfig


class BillingConfig(AppConfig):
    """Stripe: checkout, portal, webhook inbox, and from a subscription to a tier."""

    name = "billing"

    def ready(self) -> None:
        """Register the checks of its settings."""
        from billing import checks  # noqa: F401, PLC0415 - settings and apps have to be ready first
