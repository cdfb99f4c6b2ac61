"""`manage.py seed_rate_cards`: what runtimes are estimated to cost on a new installation."""

from __future__ import annotations

from datetime import date
from decimal import Decimal
from typing import Any

from django.core.management.base import BaseCommand

from entitlements.actions.authorship import ChangeSource
from entitlements.enums import Runtime
from telemetry.actions.rate_cards import create_rate_card
from telemetry.models import RateCard

_FROM = date(2026, 1, 1)
# The providers' list prices, rounded to what an estimate needs; from the first minute on they are rows to edit.
# Workers, paid plan: 0.30 per million requests, 0.02 per million CPU milliseconds. AgentCore Runtime: 0.0895 per
# vCPU-hour and 0.00945 per GB-hour, here for 1 vCPU and 2 GB: (0.0895 + 2 * 0.00945) / 3.6 per million
# milliseconds; its code interpreter and browser cost the same by the second, a browser session being 5 minutes.
SEEDS: dict[Runtime, dict[str, Decimal]] = {
    Runtime.CLOUDFLARE: {
        "per_million_requests": Decimal("0.30"),
        "per_million_compute_ms": Decimal("0.02"),
    },
    Runtime.AGENTCORE: {
        "per_million_compute_ms": Decimal("0.030111"),
        "per_tool_call": Decimal("0.000005"),
        "per_code_execution_second": Decimal("0.000030111"),
        "per_browser_session": Decimal("0.0090333"),
    },
}


class Command(BaseCommand):
    """Create a card for each runtime that has none; an existing one is never touched."""

    help = "Creates a rate card for each runtime that has none. Safe to run again."

    def handle(self, *_: Any, **__: Any) -> None:
        """Print which cards were created."""
        made = []
        for runtime, prices in SEEDS.items():
            if not RateCard.objects.filter(runtime=runtime).exists():
                create_rate_card(
                    {"runtime": runtime.value, "effective_from": _FROM, **prices},
                    actor="seed_rate_cards",
                    reason="The prices of a new installation",
                    source=ChangeSource.COMMAND,
                )
                made.append(runtime.value)
        self.stdout.write(f"created {', '.join(made)}" if made else "nothing to do")
