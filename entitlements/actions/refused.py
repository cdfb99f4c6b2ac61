"""Read an account's last refusals, for its own overview and for support."""

from __future__ import annotations

from uuid import UUID

from entitlements.display import Denied
from entitlements.enums import LimitType
from entitlements.models import Denial


def last_refusals(account_id: UUID, *, most: int = 10) -> list[Denied]:
    """Return the limits an account met last, one line per limit and minute, newest first."""
    rows = Denial.objects.filter(account_id=account_id).order_by("-minute", "limit_type")[:most]
    return [Denied(LimitType(d.limit_type), d.minute, d.count, d.agent_id, d.trace_id) for d in rows]
