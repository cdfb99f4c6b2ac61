"""`manage.py migrate`: Django's own; what a migration changes is in the audit log under its name. Then seals that."""

from __future__ import annotations

import json
from typing import Any

from django.core.management.commands.migrate import Command as DjangoCommand
from django.db import connection

from entitlements.sealing import seal_history, shapes
from webhost.history import SETTING


class Command(DjangoCommand):
    """Migrate, name each migration in the history of what it changes, and seal the history of all apps."""

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            super().handle(*args, **options)
        finally:
            self._sign("")
        if not (options["plan"] or options["check_unapplied"]) and _is_whole():
            seal_history()

    def migration_progress_callback(self, action: str, migration: Any = None, fake: bool = False) -> None:  # noqa: FBT001, FBT002 - Django's hook
        """Sign what runs next. For the connection, since a migration decides itself what is one transaction."""
        if action in {"apply_start", "unapply_start"}:
            self._sign(json.dumps({"source": f"migration {migration}", "actor": "migrate"}))
        super().migration_progress_callback(action, migration, fake)

    @staticmethod
    def _sign(notes: str) -> None:
        if connection.connection is not None and connection.is_usable():
            with connection.cursor() as cursor:
                cursor.execute("SELECT set_config(%s, %s, false)", [SETTING, notes])


def _is_whole() -> bool:
    """Say whether all tables of history are there: not while migrating backwards."""
    return {shape.table for shape in shapes()} <= set(connection.introspection.table_names())
