"""Refusals are receipts too: counted per account, limit and minute, written at most once a minute.

A client that hammers a spent budget costs one read, no provider call, and no growth. The first of a
minute is written at once, so that the dashboard shows it; its repeats are counted in the process and
flushed when their minute is over, and when the process ends.
"""

from __future__ import annotations

import atexit
import logging
import threading
from dataclasses import dataclass
from datetime import date, datetime
from uuid import UUID

from entitlements.enums import LimitType
from webhost import db
from webhost.errors import UnavailableError

logger = logging.getLogger(__name__)

_UPSERT = """
INSERT INTO entitlements_denial AS d (account_id, limit_type, period, minute, count, agent_id, trace_id, tier)
VALUES (%(account)s, %(limit_type)s, %(period)s, %(minute)s, %(count)s, %(agent)s, %(trace)s, %(tier)s)
ON CONFLICT (account_id, limit_type, minute) DO UPDATE SET
    count = d.count + excluded.count, agent_id = excluded.agent_id, trace_id = excluded.trace_id,
    tier = excluded.tier
RETURNING id
"""
_MOST_WAITING = 10_000

_Key = tuple[UUID, str, datetime]


@dataclass
class _Waiting:
    period: date
    count: int
    agent_id: UUID | None
    trace_id: str
    tier: str


_waiting: dict[_Key, _Waiting] = {}
_lock = threading.Lock()


def record_denial(
    account_id: UUID,
    limit_type: LimitType,
    *,
    period: date,
    at: datetime,
    agent_id: UUID | None,
    trace_id: str,
    tier: str = "",
) -> None:
    """Count a refusal, under the slug of the tier that it was judged by.

    Never fails a request: what cannot be written now is written later.
    """
    minute = at.replace(second=0, microsecond=0)
    key = (account_id, limit_type.value, minute)
    with _lock:
        if key in _waiting:
            waiting = _waiting[key]
            waiting.count += 1
            waiting.agent_id, waiting.trace_id, waiting.tier = agent_id, trace_id, tier
            return
        _waiting[key] = _Waiting(period, 0, agent_id, trace_id, tier)
        over = [k for k in _waiting if k[2] < minute] if len(_waiting) < _MOST_WAITING else list(_waiting)
    _write(key, _Waiting(period, 1, agent_id, trace_id, tier))
    flush_denials(over)


def flush_denials(keys: list[_Key] | None = None) -> None:
    """Write what was counted: of these minutes, or everything."""
    with _lock:
        taken = [(k, _waiting.pop(k)) for k in (list(_waiting) if keys is None else keys) if k in _waiting]
    for key, waiting in taken:
        if waiting.count:
            _write(key, waiting)


def _write(key: _Key, waiting: _Waiting) -> None:
    account_id, limit_type, minute = key
    try:
        db.run(
            _UPSERT,
            {
                "account": account_id,
                "limit_type": limit_type,
                "period": waiting.period,
                "minute": minute,
                "count": waiting.count,
                "agent": waiting.agent_id,
                "trace": waiting.trace_id,
                "tier": waiting.tier,
            },
        )
    except UnavailableError:
        logger.warning("A refusal could not be written: the database is away.")


atexit.register(flush_denials)
