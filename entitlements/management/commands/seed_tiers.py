"""`manage.py seed_tiers`: the four tiers that a new installation starts with."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from django.core.management.base import BaseCommand
from django.db import transaction

from entitlements.models import Tier
from webhost.history import noted

# A start, not the law: from the first minute on the rows are support's to edit.
SEEDS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "free": {
            "name": "Free",
            "rank": 10,
            "is_default": True,
            "description": "To try it out.",
            "max_requests_per_period": 1_000,
            "max_tokens_per_period": 500_000,
            "max_compute_ms_per_period": 3_600_000,
            "max_tool_calls_per_period": 0,
            "max_code_execution_seconds_per_period": 0,
            "max_browser_sessions_per_period": 0,
            "telemetry_retention_days": 7,
            "logs_retention_days": 3,
            "max_agents": 3,
            "max_deployments_per_agent": 10,
            "max_concurrent_invocations": 5,
            "requests_per_minute": 60,
        },
        "starter": {
            "name": "Starter",
            "rank": 20,
            "description": "For a first product.",
            "max_requests_per_period": 20_000,
            "max_tokens_per_period": 10_000_000,
            "max_compute_ms_per_period": 72_000_000,
            "max_tool_calls_per_period": 0,
            "max_code_execution_seconds_per_period": 0,
            "max_browser_sessions_per_period": 0,
            "telemetry_retention_days": 30,
            "logs_retention_days": 7,
            "max_agents": 10,
            "max_deployments_per_agent": 25,
            "max_concurrent_invocations": 20,
            "requests_per_minute": 300,
        },
        "pro": {
            "name": "Pro",
            "rank": 30,
            "description": "AgentCore, with memory.",
            "agentcore_enabled": True,
            "memory_enabled": True,
            "max_requests_per_period": 200_000,
            "max_tokens_per_period": 100_000_000,
            "max_compute_ms_per_period": 720_000_000,
            "max_tool_calls_per_period": 0,
            "max_code_execution_seconds_per_period": 0,
            "max_browser_sessions_per_period": 0,
            "telemetry_retention_days": 90,
            "logs_retention_days": 30,
            "max_agents": 50,
            "max_deployments_per_agent": 50,
            "max_concurrent_invocations": 50,
            "requests_per_minute": 1_200,
        },
        "enterprise": {
            "name": "Enterprise",
            "rank": 40,
            "description": "Everything, with tools.",
            "agentcore_enabled": True,
            "memory_enabled": True,
            "code_interpreter_enabled": True,
            "browser_enabled": True,
            "max_requests_per_period": None,
            "max_tokens_per_period": None,
            "max_compute_ms_per_period": None,
            "max_tool_calls_per_period": 100_000,
            "max_code_execution_seconds_per_period": 360_000,
            "max_browser_sessions_per_period": 10_000,
            "telemetry_retention_days": 365,
            "logs_retention_days": 90,
            "max_agents": None,
            "max_deployments_per_agent": 100,
            "max_concurrent_invocations": 200,
            "requests_per_minute": 6_000,
        },
    }
)


def seed_tier(slug: str, values: Mapping[str, Any]) -> bool:
    """Create a tier unless there is one of this name, or was: what staff deleted does not come back."""
    events = Tier.pgh_event_models["insert"]  # type: ignore[attr-defined]  # set by pghistory
    if Tier.objects.filter(slug=slug).exists() or events.objects.filter(slug=slug).exists():
        return False
    # Somebody chose another default meanwhile: theirs stays.
    default = bool(values.get("is_default")) and not Tier.objects.filter(is_default=True).exists()
    Tier.objects.create(slug=slug, **{**values, "is_default": default})
    return True


class Command(BaseCommand):
    """Create those of the four tiers that never were; an existing one is never touched, a deleted one stays away."""

    help = "Creates the tiers free, starter, pro and enterprise where they are missing. Safe to run again."

    @transaction.atomic
    def handle(self, *_: Any, **__: Any) -> None:
        """Print which tiers were created."""
        with noted(actor="seed_tiers", reason="The tiers of a new installation", source="command seed_tiers"):
            made = [slug for slug, values in SEEDS.items() if seed_tier(slug, values)]
        self.stdout.write(f"created {', '.join(made)}" if made else "nothing to do")
