"""The ledger: one hot counter a month, one row per invocation, and what refusals leave behind.

The law: a verb changes one admission, and the counter follows by what the admission changed. A row
trigger keeps it, so that no verb, repair or raw SQL can forget it. No foreign keys on the hot tables:
a key check locks account and agent rows behind the counter and closes a cycle with account deletion.
"""

from __future__ import annotations

from typing import Any, ClassVar

import pghistory
import pgtrigger
from django.contrib.postgres.indexes import BrinIndex
from django.db import models
from django.db.models import Case, F, Q, Value, When
from django.db.models.functions import Greatest, Now
from django.utils import timezone

from entitlements.enums import LimitType, Outcome, Runtime, Source

MEASURES = ("requests", "tokens", "compute_ms", "tool_calls", "code_ms", "browser_sessions")
HELD_MEASURES = MEASURES[1:]  # a request is counted at once, so it is never held
TOOL_MEASURES = MEASURES[3:]


def _count(**options: Any) -> Any:
    return models.BigIntegerField(default=0, db_default=0, **options)


def _number() -> Any:
    return models.BigIntegerField(null=True)


def _still_held(measure: str) -> Any:
    """Return what is still set aside of a hold: the part that use has not reached yet, while it is open."""
    return models.GeneratedField(
        expression=Case(
            When(outcome=Outcome.OPEN, then=Greatest(F(f"held_{measure}") - F(f"charged_{measure}"), Value(0))),
            default=Value(0),
        ),
        output_field=models.BigIntegerField(),
        db_persist=True,
    )


class PeriodCounter(models.Model):
    """Used and held per measure of one account in one calendar month (UTC); opened by the first call."""

    pk = models.CompositePrimaryKey("account_id", "period")
    account_id = models.UUIDField()
    period = models.DateField(help_text="First day of the month, UTC.")
    used_requests = _count()
    used_tokens = _count()
    used_compute_ms = _count()
    used_tool_calls = _count()
    used_code_ms = _count()
    used_browser_sessions = _count()
    held_tokens = _count()
    held_compute_ms = _count()
    held_tool_calls = _count()
    held_code_ms = _count()
    held_browser_sessions = _count()
    in_flight = _count()
    # The rate per minute, exact and in the same statement: how many were admitted in this minute.
    minute = models.DateTimeField(null=True)
    minute_requests = _count()

    class Meta:
        constraints: ClassVar = [
            models.CheckConstraint(
                name="counter_never_negative",
                condition=Q(
                    *[Q(**{f"used_{m}__gte": 0}) for m in MEASURES],
                    *[Q(**{f"held_{m}__gte": 0}) for m in HELD_MEASURES],
                    in_flight__gte=0,
                ),
            ),
        ]

    def __str__(self) -> str:
        return f"{self.account_id} {self.period:%Y-%m}"


_MOVED = ("outcome", *[f"held_{m}" for m in HELD_MEASURES], *[f"charged_{m}" for m in MEASURES])
_FOLLOWED = ("id", "account_id", "period", *_MOVED)

# Built from our own column names only.
COUNTER_FOLLOWS = f"""
IF (NEW.id, NEW.account_id, NEW.period, {", ".join(f"NEW.held_{m}" for m in HELD_MEASURES)})
   <> (OLD.id, OLD.account_id, OLD.period, {", ".join(f"OLD.held_{m}" for m in HELD_MEASURES)})
   OR (NEW.outcome <> OLD.outcome AND OLD.outcome <> 'open' AND (OLD.outcome, NEW.outcome) <> ('voided', 'failed'))
   -- Only an estimate that nobody has observed yet may be replaced downwards, once.
   OR NOT (OLD.estimate_stands AND NOT NEW.estimate_stands)
      AND (NEW.charged_compute_ms < OLD.charged_compute_ms
           OR NEW.charged_tokens < OLD.charged_tokens
              AND NOT (OLD.tokens_estimated AND OLD.observed_at IS NULL AND NEW.observed_at IS NOT NULL)
           OR ({" OR ".join(f"NEW.charged_{m} < OLD.charged_{m}" for m in TOOL_MEASURES)})
              AND NOT (OLD.tools_estimated AND NOT NEW.tools_estimated)) THEN
    RAISE EXCEPTION 'admission %: nobody moves, lowers or reopens one', OLD.id;
END IF;
UPDATE entitlements_periodcounter c SET
    {", ".join(f"used_{m} = c.used_{m} + NEW.charged_{m} - OLD.charged_{m}" for m in MEASURES)},
    {", ".join(f"held_{m} = c.held_{m} + NEW.holding_{m} - OLD.holding_{m}" for m in HELD_MEASURES)},
    in_flight = c.in_flight + NEW.running - OLD.running
 WHERE c.account_id = NEW.account_id AND c.period = NEW.period;
IF NOT FOUND THEN
    RAISE EXCEPTION 'admission %: its counter is gone', OLD.id;
END IF;
-- What is closed is journalled for the roll-ups: whole when it closes, then by what it moved.
IF NEW.outcome NOT IN ('open', 'voided') THEN
    INSERT INTO entitlements_movement (account_id, agent_id, deployment_id, runtime, hour,
        {", ".join(MEASURES)}, errors, error_class, latency_ms)
    SELECT NEW.account_id, NEW.agent_id, NEW.deployment_id, NEW.runtime, date_trunc('hour', NEW.admitted_at, 'UTC'),
        {", ".join(f"NEW.charged_{m} - (CASE WHEN whole THEN 0 ELSE OLD.charged_{m} END)" for m in MEASURES)},
        CASE WHEN whole AND NEW.outcome <> 'succeeded' THEN 1 ELSE 0 END,
        CASE WHEN whole AND NEW.outcome <> 'succeeded' THEN coalesce(NEW.error_class, NEW.outcome) ELSE '' END,
        CASE WHEN whole THEN NEW.latency_ms END
      FROM (SELECT OLD.outcome IN ('open', 'voided') AS whole) w;
END IF;
RETURN NULL;
"""  # noqa: S608


# Stated with the query too, word for word: only then does the planner see that the small indexes answer it.
WENT_WRONG = (Outcome.FAILED, Outcome.VOIDED, Outcome.EXPIRED)
_WENT_WRONG = Q(outcome__in=[str(outcome) for outcome in WENT_WRONG])


class Admission(models.Model):
    """One admitted invocation: the receipt of the decision, the hold, and the usage record in one row."""

    id = models.UUIDField(primary_key=True)
    account_id = models.UUIDField()
    agent_id = models.UUIDField()
    deployment_id = models.UUIDField()
    token_id = models.UUIDField(null=True)
    runtime = models.CharField(max_length=20)
    source = models.CharField(max_length=10, choices=[(s, s) for s in Source], db_default=Source.GATEWAY)
    period = models.DateField()
    tier = models.CharField(max_length=40, blank=True)
    tier_version = models.PositiveIntegerField(null=True)
    overrides = models.JSONField(null=True, help_text="The live overrides it was judged by: key -> id and value.")
    admitted_at = models.DateTimeField()
    expires_at = models.DateTimeField()
    observed_at = models.DateTimeField(null=True)
    settled_at = models.DateTimeField(null=True)
    outcome = models.CharField(max_length=10, choices=[(o, o) for o in Outcome], db_default=Outcome.OPEN)
    error_class = models.CharField(max_length=80, null=True)  # noqa: DJ001 - null: no error, which is not an empty name
    latency_ms = models.IntegerField(null=True)
    trace_id = models.CharField(max_length=40, db_default="")
    session_id = models.CharField(max_length=256, db_default="")
    delegated_by = models.CharField(max_length=32, db_default="", help_text="The trusted backend that called for it.")

    # The receipt: the limits it was judged by, and used + held just after, its own hold included.
    limit_requests = _number()
    limit_tokens = _number()
    limit_compute_ms = _number()
    limit_tool_calls = _number()
    limit_code_ms = _number()
    limit_browser_sessions = _number()
    limit_in_flight = _number()
    limit_minute = _number()
    then_requests = _number()
    then_tokens = _number()
    then_compute_ms = _number()
    then_tool_calls = _number()
    then_code_ms = _number()
    then_browser_sessions = _number()
    then_in_flight = _number()
    then_minute = _number()

    # What was set aside at admission; it never changes afterwards.
    held_tokens = _count()
    held_compute_ms = _count()
    held_tool_calls = _count()
    held_code_ms = _count()
    held_browser_sessions = _count()

    # What counts.
    charged_requests = models.BigIntegerField(default=1, db_default=1)
    charged_tokens = _count()
    charged_compute_ms = _count()
    charged_tool_calls = _count()
    charged_code_ms = _count()
    charged_browser_sessions = _count()
    tokens_estimated = models.BooleanField(db_default=False, help_text="Nobody reported tokens: counted from the text.")
    tools_estimated = models.BooleanField(
        db_default=False, help_text="Tools are charged at the hold: the provider could not be asked yet."
    )
    estimate_stands = models.BooleanField(db_default=False, help_text="Charged at the hold; nobody observed it yet.")

    # What was observed while an estimate stood in its place; what replaces the estimate does not go below it.
    floor_tokens = _number()
    floor_compute_ms = _number()
    floor_tool_calls = _number()
    floor_code_ms = _number()
    floor_browser_sessions = _number()

    # What the gateway signed when it closed the row, and how many signed reports were folded in.
    settlement = models.CharField(max_length=300, db_default="")
    settlement_mac = models.CharField(max_length=80, db_default="")
    reports = models.PositiveIntegerField(db_default=0)

    running = models.GeneratedField(
        expression=Case(When(outcome=Outcome.OPEN, then=Value(1)), default=Value(0)),
        output_field=models.BigIntegerField(),
        db_persist=True,
    )
    holding_tokens = _still_held("tokens")
    holding_compute_ms = _still_held("compute_ms")
    holding_tool_calls = _still_held("tool_calls")
    holding_code_ms = _still_held("code_ms")
    holding_browser_sessions = _still_held("browser_sessions")

    class Meta:
        verbose_name = "invocation"
        indexes: ClassVar = [
            models.Index("account_id", "period", "id", name="admission_of_account"),
            models.Index("expires_at", condition=Q(outcome=Outcome.OPEN), name="admission_open"),
            # A deployment's recent use, for estimates, and whose a tool's session was.
            models.Index(
                "deployment_id",
                "id",
                condition=Q(runtime=Runtime.AGENTCORE) | Q(held_compute_ms__gt=0),
                name="admission_of_deployment",
            ),
            models.Index("deployment_id", condition=Q(tools_estimated=True), name="admission_tools_unseen"),
            # What support asks for: the call of a trace id, and what went wrong, which is rare. Every index here is
            # written twice per invocation: these three cost 2 % of it, one more over all calls of an agent cost 5 %,
            # so those are found among its account's.
            models.Index("trace_id", condition=~Q(trace_id=""), name="admission_of_trace"),
            models.Index("id", condition=_WENT_WRONG, name="admission_went_wrong"),
            models.Index("agent_id", "id", condition=_WENT_WRONG, name="admission_wrong_of_agent"),
            # An hour of receipts among millions, for charts by the minute. It keeps two times per 32 pages and nothing
            # per row, so a write does not feel it.
            BrinIndex(fields=["admitted_at"], autosummarize=True, pages_per_range=32, name="admission_by_time"),
        ]
        constraints: ClassVar = [
            # The promise, kept by the database: no admission of the gateway ever passed a limit it was
            # judged by. A comparison with null (unlimited) is null, and null satisfies a check.
            models.CheckConstraint(
                name="admission_within_limits",
                condition=Q(source=Source.REPORT)
                | Q(
                    *[
                        Q(**{f"limit_{m}__isnull": True}) | Q(**{f"then_{m}__lte": F(f"limit_{m}")})
                        for m in (*MEASURES, "in_flight", "minute")
                    ]
                ),
            ),
            models.CheckConstraint(
                name="admission_never_negative",
                condition=Q(
                    *[Q(**{f"held_{m}__gte": 0, f"charged_{m}__gte": 0}) for m in HELD_MEASURES],
                    charged_requests__in=(0, 1),
                ),
            ),
            models.CheckConstraint(
                name="admission_voided_counts_nothing",
                condition=Q(charged_requests=1) & ~Q(outcome=Outcome.VOIDED)
                | Q(charged_requests=0, outcome=Outcome.VOIDED, **{f"charged_{m}": 0 for m in HELD_MEASURES}),
            ),
            models.CheckConstraint(name="admission_known_outcome", condition=Q(outcome__in=list(Outcome))),
        ]
        triggers: ClassVar = [
            pgtrigger.Trigger(
                name="counter_follows",
                when=pgtrigger.After,
                operation=pgtrigger.UpdateOf(*_FOLLOWED),  # type: ignore[no-untyped-call]  # untyped library
                func=COUNTER_FOLLOWS,
            ),
        ]

    def __str__(self) -> str:
        return f"inv_{self.id.hex}"


class Movement(models.Model):
    """A journal line of the ledger that no roll-up has taken yet; consumed exactly once."""

    id = models.BigAutoField(primary_key=True)
    account_id = models.UUIDField()
    agent_id = models.UUIDField()
    deployment_id = models.UUIDField()
    runtime = models.CharField(max_length=20)
    hour = models.DateTimeField()
    requests = _count()
    tokens = _count()
    compute_ms = _count()
    tool_calls = _count()
    code_ms = _count()
    browser_sessions = _count()
    errors = _count()
    error_class = models.CharField(max_length=80, db_default="")
    latency_ms = models.IntegerField(null=True)

    def __str__(self) -> str:
        return f"{self.account_id} {self.hour:%Y-%m-%dT%H}"


@pghistory.track(pghistory.InsertEvent(), pghistory.UpdateEvent(), pghistory.DeleteEvent(), append_only=True)
class Adjustment(models.Model):
    """An audited correction by staff: used = sum(charged) + sum(adjusted)."""

    id = models.BigAutoField(primary_key=True)
    account_id = models.UUIDField()
    period = models.DateField()
    requests = _count()
    tokens = _count()
    compute_ms = _count()
    tool_calls = _count()
    code_ms = _count()
    browser_sessions = _count()
    actor = models.CharField(max_length=254)
    reason = models.CharField(max_length=500)
    created_at = models.DateTimeField(default=timezone.now, db_default=Now())

    class Meta:
        indexes: ClassVar = [models.Index("account_id", "period", name="adjustment_of_account")]
        constraints: ClassVar = [models.CheckConstraint(name="adjustment_has_reason", condition=~Q(reason=""))]

    def __str__(self) -> str:
        return f"{self.account_id} {self.period:%Y-%m}: {self.reason}"


class Denial(models.Model):
    """How often one account met one limit in one minute: a refusal is a receipt too, but never a flood."""

    id = models.BigAutoField(primary_key=True)
    account_id = models.UUIDField()
    limit_type = models.CharField(max_length=40, choices=[(t, t) for t in LimitType])
    period = models.DateField()
    minute = models.DateTimeField()
    count = models.PositiveBigIntegerField(default=0)
    agent_id = models.UUIDField(null=True, help_text="The last agent that met it.")
    trace_id = models.CharField(max_length=40, blank=True, help_text="The last trace that met it.")
    tier = models.CharField(
        max_length=40, blank=True, default="", db_default="",
        help_text="The tier that it was judged by, the last one of the minute; empty: not recorded.",
    )  # fmt: skip

    class Meta:
        verbose_name = "refusal"
        ordering = ("-minute",)
        constraints: ClassVar = [
            models.UniqueConstraint("account_id", "limit_type", "minute", name="denial_once_a_minute"),
        ]
        indexes: ClassVar = [
            # Whole, so that counting who met what in a week reads no table.
            models.Index("minute", include=("account_id", "limit_type", "tier", "count"), name="denial_by_time"),
            models.Index("account_id", F("minute").desc(), name="denial_of_account"),
            models.Index("agent_id", F("minute").desc(), condition=Q(agent_id__isnull=False), name="denial_of_agent"),
            models.Index("trace_id", condition=~Q(trace_id=""), name="denial_of_trace"),
        ]

    def __str__(self) -> str:
        return f"{self.limit_type} x{self.count}"


class DenialFigure(Denial):
    """How many accounts met which limit, by tier and day: a right of its own, to see numbers and no names."""

    class Meta:
        proxy = True
        default_permissions = ("view",)
        verbose_name = "figure of refusals"
        verbose_name_plural = "figures of refusals"
