"""`manage.py import_prices`: let the prices at Stripe that name a tier buy it."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError

from billing.actions.prices import import_prices
from entitlements.actions.authorship import ChangeSource
from webhost.errors import WebhostError


class Command(BaseCommand):
    """Add every active price whose metadata, or whose product's, says `tier=<slug>`. Safe to run again."""

    help = "Adds Stripe's active recurring prices whose metadata (or product's) names a tier: tier=<slug>."

    def handle(self, *_: Any, **__: Any) -> None:
        """Print which prices were added."""
        try:
            added = import_prices(
                actor="import_prices", reason="Named by its metadata at Stripe", source=ChangeSource.COMMAND
            )
        except WebhostError as error:
            raise CommandError(error.message) from error
        for price in added:
            self.stdout.write(f"{price.price_id} buys {price.tier.slug} by the {price.interval}")
        if not added:
            self.stdout.write("nothing to do")
