"""Is this process alive, and can it serve? For orchestrators, so without the API's envelope and without secrets."""

from __future__ import annotations

import logging
from enum import StrEnum
from http import HTTPStatus

from django.core.cache import cache
from django.db import DatabaseError, InterfaceError, connection
from django.db.migrations.executor import MigrationExecutor
from django.http import HttpRequest, JsonResponse
from redis.exceptions import RedisError

logger = logging.getLogger(__name__)

_migrated = False


class Condition(StrEnum):
    """How a dependency is."""

    OK = "ok"
    AWAY = "away"
    PENDING = "pending"


def healthz(request: HttpRequest) -> JsonResponse:  # noqa: ARG001 - Django's signature
    """Say that the process answers; asks nobody else."""
    return JsonResponse({"status": Condition.OK.value})


def readyz(request: HttpRequest) -> JsonResponse:  # noqa: ARG001 - Django's signature
    """Say whether this process can serve: database, migrations, broker.

    A broker that is away is told but does not take the service out of rotation: it carries wake-ups and rate
    windows, which are swept and counted without it, and never truth.
    """
    checks = {"database": _database(), "migrations": Condition.AWAY, "broker": _broker()}
    if checks["database"] is Condition.OK:
        checks["migrations"] = _migrations()
    is_ready = checks["database"] is Condition.OK and checks["migrations"] is Condition.OK
    status = HTTPStatus.OK if is_ready else HTTPStatus.SERVICE_UNAVAILABLE
    return JsonResponse(
        {"status": "ready" if is_ready else "not ready", "checks": {k: v.value for k, v in checks.items()}},
        status=status,
        headers={"Cache-Control": "no-store"},
    )


def _database() -> Condition:
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")
    except (DatabaseError, InterfaceError):
        return Condition.AWAY
    return Condition.OK


def _migrations() -> Condition:
    global _migrated  # noqa: PLW0603 - once applied they stay applied, and asking costs a query per app
    if not _migrated:
        try:
            executor = MigrationExecutor(connection)
            _migrated = not executor.migration_plan(executor.loader.graph.leaf_nodes())
        except (DatabaseError, InterfaceError):
            return Condition.AWAY
    return Condition.OK if _migrated else Condition.PENDING


def _broker() -> Condition:
    try:
        cache.has_key("readyz")
    except (RedisError, OSError):
        return Condition.AWAY
    return Condition.OK
