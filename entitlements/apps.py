"""The entitlements app."""

from django.apps import AppConfig


class EntitlementsConfig(AppConfig):
    """Who may do what, and how much is left: accounts, tokens, tiers, overrides, the ledger."""

    name = "entitlements"
