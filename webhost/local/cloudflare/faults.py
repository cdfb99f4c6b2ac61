"""Faults that tests ask for: the next call, or the next few, fail the way the real service can."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class Fault(StrEnum):
    """How a call fails."""

    REFUSE = "refuse"  # nobody listens for `seconds`
    HTTP_500 = "http-500"  # with an empty body
    HTML_522 = "html-522"
    HTML_403 = "html-403"
    NOT_SUCCESS = "not-success"  # success: false with `code`
    TOO_MANY = "429"  # with retry-after: `seconds`
    TRUNCATED = "truncated"  # half of the true answer
    RESET = "reset"  # the connection breaks after the request was read
    RESET_AFTER = "reset-after"  # and after it had its effect
    SLOW = "slow"  # the true answer, `seconds` later


class Side(StrEnum):
    """Which calls: of the management API, or invocations."""

    API = "api"
    INVOKE = "invoke"


@dataclass
class Planned:
    """A fault and the calls it is meant for."""

    fault: Fault
    on: Side
    times: int = 1
    script: str | None = None
    method: str | None = None
    path: str | None = None
    seconds: float = 1.0
    code: int = 10021
    message: str = "A fault that a test asked for."

    def fits(self, on: Side, method: str, path: str, script: str | None) -> bool:
        """Whether it is meant for this call."""
        return (
            self.times > 0
            and self.on == on
            and self.script in (None, script)
            and self.method in (None, method)
            and (self.path is None or path.endswith(self.path))
        )


class Faults:
    """The faults still to come, in order."""

    def __init__(self) -> None:
        self._planned: list[Planned] = []
        self._lock = threading.Lock()

    def plan(self, values: dict[str, Any]) -> None:
        """Add a fault; raises ValueError or TypeError when it makes no sense."""
        planned = Planned(**values | {"fault": Fault(values.get("fault", "")), "on": Side(values.get("on", ""))})
        with self._lock:
            self._planned.append(planned)

    def clear(self) -> None:
        """Forget all that were planned."""
        with self._lock:
            self._planned.clear()

    def take(self, on: Side, method: str, path: str, script: str | None) -> Planned | None:
        """Return the fault of this call, used up by one, or None."""
        with self._lock:
            for planned in self._planned:
                if planned.fits(on, method, path, script):
                    planned.times -= 1
                    return planned
        return None
