"""Liveness and readiness: what an orchestrator asks."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import OperationalError
from django.test import Client
from redis.exceptions import ConnectionError as RedisConnectionError

from webhost import health

pytestmark = pytest.mark.usefixtures("live_db")


@pytest.fixture(autouse=True)
def _forgetful(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "_migrated", False)


def ask(path: str) -> tuple[int, Any]:
    response = Client().get(path)
    return response.status_code, response.json()


def test_a_process_that_answers_is_alive_and_asks_nobody_else(django_assert_num_queries: Any) -> None:
    with django_assert_num_queries(0):
        assert ask("/healthz") == (200, {"status": "ok"})


def test_with_everything_there_it_is_ready() -> None:
    assert ask("/readyz") == (
        200,
        {"status": "ready", "checks": {"database": "ok", "migrations": "ok", "broker": "ok"}},
    )


def test_without_the_database_it_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*args: object) -> None:
        raise OperationalError("connection refused: db.internal")

    monkeypatch.setattr(health.connection, "cursor", away)
    status, body = ask("/readyz")
    assert (status, body["checks"]["database"], body["checks"]["migrations"]) == (503, "away", "away")
    assert "internal" not in str(body)


def test_with_migrations_to_do_it_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health.MigrationExecutor, "migration_plan", lambda *args: [("0001", False)])
    status, body = ask("/readyz")
    assert (status, body["checks"]["migrations"]) == (503, "pending")


def test_without_the_broker_it_still_serves_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*args: object) -> None:
        raise RedisConnectionError("refused")

    monkeypatch.setattr(health.cache, "has_key", away)
    status, body = ask("/readyz")
    assert (status, body["checks"]["broker"]) == (200, "away")
