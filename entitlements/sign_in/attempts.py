"""How many wrong passwords and codes, sign-ups and wishes for a mail are taken before somebody has to wait.

Nobody is locked out for good.

Each try is counted before it is looked at, so that many at once are no way around, and taken back when it was right.
Counted in Redis; while that is away each process counts for itself (entitlements/throttles.py).
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from entitlements.errors import RateLimitedError
from entitlements.throttles import count, network_of, uncount

_MINUTE: Final = 60


class Guessed(StrEnum):
    """What somebody may be guessing, or asking for too often."""

    PASSWORD = "password"  # noqa: S105 - a name
    CODE = "code"
    SIGN_UP = "sign_up"
    MAIL = "mail"


# Counted whether it was right or not.
_ASKED: Final = frozenset({Guessed.SIGN_UP, Guessed.MAIL})


class Counted(StrEnum):
    """Whose wrong tries are counted together."""

    HERE = "here"  # one account from one address
    ADDRESS = "address"
    ACCOUNT = "account"


@dataclass(frozen=True, slots=True)
class Most:
    """How many wrong tries are taken in a window of so many seconds."""

    tries: int
    per: Counted
    seconds: int


# Looked at in this order, and what is refused counts no further: so one address alone never uses up
# what an account has left for its owner elsewhere.
LIMITS: Final[Mapping[Guessed, tuple[Most, ...]]] = MappingProxyType({
    Guessed.PASSWORD: (
        Most(5, Counted.HERE, 5 * _MINUTE),
        Most(50, Counted.ADDRESS, 5 * _MINUTE),
        Most(100, Counted.ACCOUNT, 60 * _MINUTE),
    ),
    # Who gets to guess a code knows the password; three codes of a million are right at a time.
    Guessed.CODE: (
        Most(50, Counted.ADDRESS, 5 * _MINUTE),
        Most(5, Counted.ACCOUNT, 5 * _MINUTE),
        Most(30, Counted.ACCOUNT, 24 * 60 * _MINUTE),
    ),
    Guessed.SIGN_UP: (
        Most(5, Counted.HERE, 60 * _MINUTE),
        Most(30, Counted.ADDRESS, 60 * _MINUTE),
        Most(10, Counted.ACCOUNT, 60 * _MINUTE),
    ),
    # Nobody's mailbox is filled through us.
    Guessed.MAIL: (
        Most(5, Counted.HERE, 60 * _MINUTE),
        Most(30, Counted.ADDRESS, 60 * _MINUTE),
        Most(10, Counted.ACCOUNT, 60 * _MINUTE),
    ),
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class Attempt:
    """One try that was counted."""

    counted: list[tuple[str, int, int]] = field(default_factory=list)

    def succeeded(self) -> None:
        """Take it back: only wrong tries count."""
        for key, number, seconds in self.counted:
            uncount(key, number, seconds)


def begin(what: Guessed, account: str, address: str) -> Attempt:
    """Count a try before it is looked at; raises RateLimitedError where there were too many wrong ones."""
    attempt, now = Attempt(), int(time.time())
    for most in LIMITS[what]:
        number, second = divmod(now, most.seconds)
        key = _key(what, most.per, account, address)
        if count(key, number, most.seconds) > most.tries:
            raise RateLimitedError(_please_wait(what, most.seconds - second), retry_after=most.seconds - second)
        attempt.counted.append((key, number, most.seconds))
    return attempt


def _please_wait(what: Guessed, seconds: int) -> str:
    minutes = -(-seconds // _MINUTE)
    said = "You asked too often." if what in _ASKED else "Too many wrong tries."
    return f"{said} Please wait {minutes} minute{'' if minutes == 1 else 's'} and try again."


def _key(what: Guessed, per: Counted, account: str, address: str) -> str:
    who = {
        Counted.HERE: (account, network_of(address)),
        Counted.ADDRESS: (network_of(address),),
        Counted.ACCOUNT: (account,),
    }[per]
    # A digest: what strangers type is no cache key, and addresses of customers are not for Redis.
    return f"tries:{what.value}:{per.value}:{hashlib.sha256('|'.join(who).encode()).hexdigest()[:32]}"
