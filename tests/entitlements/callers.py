"""Somebody who invokes, for tests of the ledger: an account on a tier of its own, an agent, a deployment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from typing import Any
from uuid import UUID, uuid4

from django.conf import settings

from entitlements import ledger
from entitlements.actions.admit import admit
from entitlements.enums import LimitType, Outcome, Runtime
from entitlements.models import Admission, PeriodCounter
from tests.factories import make_account, make_tier
from webhost import db
from webhost.errors import WebhostError
from webhost.ids import new_id
from webhost.period import period_of

SUCCEEDED, FAILED = Outcome.SUCCEEDED, Outcome.FAILED


def used(**measures: Any) -> ledger.Usage:
    """Return what an observer saw."""
    return ledger.Usage(**measures)


@dataclass(frozen=True)
class Caller:
    """What the ledger knows of a caller. Small and without a connection, so that it can go to another process."""

    account_id: UUID
    agent_id: UUID
    deployment_id: UUID
    runtime: str = Runtime.CLOUDFLARE
    timeout_seconds: int = 60
    tools: frozenset[LimitType] = frozenset()
    capabilities: frozenset[str] = frozenset()

    def but(self, **changes: Any) -> Caller:
        """Return the same caller with another deployment, runtime, timeout or tools."""
        return replace(self, **changes)

    @property
    def subject(self) -> ledger.Subject:
        return ledger.Subject(
            self.account_id,
            self.agent_id,
            self.deployment_id,
            self.runtime,
            self.timeout_seconds,
            capabilities=self.capabilities,
            tools=self.tools,
        )

    def admit(self, *, again: UUID | None = None, at: datetime | None = None, **estimate: int) -> UUID:
        """Ask for one invocation, or again for the same; return its id, or raise the refusal."""
        admission_id = again or new_id()
        admit(admission_id, self.subject, estimate=ledger.Usage(**estimate), at=at)
        return admission_id

    def refusal(self, *, at: datetime | None = None, **estimate: int) -> WebhostError | None:
        """Ask for one invocation; return the refusal, or None where it was admitted."""
        try:
            self.admit(at=at, **estimate)
        except WebhostError as error:
            return error
        return None

    def call(self, *, at: datetime | None = None, **usage: int) -> UUID:
        """Make one whole invocation that succeeds and uses this much."""
        admission_id = self.admit(at=at)
        ledger.settle(admission_id, SUCCEEDED, ledger.Usage(**usage))
        return admission_id

    def report(self, admission_id: UUID, *, trusted: bool = True, **usage: int) -> Mapping[str, Any] | None:
        """Fold one accepted report into an admission."""
        return ledger.observe(admission_id, self.deployment_id, ledger.Usage(**usage), trusted=trusted)

    def adopt(
        self, admission_id: UUID, at: datetime, *, outcome: Outcome = SUCCEEDED, **usage: int
    ) -> list[dict[str, Any]]:
        """Take up a report whose invocation is unknown."""
        parameters = {
            "id": admission_id, "account": self.account_id, "agent": self.agent_id, "deployment": self.deployment_id,
            "runtime": self.runtime, "at": at, "outcome": outcome.value, "error_class": None, "trace": "",
        }  # fmt: skip
        return db.run(ledger.SQL["adopt"], parameters | ledger.Usage(**usage).measures())

    def adjust(
        self, period: date, *, requests: int = 0, reason: str = "Goodwill", **usage: int
    ) -> list[dict[str, Any]]:
        """Give back (negative) or add, as staff do."""
        parameters = {
            "account": self.account_id,
            "period": period,
            "requests": requests,
            "actor": "stella",
            "reason": reason,
        }
        return db.run(ledger.SQL["adjust"], parameters | ledger.Usage(**usage).measures())

    def counter(self, period: date | None = None) -> PeriodCounter:
        """Return the counter of a period, by default of this one; a new and empty one where there is no row."""
        period = period or period_of(datetime.now(UTC))
        found = PeriodCounter.objects.filter(account_id=self.account_id, period=period).first()
        return found or PeriodCounter(account_id=self.account_id, period=period)

    def differences(self) -> list[ledger.Difference]:
        """Return the counters of this caller that do not equal their admissions."""
        return ledger.verify(account_id=self.account_id)


def alice(**tier: Any) -> Caller:
    """Return a caller whose tier is unlimited in all that is not said."""
    return somebody("alice", **tier)


def somebody(who: str, **tier: Any) -> Caller:
    """Return a caller with another name."""
    return Caller(make_account(who, make_tier(**tier)).id, uuid4(), uuid4())


def receipt(admission_id: UUID) -> Admission:
    """Return an admission as the database has it."""
    return Admission.objects.get(pk=admission_id)


def expire(admission_id: UUID, caller: Caller) -> bool:
    """Close one admission as overdue, as the periodic task would once its time is up."""
    row = receipt(admission_id)
    assert (
        row.expires_at.timestamp() - row.admitted_at.timestamp()
        == caller.timeout_seconds + settings.OVERDUE_GRACE_SECONDS
    )
    return bool(db.run(ledger.SQL["expire"], {"id": admission_id, "at": row.expires_at}))
