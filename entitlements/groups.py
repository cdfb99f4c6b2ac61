"""The groups of staff, and the least that each needs: names only, so that this app knows no app above it.

A migration writes them; later ones change them. Nobody in a group makes staff, or gives themselves more: what staff
may do is a superuser's to say (admin/accounts.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

# What anybody on support or in accounting looks at. The audit log, too.
_LOOKED_AT: Final = (
    "entitlements.account", "entitlements.override", "entitlements.denial", "entitlements.denialfigure",
    "entitlements.adjustment",
    "entitlements.admission", "entitlements.tier", "entitlements.tierprice",
    "runtimes.agent", "runtimes.deployment", "runtimes.agentsession", "runtimes.grant", "runtimes.tooluse",
    "runtimes.secretname", "runtimes.runtimeswitch",
    "telemetry.report", "telemetry.usagestatement", "telemetry.alertevent", "telemetry.alertdelivery",
    "billing.customer", "billing.subscription", "billing.billingproblem", "billing.stripeevent",
    "billing.reconciliation", "billing.refuseddelivery",
    "entitlements.historyentry", "entitlements.unsignedchange",
)  # fmt: skip
_MONEY: Final = ("telemetry.ratecard", "telemetry.dailycost")


def _view(*models: str) -> tuple[str, ...]:
    return tuple(f"{app}.view_{name}" for app, _, name in (model.partition(".") for model in models))


GROUPS: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType({
    # Accounts, usage and refusals; a tier by hand, overrides, usage given back, sessions that have to stop.
    "support": (
        *_view(*_LOOKED_AT),
        "entitlements.change_account",
        "entitlements.add_override", "entitlements.change_override", "entitlements.delete_override",
        "entitlements.add_adjustment",
        "runtimes.change_agentsession",
        # To say why a change that nobody signed is in order.
        "entitlements.change_unsignedchange",
        # To try a removal again that is stuck at a provider; nothing else of them can be changed in the admin.
        "runtimes.change_agent", "runtimes.change_deployment",
    ),
    # What is sold and what it costs us; whom that touches, in numbers.
    "pricing": (
        *_view(
            "entitlements.tier", "entitlements.tierprice", "entitlements.denialfigure", *_MONEY,
            "entitlements.historyentry",
        ),
        "entitlements.add_tier", "entitlements.change_tier",
        "entitlements.add_tierprice", "entitlements.change_tierprice",
        "telemetry.add_ratecard", "telemetry.change_ratecard", "telemetry.delete_ratecard",
    ),
    # Everything, and nothing else.
    "auditor": _view(*_LOOKED_AT, *_MONEY),
})  # fmt: skip
