"""Keep a signed delivery: verified, read, one insert. Judging it is the work of process.py."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, Final
from uuid import UUID

from telemetry.events import MOST_EVENTS, Batch, Event, MalformedError, parse_delivery, timestamp_issue
from webhost import db
from webhost.errors import ForbiddenError, InvalidRequestError, Issue, NotFoundError, UnauthenticatedError
from webhost.ids import Prefix, parse_id
from webhost.notes import printable, worth_noting
from webhost.queue import send_on_commit
from webhost.signing import Purpose, derive_key, root_keys, verify

logger = logging.getLogger(__name__)

_KEEP_ONE = """
INSERT INTO telemetry_report (deployment_id, event_id, body, item, signature, key_id, received_at, status, reason,
                              attempts, facts)
VALUES (%(deployment)s, %(event)s, %(body)s, 0, %(signature)s, %(key)s, %(at)s, 'pending', '', 0, '')
RETURNING id
"""
# Repeats are kept too: whether one says the same is judged later, against what was accepted.
_KEEP_MANY = """
WITH given AS (
    SELECT * FROM unnest(%(events)s::bytea[], %(items)s::int[]) AS g(event_id, item)
), delivery AS (
    INSERT INTO telemetry_delivery (deployment_id, body, received_at) VALUES (%(deployment)s, %(body)s, %(at)s)
    RETURNING id
), kept AS (
    INSERT INTO telemetry_report (deployment_id, event_id, body, delivery_id, item, signature, key_id, received_at,
                                  status, reason, attempts, facts)
    SELECT %(deployment)s, g.event_id, '', d.id, g.item, %(signature)s, %(key)s, %(at)s, 'pending', '', 0, ''
      FROM given g CROSS JOIN delivery d ORDER BY g.item
)
SELECT item FROM given g
 WHERE EXISTS (SELECT FROM telemetry_report r WHERE r.deployment_id = %(deployment)s AND r.event_id = g.event_id
                  AND r.status = 'accepted')
    OR EXISTS (SELECT FROM telemetry_report r WHERE r.deployment_id = %(deployment)s AND r.event_id = g.event_id
                  AND r.status = 'pending')
"""


class ItemStatus(StrEnum):
    """What the edge can say about one event of a batch at once."""

    ACCEPTED = "accepted"
    DUPLICATE = "duplicate"
    INVALID = "invalid"


@dataclass(frozen=True)
class Item:
    """One event of a batch, in its place."""

    index: int
    event_id: bytes | None
    status: ItemStatus
    issues: Sequence[Issue] = ()


@dataclass(frozen=True)
class Kept:
    """What was kept: one event, or the items of a batch."""

    items: tuple[Item, ...]
    is_single: bool


def receive_reports(*, deployment_header: str | None, signature: str | None, body: bytes, at: datetime) -> Kept:
    """Verify and keep what a workload sent, and wake the task that judges it.

    Reads no row before the signature fits. Raises UnauthenticatedError (401), InvalidRequestError (400, 413),
    ForbiddenError (403), UnavailableError (503); then nothing was kept.
    """
    deployment_id, key_id = _signer_of(deployment_header, signature, body)
    try:
        batch = parse_delivery(body)
    except MalformedError as error:
        raise InvalidRequestError(str(error), path="") from error
    if len(batch.items) > MOST_EVENTS:
        raise InvalidRequestError(f"A batch has at most {MOST_EVENTS} events.", path="events", status=413)
    signed = {"deployment": deployment_id, "body": body, "signature": signature, "key": key_id, "at": at}
    kept = _keep_one(batch, signed) if batch.is_single else _keep_many(batch, signed)
    if any(item.status is not ItemStatus.INVALID for item in kept.items):
        wake_processing()
    return kept


def _signer_of(deployment_header: str | None, signature: str | None, body: bytes) -> tuple[UUID, str]:
    """Return the deployment that signed, and with which root key's: whichever of ours fits."""
    try:
        deployment_id = parse_id(Prefix.DEPLOYMENT, deployment_header)
    except NotFoundError:
        raise UnauthenticatedError("X-Telemetry-Deployment-Id does not name a deployment.") from None
    for key_id, root in root_keys().items():
        if verify(derive_key(root, Purpose.TELEMETRY, str(deployment_header)), body, signature):
            return deployment_id, key_id
    raise UnauthenticatedError("X-Telemetry-Signature does not fit the body.")


def _keep_one(batch: Batch, signed: Mapping[str, Any]) -> Kept:
    event = batch.items[0]
    if not isinstance(event, Event):
        raise InvalidRequestError("The event is not valid.", issues=event)
    if event.deployment_id != signed["deployment"]:
        raise ForbiddenError("The event names another deployment than the header.")
    if issue := timestamp_issue(event.at, signed["at"]):
        raise InvalidRequestError("The event is not valid.", issues=[issue])
    db.run(_KEEP_ONE, {**signed, "event": event.event_id})
    return Kept((Item(0, event.event_id, ItemStatus.ACCEPTED),), is_single=True)


def _keep_many(batch: Batch, signed: Mapping[str, Any]) -> Kept:
    good: dict[int, Event] = {}
    items: dict[int, Item] = {}
    for index, event in enumerate(batch.items):
        issues = _issues_of(event, signed["deployment"], signed["at"])
        if issues or not isinstance(event, Event):
            event_id = event.event_id if isinstance(event, Event) else None
            items[index] = Item(index, event_id, ItemStatus.INVALID, issues)
        else:
            good[index] = event
    if good:
        parameters = {**signed, "events": [e.event_id for e in good.values()], "items": list(good)}
        repeats = {row["item"] for row in db.run(_KEEP_MANY, parameters)}
        seen: set[bytes] = set()
        for index, event in good.items():
            repeated = index in repeats or event.event_id in seen
            items[index] = Item(index, event.event_id, ItemStatus.DUPLICATE if repeated else ItemStatus.ACCEPTED)
            seen.add(event.event_id)
    return Kept(tuple(items[index] for index in sorted(items)), is_single=False)


def _issues_of(event: Event | list[Issue], deployment_id: UUID, at: datetime) -> list[Issue]:
    if not isinstance(event, Event):
        return event
    if event.deployment_id != deployment_id:
        return [{"path": "deploymentId", "message": "It is not the deployment that signed."}]
    issue = timestamp_issue(event.at, at)
    return [issue] if issue else []


# --- Waking ----------------------------------------------------------------------------------------

_WAKE_AFTER: Final = 0.05
_wake_lock = threading.Lock()
_is_waking = False


def wake_processing() -> None:
    """Wake the task soon, once for everything that arrives meanwhile; a request never waits for the broker."""
    global _is_waking  # noqa: PLW0603 - at most one wake-up in flight per process
    with _wake_lock:
        if _is_waking:
            return
        _is_waking = True
    timer = threading.Timer(_WAKE_AFTER, _wake)
    timer.daemon = True
    timer.start()


def _wake() -> None:
    global _is_waking  # noqa: PLW0603 - see wake_processing
    # Cleared before sending: what is kept from here on arms the next one, so none is missed.
    with _wake_lock:
        _is_waking = False
    send_on_commit("telemetry.process_reports")


# --- What was refused -------------------------------------------------------------------------------


def note_refusal(code: str, deployment_header: str | None) -> None:
    """Leave a note of a refused delivery in the log, at most one per kind in ten seconds, with their number."""
    if count := worth_noting(f"delivery {code}"):
        logger.warning("Refused %d usage deliveries as %s, the last for %r.", count, code, printable(deployment_header))
