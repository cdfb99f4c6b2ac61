"""Wake-ups: sent on commit, never on rollback, and a broker that is away costs nobody anything."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from uuid import uuid4

import pytest
from celery import Celery
from django.db import transaction
from kombu import Connection

from webhost import queue
from webhost.celery import app


@pytest.fixture
def own_queue(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A queue that no worker of the running product listens to."""
    name = f"test-{uuid4().hex}"
    own = Celery("own", broker=app.conf.broker_url, set_as_current=False)
    own.conf.task_default_queue = name
    monkeypatch.setattr(queue, "app", own)
    yield name
    with Connection(app.conf.broker_url) as connection:
        connection.default_channel.queue_delete(name)


def waiting(name: str) -> int:
    with Connection(app.conf.broker_url) as connection:
        return int(connection.default_channel._size(name))


@pytest.mark.usefixtures("live_db")
class TestSending:
    def test_a_task_is_sent_at_once_outside_a_transaction(self, own_queue: str) -> None:
        queue.send_on_commit("test.wake", 1)
        assert waiting(own_queue) == 1

    def test_a_task_is_sent_when_the_transaction_commits_and_not_before(self, own_queue: str) -> None:
        with transaction.atomic():
            queue.send_on_commit("test.wake", 1)
            assert waiting(own_queue) == 0
        assert waiting(own_queue) == 1

    def test_a_task_is_not_sent_when_the_transaction_is_rolled_back(self, own_queue: str) -> None:
        with transaction.atomic():
            queue.send_on_commit("test.wake", 1)
            transaction.set_rollback(True)
        assert waiting(own_queue) == 0


@pytest.mark.usefixtures("live_db")
class TestWithoutABroker:
    @pytest.fixture(autouse=True)
    def _fresh(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        monkeypatch.setattr(queue, "_away_until", 0.0)
        queue._connection.cache_clear()
        yield
        queue._connection.cache_clear()

    def point_at(self, port: int, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(app.conf, "broker_write_url", f"redis://127.0.0.1:{port}/0")

    def test_a_refused_connection_is_logged_and_nothing_is_raised(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        with socket.socket() as closed:
            closed.bind(("127.0.0.1", 0))
            self.point_at(closed.getsockname()[1], monkeypatch)
            with transaction.atomic():
                queue.send_on_commit("test.wake", 1)
        assert "test.wake was not sent" in caplog.text

    def test_a_broker_that_never_answers_costs_a_moment_once_and_then_nothing(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        with socket.socket() as silent:
            silent.bind(("127.0.0.1", 0))
            silent.listen(16)
            self.point_at(silent.getsockname()[1], monkeypatch)
            started = time.monotonic()
            queue.send_on_commit("test.wake", 1)
            first = time.monotonic() - started
            for _ in range(50):
                queue.send_on_commit("test.wake", 2)
            assert first < 4
            assert time.monotonic() - started - first < 0.5
        assert caplog.text.count("test.wake was not sent") == 51
