"""Wake a task by its name, on commit. A wake-up is a hint: the row it is about is the truth.

The broker may be away, so a wake-up that cannot be sent is logged and forgotten; the sweeps in
settings.CELERY_BEAT_SCHEDULE find the row later.
"""

from __future__ import annotations

import logging
import time
from functools import cache, partial
from typing import Any

from celery import Celery
from django.db import transaction
from kombu import Connection
from kombu.exceptions import OperationalError
from kombu.pools import producers

from webhost.celery import app

logger = logging.getLogger(__name__)

# A broker that does not answer costs its callers one second, and then nobody for a while.
_PAUSE_SECONDS = 1.0
_TIMEOUT_SECONDS = 1.0
_away_until = 0.0


def send_on_commit(task_name: str, *args: Any) -> None:
    """Send a task when the transaction at hand commits, never on rollback, at once where there is none.

    Never raises and never waits for a broker that is away.
    """
    # Asked this way because on_commit() itself opens a database connection to find out.
    if transaction.get_connection().in_atomic_block:
        transaction.on_commit(partial(_send, task_name, args), robust=True)
    else:
        _send(task_name, args)


@cache
def _connection(celery: Celery) -> Connection:
    # Celery's own producers retry a dead broker for as long as it is dead, on the caller's time.
    return Connection(
        celery.conf.broker_write_url or celery.conf.broker_url,
        connect_timeout=_TIMEOUT_SECONDS,
        transport_options={
            **celery.conf.broker_transport_options,
            "socket_connect_timeout": _TIMEOUT_SECONDS,
            "socket_timeout": _TIMEOUT_SECONDS,
            "max_retries": 1,
            "interval_start": 0,
            "interval_step": 0,
            "interval_max": 0,
        },
    )


def _send(task_name: str, args: tuple[Any, ...]) -> None:
    global _away_until  # noqa: PLW0603 - one broker, one process, one state
    if time.monotonic() < _away_until:
        logger.warning("The broker is away: %s was not sent and will be swept.", task_name)
        return
    try:
        with producers[_connection(app)].acquire(block=True, timeout=_TIMEOUT_SECONDS) as producer:
            app.send_task(task_name, args=args, producer=producer, retry=False, ignore_result=True)
    except (OperationalError, OSError) as error:
        _away_until = time.monotonic() + _PAUSE_SECONDS
        logger.warning("The broker is away: %s was not sent and will be swept (%s).", task_name, type(error).__name__)
