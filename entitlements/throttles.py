"""How many API calls an account may make in a minute. Invocations have a rate of their own, exact, in the ledger.

Counted in Redis, so that all processes share the window. Redis is never truth: while it is away each
process counts for itself, which lets more through but nothing stand still.
"""

from __future__ import annotations

import ipaddress
import logging
import threading
import time
from typing import TYPE_CHECKING, Final

from django.conf import settings
from django.core.cache import cache
from redis.exceptions import RedisError
from rest_framework.request import Request
from rest_framework.throttling import BaseThrottle

from entitlements.authentication import Caller
from entitlements.enums import LimitType
from entitlements.errors import RateLimitedError
from webhost.wire import client_address

if TYPE_CHECKING:  # DRF's views import this module while they are being loaded themselves
    from rest_framework.views import APIView

logger = logging.getLogger(__name__)

_WINDOW: Final = 60
_PAUSE: Final = 5.0
_MOST_KEYS: Final = 50_000
# One network of an IPv6 customer, who has more addresses than there is memory.
_IPV6_NETWORK: Final = 64

# By the length of a window in seconds: the number of the window that is counted now, and the counts in it.
_counts: dict[int, tuple[int, dict[str, int]]] = {}
_lock = threading.Lock()
_away_until = 0.0


class AccountThrottle(BaseThrottle):
    """Allows API_REQUESTS_PER_MINUTE calls per account, and as many per address for those without one."""

    def allow_request(self, request: Request, view: APIView) -> bool:  # noqa: ARG002 - DRF's signature
        """Count the call; raises RateLimitedError with Retry-After when the minute is full."""
        limit: int = settings.API_REQUESTS_PER_MINUTE
        minute, second = divmod(int(time.time()), _WINDOW)
        current = count(f"api-rate:{_who(request)}", minute)
        if current > limit:
            raise RateLimitedError(
                f"At most {limit:,} API calls a minute are answered.",
                details={
                    "limitType": LimitType.REQUESTS_PER_MINUTE.value,
                    "periodKey": None,
                    "current": limit,
                    "limit": limit,
                    "source": "platform",
                    "suggestedAction": {"type": "contact_support"},
                    "exceeded": [LimitType.REQUESTS_PER_MINUTE.value],
                },
                retry_after=_WINDOW - second,
            )
        return True


class StrangerThrottle(AccountThrottle):
    """Paces only calls of nobody whom we know, for views whose callers have an exact rate in the ledger."""

    def allow_request(self, request: Request, view: APIView) -> bool:
        """Count a stranger's call; let everybody else pass."""
        return isinstance(request.auth, Caller) or super().allow_request(request, view)


def _who(request: Request) -> str:
    if isinstance(request.auth, Caller):
        return request.auth.account_id.hex
    return network_of(client_address(request._request))  # noqa: SLF001 - headers only


def network_of(text: str) -> str:
    """Return whose an address is: itself, or the IPv6 network that one customer has all addresses of."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return "unknown"
    if isinstance(address, ipaddress.IPv6Address):
        return str(ipaddress.ip_network((address, _IPV6_NETWORK), strict=False))
    return str(address)


def count(key: str, number: int, seconds: int = _WINDOW) -> int:
    """Count one more for a key in a window of time; return how many.

    In Redis or, while that is away, in this process. `number` is the window's: the time divided by its length.
    """
    if _redis_answers():
        shared = _shared(key, number, seconds)
        try:
            if cache.add(shared, 1, timeout=2 * seconds):
                return 1
            return int(cache.incr(shared))
        except (RedisError, OSError, ValueError) as error:
            _leave_redis_alone(error)
    return _count_here(key, number, seconds, 1)


def uncount(key: str, number: int, seconds: int) -> None:
    """Take back one that was counted for a key in a window."""
    if _redis_answers():
        try:
            cache.decr(_shared(key, number, seconds))
        except ValueError:  # counted in this process, or forgotten
            pass
        except (RedisError, OSError) as error:
            _leave_redis_alone(error)
        else:
            return
    _count_here(key, number, seconds, -1)


def _shared(key: str, number: int, seconds: int) -> str:
    return f"{key}:{number}" if seconds == _WINDOW else f"{key}:{seconds}:{number}"


def _redis_answers() -> bool:
    return time.monotonic() >= _away_until


def _leave_redis_alone(error: Exception) -> None:
    global _away_until  # noqa: PLW0603 - one Redis, one process, one state
    _away_until = time.monotonic() + _PAUSE
    logger.warning("Rates are counted per process for a while: %s.", type(error).__name__)


def _count_here(key: str, number: int, seconds: int, more: int) -> int:
    with _lock:
        counted, counts = _counts.get(seconds, (number, {}))
        if counted != number or len(counts) > _MOST_KEYS:
            counts = {}
        _counts[seconds] = (number, counts)
        counts[key] = max(0, counts.get(key, 0) + more)
        return counts[key]
