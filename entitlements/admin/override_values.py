"""Values of overrides for people: what is in force, what one replaces, and ends that are named instead of typed."""

from __future__ import annotations

from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Final

from django.core.exceptions import ValidationError
from django.forms import ModelForm

from entitlements import rules
from entitlements.actions.standing import AccountStanding, read_standing
from entitlements.amounts import in_words
from entitlements.display import UNLIMITED, label_of, shown, source_text
from entitlements.models import Account, Override
from webhost.errors import NotFoundError
from webhost.period import ends_at, period_of

_WEEK: Final = timedelta(days=7)
_LIMIT_OF_KEY: Final = {key: limit for limit, key in rules.KEY_OF_LIMIT.items()}


class End(StrEnum):
    """When an override ends, by a name instead of a date."""

    PERIOD = "period"
    WEEK = "week"
    NEVER = "never"
    GIVEN = ""


def end_of(named: End, now: datetime) -> datetime | None:
    """Return the instant that a named end means now."""
    if named == End.PERIOD:
        return ends_at(period_of(now))
    return now + _WEEK if named == End.WEEK else None


def named_ends(now: datetime) -> list[tuple[str, str]]:
    """Return the ends to choose from, each with its instant."""
    return [
        (End.PERIOD.value, f"At the end of this period ({ends_at(period_of(now)):%Y-%m-%d %H:%M})"),
        (End.WEEK.value, f"In 7 days ({now + _WEEK:%Y-%m-%d %H:%M})"),
        (End.NEVER.value, "Never: until somebody ends it"),
        (End.GIVEN.value, "At the time below; empty is never"),
    ]


def amount_text(key: rules.Key, value: int | None) -> str:
    """Return a value as it is shown, with its words beside a long number."""
    limit = _LIMIT_OF_KEY.get(key)
    words = in_words(limit, value) if limit in rules.BUDGETS else ""
    return f"{value_text(key, value)}{f' ({words})' if words else ''}"


def value_in_force(look: AccountStanding, key: rules.Key) -> int | None:
    """Return what counts now: the tier's value, or that of the override over it."""
    merged, _ = rules.merge(look.tier, look.overrides, look.at)
    return tier_amount(merged, key)


def value_text(key: str, value: int | None) -> str:
    """Return a value of an override as its reader thinks of it."""
    if key in rules.FLAGS:
        return "on" if value else "off"
    return UNLIMITED if value is None else shown(value)


def tier_amount(tier: rules.TierValues, key: rules.Key) -> int | None:
    """Return what a tier alone gives, as an override would hold it."""
    if key in rules.FLAGS:
        return int(tier.flags[key])
    return tier.retention[key] if key in rules.RETENTION else tier.limits[key]


def what_it_replaces(override: Override | None, form: ModelForm[Override]) -> dict[str, Any]:
    """Return what is in force for the account that a form is about, with its source; the chosen value first."""
    account_id = override.account_id if override is not None else form["account"].value()
    try:
        look = read_standing(Account._meta.pk.to_python(str(account_id or "")))  # noqa: SLF001 - documented
    except (NotFoundError, ValidationError):
        return {}
    chosen = str(form["key"].value() if "key" in form.fields else override.key if override is not None else "")
    lines = [
        {
            "label": label_of(key), "key": key.value, "is_chosen": key.value == chosen,
            "value": amount_text(key, value_in_force(look, key)), "source": source_text(look.entitlements.sources[key]),
            "tier_value": amount_text(key, tier_amount(look.tier, key)),
        }
        for key in rules.Key
    ]  # fmt: skip
    return {"in_force": sorted(lines, key=lambda line: not line["is_chosen"]), "tier_name": look.tier.name}
