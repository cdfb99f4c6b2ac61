"""The inbox of signed reports, hourly roll-ups, rate cards and the signed statement of a closed period."""

from __future__ import annotations

from typing import Any, ClassVar

import pghistory
from django.contrib.postgres.fields import ArrayField
from django.core.validators import MinValueValidator
from django.db import models
from django.db.models import Q
from django.utils import timezone

from entitlements.enums import Runtime
from telemetry import rules


class ReportStatus(models.TextChoices):
    """What became of a report that was kept."""

    PENDING = "pending"
    ACCEPTED = "accepted"
    DUPLICATE = "duplicate"
    REJECTED = "rejected"
    PARKED = "parked"


class Delivery(models.Model):
    """A signed batch as its bytes: what its reports are read from, and checked against, ever after."""

    id = models.BigAutoField(primary_key=True)
    deployment_id = models.UUIDField()
    body = models.BinaryField()
    received_at = models.DateTimeField(default=timezone.now)

    class Meta:
        verbose_name_plural = "deliveries"

    def __str__(self) -> str:
        return f"{self.deployment_id} {self.received_at:%Y-%m-%dT%H:%M:%S}"


_NOT_ACCEPTED = Q(status__in=[str(s) for s in (ReportStatus.DUPLICATE, ReportStatus.REJECTED, ReportStatus.PARKED)])


class Report(models.Model):
    """A signed usage report as its bytes; kept before it is judged, so that none is lost.

    What was signed is `body`, or for one of a batch the body of its delivery; the signature is beside it.
    """

    id = models.BigAutoField(primary_key=True)
    deployment_id = models.UUIDField()
    # Compared byte for byte, so it is kept as bytes.
    event_id = models.BinaryField(max_length=200)
    body = models.BinaryField(help_text="What was signed; empty for one of a batch.")
    # No foreign key: the edge writes both in one statement, retention deletes them in its own order.
    delivery_id = models.BigIntegerField(null=True, help_text="The batch that it came in.")
    item = models.SmallIntegerField(default=0, help_text="Its place in the batch, from 0.")
    signature = models.CharField(max_length=2048)
    key_id = models.CharField(max_length=16)
    received_at = models.DateTimeField(default=timezone.now)
    status = models.CharField(max_length=10, choices=ReportStatus.choices, default=ReportStatus.PENDING)
    reason = models.CharField(max_length=200, blank=True, default="")
    attempts = models.PositiveSmallIntegerField(default=0)
    processed_at = models.DateTimeField(null=True)
    # Known once it was judged; the account from the deployment, never from the body.
    account_id = models.UUIDField(null=True)
    invocation_id = models.UUIDField(null=True)
    facts = models.CharField(
        max_length=200, blank=True, default="", help_text="Invocation and figures: what a repeat must say again."
    )

    class Meta:
        ordering = ("-id",)
        indexes: ClassVar = [
            models.Index("id", condition=Q(status=ReportStatus.PENDING), name="report_pending"),
            # Small, because rows leave it: the edge finds repeats that were not judged yet.
            models.Index(
                "deployment_id", "event_id", condition=Q(status=ReportStatus.PENDING), name="report_pending_event"
            ),
            models.Index("invocation_id", condition=Q(invocation_id__isnull=False), name="report_of_invocation"),
            models.Index(
                "account_id", models.F("id").desc(), condition=Q(account_id__isnull=False), name="report_of_account"
            ),
            models.Index("delivery_id", condition=Q(delivery_id__isnull=False), name="report_of_delivery"),
            # What support asks for: what a deployment sent, and what of all was not accepted, which is rare.
            models.Index("deployment_id", "id", name="report_of_deployment"),
            models.Index("status", "id", condition=_NOT_ACCEPTED, name="report_not_accepted"),
            models.Index("deployment_id", "status", condition=_NOT_ACCEPTED, name="report_refused_of_one"),
            # What its owner asks for, newest first. Small as those two: most reports are accepted.
            models.Index(
                "account_id", "status", models.F("id").desc(), condition=_NOT_ACCEPTED, name="report_refused_of_account"
            ),
        ]
        constraints: ClassVar = [
            models.UniqueConstraint(
                "deployment_id", "event_id", condition=Q(status=ReportStatus.ACCEPTED), name="report_accepted_once"
            ),
        ]

    def __str__(self) -> str:
        return f"{bytes(self.event_id).decode(errors='replace')} ({self.status})"


def _sum() -> Any:
    return models.BigIntegerField(default=0)


class UsageHour(models.Model):
    """What one deployment used in one hour: sums of the ledger's journal, with its estimated cost."""

    id = models.BigAutoField(primary_key=True)
    account_id = models.UUIDField()
    agent_id = models.UUIDField()
    deployment_id = models.UUIDField()
    runtime = models.CharField(max_length=20)
    hour = models.DateTimeField()
    requests = _sum()
    tokens = _sum()
    compute_ms = _sum()
    tool_calls = _sum()
    code_ms = _sum()
    browser_sessions = _sum()
    errors = _sum()
    errors_by_class = models.JSONField(default=dict)
    # Counts per latency bucket; the bounds are in telemetry/rules.py. Empty: nothing had a latency.
    latency_buckets = ArrayField(models.BigIntegerField(), default=list)

    class Meta:
        constraints: ClassVar = [
            models.UniqueConstraint("account_id", "hour", "deployment_id", name="usage_hour_once"),
        ]
        indexes: ClassVar = [
            models.Index("agent_id", "hour", name="usage_hour_of_agent"),
            models.Index("hour", name="usage_hour_of_all"),
        ]

    def __str__(self) -> str:
        return f"{self.deployment_id} {self.hour:%Y-%m-%dT%H}"


def _price(help_text: str) -> Any:
    return models.DecimalField(
        max_digits=24, decimal_places=12, default=0, validators=[MinValueValidator(0)], help_text=help_text
    )


@pghistory.track(pghistory.InsertEvent(), pghistory.UpdateEvent(), pghistory.DeleteEvent(), append_only=True)
class RateCard(models.Model):
    """What a runtime is estimated to cost from a date on, in US dollars. Decimal, with all digits."""

    runtime = models.CharField(max_length=20, choices=[(r, r) for r in Runtime])
    effective_from = models.DateField(help_text="First day (UTC) on which it counts.")
    per_million_requests = _price("USD per 1,000,000 requests.")
    per_million_tokens = _price("USD per 1,000,000 tokens; only for models that the platform provides.")
    per_million_compute_ms = _price("USD per 1,000,000 milliseconds of compute.")
    per_tool_call = _price("USD per tool call.")
    per_code_execution_second = _price("USD per second of code execution.")
    per_browser_session = _price("USD per browser session.")

    class Meta:
        ordering = ("runtime", "-effective_from")
        constraints: ClassVar = [
            models.UniqueConstraint("runtime", "effective_from", name="rate_card_once_a_day"),
        ]

    def __str__(self) -> str:
        return f"{self.runtime} from {self.effective_from}"

    def prices(self) -> rules.Prices:
        """Return this card as the value that the rules price with."""
        return rules.Prices(
            runtime=self.runtime,
            effective_from=self.effective_from,
            per_million_requests=self.per_million_requests,
            per_million_tokens=self.per_million_tokens,
            per_million_compute_ms=self.per_million_compute_ms,
            per_tool_call=self.per_tool_call,
            per_code_execution_second=self.per_code_execution_second,
            per_browser_session=self.per_browser_session,
        )


class DailyCost(models.Model):
    """What a runtime is estimated to cost in one day (UTC), all accounts together, and the alarm that it raised."""

    id = models.BigAutoField(primary_key=True)
    runtime = models.CharField(max_length=20, choices=[(r, r) for r in Runtime])
    day = models.DateField()
    # As exact as prices of 12 digits per million make it.
    cost = models.DecimalField(max_digits=40, decimal_places=18, default=0, help_text="US dollars, estimated.")
    computed_at = models.DateTimeField(default=timezone.now, help_text="When the figure was last another one.")
    alarm_raised_at = models.DateTimeField(null=True)
    alarm_raised_for = models.DecimalField(
        max_digits=14, decimal_places=2, null=True, help_text="The threshold that it passed then."
    )

    class Meta:
        ordering = ("-day", "runtime")
        constraints: ClassVar = [models.UniqueConstraint("runtime", "day", name="daily_cost_once")]

    def __str__(self) -> str:
        return f"{self.runtime} {self.day}"


class UsageStatement(models.Model):
    """The signed totals of a closed period; a later correction is a restatement, a row of its own."""

    id = models.BigAutoField(primary_key=True)
    account_id = models.UUIDField()
    period = models.DateField()
    number = models.PositiveIntegerField(default=1, help_text="1 is the statement, more are restatements.")
    totals = models.JSONField()
    reason = models.CharField(max_length=300, blank=True)
    created_at = models.DateTimeField(default=timezone.now)
    payload = models.TextField(help_text="What is signed, byte for byte.")
    mac = models.CharField(max_length=80)

    class Meta:
        ordering = ("period", "number")
        constraints: ClassVar = [models.UniqueConstraint("account_id", "period", "number", name="statement_number")]

    def __str__(self) -> str:
        return f"{self.account_id} {self.period:%Y-%m} #{self.number}"
