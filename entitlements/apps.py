"""The entitlements app."""

from django.apps import AppConfig


class EntitlementsConfig(AppConfig):
    """Who may do what, and how much is left: accounts, tokens, tiers, overrides, the ledger."""

    name = "entitlements"

    def ready(self) -> None:
        """Register our checks."""
        from entitlements.sign_in import checks  # noqa: F401, PLC0415 - registers itself, once models are there
