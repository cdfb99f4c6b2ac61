"""Tiers as data: what a customer may do, and the exceptions support grants."""

from __future__ import annotations

from typing import Any, ClassVar

import pghistory
import pgtrigger
from django.conf import settings
from django.core.exceptions import ValidationError
from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models
from django.db.models import F, Q
from django.utils import timezone

from entitlements import rules
from entitlements.enums import Interval

MOST = 10**12  # so that no sum overflows 64 bits


def _limit(help_text: str, **options: Any) -> Any:
    return models.BigIntegerField(
        null=True,
        blank=True,
        validators=[MinValueValidator(0), MaxValueValidator(MOST)],
        help_text=f"{help_text} Empty is unlimited, 0 is none at all.",
        **options,
    )


def _quota(help_text: str) -> Any:
    return models.BigIntegerField(
        null=True,
        blank=True,
        validators=[MinValueValidator(0), MaxValueValidator(MOST)],
        help_text=f"{help_text} Needed, and above 0, where the tool is enabled; empty or 0 where it is not.",
    )


LIMIT_FIELDS = (
    "max_requests_per_period",
    "max_tokens_per_period",
    "max_compute_ms_per_period",
    "max_tool_calls_per_period",
    "max_code_execution_seconds_per_period",
    "max_browser_sessions_per_period",
    "max_agents",
    "max_deployments_per_agent",
    "max_concurrent_invocations",
    "requests_per_minute",
)
FLAG_FIELDS = ("agentcore_enabled", "memory_enabled", "code_interpreter_enabled", "browser_enabled")
RETENTION_FIELDS = ("telemetry_retention_days", "logs_retention_days")
ENTITLEMENT_FIELDS = (*LIMIT_FIELDS, *FLAG_FIELDS, *RETENTION_FIELDS)


@pghistory.track(pghistory.InsertEvent(), pghistory.UpdateEvent(), pghistory.DeleteEvent(), append_only=True)
class Tier(models.Model):
    """One product on the price list. Editing it is in force on the next request."""

    id = models.SmallAutoField(primary_key=True)
    slug = models.SlugField(max_length=40, unique=True)
    name = models.CharField(max_length=60, unique=True)
    description = models.CharField(max_length=200, blank=True)
    rank = models.SmallIntegerField(unique=True, help_text="Order on the price list: an upgrade has a higher rank.")
    is_public = models.BooleanField("public", default=True, help_text="Shown on the price list and suggested.")
    is_default = models.BooleanField("default", default=False, help_text="What an account without a tier has.")
    retired_at = models.DateTimeField(null=True, blank=True, help_text="No longer sold; its accounts keep it.")
    # Raised by the database on every change, so that a receipt names the exact version it was judged by.
    version = models.PositiveIntegerField(default=1, editable=False)

    max_requests_per_period = _limit("Invocations per calendar month (UTC).")
    max_tokens_per_period = _limit("Tokens per calendar month, reported or estimated.")
    max_compute_ms_per_period = _limit("Compute per calendar month, in milliseconds.")

    agentcore_enabled = models.BooleanField("AgentCore", default=False, help_text="May deploy to and invoke on it.")
    memory_enabled = models.BooleanField("AgentCore Memory", default=False)
    code_interpreter_enabled = models.BooleanField("code interpreter", default=False)
    browser_enabled = models.BooleanField("browser", default=False)

    max_tool_calls_per_period = _quota("Tool calls per calendar month.")
    max_code_execution_seconds_per_period = _quota("Code execution per calendar month, in seconds.")
    max_browser_sessions_per_period = _quota("Browser sessions per calendar month.")

    telemetry_retention_days = models.PositiveIntegerField(default=30, validators=[MinValueValidator(1)])
    logs_retention_days = models.PositiveIntegerField(default=7, validators=[MinValueValidator(1)])

    max_agents = _limit("Agents at a time.")
    max_deployments_per_agent = _limit("Kept deployments of one agent.")
    max_concurrent_invocations = _limit("Invocations that run at the same time.")
    requests_per_minute = _limit("Invocations per minute.")

    class Meta:
        ordering = ("rank",)
        constraints: ClassVar = [
            models.UniqueConstraint("is_default", condition=Q(is_default=True), name="tier_one_default"),
            models.CheckConstraint(
                name="tier_limits_in_range",
                condition=Q(*[Q(**{f"{f}__isnull": True}) | Q(**{f"{f}__range": (0, MOST)}) for f in LIMIT_FIELDS]),
            ),
            models.CheckConstraint(
                name="tier_capability_needs_agentcore",
                condition=Q(agentcore_enabled=True)
                | Q(memory_enabled=False, code_interpreter_enabled=False, browser_enabled=False),
            ),
            # `isnull=False` beside `gt`: a check on null is not false, and would pass.
            models.CheckConstraint(
                name="tier_code_interpreter_needs_quotas",
                condition=Q(code_interpreter_enabled=False)
                | Q(
                    max_tool_calls_per_period__isnull=False,
                    max_tool_calls_per_period__gt=0,
                    max_code_execution_seconds_per_period__isnull=False,
                    max_code_execution_seconds_per_period__gt=0,
                ),
            ),
            models.CheckConstraint(
                name="tier_browser_needs_quotas",
                condition=Q(browser_enabled=False)
                | Q(
                    max_tool_calls_per_period__isnull=False,
                    max_tool_calls_per_period__gt=0,
                    max_browser_sessions_per_period__isnull=False,
                    max_browser_sessions_per_period__gt=0,
                ),
            ),
            models.CheckConstraint(
                name="tier_default_is_not_retired", condition=Q(is_default=False) | Q(retired_at__isnull=True)
            ),
            models.CheckConstraint(
                name="tier_keeps_something",
                condition=Q(telemetry_retention_days__gte=1, logs_retention_days__gte=1),
            ),
        ]
        triggers: ClassVar = [
            pgtrigger.Trigger(
                name="tier_counts_versions",
                when=pgtrigger.Before,
                operation=pgtrigger.Update,
                condition=pgtrigger.AnyChange(exclude=["version"]),
                func="NEW.version = OLD.version + 1; RETURN NEW;",
            ),
        ]

    def __str__(self) -> str:
        return self.name

    def values(self) -> rules.TierValues:
        """Return this tier as the frozen value that the rules decide on."""
        return rules.TierValues(
            slug=self.slug,
            name=self.name,
            rank=self.rank,
            version=self.version,
            limits={rules.KEY_OF_FIELD[f]: getattr(self, f) for f in LIMIT_FIELDS},
            flags={rules.KEY_OF_FIELD[f]: getattr(self, f) for f in FLAG_FIELDS},
            retention={rules.KEY_OF_FIELD[f]: getattr(self, f) for f in RETENTION_FIELDS},
        )

    def clean(self) -> None:
        """Say in words what the constraints would refuse."""
        problems = rules.problems_of(self.values())
        if problems:
            raise ValidationError([p.message for p in problems])


@pghistory.track(pghistory.InsertEvent(), pghistory.UpdateEvent(), pghistory.DeleteEvent(), append_only=True)
class TierPrice(models.Model):
    """A Stripe price that buys a tier; one price, one tier. One that is not sold any more still maps."""

    tier = models.ForeignKey(Tier, on_delete=models.PROTECT, related_name="prices")
    price_id = models.CharField("Stripe price id", max_length=255, unique=True)
    interval = models.CharField(max_length=5, choices=[(i, i) for i in Interval], default=Interval.MONTH)
    amount_cents = models.PositiveIntegerField(null=True, help_text="As Stripe says; empty until it was read there.")
    currency = models.CharField(max_length=3, default="usd")
    is_sold = models.BooleanField("sold", default=True, help_text="Off: nobody buys it anew, and who has it keeps it.")

    class Meta:
        ordering = ("tier__rank", "interval", "pk")
        constraints: ClassVar = [
            models.UniqueConstraint(
                "tier", "interval", name="tier_price_sold_once", condition=Q(is_sold=True),
                violation_error_message="This tier has a sold price of this interval already. Stop selling that first.",
            ),
        ]  # fmt: skip

    def __str__(self) -> str:
        return self.price_id


@pghistory.track(pghistory.InsertEvent(), pghistory.UpdateEvent(), pghistory.DeleteEvent(), append_only=True)
class Override(models.Model):
    """One value that support sets for one account, over its tier, with a reason and often an end."""

    account = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="overrides")
    key = models.CharField(max_length=40, choices=[(k.value, k.value) for k in rules.Key])
    value = models.BigIntegerField(
        null=True,
        blank=True,
        validators=[MinValueValidator(0), MaxValueValidator(MOST)],
        help_text="A limit: empty is unlimited, 0 is none. A switch: 1 is on, 0 is off. Retention: days.",
    )
    ends_at = models.DateTimeField(null=True, blank=True, help_text="Empty: until it is removed.")
    reason = models.CharField(max_length=500)
    created_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.SET_NULL, related_name="+"
    )
    created_at = models.DateTimeField(default=timezone.now, editable=False)

    class Meta:
        ordering = ("-created_at",)
        indexes: ClassVar = [models.Index("account", F("id").desc(), name="override_of_account")]
        constraints: ClassVar = [
            models.CheckConstraint(name="override_known_key", condition=Q(key__in=[k.value for k in rules.Key])),
            models.CheckConstraint(
                name="override_value_in_range", condition=Q(value__isnull=True) | Q(value__range=(0, MOST))
            ),
            models.CheckConstraint(
                name="override_switch_is_0_or_1",
                condition=~Q(key__in=sorted(rules.FLAGS)) | Q(value__isnull=False, value__in=(0, 1)),
            ),
            models.CheckConstraint(
                name="override_quota_is_a_number",
                condition=~Q(key__in=sorted(rules.QUOTAS)) | Q(value__isnull=False),
            ),
            models.CheckConstraint(
                name="override_keeps_something",
                condition=~Q(key__in=sorted(rules.RETENTION)) | Q(value__isnull=False, value__gte=1),
            ),
            models.CheckConstraint(name="override_has_reason", condition=~Q(reason="")),
        ]

    def __str__(self) -> str:
        return f"{self.key} = {'unlimited' if self.value is None else self.value}"
