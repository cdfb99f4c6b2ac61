"""Who is told when a budget runs low, what was told, and what became of each message."""

from __future__ import annotations

from typing import ClassVar

import pghistory
from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import F, Q
from django.utils import timezone

from entitlements.rules import BUDGETS
from telemetry import alert_rules
from webhost.ids import Prefix, new_id, public_id


class AlertKind(models.TextChoices):
    """How somebody is told."""

    EMAIL = "email"
    WEBHOOK = "webhook"


class DeliveryStatus(models.TextChoices):
    """What became of a message. A failed one is tried again, one that was given up is not."""

    PENDING = "pending"
    SENT = "sent"
    FAILED = "failed"
    GIVEN_UP = "given_up"


@pghistory.track(
    pghistory.InsertEvent(),
    pghistory.UpdateEvent(),
    pghistory.DeleteEvent(),
    append_only=True,
)
class AlertTarget(models.Model):
    """Where an account's alerts go. Its own address is one without a row, whose id is the account's.

    A row with that id says otherwise: switched off, or with other thresholds. It names no address, because the
    account's may change.
    """

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    # No foreign key: what is beside an account must not keep it from being deleted (entitlements/actions).
    account_id = models.UUIDField()
    kind = models.CharField(max_length=10, choices=AlertKind.choices)
    address = models.CharField(max_length=alert_rules.LONGEST_ADDRESS, blank=True, help_text="Address or URL.")
    thresholds = ArrayField(models.SmallIntegerField(), default=alert_rules.all_thresholds)
    enabled = models.BooleanField(default=True)
    # The secret of a webhook is derived from this root key and the id, and kept nowhere (webhost/signing.py).
    root_key_id = models.CharField(max_length=16, blank=True)
    asked_at = models.DateTimeField(null=True, help_text="When the address was asked whether it wants this.")
    confirmed_at = models.DateTimeField(null=True, help_text="Empty: nothing is sent there yet.")
    created_at = models.DateTimeField(default=timezone.now, editable=False)

    class Meta:
        indexes: ClassVar = [
            models.Index("account_id", F("id").desc(), name="alert_target_of_account"),
            models.Index(
                "id", condition=Q(confirmed_at__isnull=True, asked_at__isnull=True), name="alert_target_to_ask"
            ),
        ]
        constraints: ClassVar = [
            models.UniqueConstraint("account_id", "kind", "address", name="alert_target_once"),
            models.CheckConstraint(
                name="alert_thresholds_known",
                condition=Q(thresholds__contained_by=list(alert_rules.THRESHOLDS), thresholds__len__gt=0),
            ),
        ]

    def __str__(self) -> str:
        return self.address or "the account's own address"

    @property
    def is_own(self) -> bool:
        """Whether it is the account's own address, which needs no row."""
        return self.id == self.account_id


class AlertDue(models.Model):
    """An account whose use the roll-ups saw move: look at its budgets, then forget it (watch_budgets)."""

    account_id = models.UUIDField(primary_key=True)

    def __str__(self) -> str:
        return str(self.account_id)


class AlertEvent(models.Model):
    """A budget reached a threshold; open until it no longer does. Once per account, period and threshold while open."""

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    account_id = models.UUIDField()
    period = models.DateField(help_text="First day of the month, UTC.")
    limit_type = models.CharField(max_length=30, choices=[(m.value, m.value) for m in BUDGETS])
    threshold = models.SmallIntegerField(help_text="Percent.")
    used = models.BigIntegerField(help_text="Then; code execution in seconds, rounded up.")
    limit = models.BigIntegerField(help_text="Then.")
    fired_at = models.DateTimeField()
    recovered_at = models.DateTimeField(null=True, help_text="When it was no longer reached, and armed again.")

    class Meta:
        ordering = ("-id",)
        constraints: ClassVar = [
            # Two workers cannot both fire, whatever they saw.
            models.UniqueConstraint(
                "account_id",
                "period",
                "limit_type",
                "threshold",
                condition=Q(recovered_at__isnull=True),
                name="alert_fired_once",
            ),
        ]
        indexes: ClassVar = [models.Index("account_id", F("id").desc(), name="alert_event_of_account")]

    def __str__(self) -> str:
        return f"{self.threshold} % of {self.limit_type} {self.period:%Y-%m}"

    @property
    def public_id(self) -> str:
        """The id in messages and in the log."""
        return public_id(Prefix.EVENT, self.id)

    @property
    def percent(self) -> int:
        """How much of the limit was used, rounded down."""
        return self.used * 100 // self.limit


class AlertDelivery(models.Model):
    """One message about one event to one target, with its tries. Sent at least once, or given up."""

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    event = models.ForeignKey(AlertEvent, on_delete=models.CASCADE, related_name="deliveries")
    target_id = models.UUIDField()
    kind = models.CharField(max_length=10, choices=AlertKind.choices)
    address = models.CharField(max_length=alert_rules.LONGEST_ADDRESS, help_text="As it was when it fired.")
    status = models.CharField(max_length=10, choices=DeliveryStatus.choices, default=DeliveryStatus.PENDING)
    attempts = models.PositiveSmallIntegerField(default=0)
    # Also the lease: who takes it moves this ahead, so that a killed worker's message is due again by itself.
    next_try_at = models.DateTimeField(null=True)
    last_error = models.CharField(max_length=80, blank=True, help_text="Class of the last failure; never a body.")
    last_status = models.PositiveSmallIntegerField(null=True, help_text="HTTP status of the last answer.")
    created_at = models.DateTimeField(default=timezone.now)
    sent_at = models.DateTimeField(null=True)

    class Meta:
        ordering = ("-id",)
        verbose_name_plural = "alert deliveries"
        constraints: ClassVar = [
            models.UniqueConstraint("event", "target_id", name="alert_delivered_once"),
            models.CheckConstraint(
                name="alert_delivery_is_due_or_over",
                condition=Q(status__in=(DeliveryStatus.PENDING, DeliveryStatus.FAILED), next_try_at__isnull=False)
                | Q(status__in=(DeliveryStatus.SENT, DeliveryStatus.GIVEN_UP), next_try_at__isnull=True),
            ),
        ]
        indexes: ClassVar = [
            models.Index("next_try_at", condition=Q(next_try_at__isnull=False), name="alert_delivery_due")
        ]

    def __str__(self) -> str:
        return f"{self.kind} ({self.status})"
