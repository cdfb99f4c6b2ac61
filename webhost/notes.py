"""Notes of what anybody can cause again and again: seldom in the log, but with their number."""

from __future__ import annotations

import threading
import time
from typing import Final

_EVERY: Final = 10.0
_LONGEST_SHOWN: Final = 40
_noted: dict[str, tuple[float, int]] = {}
_lock = threading.Lock()


def worth_noting(kind: str) -> int:
    """Count one more of a kind; return how many a note is to tell of now, or 0 within ten seconds of the last.

    Kinds are remembered for good, so they are ours and few: never what a caller sent.
    """
    now = time.monotonic()
    with _lock:
        last, count = _noted.get(kind, (-_EVERY, 0))
        if now - last < _EVERY:
            _noted[kind] = (last, count + 1)
            return 0
        _noted[kind] = (now, 0)
        return count + 1


def printable(text: str | None) -> str:
    """Return the beginning of what a stranger sent, in ASCII; log it with `%r`, so that it stays one line."""
    return (text or "")[:_LONGEST_SHOWN].encode("ascii", "replace").decode()


def forget() -> None:
    """Forget what was noted when, for tests."""
    with _lock:
        _noted.clear()
