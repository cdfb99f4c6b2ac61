"""Customers at Stripe, the inbox of what Stripe posts, and what an operator has to look at."""

from __future__ import annotations

from typing import ClassVar

import pghistory
from django.conf import settings
from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import F, Q
from django.db.models.functions import Now
from django.utils import timezone

from billing import rules


class Customer(models.Model):
    """The one customer at Stripe that an account is; made at its first checkout and kept."""

    account = models.OneToOneField(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="stripe_customer")
    customer_id = models.CharField("Stripe customer", max_length=255, unique=True)
    created_at = models.DateTimeField(default=timezone.now, editable=False)
    read_at = models.DateTimeField(
        null=True, db_index=True, help_text="When its subscriptions were last read from Stripe; the reading began then."
    )
    look_again_at = models.DateTimeField(
        null=True,
        db_index=True,
        help_text="When a date of theirs passes: read then, whether Stripe says something or not.",
    )

    opening_until = models.DateTimeField(
        null=True, editable=False, help_text="Somebody opens a checkout for it now; of two at once one waits."
    )

    class Meta:
        verbose_name = "Stripe customer"
        ordering = ("-created_at",)

    def __str__(self) -> str:
        return self.customer_id


@pghistory.track(
    pghistory.InsertEvent(),
    pghistory.UpdateEvent(condition=pghistory.AnyChange()),
    pghistory.DeleteEvent(),
    append_only=True,
)
class Subscription(models.Model):
    """A subscription as it was when it was last read. For people to look at: nothing is decided by it."""

    id = models.CharField("Stripe subscription", primary_key=True, max_length=255)
    # The account beside the customer, so that the audit log of an account finds it.
    account = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="subscriptions")
    customer = models.ForeignKey(Customer, on_delete=models.PROTECT, related_name="subscriptions")
    status = models.CharField(max_length=40)
    tier = models.ForeignKey("entitlements.Tier", null=True, on_delete=models.SET_NULL, related_name="+")
    price_ids = ArrayField(models.CharField(max_length=255), default=list)
    period_end = models.DateTimeField(null=True)
    ends_on = models.DateTimeField(null=True, help_text="The end that is arranged; empty while it renews itself.")
    grace_ends = models.DateTimeField(null=True, help_text="When an unpaid renewal takes the tier away.")
    created_at = models.DateTimeField()

    class Meta:
        ordering = ("-created_at",)

    def __str__(self) -> str:
        return self.id


class EventState(models.TextChoices):
    """Where an event stands: kept and not applied yet, applied, or nothing that concerns us."""

    PENDING = "pending"
    DONE = "done"
    IGNORED = "ignored"


class StripeEvent(models.Model):
    """An event as Stripe posted it, as its bytes; kept before it is applied, so that none is lost.

    It is a hint that something changed, never the new state itself: that is read from Stripe.
    """

    id = models.BigAutoField(primary_key=True)
    event_id = models.CharField(max_length=255, unique=True)
    type = models.CharField(max_length=120)
    api_version = models.CharField(max_length=60, blank=True)
    customer_id = models.CharField(max_length=255, blank=True, db_index=True)
    object_id = models.CharField(max_length=255, blank=True)
    created_at = models.DateTimeField(help_text="By Stripe's clock, to the second.")
    received_at = models.DateTimeField(db_default=Now())
    body = models.BinaryField(help_text="What was signed.")
    deliveries = models.PositiveIntegerField(default=1, db_default=1, help_text="How often it was delivered.")
    state = models.CharField(max_length=10, choices=EventState, default=EventState.PENDING)
    outcome = models.CharField(max_length=300, blank=True, help_text="What became of it, in words.")
    attempts = models.PositiveIntegerField(default=0)
    next_try_at = models.DateTimeField(null=True, db_default=Now())
    finished_at = models.DateTimeField(null=True)

    class Meta:
        verbose_name = "Stripe event"
        ordering = ("-id",)
        indexes: ClassVar = [
            models.Index("next_try_at", name="stripe_event_pending", condition=Q(state=EventState.PENDING)),
            models.Index("object_id", F("created_at").desc(), name="stripe_event_of_object"),
        ]
        constraints: ClassVar = [
            models.CheckConstraint(
                name="stripe_event_finished_or_due",
                condition=Q(state=EventState.PENDING, next_try_at__isnull=False, finished_at__isnull=True)
                | ~Q(state=EventState.PENDING) & Q(next_try_at__isnull=True, finished_at__isnull=False),
            ),
        ]

    def __str__(self) -> str:
        return f"{self.type} {self.event_id}"


class RefusedDelivery(models.Model):
    """How many deliveries were refused for one reason in one minute: each leaves a trace, a flood leaves few."""

    id = models.BigAutoField(primary_key=True)
    minute = models.DateTimeField()
    reason = models.CharField(max_length=60)
    count = models.PositiveBigIntegerField(default=0)
    address = models.CharField(max_length=45, blank=True, help_text="Where the last one came from.")
    trace_id = models.CharField(max_length=40, blank=True, help_text="The trace of the last one.")

    class Meta:
        verbose_name_plural = "refused deliveries"
        ordering = ("-minute", "reason")
        constraints: ClassVar = [models.UniqueConstraint("minute", "reason", name="refused_delivery_once_a_minute")]

    def __str__(self) -> str:
        return f"{self.reason} x{self.count}"


class BillingProblem(models.Model):
    """Something that Stripe says and we cannot act on. Open until a later reading finds it gone."""

    id = models.BigAutoField(primary_key=True)
    customer = models.ForeignKey(Customer, on_delete=models.CASCADE, related_name="problems")
    kind = models.CharField(max_length=40, choices=[(k, k) for k in rules.ProblemKind])
    detail = models.CharField(max_length=300)
    opened_at = models.DateTimeField(default=timezone.now)
    closed_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ("-opened_at",)
        constraints: ClassVar = [
            models.UniqueConstraint(
                "customer", "kind", "detail", name="problem_open_once", condition=Q(closed_at__isnull=True)
            ),
        ]

    def __str__(self) -> str:
        return f"{self.kind}: {self.detail}"


class Reconciliation(models.Model):
    """A run over all customers: what was not as Stripe says, and so was never told to us."""

    id = models.BigAutoField(primary_key=True)
    started_at = models.DateTimeField(default=timezone.now)
    finished_at = models.DateTimeField(null=True)
    customers = models.PositiveIntegerField(default=0, help_text="How many were compared.")
    drifted = models.JSONField(default=list, help_text="Which were different, before and after.")
    unread = models.JSONField(default=list, help_text="Which could not be read; the next run tries again.")
    strangers = models.JSONField(default=list, help_text="Live subscriptions of customers that we do not know.")

    class Meta:
        ordering = ("-id",)

    def __str__(self) -> str:
        return f"{self.started_at:%Y-%m-%d %H:%M}"
