"""Ids: UUIDv7 in the database, prefixed and opaque outside it."""

from __future__ import annotations

import os
import re
import time
from datetime import datetime
from enum import StrEnum
from uuid import UUID

from webhost.errors import NotFoundError

_HEX = re.compile(r"[0-9a-f]{32}")


class Prefix(StrEnum):
    """What kind of thing an id names."""

    ACCOUNT = "acc"
    AGENT = "agt"
    DEPLOYMENT = "dep"
    INVOCATION = "inv"
    TRACE = "trc"
    UPLOAD = "upl"
    SESSION = "ses"
    TOKEN = "tok"  # noqa: S105 - a prefix
    EVENT = "evt"
    ALERT_TARGET = "alr"


def new_id() -> UUID:
    """Return a UUIDv7, so that ids sort by time, to about a microsecond within one process.

    RFC 9562, section 6.2, method 3: the 12 bits after the millisecond hold the fraction of it.
    """
    milliseconds, rest = divmod(time.time_ns(), 1_000_000)
    fraction = (rest << 12) // 1_000_000
    random = int.from_bytes(os.urandom(8), "big") & 0x3FFF_FFFF_FFFF_FFFF
    value = (milliseconds & 0xFFFF_FFFF_FFFF) << 80 | 0x7000 << 64 | fraction << 64 | 0x8 << 60 | random
    return UUID(int=value)


def first_id_since(at: datetime) -> UUID:
    """Return the lowest UUIDv7 of an instant: what was made from then on is not below it."""
    return UUID(int=int(at.timestamp() * 1000) << 80 | 0x7000 << 64 | 0x8 << 60)


def public_id(prefix: Prefix, value: UUID) -> str:
    """Return the id as the outside world sees it, such as `agt_` and 32 hex digits."""
    return f"{prefix.value}_{value.hex}"


def parse_id(prefix: Prefix, text: object) -> UUID:
    """Read a public id; raises NotFoundError on anything else, as for an id that does not exist."""
    if isinstance(text, str):
        head, _, digits = text.partition("_")
        if head == prefix.value and _HEX.fullmatch(digits):
            return UUID(digits)
    raise NotFoundError
