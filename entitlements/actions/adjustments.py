"""Give usage back, or add it, by an audited adjustment: the counter moves with its own receipt, and is never edited."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Final
from uuid import UUID

from django.db import connection
from django.utils import timezone

from entitlements import ledger
from entitlements.actions.authorship import ChangeSource, written_by
from entitlements.models import IdempotencyRecord, PeriodCounter
from entitlements.models.ledger import MEASURES
from entitlements.models.tiers import MOST
from webhost.errors import ConflictError, InvalidRequestError, NotFoundError
from webhost.period import key_of, period_of

# What each measure of the ledger is called where it is too little or too much; code execution is kept in ms.
NOUNS: Final[Mapping[str, str]] = {
    "requests": "requests", "tokens": "tokens", "compute_ms": "milliseconds of compute", "tool_calls": "tool calls",
    "code_ms": "milliseconds of code execution", "browser_sessions": "browser sessions",
}  # fmt: skip
_OPERATION: Final = "admin.adjust"
# So long the same form, sent again, is recognised.
_REMEMBERED: Final = timedelta(hours=24)


@dataclass(frozen=True)
class Closing:
    """What stands in the way of moving a month that is over: a statement of it, which may be restated or not."""

    said: str
    may_restate: bool


# Whoever states closed months says here whether one may still move: (account, period, now) -> Closing or None.
CLOSINGS: Final[list[Callable[[UUID, date, datetime], Closing | None]]] = []


@dataclass(frozen=True)
class Adjusted:
    """What an adjustment moved: used before and after, for each measure that it names."""

    adjustment_id: int
    before: Mapping[str, int]
    after: Mapping[str, int]


def problems_of_adjustment(used: Mapping[str, int], change: Mapping[str, int]) -> list[str]:
    """Say what is wrong with giving back or adding so much, where so much is used; pure."""
    if not any(change.values()):
        return ["Say how much of something to give back or to add."]
    found = []
    for measure, moved in change.items():
        now, then = used.get(measure, 0), used.get(measure, 0) + moved
        if then < 0:
            found.append(f"Only {now:,} {NOUNS[measure]} are used: {-moved:,} cannot be given back.")
        if then > MOST:
            found.append(f"{then:,} {NOUNS[measure]} would be more than a counter holds.")
    return found


def used_in(account_id: UUID, period: date) -> dict[str, int] | None:
    """Return what an account used in a month, by the ledger's measures; None where nothing ever began in it."""
    counter = PeriodCounter.objects.filter(account_id=account_id, period=period).first()
    return None if counter is None else {m: getattr(counter, f"used_{m}") for m in MEASURES}


def adjustable_periods(account_id: UUID, *, most: int = 12) -> Sequence[date]:
    """Return the months in which an account has a counter, the newest first."""
    rows = PeriodCounter.objects.filter(account_id=account_id).order_by("-period")
    return list(rows.values_list("period", flat=True)[:most])


def closing_of(account_id: UUID, period: date, now: datetime) -> Closing | None:
    """Return what stands in the way of moving this month; None while it is open."""
    return next((found for ask in CLOSINGS if (found := ask(account_id, period, now))), None)


def adjust_usage(
    account_id: UUID,
    period: date,
    change: Mapping[str, int],
    *,
    once: str,
    restate: bool = False,
    actor: str,
    reason: str,
    source: ChangeSource = ChangeSource.ADMIN,
) -> Adjusted:
    """Move a month's counter by `change` (negative gives back), in force at once: one adjustment, one audit entry.

    `once` names this decision: sent a second time within a day it changes nothing and raises ConflictError. Raises
    InvalidRequestError below zero and for a month that stands, ConflictError for one that is stated unless `restate`.
    """
    if not set(change) <= set(MEASURES):
        raise InvalidRequestError("This is no measure of the ledger.", path="change")
    if period > period_of(timezone.now()):
        raise InvalidRequestError("This month has not begun.", path="period")
    closing = closing_of(account_id, period, timezone.now())
    if closing is not None and not closing.may_restate:
        raise InvalidRequestError(closing.said, path="period")
    if closing is not None and not restate:
        raise ConflictError(closing.said)
    with written_by(actor, reason, source):
        _once(account_id, once)
        # Locked, so that what is checked is what moves; the calls of this account wait for it, some milliseconds.
        counter = (
            PeriodCounter.objects.select_for_update(no_key=True).filter(account_id=account_id, period=period).first()
        )
        if counter is None:
            raise NotFoundError(f"Nothing was used in {key_of(period)}: there is nothing to adjust.")
        moved = {m: change.get(m, 0) for m in MEASURES}
        before = {m: int(getattr(counter, f"used_{m}")) for m in MEASURES}
        wrong = problems_of_adjustment(before, moved)
        if wrong:
            raise InvalidRequestError(" ".join(wrong), path="change")
        with connection.cursor() as cursor:
            cursor.execute(
                ledger.SQL["adjust"],
                {"account": account_id, "period": period, "actor": actor, "reason": reason.strip(), **moved},
            )
            (adjustment_id,) = cursor.fetchone()
    named = [m for m in MEASURES if moved[m]]
    return Adjusted(adjustment_id, {m: before[m] for m in named}, {m: before[m] + moved[m] for m in named})


def _once(account_id: UUID, key: str) -> None:
    """Take a key for good; the second of two waits for the first, then raises. Goes with the transaction."""
    if not key.strip():
        raise InvalidRequestError("Please open the form again.", path="once")
    now = timezone.now()
    digest = hashlib.sha256(key.encode()).digest()
    _, made = IdempotencyRecord.objects.get_or_create(
        account_id=account_id, operation=_OPERATION, key_digest=digest,
        defaults={
            "body_digest": digest, "state": IdempotencyRecord.State.DONE, "created_at": now,
            "expires_at": now + _REMEMBERED,
        },
    )  # fmt: skip
    if not made:
        raise ConflictError("This was adjusted already: the form was sent twice. Nothing was adjusted again.")
