"""The receipts of invocations: what was decided, by which limits, what was used, how it ended."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db.models import QuerySet

from entitlements.enums import Outcome
from entitlements.models import Admission
from runtimes.models import Agent
from webhost.errors import InvalidRequestError, NotFoundError
from webhost.period import period_of


@dataclass(frozen=True)
class ReceiptFilter:
    """Which receipts: of one agent, with one outcome, admitted in `[since, until)`."""

    agent_id: UUID | None = None
    outcome: Outcome | None = None
    since: datetime | None = None
    until: datetime | None = None


def receipts_of(account_id: UUID, chosen: ReceiptFilter) -> QuerySet[Admission]:
    """Return an account's receipts, to be listed by period and id, which lead its index.

    Raises NotFoundError for an agent that is not the account's, InvalidRequestError for an empty span.
    """
    if chosen.since and chosen.until and chosen.until <= chosen.since:
        raise InvalidRequestError("`to` is after `from`.", path="to")
    # A deleted agent keeps its receipts.
    if chosen.agent_id and not Agent.objects.filter(pk=chosen.agent_id, account_id=account_id).exists():
        raise NotFoundError
    wanted: dict[str, Any] = {"agent_id": chosen.agent_id, "outcome": chosen.outcome}
    found = Admission.objects.filter(account_id=account_id, **{k: v for k, v in wanted.items() if v is not None})
    # The period leads the index, so a span of time is one of periods too.
    if chosen.since:
        found = found.filter(admitted_at__gte=chosen.since, period__gte=period_of(chosen.since))
    if chosen.until:
        found = found.filter(admitted_at__lt=chosen.until, period__lte=period_of(chosen.until))
    return found


def receipt_of(account_id: UUID, invocation_id: UUID) -> Admission:
    """Return one receipt; raises NotFoundError for nobody's and somebody else's alike."""
    receipt = Admission.objects.filter(pk=invocation_id, account_id=account_id).first()
    if receipt is None:
        raise NotFoundError
    return receipt
