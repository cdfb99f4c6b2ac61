"""Settings without which billing would be open to anybody, or dead."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.core.checks import CheckMessage, Error, register


@register("billing")
def check_stripe(**_: Any) -> list[CheckMessage]:
    """Find missing and empty secrets, and a mode that is not the key's."""
    found: list[CheckMessage] = []
    if not settings.STRIPE_SECRET_KEY:
        found.append(Error("STRIPE_SECRET_KEY is not set: nobody can buy a tier.", id="billing.E001"))
    if not settings.STRIPE_WEBHOOK_SECRETS or any(not s.strip() for s in settings.STRIPE_WEBHOOK_SECRETS):
        found.append(
            Error(
                "STRIPE_WEBHOOK_SECRETS is missing, or one is empty: what is signed with nothing, anybody signs.",
                hint="Give the signing secret of the webhook (whsec_...). Until then the endpoint answers 503.",
                id="billing.E002",
            )
        )
    is_live_key = settings.STRIPE_SECRET_KEY.partition("_")[2].startswith("live_")
    if settings.STRIPE_SECRET_KEY and is_live_key is not settings.STRIPE_LIVEMODE:
        found.append(Error("STRIPE_LIVEMODE and the mode of STRIPE_SECRET_KEY differ.", id="billing.E003"))
    return found
