"""From what Stripe says to the tier that is paid for: pure decisions on frozen values. Imports no Django.

The verdict is a function of the customer's subscriptions as they are now, the mapped prices and the time.
What was said before, in which order and how often, does not enter into it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum


class Status(StrEnum):
    """How a subscription stands at Stripe. One that we do not know is not an error: it changes nothing."""

    ACTIVE = "active"
    TRIALING = "trialing"
    PAST_DUE = "past_due"
    INCOMPLETE = "incomplete"
    INCOMPLETE_EXPIRED = "incomplete_expired"
    UNPAID = "unpaid"
    CANCELED = "canceled"
    PAUSED = "paused"


PAID: frozenset[str] = frozenset({Status.ACTIVE, Status.TRIALING})
NOT_PAID: frozenset[str] = frozenset(
    {Status.INCOMPLETE, Status.INCOMPLETE_EXPIRED, Status.UNPAID, Status.CANCELED, Status.PAUSED}
)
# It goes on at Stripe, paid or not: a second one beside it would be paid for twice.
OVER: frozenset[str] = frozenset({Status.INCOMPLETE, Status.INCOMPLETE_EXPIRED, Status.CANCELED})


class ProblemKind(StrEnum):
    """What Stripe says and we cannot act on; an operator has to look."""

    UNMAPPED_PRICE = "unmapped price"
    NO_ITEMS = "no items"
    UNKNOWN_STATUS = "unknown status"
    SEVERAL_SUBSCRIPTIONS = "several subscriptions"
    CUSTOMER_GONE = "customer gone"


@dataclass(frozen=True, order=True)
class Problem:
    """One thing to look at: its kind, and which subscription, status or price."""

    kind: ProblemKind
    detail: str


@dataclass(frozen=True)
class Item:
    """What a subscription is for: a plan or an add-on, as its price says."""

    id: str
    price: str


@dataclass(frozen=True)
class Subscription:
    """A subscription as Stripe says it is now; instants in UTC. `unpaid_since` is its oldest open invoice."""

    id: str
    status: str
    items: tuple[Item, ...]
    created: datetime
    period_start: datetime | None = None
    period_end: datetime | None = None
    cancel_at: datetime | None = None
    cancel_at_period_end: bool = False
    unpaid_since: datetime | None = None

    @property
    def ends_on(self) -> datetime | None:
        """The instant for which an end is arranged; None while it renews itself."""
        if self.cancel_at is not None:
            return self.cancel_at
        return self.period_end if self.cancel_at_period_end else None


@dataclass(frozen=True)
class PaidTier:
    """A tier that a price buys."""

    id: int
    slug: str
    name: str
    rank: int


Prices = Mapping[str, PaidTier]


@dataclass(frozen=True)
class Held:
    """What an account has from billing at the moment: a tier, and until when (None: no end)."""

    tier: PaidTier | None = None
    until: datetime | None = None

    def lasts(self, at: datetime) -> bool:
        """Say whether it is in force."""
        return self.tier is not None and (self.until is None or self.until > at)


NOTHING_HELD = Held()
_NEVER = datetime.max.replace(tzinfo=UTC)


@dataclass(frozen=True)
class Reading:
    """What one subscription means: a tier until an instant, nothing, or something that we do not understand."""

    subscription: Subscription
    held: Held = NOTHING_HELD
    problem: Problem | None = None


@dataclass(frozen=True)
class Verdict:
    """What an account has from billing now, when to look again though nobody tells us to, and what is odd."""

    held: Held
    look_again_at: datetime | None = None
    problems: tuple[Problem, ...] = ()
    readings: tuple[Reading, ...] = field(default=(), compare=False)


def tier_of(items: Iterable[Item], prices: Prices) -> PaidTier | None:
    """Return the highest tier that any item buys; add-ons beside the plan are looked through."""
    bought = [prices[item.price] for item in items if item.price in prices]
    return max(bought, key=lambda tier: tier.rank, default=None)


def grace_ends(subscription: Subscription, grace: timedelta) -> datetime | None:
    """Return when an unpaid renewal ends the plan: the grace begins with the oldest invoice that is open.

    Not with the day on which we heard of it, nor with the newest invoice: the one would depend on deliveries,
    the other would begin anew each month.
    """
    since = subscription.unpaid_since or subscription.period_start
    return None if since is None else since + grace


def read_subscription(subscription: Subscription, prices: Prices, grace: timedelta) -> Reading:
    """Return what one subscription means by itself."""
    status = subscription.status
    if status in NOT_PAID:
        return Reading(subscription)
    if status not in PAID and status != Status.PAST_DUE:
        return Reading(subscription, problem=Problem(ProblemKind.UNKNOWN_STATUS, f"{subscription.id}: {status[:40]}"))
    if not subscription.items:
        return Reading(subscription, problem=Problem(ProblemKind.NO_ITEMS, subscription.id))
    tier = tier_of(subscription.items, prices)
    if tier is None:
        named = ", ".join(sorted(item.price for item in subscription.items))
        return Reading(subscription, problem=Problem(ProblemKind.UNMAPPED_PRICE, f"{subscription.id}: {named}"[:300]))
    ends = [subscription.ends_on]
    if status == Status.PAST_DUE:
        ends.append(grace_ends(subscription, grace))
    return Reading(subscription, Held(tier, min((e for e in ends if e is not None), default=None)))


def decide(
    subscriptions: Sequence[Subscription], prices: Prices, current: Held, *, now: datetime, grace: timedelta
) -> Verdict:
    """Return what an account has from billing, given all subscriptions of its customer.

    Of several that are paid for the highest rank counts. What we do not understand never takes a tier away:
    then what the account has stays, unless something understood is higher.
    """
    readings = [read_subscription(s, prices, grace) for s in subscriptions]
    lasting = [r.held for r in readings if r.held.lasts(now)]
    best = max(lasting, key=_goodness, default=NOTHING_HELD)
    problems = {r.problem for r in readings if r.problem is not None}
    if problems and current.lasts(now) and (best.tier is None or _rank(current) > _rank(best)):
        best = current
    if sum(1 for held in lasting if held.tier is not None) > 1:
        ids = ", ".join(sorted(r.subscription.id for r in readings if r.held.lasts(now)))
        problems.add(Problem(ProblemKind.SEVERAL_SUBSCRIPTIONS, ids[:300]))
    changes = [held.until for held in lasting if held.until is not None]
    return Verdict(best, min(changes, default=None), tuple(sorted(problems)), tuple(readings))


def customer_is_gone(customer: str, current: Held) -> Verdict:
    """Return the verdict where Stripe does not know the customer: nothing changes, an operator looks."""
    return Verdict(current, None, (Problem(ProblemKind.CUSTOMER_GONE, customer),))


def _rank(held: Held) -> int:
    return -1 if held.tier is None else held.tier.rank


def _goodness(held: Held) -> tuple[int, bool, datetime]:
    """Order by rank, then by how long it lasts."""
    return _rank(held), held.until is None, held.until or _NEVER
