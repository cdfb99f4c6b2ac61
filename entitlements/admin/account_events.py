"""What happened to an account, as this app knows it: its tier and state, overrides, adjustments, refusals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

from django.apps import apps
from django.db.models import BigIntegerField, OuterRef, Q, QuerySet, Subquery
from django.db.models.functions import Coalesce, JSONObject

from entitlements import rules
from entitlements.actions.refused import first_refusals
from entitlements.admin.override_values import value_text
from entitlements.admin.sections import TIMELINE, Before, Moment, Source, page_of_row
from entitlements.amounts import duration
from entitlements.display import LABELS, label_of
from entitlements.models import Account, Adjustment
from entitlements.models.ledger import MEASURES
from webhost.ids import Prefix, public_id
from webhost.period import key_of

AUDIT_LOG: Final = "entitlements.view_historyentry"
_A_MOMENT: Final = timedelta(seconds=5)
_NOUNS: Final[Mapping[str, str]] = {
    "requests": "requests", "tokens": "tokens", "compute_ms": "compute", "tool_calls": "tool calls",
    "code_ms": "code execution", "browser_sessions": "browser sessions",
}  # fmt: skip


def event_model(app: str, name: str) -> Any:
    """Return a history that pghistory made: it is nowhere in the source."""
    return apps.get_model(app, f"{name}Event")


def moment_of(event: Any, what: str, url: str = "", *, unknown: str = "not recorded") -> Moment:
    """Return an entry of the history as a moment: its context says who, why and through which door.

    `unknown` is who it was where there is no context at all, or none that names anybody.
    """
    context: Mapping[str, Any] = event.pgh_context.metadata if event.pgh_context else {}
    return Moment(
        at=event.pgh_created_at,
        key=str(event.pgh_id),
        what=what,
        who=str(context.get("actor") or unknown),
        why=str(context.get("reason") or ""),
        source=str(context.get("source") or ""),
        trace=str(context.get("trace") or ""),
        url=url,
    )


@dataclass(frozen=True)
class Cause:
    """Since when something is as it is, by whom and why."""

    at: datetime
    who: str
    why: str
    source: str


def cause_of(account: Account, **state: Any) -> Cause | None:
    """Return what made an account's columns what they are now; None where the history does not go back so far."""
    events: QuerySet[Any] = event_model("entitlements", "Account").objects.filter(pgh_obj_id=account.pk)
    alike = Q(**{f"{name}__isnull" if value is None else name: value is None or value for name, value in state.items()})
    other = events.exclude(alike).order_by("-pgh_id").values("pgh_id")[:1]
    last_other = Coalesce(Subquery(other, output_field=BigIntegerField()), 0)
    event = events.filter(pgh_id__gt=last_other).select_related("pgh_context").order_by("pgh_created_at").first()
    if event is None:
        return None
    moment = moment_of(event, "")
    return Cause(moment.at, moment.who, moment.why, moment.source)


# --- The account itself ---------------------------------------------------------------------------


def _name(tier: Any) -> str:
    return str(tier.name) if tier is not None else "none"


def _until(at: datetime | None) -> str:
    return f" until {at:%Y-%m-%d %H:%M}" if at is not None else ""


def account_change(old: Any, new: Any) -> str:
    """Say in a sentence what is different in an account, of what people ask about."""
    said = []
    for kind, words in (("support", "Tier set by support"), ("billing", "Paid tier")):
        before = (getattr(old, f"{kind}_tier_id"), getattr(old, f"{kind}_tier_until"))
        after = (getattr(new, f"{kind}_tier_id"), getattr(new, f"{kind}_tier_until"))
        if before != after:
            was = _name(getattr(old, f"{kind}_tier")) + _until(before[1])
            said.append(f"{words}: {was} → {_name(getattr(new, f'{kind}_tier'))}{_until(after[1])}")
    if old.is_active != new.is_active:
        said.append("Enabled" if new.is_active else "Disabled")
    if old.email != new.email:
        said.append(f"E-mail address: {old.email} → {new.email}")
    for column, words in (("is_staff", "staff"), ("is_superuser", "a superuser")):
        if getattr(old, column) != getattr(new, column):
            said.append(f"Made {words}" if getattr(new, column) else f"No longer {words}")
    return "; ".join(said) or "Changed"


def account_moments(account_id: UUID, before: Before, most: int) -> Sequence[Moment]:
    """Return what became of the account itself: tier, state, address, rights."""
    events = event_model("entitlements", "Account").objects.filter(pgh_obj_id=account_id)
    rows = before.rows(events.select_related("pgh_context", "support_tier", "billing_tier"), "pgh_created_at", "pgh_id")
    found = list(rows[: most + 1])  # one more, to say what the last one was before
    moments = []
    for event, older in zip(found, [*found[1:], None], strict=False):
        if event.pgh_label == "insert":
            moments.append(moment_of(event, "Account opened"))
        elif event.pgh_label == "delete":
            moments.append(moment_of(event, "Account deleted"))
        elif older is not None:
            moments.append(moment_of(event, account_change(older, event)))
        elif len(moments) < most:
            moments.append(moment_of(event, "Changed"))  # the first that was recorded of an account older than that
    return moments[:most]


# --- Overrides, adjustments, refusals -------------------------------------------------------------


def override_moments(account_id: UUID, before: Before, most: int) -> Sequence[Moment]:
    """Return the overrides that were set, changed, ended or removed."""
    model = event_model("entitlements", "Override")
    earlier = model.objects.filter(pgh_obj_id=OuterRef("pgh_obj_id"), pgh_id__lt=OuterRef("pgh_id")).order_by("-pgh_id")
    was = Subquery(earlier.values(was=JSONObject(key="key", value="value"))[:1])
    events = model.objects.filter(account_id=account_id).annotate(was=was)
    rows = before.rows(events.select_related("pgh_context"), "pgh_created_at", "pgh_id")
    return [moment_of(e, _override_change(e), page_of_row("entitlements_override", e.pgh_obj_id)) for e in rows[:most]]


def _override_change(event: Any) -> str:
    label, value = label_of(rules.Key(event.key)), value_text(event.key, event.value)
    if event.pgh_label == "delete":
        return f"Override removed: {label} = {value}"
    # Its end was taken a moment after the transaction began, whose time is the entry's.
    if event.ends_at is not None and event.ends_at <= event.pgh_created_at + _A_MOMENT:
        return f"Override ended: {label} = {value}"
    end = _until(event.ends_at) or " without end"
    if event.pgh_label == "insert" or event.was is None or event.was["key"] != event.key:
        return f"Override: {label} = {value}{end}"
    return f"Override: {label} {value_text(event.key, event.was['value'])} → {value}{end}"


def moved(measure: str, amount: int) -> str:
    """Say how much of a measure was given back or added."""
    text = duration(abs(amount)) if measure in {"compute_ms", "code_ms"} else f"{abs(amount):,}"
    return f"{'−' if amount < 0 else '+'}{text} {_NOUNS[measure]}"  # noqa: RUF001 - a minus


def adjustment_moments(account_id: UUID, before: Before, most: int) -> Sequence[Moment]:
    """Return the audited corrections of usage, and what retention carried over."""
    rows = before.rows(Adjustment.objects.filter(account_id=account_id), "created_at", "pk")[:most]
    return [
        Moment(
            row.created_at, str(row.pk),
            f"Usage of {key_of(row.period)} adjusted: "
            + ", ".join(moved(m, getattr(row, m)) for m in MEASURES if getattr(row, m)),
            who=row.actor, why=row.reason, url=page_of_row("entitlements_adjustment", row.pk),
        )
        for row in rows
    ]  # fmt: skip


def refusal_moments(account_id: UUID, before: Before, most: int) -> Sequence[Moment]:
    """Return the first refusal of each day by each limit."""
    until = before.at + timedelta(microseconds=1) if before.inclusive else before.at
    # Those of the same instant are few: at most one of each limit.
    rows = first_refusals(account_id, until, most=most + len(LABELS))
    moments = [
        Moment(
            row.minute, str(row.id), f"Refused for the first time that day: {LABELS[row.limit_type]}",
            who=public_id(Prefix.AGENT, row.agent_id) if row.agent_id else "",
            source="a call", trace=row.trace_id, url=page_of_row("entitlements_denial", row.id),
        )
        for row in rows
    ]  # fmt: skip
    return [moment for moment in moments if before.keeps(moment)][:most]


TIMELINE.extend(
    [
        Source("account", "Tier and state", AUDIT_LOG, account_moments),
        Source("override", "Overrides", AUDIT_LOG, override_moments),
        Source("adjustment", "Adjustments", "entitlements.view_adjustment", adjustment_moments),
        Source("refusal", "Refusals", "entitlements.view_denial", refusal_moments),
    ]
)
