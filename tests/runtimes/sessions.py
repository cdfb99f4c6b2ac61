"""Sessions as invocations leave them, for tests, and a provider that counts which it was told to end."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from django.utils import timezone

from runtimes.models import AgentSession, Deployment
from runtimes.providers.base import Target
from tests.runtimes.stub import StubProvider


class Ender(StubProvider):
    """A provider that keeps which sessions it was told to end."""

    def __init__(self) -> None:
        super().__init__()
        self.ended: list[str] = []

    def _stop_session(self, target: Target, session_id: str) -> None:
        if self.fail is not None:
            raise self.fail
        self.ended.append(session_id)


def make_session(deployment: Deployment, session_id: str | None = None, **fields: Any) -> AgentSession:
    """Make a session that was used just now and ends in a quarter of an hour."""
    now = timezone.now()
    values: Mapping[str, Any] = {
        "account_id": deployment.account_id, "agent_id": deployment.agent_id, "deployment_id": deployment.pk,
        "scope_id": deployment.pk, "runtime": deployment.runtime_provider, "started_at": now, "last_used_at": now,
        "idle_seconds": 900, "lifetime_seconds": 28_800,
    }  # fmt: skip
    return AgentSession.objects.create(session_id=session_id or f"chat-{secrets.token_hex(4)}", **{**values, **fields})


def long_ago(**ago: int) -> dict[str, Any]:
    """Return the times of a session that was used once, then."""
    then = timezone.now() - timedelta(**ago)
    return {"started_at": then, "last_used_at": then}
