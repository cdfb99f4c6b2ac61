"""Converge one account to what Stripe says now. An event only says that it is time to look.

So order, repetition, equal seconds, replayed and lost events cannot leave a wrong tier (docs/adr/0015).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from django.conf import settings
from django.core.mail import send_mail
from django.db import OperationalError, connection, transaction
from django.db.models import Max
from django.utils import timezone

from billing import rules, stripe_api
from billing.errors import CustomerGoneError
from billing.models import BillingProblem, Customer, EventState, RefusedDelivery, StripeEvent, Subscription
from entitlements.actions.accounts import set_billing_tier
from entitlements.models import Account, Tier, TierPrice
from webhost.errors import WebhostError
from webhost.history import noted

logger = logging.getLogger(__name__)

# What may change what a customer pays for. The rest is kept, and ignored.
_CONCERNS_US: Final = (
    "customer.subscription.", "checkout.session.completed", "checkout.session.async_payment", "invoice.",
    "customer.deleted",
)  # fmt: skip
_LOCK_SECONDS: Final = 30
_LONGEST_PAUSE: Final = timedelta(hours=1)
# After so many failures an operator is told; trying goes on.
_TELL_AFTER: Final = 5
_SOON: Final = timedelta(seconds=2)
_ACTOR: Final = "Stripe"
_KEPT: Final = timedelta(days=90)


@dataclass(frozen=True)
class Convergence:
    """What one reading changed: the paid tier, before and after, and which subscriptions were not as noted."""

    account: Account
    before: rules.Held
    after: rules.Held
    noted_anew: tuple[str, ...]
    problems: tuple[rules.Problem, ...]

    @property
    def changed(self) -> bool:
        """Whether the account's tier, or its end, is another one now."""
        return self.before != self.after

    def sentence(self) -> str:
        """Say what changed, for people."""
        return f"{said(self.before)} → {said(self.after)}" if self.changed else f"unchanged: {said(self.after)}"


def said(held: rules.Held) -> str:
    """Say what is held, for people."""
    if held.tier is None:
        return "no paid tier"
    return held.tier.name if held.until is None else f"{held.tier.name} until {held.until:%Y-%m-%d %H:%M} UTC"


def priced_tiers() -> dict[str, rules.PaidTier]:
    """Return the tier that each known price buys, those no longer sold and of retired tiers too: who pays keeps it."""
    rows = TierPrice.objects.select_related("tier")
    return {p.price_id: _paid(p.tier) for p in rows}


def _paid(tier: Tier) -> rules.PaidTier:
    return rules.PaidTier(tier.pk, tier.slug, tier.name, tier.rank)


def held_by(account: Account) -> rules.Held:
    """Return what an account has from billing."""
    if account.billing_tier is None:
        return rules.NOTHING_HELD
    return rules.Held(_paid(account.billing_tier), account.billing_tier_until)


def grace() -> timedelta:
    """Return how long an unpaid renewal keeps the tier."""
    return timedelta(days=settings.BILLING_GRACE_DAYS)


def converge(customer_id: str, *, source: str, reason: str) -> Convergence:
    """Read a customer's subscriptions from Stripe and make the account as they say; one history entry if it changes.

    The customer's row stays locked from before Stripe is asked until its answer is written: of two readings the
    later one is written last. That is why a connection is held meanwhile, for at most some bounded calls, by a
    worker that does nothing else; nobody on the way of an invocation waits for this row. Events that were
    received before the reading began are concluded with it. Raises StripeAwayError, and then nothing changed.
    """
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute(f"SET LOCAL lock_timeout = '{_LOCK_SECONDS}s'")
        customer = Customer.objects.select_for_update(no_key=True).get(customer_id=customer_id)
        began = _clock()
        account = Account.objects.select_related("billing_tier").get(pk=customer.account_id)
        before = held_by(account)
        verdict = _verdict(customer, before)
        if verdict.held != before:
            set_billing_tier(
                account.pk,
                verdict.held.tier.id if verdict.held.tier else None,
                verdict.held.until,
                actor=_ACTOR,
                reason=reason,
                source=source,
            )
        with noted(actor=_ACTOR, reason=reason, source=source):
            noted_anew = _note(customer, verdict)
        _keep_problems(customer, verdict.problems, began)
        again = verdict.look_again_at
        Customer.objects.filter(pk=customer.pk).update(read_at=began, look_again_at=again and again + _SOON)
        done = Convergence(account, before, verdict.held, noted_anew, verdict.problems)
        _conclude(customer_id, began, done, source)
    return done


def _clock() -> datetime:
    """Return the database's time, by which events are received, as it is now and not when this transaction began."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT clock_timestamp()")
        at: datetime = cursor.fetchone()[0]
    return at


def _verdict(customer: Customer, before: rules.Held) -> rules.Verdict:
    try:
        subscriptions = stripe_api.subscriptions_of(customer.customer_id)
    except CustomerGoneError:
        return rules.customer_is_gone(customer.customer_id, before)
    return rules.decide(subscriptions, priced_tiers(), before, now=timezone.now(), grace=grace())


def _note(customer: Customer, verdict: rules.Verdict) -> tuple[str, ...]:
    """Keep how the subscriptions are, for people; return the ids of those that were noted otherwise."""
    known = {s.pk: s for s in Subscription.objects.filter(customer=customer)}
    prices, changed = priced_tiers(), []
    for reading in verdict.readings:
        now = reading.subscription
        tier = rules.tier_of(now.items, prices)
        past_due = now.status == rules.Status.PAST_DUE
        values: dict[str, Any] = {
            "status": now.status[:40],
            "tier_id": tier.id if tier else None,
            "price_ids": [item.price for item in now.items],
            "period_end": now.period_end,
            "ends_on": now.ends_on,
            "grace_ends": rules.grace_ends(now, grace()) if past_due else None,
        }
        row = known.get(now.id)
        if row is None:
            Subscription.objects.create(
                id=now.id, customer=customer, account_id=customer.account_id, created_at=now.created, **values
            )
        elif different := [name for name, value in values.items() if getattr(row, name) != value]:
            for name in different:
                setattr(row, name, values[name])
            row.save(update_fields=different)
        else:
            continue
        changed.append(now.id)
    return tuple(changed)


def _keep_problems(customer: Customer, problems: Sequence[rules.Problem], at: datetime) -> None:
    """Open what is new, and tell an operator; close what is gone."""
    still = {(p.kind.value, p.detail) for p in problems}
    for row in BillingProblem.objects.filter(customer=customer, closed_at__isnull=True):
        if (row.kind, row.detail) in still:
            still.discard((row.kind, row.detail))
        else:
            row.closed_at = at
            row.save(update_fields=["closed_at"])
    for kind, detail in sorted(still):
        BillingProblem.objects.create(customer=customer, kind=kind, detail=detail, opened_at=at)
        # A function of its own: Django cannot name a partial that fails, and fails over that.
        text = f"Stripe customer {customer.customer_id} needs an operator: {kind}: {detail}."
        transaction.on_commit(lambda text=text: _tell(text), robust=True)  # type: ignore[misc]  # a default binds it


def _tell(text: str) -> None:
    logger.error("%s", text)
    where = f"{settings.PUBLIC_URL}/admin/billing/billingproblem/"
    send_mail(
        "Billing needs a look", f"{text}\n\nThe account keeps what it had. {where}\n", None, [settings.SUPPORT_EMAIL]
    )


# --- Events ---------------------------------------------------------------------------------------


def _conclude(customer_id: str, began: datetime, done: Convergence, source: str) -> None:
    """Mark the customer's events that this reading covers, in its own transaction."""
    covered = StripeEvent.objects.filter(customer_id=customer_id, state=EventState.PENDING, received_at__lte=began)
    for event in covered.order_by("created_at", "id"):
        if done.changed and source == source_of(event):
            outcome = done.sentence()
        elif _is_stale(event):
            outcome = "ignored: stale, a later event of the same object came before"
        else:
            outcome = f"unchanged: {said(done.after)}"
        _finish(event, EventState.DONE, outcome)


def _is_stale(event: StripeEvent) -> bool:
    newest = StripeEvent.objects.filter(object_id=event.object_id, state=EventState.DONE).aggregate(
        newest=Max("created_at")
    )["newest"]
    return newest is not None and event.created_at < newest


def source_of(event: StripeEvent) -> str:
    """Return how history names an event as the source of a change."""
    return f"stripe {event.event_id}"


def _finish(event: StripeEvent, state: EventState, outcome: str) -> None:
    StripeEvent.objects.filter(pk=event.pk, state=EventState.PENDING).update(
        state=state, outcome=outcome[:300], finished_at=timezone.now(), next_try_at=None
    )


def apply_event(event_pk: int) -> bool:
    """Apply one kept event; says whether it is over. What fails is tried again later, with growing pauses."""
    event = StripeEvent.objects.filter(pk=event_pk, state=EventState.PENDING).first()
    if event is None:
        return True
    if not event.type.startswith(_CONCERNS_US):
        _finish(event, EventState.IGNORED, "ignored: not about a subscription")
        return True
    if not Customer.objects.filter(customer_id=event.customer_id).exists():
        logger.error("Stripe event %s is about a customer that we do not know.", event.event_id)
        _finish(event, EventState.IGNORED, "ignored: unknown customer; an operator was told")
        return True
    try:
        converge(event.customer_id, source=source_of(event), reason=f"Read from Stripe upon {event.type}")
    except Exception as error:
        _try_later(event, error)
        if not isinstance(error, WebhostError):
            logger.exception("Stripe event %s could not be applied.", event.event_id)
        return False
    return True


def _try_later(event: StripeEvent, error: Exception) -> None:
    attempts = event.attempts + 1
    pause = min(timedelta(seconds=2 ** min(attempts, 12)), _LONGEST_PAUSE)
    StripeEvent.objects.filter(pk=event.pk, state=EventState.PENDING).update(
        attempts=attempts,
        next_try_at=timezone.now() + pause,
        outcome=f"failed {attempts} times: {type(error).__name__}",
    )
    if attempts == _TELL_AFTER:
        logger.error("Stripe event %s failed %d times; trying goes on.", event.event_id, attempts)


def replay_event(event_pk: int, *, actor: str, reason: str) -> bool:
    """Apply an event once more, as if it had just come; says whether the account changed.

    Harmless by nature: what is read is how things are now.
    """
    event = StripeEvent.objects.get(pk=event_pk)
    if not Customer.objects.filter(customer_id=event.customer_id).exists():
        return False
    done = converge(event.customer_id, source=source_of(event), reason=f"Replayed by {actor}: {reason}")
    StripeEvent.objects.filter(pk=event_pk).update(outcome=f"replayed by {actor}: {done.sentence()}"[:300])
    return done.changed


def sweep(now: datetime) -> int:
    """Apply what is due, and read again the customers for whom a date has passed; return how many were looked at."""
    due = StripeEvent.objects.filter(state=EventState.PENDING, next_try_at__lte=now).order_by("next_try_at")
    events = list(due.values_list("pk", flat=True)[:200])
    for pk in events:
        apply_event(pk)
    passed = list(Customer.objects.filter(look_again_at__lte=now).values_list("customer_id", flat=True)[:200])
    for customer_id in passed:
        try:
            converge(customer_id, source="task billing.sweep", reason="A date of the subscription has passed")
        except (WebhostError, OperationalError):
            logger.warning("Stripe customer %s could not be read; the next sweep tries again.", customer_id)
    return len(events) + len(passed)


def forget_old(now: datetime) -> int:
    """Delete what was concluded, or refused, long ago; history keeps what changed. Returns how many rows went.

    Stripe repeats for days, not for months; and one that came after all would only be one more reading.
    """
    events, _ = StripeEvent.objects.filter(finished_at__lt=now - _KEPT).delete()
    refused, _ = RefusedDelivery.objects.filter(minute__lt=now - _KEPT).delete()
    return events + refused
