"""The hot path's own way to PostgreSQL: autocommit, prepared statements, plain rows.

Django's cursors cost the invocation path twice the CPU (docs/adr/0004), and a request that holds a
connection while a provider works starves everybody else. So admit, settle and the report edge take
a connection from this small pool for one statement each and give it back at once.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, Final

import psycopg
from django.conf import settings
from django.db import connections
from psycopg.rows import dict_row
from psycopg_pool import ConnectionPool, PoolTimeout

from webhost.errors import UnavailableError
from webhost.history import SETTING, notes_at_hand

HotConnection = psycopg.Connection[dict[str, Any]]

_pools: dict[int, ConnectionPool[HotConnection]] = {}
_lock = threading.Lock()
_NAMED: Final = re.compile(r"%\((\w+)\)s|%%")


def _open_pool() -> ConnectionPool[HotConnection]:
    given = connections["default"].settings_dict
    names = {"NAME": "dbname", "USER": "user", "PASSWORD": "password", "HOST": "host", "PORT": "port"}
    options = {k: v for k, v in given.get("OPTIONS", {}).items() if k != "pool"}
    return ConnectionPool(
        kwargs={
            **{there: given[here] for here, there in names.items() if given.get(here)},
            **options,
            "autocommit": True,
            "row_factory": dict_row,
            "prepare_threshold": 1,
            "application_name": "webhost-hot",
            # A peer that vanished is noticed in seconds, not after the kernel's two hours.
            "keepalives_idle": 10,
            "tcp_user_timeout": 10_000,
        },
        connection_class=psycopg.Connection[dict[str, Any]],
        min_size=1,
        max_size=settings.POOL_SIZE,
        timeout=5,
        max_idle=300,
        reconnect_timeout=30,
        open=True,
        name="hot",
    )


def hot_pool() -> ConnectionPool[HotConnection]:
    """Return this process's pool; a forked child gets one of its own."""
    pid = os.getpid()
    pool = _pools.get(pid)
    if pool is None:
        with _lock:
            pool = _pools.get(pid)
            if pool is None:
                _pools.clear()
                pool = _pools[pid] = _open_pool()
    return pool


def close_hot_pool() -> None:
    """Close this process's pool, for tests that stop PostgreSQL and for a clean exit."""
    pool = _pools.pop(os.getpid(), None)
    if pool is not None:
        pool.close()


@contextmanager
def hot_connection() -> Iterator[HotConnection]:
    """Lend an autocommit connection for one statement or transaction.

    Raises UnavailableError (503, retryable) when PostgreSQL cannot be reached or goes away, so that
    nothing is ever served uncounted.
    """
    try:
        with hot_pool().connection() as connection:
            yield connection
    except (psycopg.OperationalError, psycopg.InterfaceError, PoolTimeout) as error:
        raise UnavailableError("The database is not available at the moment.") from error


@lru_cache(maxsize=512)
def _numbered(query: str) -> tuple[bytes, tuple[str, ...]]:
    """Return a statement with $1, $2, ... in place of its named parameters, and their names in that order.

    psycopg does the same, but keeps the result only for statements of up to 4,096 characters; admit is longer,
    and reading it again each time costs as much as all else that a client does for it.
    """
    numbers: dict[str, int] = {}

    def number(found: re.Match[str]) -> str:
        return "%" if found[1] is None else f"${numbers.setdefault(found[1], len(numbers) + 1)}"

    return _NAMED.sub(number, query).encode(), tuple(numbers)


def _rows(connection: HotConnection, query: str, parameters: dict[str, Any]) -> list[dict[str, Any]]:
    statement, names = _numbered(query)
    cursor = psycopg.RawCursor(connection)
    return cursor.execute(statement, [parameters[name] for name in names]).fetchall()


def _lent(query: str, parameters: dict[str, Any]) -> list[dict[str, Any]]:
    # Not `with pool.connection()`: its commit, which autocommit needs not, costs as much as the loan itself.
    pool = hot_pool()
    connection = pool.getconn()
    try:
        return _rows(connection, query, parameters)
    finally:
        pool.putconn(connection)


def run(query: str, parameters: dict[str, Any]) -> list[dict[str, Any]]:
    """Run one statement in its own transaction and return its rows.

    A pooled connection that died while idle is found out by the statement itself. Only then is it
    repeated, once and on a fresh connection; so use it for statements that are safe to repeat.
    """
    return run_surely(query, parameters)[0]


def run_surely(query: str, parameters: dict[str, Any]) -> tuple[list[dict[str, Any]], bool]:
    """Do what `run` does, and say whether it was repeated: then the first time may have counted already."""
    try:
        return _lent(query, parameters), False
    except (psycopg.OperationalError, psycopg.InterfaceError, PoolTimeout) as error:
        if isinstance(error, psycopg.errors.QueryCanceled | PoolTimeout):
            raise UnavailableError("The database is not available at the moment.") from error
    hot_pool().check()  # after a restart of the server the others are as dead as this one was
    with hot_connection() as connection:
        return _rows(connection, query, parameters), True


def run_noted(query: str, parameters: dict[str, Any]) -> list[dict[str, Any]]:
    """Do what `run` does, for a statement that changes what the audit log follows: under the notes at hand.

    One round trip more, and never repeated.
    """
    with hot_connection() as connection, connection.transaction():
        connection.execute("SELECT set_config(%s, %s, true)", (SETTING, notes_at_hand()))
        return _rows(connection, query, parameters)
