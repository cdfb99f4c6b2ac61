"""Idempotency-Key: a repeated request is answered as the first one was, and does nothing twice.

A row per account, operation and key says what became of the first request. It is written before anything
happens and carries the id of what is about to be made (an invocation, an agent, ...). So when a process
dies half-way, the id says whether anything happened: then its outcome is answered; if nothing did, the
repeat may try. Kept answers can be read only with the caller's own token and key (contracts.md, Resources).
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from http import HTTPStatus
from typing import Any, Final
from uuid import UUID

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from drf_spectacular.utils import OpenApiParameter
from rest_framework.renderers import JSONRenderer
from rest_framework.request import Request
from rest_framework.response import Response

from entitlements import ledger
from entitlements.authentication import caller_of
from entitlements.enums import Outcome
from entitlements.rules import valid_idempotency_key
from webhost import db
from webhost.errors import ConflictError, InvalidRequestError, UnavailableError, WebhostError
from webhost.ids import Prefix, public_id
from webhost.signing import digest
from webhost.tracing import current_trace_id
from webhost.wire import envelope_of

HEADER: Final = "Idempotency-Key"
_KEY_IN_META: Final = "HTTP_IDEMPOTENCY_KEY"  # `request.headers` would read all of them to find one
IDEMPOTENCY_PARAMETER: Final = OpenApiParameter(
    HEADER, str, OpenApiParameter.HEADER, description="Makes a retry safe for 24 hours; 1 to 255 visible characters."
)
_LARGEST_ANSWER: Final = 1024 * 1024
_LONGEST_OPERATION: Final = 200
_NONCE_BYTES: Final = 12
# A request that has had no effect after this long has died, or must not have one any more.
_LEASE_SECONDS: Final = 60

# One statement: who inserts, or takes over what has expired, owns the key.
_CLAIM: Final = """
INSERT INTO entitlements_idempotencyrecord AS r
       (account_id, operation, key_digest, body_digest, state, invocation_id, created_at, expires_at)
VALUES (%(account)s, %(operation)s, %(key)s, %(body)s, 'running', %(effect)s, now(), now() + interval '24 hours')
ON CONFLICT (account_id, operation, key_digest) DO UPDATE SET
       body_digest = excluded.body_digest, state = 'running', invocation_id = excluded.invocation_id,
       response_status = NULL, response_body = NULL, created_at = now(), expires_at = excluded.expires_at
 WHERE r.expires_at <= now()
RETURNING r.id
"""
_READ: Final = """
SELECT id, body_digest, state, invocation_id, response_status, response_body,
       created_at < now() - make_interval(secs => %(lease)s) AS lease_over
  FROM entitlements_idempotencyrecord
 WHERE account_id = %(account)s AND operation = %(operation)s AND key_digest = %(key)s
"""
# Compare and set: of two repeats that find a dead first request, one goes on.
_TAKE_OVER: Final = """
UPDATE entitlements_idempotencyrecord SET invocation_id = %(effect)s, created_at = now()
 WHERE id = %(id)s AND state = 'running' AND invocation_id = %(dead)s
RETURNING id
"""
_FINISH: Final = """
UPDATE entitlements_idempotencyrecord SET state = 'done', response_status = %(status)s, response_body = %(body)s
 WHERE id = %(id)s AND invocation_id = %(effect)s
RETURNING id
"""
_RELEASE: Final = """
DELETE FROM entitlements_idempotencyrecord WHERE id = %(id)s AND invocation_id = %(effect)s AND state = 'running'
RETURNING id
"""


class Fate(StrEnum):
    """What became of a first request, as far as its effect tells."""

    NOTHING_YET = "nothing yet"  # it may still be on its way, or have died before it did anything
    NOTHING = "nothing"  # it certainly had no effect and will have none
    RUNNING = "running"
    OVER = "over"


@dataclass(frozen=True)
class Found:
    """The fate of a request whose answer was not kept; where it is over, the answer to give now."""

    fate: Fate
    answer: WebhostError | Response | None = None


@dataclass(frozen=True)
class Replay:
    """The answer that the first request got."""

    status: int
    body: bytes

    def response(self) -> Response:
        """Return it once more, marked as a repeat."""
        return Response(json.loads(self.body), status=self.status, headers={"Idempotency-Replayed": "true"})


@dataclass
class Memory:
    """What is remembered of this request. Without an Idempotency-Key nothing is, and nothing is written."""

    effect_id: UUID
    record_id: int | None = None
    _box: _Box | None = None
    _began: float = field(default_factory=time.monotonic)
    has_effect: bool = False

    def took_effect(self) -> None:
        """Say that from here on a repeat must not run again; call it before the provider is called.

        Raises ConflictError when this request was held up so long that a repeat may have taken its place.
        """
        if self.record_id is not None and time.monotonic() - self._began > _LEASE_SECONDS / 2:
            ledger.void(self.effect_id, "LeaseOver")
            raise ConflictError("This took too long to start. Please try again.", retryable=True, retry_after=1)
        self.has_effect = True

    def keep(self, response: Response) -> Response:
        """Keep this answer for a repeat, and return it."""
        if self.record_id is not None:
            self._finish(response.status_code, JSONRenderer().render(response.data))
        return response

    def keep_streamed(self) -> None:
        """Remember that there was an answer, but not what it said."""
        if self.record_id is not None:
            self._finish(int(HTTPStatus.OK), None)

    def keep_error(self, error: WebhostError) -> None:
        """Keep a failure that came after the effect: a repeat gets it again."""
        if self.record_id is not None:
            self._finish(int(error.status), JSONRenderer().render(envelope_of(error, current_trace_id())))

    def release(self) -> None:
        """Forget the key: nothing happened, so that a repeat may try."""
        if self.record_id is not None:
            _quietly(_RELEASE, {"id": self.record_id, "effect": self.effect_id})

    def _finish(self, status: int, body: bytes | None) -> None:
        kept = None
        if body is not None and len(body) <= _LARGEST_ANSWER and self._box is not None:
            kept = self._box.close(body)
        _quietly(_FINISH, {"id": self.record_id, "effect": self.effect_id, "status": status, "body": kept})


@dataclass(frozen=True)
class _Box:
    """Encrypts an answer so that it takes the caller's credential and key to read it, which we keep neither of."""

    key: bytes
    context: bytes

    @classmethod
    def of(cls, secret: bytes, idempotency_key: str, context: bytes) -> _Box:
        derived = HKDF(algorithm=SHA256(), length=32, salt=None, info=b"idempotency:" + idempotency_key.encode())
        return cls(derived.derive(secret), context)

    def close(self, body: bytes) -> bytes:
        nonce = os.urandom(_NONCE_BYTES)
        return nonce + AESGCM(self.key).encrypt(nonce, body, self.context)

    def open(self, kept: bytes) -> bytes | None:
        try:
            return AESGCM(self.key).decrypt(kept[:_NONCE_BYTES], kept[_NONCE_BYTES:], self.context)
        except InvalidTag:
            return None


def _quietly(query: str, parameters: Mapping[str, Any]) -> None:
    """Write what can be found out again by the effect's id, should the database be away now."""
    try:
        db.run(query, dict(parameters))
    except UnavailableError:
        return


def _outcome_of_invocation(invocation_id: UUID) -> Found:
    rows = db.run("SELECT outcome FROM entitlements_admission WHERE id = %(id)s", {"id": invocation_id})
    if not rows:
        return Found(Fate.NOTHING_YET)
    outcome = Outcome(rows[0]["outcome"])
    if outcome is Outcome.VOIDED:
        return Found(Fate.NOTHING)
    shown = public_id(Prefix.INVOCATION, invocation_id)
    answer = ConflictError(
        f"The first request with this {HEADER} is invocation {shown}, now {outcome.value}. Its answer was not kept.",
        details={"invocationId": shown, "outcome": outcome.value},
    )
    return Found(Fate.RUNNING if outcome is Outcome.OPEN else Fate.OVER, answer)


def _key_of(request: Request) -> str | None:
    key = request.META.get(_KEY_IN_META)
    if key is not None and not valid_idempotency_key(key):
        raise InvalidRequestError(f"{HEADER} is 1 to 255 visible ASCII characters.", path=HEADER)
    return key


def _credential_of(request: Request) -> bytes:
    if caller_of(request).is_session:
        return str(request.session.session_key).encode()
    return str(request.META["HTTP_AUTHORIZATION"].split()[-1]).encode()


@contextmanager
def remembered(
    request: Request,
    operation: str,
    effect_id: UUID,
    *,
    key: str | None = None,
    secret: bytes | None = None,
    body_digest: bytes | None = None,
    outcome_of: Callable[[UUID], Found] = _outcome_of_invocation,
) -> Iterator[Memory | Replay]:
    """Run a request at most once per Idempotency-Key; yields the Replay of the first answer, or the Memory of this one.

    `key` and `secret` stand for the header and the caller's credential where a caller has neither.
    `effect_id` names what will be made. `outcome_of` says what became of one whose process died, from that id alone.
    Raises ConflictError while the first request runs (retryable), and for the same key with another body.
    A failure before `took_effect` frees the key; one after it is kept and answered again.
    """
    key = _key_of(request) if key is None else key
    if key is None:
        yield Memory(effect_id)
        return
    operation = operation if len(operation) <= _LONGEST_OPERATION else hashlib.sha256(operation.encode()).hexdigest()
    body = body_digest or digest(request._request.body)  # noqa: SLF001 - the raw bytes, as they were parsed
    account_id = caller_of(request).account_id
    box = _Box.of(secret or _credential_of(request), key, account_id.bytes + operation.encode() + body)
    named = {"account": account_id, "operation": operation, "key": digest(key.encode())}
    memory = _claim(named, box, effect_id=effect_id, body=body, outcome_of=outcome_of)
    if isinstance(memory, Replay):
        yield memory
        return
    # An exception that nobody expected leaves the record as it is: the effect's id will tell the repeat.
    try:
        yield memory
    except WebhostError as error:
        _remember_failure(memory, error, outcome_of)
        raise


def _remember_failure(memory: Memory, error: WebhostError, outcome_of: Callable[[UUID], Found]) -> None:
    if isinstance(error, UnavailableError):
        return  # the database may have kept what it did not confirm: the effect's id will tell the repeat
    if not memory.has_effect:
        memory.release()
        return
    try:
        fate = outcome_of(memory.effect_id).fate
    except UnavailableError:
        return
    if fate in (Fate.NOTHING, Fate.NOTHING_YET):
        memory.release()
    else:
        memory.keep_error(error)


def _claim(
    named: Mapping[str, Any], box: _Box, *, effect_id: UUID, body: bytes, outcome_of: Callable[[UUID], Found]
) -> Memory | Replay:
    for _ in range(5):
        began = time.monotonic()
        rows = db.run(_CLAIM, {**named, "body": body, "effect": effect_id})
        if rows:
            return Memory(effect_id, rows[0]["id"], box, began)
        rows = db.run(_READ, {**named, "lease": _LEASE_SECONDS})
        if not rows:
            continue  # released in between
        first = rows[0]
        if first["invocation_id"] == effect_id:
            return Memory(effect_id, first["id"], box, began)  # ours: only the answer to the claim was lost
        if bytes(first["body_digest"]) != body:
            raise ConflictError(f"This {HEADER} was used for another request.")
        if first["state"] == "done" and (replay := _replay(first, box)):
            return replay
        found = outcome_of(first["invocation_id"])
        if found.fate is Fate.OVER or first["state"] == "done":
            return _answer_of(found)
        if found.fate is Fate.RUNNING or (found.fate is Fate.NOTHING_YET and not first["lease_over"]):
            raise _still_running()
        began = time.monotonic()
        if db.run(_TAKE_OVER, {"id": first["id"], "effect": effect_id, "dead": first["invocation_id"]}):
            return Memory(effect_id, first["id"], box, began)
    raise _still_running()


def _still_running() -> ConflictError:
    return ConflictError("The first request with this key is still running.", retryable=True, retry_after=1)


def _answer_of(found: Found) -> Replay:
    if isinstance(found.answer, Response):
        return Replay(found.answer.status_code, JSONRenderer().render(found.answer.data))
    raise found.answer or ConflictError(f"This {HEADER} was used before, and the answer was not kept.")


def _replay(first: Mapping[str, Any], box: _Box) -> Replay | None:
    body = None if first["response_body"] is None else box.open(bytes(first["response_body"]))
    return None if body is None else Replay(first["response_status"], body)
