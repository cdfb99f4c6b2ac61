"""The entitlements app."""

from django.apps import AppConfig
from django.db.models.signals import post_migrate

from entitlements.triggers import harden_triggers


class EntitlementsConfig(AppConfig):
    """Who may do what, and how much is left: accounts, tokens, tiers, overrides, the ledger."""

    name = "entitlements"

    def ready(self) -> None:
        """Keep the triggers as we need them, whatever a migration of their libraries did."""
        post_migrate.connect(harden_triggers, sender=self, dispatch_uid="harden triggers")
