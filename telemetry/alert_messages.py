"""What an alert says: the mail for people, the JSON for programs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, datetime
from uuid import UUID

from entitlements.display import LABELS
from entitlements.enums import LimitType
from webhost.ids import Prefix, public_id
from webhost.period import ends_at, key_of

EVENT_TYPE = "budget.threshold_reached"


@dataclass(frozen=True)
class Told:
    """What there is to say about one event."""

    event_id: UUID
    account_id: UUID
    period: date
    measure: LimitType
    threshold: int
    used: int
    limit: int
    fired_at: datetime

    @property
    def public_id(self) -> str:
        """The event's id, the same in the mail, the message and the log."""
        return public_id(Prefix.EVENT, self.event_id)

    @property
    def percent(self) -> int:
        """How much of the limit was used, rounded down."""
        return self.used * 100 // self.limit

    @property
    def resets_at(self) -> datetime:
        """When the period ends."""
        return ends_at(self.period)


def payload(told: Told) -> bytes:
    """Return the body of a webhook, the same bytes on each try."""
    said: Mapping[str, object] = {
        "id": told.public_id,
        "type": EVENT_TYPE,
        "accountId": public_id(Prefix.ACCOUNT, told.account_id),
        "periodKey": key_of(told.period),
        "limitType": told.measure.value,
        "threshold": told.threshold,
        "used": told.used,
        "limit": told.limit,
        "percent": told.percent,
        "resetsAt": _instant(told.resets_at),
        "occurredAt": _instant(told.fired_at),
    }
    return json.dumps(said, separators=(",", ":")).encode()


def _instant(at: datetime) -> str:
    return f"{at:%Y-%m-%dT%H:%M:%SZ}"


def subject(told: Told) -> str:
    """Return a mail's subject; made of our own words and numbers only."""
    return f"{told.threshold} % of your budget used: {LABELS[told.measure]}, {key_of(told.period)}"


def text(told: Told, public_url: str) -> str:
    """Return a mail's text."""
    label = LABELS[told.measure]
    if told.threshold >= 100:
        effect = "The budget is used up: calls that need it are refused until then, or until the limit is raised."
    else:
        effect = "Nothing is refused yet. At 100 % calls that need it are refused."
    return (
        f"{label}: {told.used:,} of {told.limit:,} used, {told.percent} %.\n"
        f"Period: {key_of(told.period)}, resets at {told.resets_at:%Y-%m-%d %H:%M} UTC.\n\n"
        f"{effect}\n\n"
        f"See what used it: {public_url}/\n"
        f"Upgrade: {public_url}/billing/\n\n"
        f"You are told once per period and threshold, and again only if the limit is raised and reached again.\n"
        f"Account {public_id(Prefix.ACCOUNT, told.account_id)}, alert {told.public_id}.\n"
    )
