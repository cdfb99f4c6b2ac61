"""What was called, and what tests want to fail."""

from __future__ import annotations

import re
import threading
from collections import Counter
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, Final

from webhost.local.agentcore.errors import Kind

# Ids of ours in names like d<deployment> and whs/<agent>/<deployment>.
_IDS: Final = re.compile(r"(?<![0-9a-f])[bcdm]?([0-9a-f]{32})(?![0-9a-f])")
_MOST_CALLS: Final = 50_000
_LONGEST_TEXT: Final = 20_000


class Fault(StrEnum):
    """How a call fails."""

    THROTTLED = "throttled"
    SERVER_ERROR = "server-error"
    UNAVAILABLE = "unavailable"
    ACCESS_DENIED = "access-denied"
    VALIDATION = "validation"
    NOT_FOUND = "not-found"
    CONFLICT = "conflict"
    RETRYABLE_CONFLICT = "retryable-conflict"
    QUOTA = "quota"
    CLIENT_ERROR = "client-error"
    CREATE_FAILED = "create-failed"  # taken, and then CREATE_FAILED
    SLOW = "slow"  # the true answer, `seconds` later
    RESET = "reset"  # the connection breaks after the request was read
    RESET_AFTER = "reset-after"  # and after it had its effect
    TRUNCATED = "truncated"  # half of the true answer
    REFUSE = "refuse"  # nobody listens for `seconds`


ANSWERS: Final = {
    Fault.THROTTLED: Kind.THROTTLED,
    Fault.SERVER_ERROR: Kind.SERVER,
    Fault.UNAVAILABLE: Kind.UNAVAILABLE,
    Fault.ACCESS_DENIED: Kind.ACCESS_DENIED,
    Fault.VALIDATION: Kind.VALIDATION,
    Fault.NOT_FOUND: Kind.NOT_FOUND,
    Fault.CONFLICT: Kind.CONFLICT,
    Fault.RETRYABLE_CONFLICT: Kind.RETRYABLE_CONFLICT,
    Fault.QUOTA: Kind.QUOTA,
    Fault.CLIENT_ERROR: Kind.CLIENT,
}


@dataclass
class Planned:
    """A fault and the operation it is meant for."""

    operation: str
    fault: Fault
    times: int = 1
    seconds: float = 1.0


class Faults:
    """The faults still to come, in order."""

    def __init__(self) -> None:
        self._planned: list[Planned] = []
        self._lock = threading.Lock()

    def plan(self, values: dict[str, Any]) -> None:
        """Add a fault; raises ValueError or TypeError when it makes no sense."""
        planned = Planned(**values | {"fault": Fault(values.get("fault", ""))})
        with self._lock:
            self._planned.append(planned)

    def clear(self) -> None:
        """Forget all that were planned."""
        with self._lock:
            self._planned.clear()

    def take(self, operation: str) -> Planned | None:
        """Return the fault of this call, used up by one, or None."""
        with self._lock:
            for planned in self._planned:
                if planned.times > 0 and planned.operation == operation:
                    planned.times -= 1
                    return planned
        return None


@dataclass
class Call:
    """One call: what, by whom, about which ids of ours, and how it ended."""

    service: str
    operation: str
    principal: str
    ids: list[str]
    allowed: bool = True
    status: int = 0


@dataclass
class Calls:
    """All calls, the newest last."""

    calls: list[Call] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def begin(self, service: str, operation: str, principal: str, text: str) -> Call:
        """Note a call as it arrives."""
        call = Call(service, operation, principal, sorted(set(_IDS.findall(text[:_LONGEST_TEXT]))))
        with self.lock:
            self.calls.append(call)
            del self.calls[:-_MOST_CALLS]
            self.counts[f"{service}.{operation}"] += 1
        return call

    def shown(self) -> dict[str, Any]:
        """Return everything for tests to look at."""
        with self.lock:
            return {"calls": [asdict(call) for call in self.calls], "counts": dict(self.counts)}
