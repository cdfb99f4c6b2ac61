"""Tiers side by side, as every price list shows them: from the tier table, in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from entitlements import rules
from entitlements.display import ValueLine, value_lines
from entitlements.enums import Interval
from entitlements.models import Tier, TierPrice


@dataclass(frozen=True)
class Offer:
    """A price of a tier, as it is shown."""

    interval: str
    text: str

    @property
    def label(self) -> str:
        """How often it is paid, in a word."""
        return "monthly" if self.interval == Interval.MONTH else "yearly"


@dataclass(frozen=True)
class Column:
    """One tier of the comparison."""

    slug: str
    name: str
    is_current: bool
    is_suggested: bool
    is_free: bool
    offers: tuple[Offer, ...]
    values: tuple[ValueLine, ...]


def money_of(price: TierPrice) -> str:
    """Return an amount as it is paid: whole units without cents."""
    units, cents = divmod(price.amount_cents or 0, 100)
    amount = f"{units:,}" if not cents else f"{units:,}.{cents:02d}"
    sign = "$" if price.currency == "usd" else f"{price.currency.upper()} "
    return f"{sign}{amount} a {price.interval}"


def columns_of(
    tiers: Sequence[rules.TierValues], *, current: str = "", suggested: str = "", only_known_amounts: bool = False
) -> list[Column]:
    """Return tiers as columns, in the order given, with what they are sold for."""
    prices: dict[str, list[TierPrice]] = {}
    sold = TierPrice.objects.filter(is_sold=True).select_related("tier")
    for price in sold.exclude(amount_cents__isnull=True) if only_known_amounts else sold:
        prices.setdefault(price.tier.slug, []).append(price)
    return [
        Column(
            slug=tier.slug,
            name=tier.name,
            is_current=tier.slug == current,
            is_suggested=suggested not in ("", current) and tier.slug == suggested,
            is_free=tier.slug not in prices,
            offers=tuple(Offer(p.interval, money_of(p)) for p in prices.get(tier.slug, [])),
            values=tuple(value_lines(rules.get_entitlements_for_tier(tier))),
        )
        for tier in tiers
    ]


def rows_of(columns: Sequence[Column]) -> list[tuple[str, list[str]]]:
    """Return the same by row: what it is called, and its value in each column."""
    if not columns:
        return []
    return [(line.label, [c.values[n].text for c in columns]) for n, line in enumerate(columns[0].values)]


def public_columns() -> list[Column]:
    """Return the price list: the tiers that everybody may see, cheapest first. Two queries."""
    tiers = Tier.objects.filter(is_public=True, retired_at__isnull=True).order_by("rank")
    # An amount that was not read at Stripe yet is no price: strangers would read that it costs nothing.
    return columns_of([tier.values() for tier in tiers], only_known_amounts=True)
