"""What a page may offer of a tier: the first of the three layers that keep a gate.

It does not know of the others (the API's actions, the adapter), and they do not count on it.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import BinaryIO

from entitlements import rules
from entitlements.actions.standing import AccountStanding
from entitlements.display import LABELS, RUNTIME_NAMES, RuntimeOffer, tier_that_unlocks
from entitlements.enums import Capability, Runtime
from runtimes.bundle import read_bundle
from webhost.errors import WebhostError


def page_offers(entitlements: rules.Entitlements) -> list[Runtime]:
    """Return the runtimes that a page may offer: the first of the three layers that keep a gate.

    It does not know of the others (the API's actions, the adapter), and they do not count on it.
    """
    return [runtime for runtime in Runtime if not rules.refused_by_gates(entitlements, runtime)]


def page_capabilities(entitlements: rules.Entitlements) -> list[Capability]:
    """Return the capabilities with which a page may deploy to AgentCore; the same layer, for what bundles ask for."""
    return [c for c in Capability if not rules.refused_by_gates(entitlements, Runtime.AGENTCORE, [c])]


def offers_of(look: AccountStanding) -> list[RuntimeOffer]:
    """Return every runtime for a form: what may be chosen, and what is locked by which tier."""
    allowed = page_offers(look.entitlements)
    return [
        RuntimeOffer(
            runtime, RUNTIME_NAMES[runtime], runtime in allowed,
            None if runtime in allowed else tier_that_unlocks(look, rules.Key.AGENTCORE),
        )
        for runtime in Runtime
    ]  # fmt: skip


class NotOnThisPageError(WebhostError):
    """What the tier does not have, refused by the page itself."""

    status = HTTPStatus.PAYMENT_REQUIRED

    def __init__(self, look: AccountStanding, gate: rules.Key) -> None:
        label = LABELS[rules.GATE_OF_FLAG[gate]]
        tier = tier_that_unlocks(look, gate)
        way_out = f"The {tier} tier unlocks it." if tier else "Please contact support."
        super().__init__(f"{label} is not in your tier. {way_out}")


def require_runtime(look: AccountStanding, runtime: str) -> None:
    """Refuse a runtime that the tier does not have. Raises NotOnThisPageError."""
    if runtime not in page_offers(look.entitlements):
        raise NotOnThisPageError(look, rules.Key.AGENTCORE)


def require_capabilities(look: AccountStanding, runtime: str, upload: BinaryIO) -> None:
    """Refuse a manifest that asks for more than the tier has. Raises InvalidRequestError for what is no bundle."""
    asked = read_bundle(upload).config.capabilities
    if runtime != Runtime.AGENTCORE:
        return
    allowed = page_capabilities(look.entitlements)
    for capability in Capability:
        if capability in asked and capability not in allowed:
            raise NotOnThisPageError(look, rules.FLAG_OF_CAPABILITY[capability])
