"""The Celery application, and what keeps the books when the broker is away."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from typing import Any

from celery import Celery, Task
from celery.signals import worker_ready, worker_shutdown

from webhost.history import noted

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "webhost.settings")


class NotedTask(Task):  # type: ignore[type-arg]  # generic for the type checker only
    """A task whose changes are in the audit log under its name."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run it, by a worker or on the spot."""
        with noted(source=f"task {self.name}"):
            return self.run(*args, **kwargs)


app = Celery("webhost", task_cls=NotedTask)
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()

logger = logging.getLogger(__name__)

# What must go on without a broker, by task name. Everything here is safe to run twice and at once.
WITHOUT_BROKER = (
    "entitlements.close_overdue",
    "telemetry.process_reports",
    "telemetry.roll_up",
    "runtimes.sweep_deployments",
    "runtimes.sweep_removals",
    "billing.sweep",
)
_PAUSE_SECONDS = 15.0
_stopped = threading.Event()


def _broker_is_away() -> bool:
    try:
        with app.connection_for_write(connect_timeout=1) as connection:
            connection.ensure_connection(max_retries=1, timeout=2)
    except Exception:  # noqa: BLE001 - whatever it is: the broker cannot be reached
        return True
    return False


def _keep_the_books(run: Callable[[str], Any]) -> None:
    while not _stopped.wait(_PAUSE_SECONDS):
        if _broker_is_away():
            for name in WITHOUT_BROKER:
                try:
                    run(name)
                except Exception:
                    logger.exception("%s failed while the broker is away.", name)


@worker_ready.connect
def _start_keeping(**_: Any) -> None:
    # Beat speaks through the broker, so while that is away nobody would sweep. A thread of the
    # worker's main process does, without it.
    threading.Thread(
        target=_keep_the_books, args=(lambda name: app.tasks[name](),), name="without-broker", daemon=True
    ).start()


@worker_shutdown.connect
def _stop_keeping(**_: Any) -> None:
    _stopped.set()
