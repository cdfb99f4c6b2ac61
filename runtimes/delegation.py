"""What a trusted backend sends to invoke for an account: signed headers, and an envelope. Imports no Django."""

from __future__ import annotations

import re
from collections.abc import Container
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from entitlements.rules import valid_idempotency_key
from runtimes.rules import InvokeRequest, parse_invoke
from webhost.errors import InvalidRequestError, Issue

OLDEST_SECONDS: Final = 300
NEWEST_SECONDS: Final = 60
_TIMESTAMP: Final = re.compile(r"[0-9]{1,12}")
_FIELDS: Final = frozenset({"accountId", "idempotencyKey", "request"})


class Distrust(StrEnum):
    """Why a call is not believed. For our log: its caller is told only that it is not."""

    NO_SOURCE = "no source"
    UNKNOWN_SOURCE = "unknown source"
    NO_TIMESTAMP = "no timestamp"
    STALE = "outside the window"
    SIGNATURE = "signature"


def distrust_of(source: str | None, timestamp: str | None, *, known: Container[str], now: float) -> Distrust | None:
    """Return what speaks against a call by its headers alone; None: its signature decides.

    `now` in Unix seconds. What passes is plain ASCII, since a known source's name and digits are.
    """
    if not source:
        return Distrust.NO_SOURCE
    if source not in known:
        return Distrust.UNKNOWN_SOURCE
    if timestamp is None or not _TIMESTAMP.fullmatch(timestamp):
        return Distrust.NO_TIMESTAMP
    if not -NEWEST_SECONDS <= now - int(timestamp) <= OLDEST_SECONDS:
        return Distrust.STALE
    return None


def signed_bytes(timestamp: str, source: str, agent: str, body: bytes) -> bytes:
    """Return what a source signs. No agent's name or id has a dot, so no part can be taken for its neighbour."""
    return f"{timestamp}.{source}.{agent}.".encode() + body


@dataclass(frozen=True)
class Envelope:
    """A request, for whom it is, and under which key it is done at most once."""

    account_id: str
    idempotency_key: str
    request: InvokeRequest


def parse_envelope(body: Any) -> Envelope:
    """Read an envelope whole; raises InvalidRequestError that lists every issue with its path.

    There is no field for owner, tier or limits: the account is judged as for its own calls.
    """
    if not isinstance(body, dict):
        raise InvalidRequestError("The body must be a JSON object.", path="")
    issues: list[Issue] = [{"path": key, "message": "Unknown field."} for key in sorted(body.keys() - _FIELDS)]
    account_id, key = body.get("accountId"), body.get("idempotencyKey")
    if not isinstance(account_id, str):
        issues.append({"path": "accountId", "message": "The account's id: acc_..."})
    if not (isinstance(key, str) and valid_idempotency_key(key)):
        issues.append({"path": "idempotencyKey", "message": "1 to 255 visible ASCII characters."})
    try:
        request = parse_invoke(body.get("request"))
    except InvalidRequestError as error:
        found: list[Issue] = error.details["issues"]
        issues += [{"path": f"request.{i['path']}".rstrip("."), "message": i["message"]} for i in found]
    if issues:
        raise InvalidRequestError("The envelope is not valid.", issues=issues)
    return Envelope(str(account_id), str(key), request)
