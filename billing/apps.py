"""The billing app."""

from django.apps import AppConfig


class BillingConfig(AppConfig):
    """Stripe: checkout, portal, webhook inbox, and from a subscription to a tier."""

    name = "billing"
