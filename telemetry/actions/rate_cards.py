"""Change what a runtime is estimated to cost; the history says who did, and why."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from entitlements.actions.authorship import ChangeSource, changed_fields, fingerprint, problems_as_issues, written_by
from telemetry.models import RateCard
from webhost.errors import ConflictError, NotFoundError

PRICE_FIELDS: Final = (
    "per_million_requests", "per_million_tokens", "per_million_compute_ms",
    "per_tool_call", "per_code_execution_second", "per_browser_session",
)  # fmt: skip
FIELDS: Final = ("runtime", "effective_from", *PRICE_FIELDS)


def rate_card_fingerprint(card: RateCard) -> str:
    """Return a digest of what can be edited."""
    return fingerprint(card, FIELDS)


def create_rate_card(
    values: Mapping[str, Any], *, actor: str, reason: str, source: ChangeSource = ChangeSource.ADMIN
) -> RateCard:
    """Add a card; it prices every day from its first on, until the next one."""
    with written_by(actor, reason, source):
        card = RateCard(**values)
        with problems_as_issues():
            card.full_clean()
        card.save()
    return card


def change_rate_card(card_id: int, values: Mapping[str, Any], *, actor: str, reason: str, expected: str) -> RateCard:
    """Change a card that nobody else changed meanwhile (`expected` is the fingerprint that its author saw)."""
    with written_by(actor, reason):
        card = RateCard.objects.select_for_update().filter(pk=card_id).first()
        if card is None:
            raise NotFoundError
        if rate_card_fingerprint(card) != expected:
            raise ConflictError("This card was changed by somebody else meanwhile. Nothing was saved; look again.")
        changed = changed_fields(card, dict(values))
        if changed:
            with problems_as_issues():
                card.full_clean()
            card.save(update_fields=changed)
    return card


def delete_rate_card(card_id: int, *, actor: str, reason: str) -> None:
    """Delete a card; what it priced is priced by the one before it."""
    with written_by(actor, reason):
        RateCard.objects.filter(pk=card_id).delete()
