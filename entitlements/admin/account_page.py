"""What the account's page shows to somebody with the customer on the phone: the answer first, then what it rests on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from django.http import HttpRequest
from django.urls import reverse

from entitlements import rules
from entitlements.actions.refused import refused_since
from entitlements.actions.standing import AccountStanding, read_standing
from entitlements.admin.account_events import Cause, cause_of
from entitlements.admin.account_lines import (
    MOST_HOLDS,
    EntitlementLine,
    May,
    bars_of,
    hold_of,
    may_on,
    open_admissions,
    overrides_of,
    raise_url,
    refusal_of,
)
from entitlements.admin.override_values import value_text
from entitlements.admin.sections import BLOCKERS, BUTTONS, SECTIONS, names_of, sources_for, timeline_of
from entitlements.amounts import time_left
from entitlements.blocked import Obstacle, Raise, Verdict, answer_of, plain_calls, verdict_on
from entitlements.display import value_lines
from entitlements.models import Account
from webhost.period import ends_at

LATELY: Final = timedelta(days=7)
_MOST_MOMENTS: Final = 12
_SOURCES: Final = {"support": "set by support", "billing": "paid for", "default": "the default tier"}


@dataclass(frozen=True)
class Head:
    """Who it is, whether it is active, and which tier is in force because of whom."""

    tier_from: str
    tier_cause: Cause | None
    state_cause: Cause | None


def _head(account: Account, look: AccountStanding) -> Head:
    tier = None
    if look.tier_source == "support":
        tier = cause_of(
            account, support_tier_id=account.support_tier_id, support_tier_until=account.support_tier_until
        )  # fmt: skip
    elif look.tier_source == "billing":
        tier = cause_of(
            account, billing_tier_id=account.billing_tier_id, billing_tier_until=account.billing_tier_until
        )  # fmt: skip
    return Head(
        _SOURCES[look.tier_source], tier, None if look.is_active else cause_of(account, is_active=False)
    )  # fmt: skip


# --- Why is this account blocked? -----------------------------------------------------------------


@dataclass(frozen=True)
class ObstacleLine:
    """An obstacle with the links that this reader may follow."""

    obstacle: Obstacle
    raise_text: str = ""
    raise_to: str = ""
    adjust_to: str = ""


@dataclass(frozen=True)
class VerdictLine:
    """A verdict as it is shown."""

    verdict: Verdict
    obstacles: Sequence[ObstacleLine]


def _verdicts(look: AccountStanding) -> list[Verdict]:
    verdicts = [verdict for ask in BLOCKERS for verdict in ask(look)]
    return [*verdicts, *(verdict_on(look, call) for call in plain_calls(verdicts))]


def _raise_text(would_help: Raise) -> str:
    value = value_text(would_help.key, would_help.value)
    verb = "Switch it" if would_help.key in rules.FLAGS else "Raise it to"
    return f"{verb} {value} until the period ends"


def _verdict_lines(look: AccountStanding, verdicts: Sequence[Verdict], may: May) -> list[VerdictLine]:
    adjust_to = reverse("admin:entitlements_account_adjust", args=[look.account_id])
    lines = []
    for verdict in verdicts:
        obstacles = [
            ObstacleLine(
                o,
                _raise_text(o.would_help) if o.would_help and may.add_override else "",
                raise_url(look.account_id, o.would_help.key, o.would_help.value) if o.would_help else "",
                adjust_to if o.used and may.adjust else "",
            )
            for o in verdict.obstacles
        ]
        lines.append(VerdictLine(verdict, obstacles))
    return lines


# --- Together -------------------------------------------------------------------------------------


def page_of(request: HttpRequest, account: Account) -> dict[str, Any]:
    """Return everything that the page shows, in a fixed number of queries whatever the account's history is."""
    look, may = read_standing(account.pk), may_on(request, account)
    lately = refused_since(account.pk, look.at - LATELY)
    admissions = open_admissions(account.pk)
    names = names_of([*(r.agent_id for r in lately), *(a.agent_id for a in admissions)])
    refusals = [refusal_of(look, r, names) for r in lately]
    answer = answer_of(look, _verdicts(look), lately[0].minute if lately else None)
    overrides, more_overrides = overrides_of(look)
    end = ends_at(look.period)
    return {
        "look": look,
        "may": may,
        "head": _head(account, look),
        "answer": answer,
        "verdicts": _verdict_lines(look, answer.verdicts, may),
        "bars": bars_of(look, may),
        "holds": [hold_of(a, names, look.at) for a in admissions[:MOST_HOLDS]],
        "more_holds": len(admissions) > MOST_HOLDS,
        "refusals": refusals,
        "overrides": overrides,
        "more_overrides": more_overrides,
        "entitlements": [
            EntitlementLine(v, raise_url(account.pk, rules.Key(v.key)) if may.add_override else "")
            for v in value_lines(look.entitlements)
        ],
        "sections": [section for ask in SECTIONS if (section := ask(request, account))],
        "buttons": [button for ask in BUTTONS if (button := ask(request, account))],
        "timeline": timeline_of(request, account.pk, most=_MOST_MOMENTS),
        "kinds": sources_for(request),
        "period_ends": end,
        "period_left": time_left((end - look.at).total_seconds()),
    }
