"""The lines of the account's page: budgets, running calls, refusals, overrides; and what its reader may do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final
from urllib.parse import urlencode
from uuid import UUID

from django.db.models import Case, IntegerField, Q, Value, When
from django.http import HttpRequest
from django.urls import reverse

from entitlements import rules
from entitlements.actions.refused import RefusedLately
from entitlements.actions.standing import AccountStanding
from entitlements.admin.account_events import moved
from entitlements.admin.override_values import tier_amount, value_text
from entitlements.admin.sections import page_of_row
from entitlements.amounts import in_words
from entitlements.display import UseLine, ValueLine, advice_on, label_of, use_lines
from entitlements.enums import Outcome
from entitlements.models import Account, Admission, Override
from entitlements.models.ledger import HELD_MEASURES
from webhost.ids import Prefix, public_id

MOST_HOLDS: Final = 20
_MOST_OVERRIDES: Final = 30


@dataclass(frozen=True)
class May:
    """What this reader may do on the page; what they may not is absent."""

    change: bool
    switch: bool
    add_override: bool
    change_override: bool
    adjust: bool


def may_on(request: HttpRequest, account: Account) -> May:
    """Return what somebody may do to an account: staff are a superuser's, and nobody disables themselves."""
    has, is_mine = request.user.has_perm, request.user.is_superuser or not account.is_staff
    change = has("entitlements.change_account") and is_mine
    return May(
        change=change,
        switch=change and account.pk != request.user.pk,
        # Nobody on support grants their own account, or a colleague's, more than it has.
        add_override=has("entitlements.add_override") and is_mine,
        change_override=has("entitlements.change_override") and is_mine,
        adjust=has("entitlements.add_adjustment") and is_mine,
    )


def raise_url(account_id: UUID, key: rules.Key, value: int | None = None) -> str:
    """Return the address of the override form, filled in until the end of this period."""
    filled = {"account": str(account_id), "key": key.value, "ends": "period"}
    if value is not None:
        filled["value"] = str(value)
    return f"{reverse('admin:entitlements_override_add')}?{urlencode(filled)}"


@dataclass(frozen=True)
class UseBar:
    """A budget as a bar, with its numbers in words beside the exact ones."""

    line: UseLine
    used_in_words: str
    held_in_words: str
    limit_in_words: str
    raise_to: str

    @property
    def left(self) -> str:
        """What is left, exactly."""
        if self.line.limit is None or not self.line.included:
            return "-"
        return f"{max(self.line.limit - self.line.used - self.line.held, 0):,}"


def bars_of(look: AccountStanding, may: May) -> list[UseBar]:
    """Return every budget of the period as a bar."""
    return [
        UseBar(
            line,
            in_words(line.measure, line.used),
            in_words(line.measure, line.held),
            in_words(line.measure, line.limit) if line.included else "",
            raise_url(look.account_id, rules.KEY_OF_LIMIT[line.measure]) if may.add_override else "",
        )
        for line in use_lines(look)
    ]


@dataclass(frozen=True)
class Hold:
    """A call that runs, and what is set aside for it."""

    invocation: str
    url: str
    agent: str
    agent_url: str
    since: datetime
    expires: datetime
    is_overdue: bool
    held: str
    trace: str


def open_admissions(account_id: UUID) -> list[Admission]:
    """Return the calls that run, the oldest first, and one more than are shown."""
    # By an order that no index has: it is answered from the few that are open at all, never from a walk over all.
    rows = Admission.objects.filter(account_id=account_id, outcome=Outcome.OPEN).order_by("admitted_at")
    return list(
        rows.only("id", "agent_id", "admitted_at", "expires_at", "trace_id", *[f"holding_{m}" for m in HELD_MEASURES])[
            : MOST_HOLDS + 1
        ]
    )


def hold_of(row: Admission, names: Mapping[UUID, str], at: datetime) -> Hold:
    """Return a running call as it is shown."""
    amounts = {m: int(getattr(row, f"holding_{m}")) for m in HELD_MEASURES}
    return Hold(
        public_id(Prefix.INVOCATION, row.pk),
        page_of_row("entitlements_admission", row.pk),
        names.get(row.agent_id) or public_id(Prefix.AGENT, row.agent_id),
        page_of_row("runtimes_agent", row.agent_id),
        row.admitted_at,
        row.expires_at,
        row.expires_at <= at,
        ", ".join(moved(m, n).lstrip("+") for m, n in amounts.items() if n) or "one of the calls at once",
        row.trace_id,
    )


@dataclass(frozen=True)
class RefusalLine:
    """How often a limit refused lately, and what helps now."""

    label: str
    lately: RefusedLately
    agent: str
    agent_url: str
    why: str
    what_to_do: str


def refusal_of(look: AccountStanding, lately: RefusedLately, names: Mapping[UUID, str]) -> RefusalLine:
    """Return a limit that refused lately as it is shown."""
    advice, agent = advice_on(look, lately.limit_type), lately.agent_id
    return RefusalLine(
        label_of(rules.KEY_OF_LIMIT[lately.limit_type]),
        lately,
        (names.get(agent) or public_id(Prefix.AGENT, agent)) if agent else "",
        page_of_row("runtimes_agent", agent) if agent else "",
        advice.why,
        advice.what_to_do,
    )


@dataclass(frozen=True)
class OverrideLine:
    """An override: its value, the value it stands over, and whether it is the one in force."""

    override: Override
    label: str
    value: str
    instead_of: str
    is_live: bool
    is_overruled: bool


def overrides_of(look: AccountStanding) -> tuple[list[OverrideLine], bool]:
    """Return the overrides, those in force first, and whether there are more."""
    live = Q(ends_at__isnull=True) | Q(ends_at__gt=look.at)
    first = Case(When(live, then=Value(0)), default=Value(1), output_field=IntegerField())
    rows = Override.objects.filter(account_id=look.account_id).select_related("created_by").order_by(first, "-pk")
    found = list(rows[: _MOST_OVERRIDES + 1])
    lines = []
    for row in found[:_MOST_OVERRIDES]:
        key = rules.Key(row.key)
        is_live = row.ends_at is None or row.ends_at > look.at
        in_force = look.entitlements.sources[key] == f"override:{row.pk}"
        lines.append(
            OverrideLine(
                row, label_of(key), value_text(key, row.value), value_text(key, tier_amount(look.tier, key)), is_live,
                is_live and not in_force,
            )
        )  # fmt: skip
    return lines, len(found) > _MOST_OVERRIDES


@dataclass(frozen=True)
class EntitlementLine:
    """One entitlement with its source, and the form that overrides it."""

    line: ValueLine
    url: str
