"""The edge for Stripe: a signature is checked over the raw bytes, the event is kept, and only then answered."""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import stripe
from django.conf import settings
from django.db import DatabaseError, connection, transaction

from billing.stripe_api import id_of
from webhost.errors import InvalidRequestError, UnauthenticatedError, UnavailableError, WebhostError
from webhost.notes import worth_noting
from webhost.queue import send_on_commit
from webhost.strict_json import StrictJsonError, parse_strict
from webhost.tracing import current_trace_id

logger = logging.getLogger(__name__)

TOLERANCE_SECONDS: Final = 300
_LONGEST_HEADER: Final = 4096
_PLAIN: Final = re.compile(r"[\x21-\x7e]{1,255}")  # what ids and types of Stripe are made of

# The first delivery of an event is the one that is kept; the database decides which of two at once that is.
_KEEP: Final = """
INSERT INTO billing_stripeevent AS e
       (event_id, type, api_version, customer_id, object_id, created_at, body, state, outcome, attempts)
VALUES (%(event_id)s, %(type)s, %(api_version)s, %(customer_id)s, %(object_id)s, %(created_at)s, %(body)s,
        'pending', '', 0)
ON CONFLICT (event_id) DO UPDATE SET deliveries = e.deliveries + 1
RETURNING e.id, e.state
"""
_NOTE: Final = """
INSERT INTO billing_refuseddelivery AS r (minute, reason, count, address, trace_id)
VALUES (date_trunc('minute', now()), %(reason)s, 1, %(address)s, %(trace)s)
ON CONFLICT (minute, reason) DO UPDATE
   SET count = r.count + 1, address = excluded.address, trace_id = excluded.trace_id
"""


class DeliveryRefusedError(WebhostError):
    """A delivery that is not kept. `reason` is for the operator; the sender learns no more than its kind."""

    def __init__(self, reason: str, answer: WebhostError) -> None:
        super().__init__(answer.message, details=answer.details, status=answer.status, retryable=answer.retryable)
        self.reason = reason
        self.answer = answer


@dataclass(frozen=True)
class Delivered:
    """An event as it was posted: its facts, and its bytes."""

    event_id: str
    type: str
    api_version: str
    customer_id: str
    object_id: str
    created_at: datetime
    body: bytes


def verified(body: bytes, header: str | None) -> Delivered:
    """Return the event of a delivery that Stripe signed for this deployment. Raises DeliveryRefusedError.

    Every configured secret is tried, so that one can be replaced by another; the time that is signed must be
    within five minutes; livemode must be ours.
    """
    secrets = [secret for secret in settings.STRIPE_WEBHOOK_SECRETS if secret.strip()]
    if not secrets:
        raise DeliveryRefusedError("no secret is set", UnavailableError("This endpoint is not set up."))
    _check_signature(body, header, secrets)
    try:
        event = parse_strict(body)
    except StrictJsonError as error:
        raise DeliveryRefusedError("not JSON", InvalidRequestError(str(error), path="")) from error
    facts = _facts(event, body)
    if event.get("livemode") is not settings.STRIPE_LIVEMODE:
        ours = "live" if settings.STRIPE_LIVEMODE else "test"
        message = f"This endpoint takes events of {ours} mode only."
        raise DeliveryRefusedError("of the other mode", InvalidRequestError(message, path="livemode"))
    return facts


def _check_signature(body: bytes, header: str | None, secrets: list[str]) -> None:
    reason = "without a signature" if not header else "wrong signature"
    # The library compares text, which raises on anything but ASCII.
    if header and len(header) <= _LONGEST_HEADER and header.isascii():
        for secret in secrets:
            try:
                stripe.WebhookSignature.verify_header(body.decode(), header, secret, TOLERANCE_SECONDS)
            except UnicodeDecodeError:
                break
            except stripe.SignatureVerificationError as error:
                if "tolerance" in str(error):
                    reason = "too old"
            else:
                return
    raise DeliveryRefusedError(reason, UnauthenticatedError("The signature does not fit this body, or is too old."))


def _facts(event: Any, body: bytes) -> Delivered:
    def refuse(path: str) -> DeliveryRefusedError:
        return DeliveryRefusedError("not an event", InvalidRequestError("This is not an event of Stripe.", path=path))

    if not isinstance(event, dict) or event.get("object") != "event":
        raise refuse("object")
    for name in ("id", "type"):
        if not isinstance(event.get(name), str) or not _PLAIN.fullmatch(event[name]):
            raise refuse(name)
    created = event.get("created")
    if not isinstance(created, int) or isinstance(created, bool) or not 0 <= created < 2**33:
        raise refuse("created")
    data = event.get("data")
    thing = data.get("object") if isinstance(data, dict) else None
    if not isinstance(thing, dict):
        raise refuse("data.object")
    customer = id_of(thing if thing.get("object") == "customer" else thing.get("customer"))
    for path, found in (("data.object.customer", customer), ("data.object.id", id_of(thing))):
        if found and not _PLAIN.fullmatch(found):
            raise refuse(path)
    return Delivered(
        event_id=event["id"],
        type=event["type"][:120],
        api_version=str(event.get("api_version") or "").replace("\x00", "")[:60],
        customer_id=customer,
        object_id=id_of(thing),
        created_at=datetime.fromtimestamp(created, UTC),
        body=body,
    )


def keep_event(delivered: Delivered) -> int:
    """Keep an event, once however often it comes, and wake who applies it on commit; return its row's id."""
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute(_KEEP, vars(delivered))
            row_id, state = cursor.fetchone()
        if state == "pending":
            send_on_commit("billing.apply_event", row_id)
    return int(row_id)


def receive_event(body: bytes, header: str | None, address: str) -> int:
    """Check and keep one delivery; return its row's id. Raises the refusal, which leaves a trace."""
    try:
        delivered = verified(body, header)
    except DeliveryRefusedError as error:
        note_refusal(error.reason, address)
        raise error.answer from error
    return keep_event(delivered)


def note_refusal(reason: str, address: str) -> None:
    """Count a refused delivery. A database that is away is no reason to answer otherwise."""
    if seen := worth_noting(f"stripe {reason}"):
        logger.warning("Refused %d deliveries to the Stripe webhook: %s.", seen, reason)
    try:
        with connection.cursor() as cursor:
            cursor.execute(_NOTE, {"reason": reason, "address": address[:45], "trace": current_trace_id()})
    except DatabaseError:
        logger.warning("The refusal could not be noted: the database is away.")
