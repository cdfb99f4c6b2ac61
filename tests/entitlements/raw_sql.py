"""Somebody with psql, for tests: a connection of its own, past Django and past the product."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg import sql


@contextmanager
def psql(role: str | None = None) -> Iterator[psycopg.Connection[Any]]:
    """Connect as the product's own role, or as another one; each statement commits by itself."""
    options: dict[str, Any] = {"user": role, "password": "let-me-in"} if role else {}
    with psycopg.connect(os.environ["DATABASE_URL"], autocommit=True, application_name="psql", **options) as connection:
        yield connection


@contextmanager
def role_named(prefix: str, *, superuser: bool) -> Iterator[str]:
    """Make a database role that may sign in."""
    name = f"{prefix}_{secrets.token_hex(4)}"
    power = "SUPERUSER" if superuser else "NOSUPERUSER"
    with psql() as connection:
        connection.execute(sql.SQL(f"CREATE ROLE {{}} LOGIN {power} PASSWORD 'let-me-in'").format(sql.Identifier(name)))
        try:
            yield name
        finally:
            connection.execute(sql.SQL("DROP OWNED BY {}").format(sql.Identifier(name)))
            connection.execute(sql.SQL("DROP ROLE {}").format(sql.Identifier(name)))
