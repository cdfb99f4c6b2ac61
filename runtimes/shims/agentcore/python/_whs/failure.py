"""How an invocation failed."""

from __future__ import annotations

from collections.abc import Sequence


class FailureError(Exception):
    """A class for the control plane, words for the caller, and lines for the agent's owner."""

    def __init__(self, error_class: str, message: str, *, logs: Sequence[str] = (), ran: bool = True) -> None:
        super().__init__(message)
        self.error_class = error_class
        self.message = message
        self.logs = logs
        self.ran = ran


class StoppedError(BaseException):
    """Raised inside of an agent whose time is up or whose caller is gone; no Exception, so none is in its way."""
