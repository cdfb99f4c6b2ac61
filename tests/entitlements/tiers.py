"""Tiers as plain values for the tests of the rules: generous unless told otherwise."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

from entitlements.rules import FLAGS, RETENTION, Key, OverrideValue, TierValues

NOON = datetime(2026, 11, 29, 12, tzinfo=UTC)
LIMIT_KEYS = [key for key in Key if key not in FLAGS | RETENTION]
FLAG_KEYS = [key for key in Key if key in FLAGS]
RETENTION_KEYS = [key for key in Key if key in RETENTION]
ALL_TOOLS: Mapping[Key, int | None] = {
    Key.MAX_TOOL_CALLS: 10,
    Key.MAX_CODE_SECONDS: 20,
    Key.MAX_BROWSER_SESSIONS: 30,
}


def tier(
    slug: str = "plain",
    *,
    rank: int = 10,
    limits: Mapping[Key, int | None] | None = None,
    on: set[Key] | None = None,
    retention: Mapping[Key, int] | None = None,
) -> TierValues:
    """Return a tier that is unlimited, has nothing switched on, and keeps data for 30 and 7 days."""
    return TierValues(
        slug=slug,
        name=slug.title(),
        rank=rank,
        version=1,
        limits=dict.fromkeys(LIMIT_KEYS) | dict(limits or {}),
        flags={flag: flag in (on or set()) for flag in FLAG_KEYS},
        retention={Key.TELEMETRY_DAYS: 30, Key.LOGS_DAYS: 7} | dict(retention or {}),
    )


def everything(**limits: int | None) -> TierValues:
    """Return a tier with AgentCore, memory, code interpreter and browser, and a quota for each tool."""
    return tier("everything", limits=ALL_TOOLS | {Key[name]: value for name, value in limits.items()}, on=set(FLAGS))


def override(number: int, key: Key, value: int | None, ends_at: datetime | None = None) -> OverrideValue:
    """Return one override; the higher number is the newer."""
    return OverrideValue(number, key, value, ends_at)
