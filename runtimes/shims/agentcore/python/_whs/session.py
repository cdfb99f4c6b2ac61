"""What an agent keeps for its session."""

from __future__ import annotations

import json
import threading
from typing import Any

_MOST_KEYS = 256
_LONGEST_KEY = 128
_LONGEST_VALUE = 100_000


class Store:
    """JSON texts by key, for as long as this machine lives. One machine is one session."""

    def __init__(self) -> None:
        self._kept: dict[str, str] = {}
        self._lock = threading.Lock()

    def read(self, key: str) -> Any:
        """Return the value kept under a key, or None."""
        return json.loads(self._kept.get(key, "null"))

    def write(self, key: str, value: Any) -> None:
        """Keep a value under a key; None forgets it. Raises ValueError when it is too much."""
        if not isinstance(key, str) or not 1 <= len(key) <= _LONGEST_KEY:
            raise ValueError(f"A session key is text of 1 to {_LONGEST_KEY} characters.")
        text = json.dumps(value, ensure_ascii=False)
        if len(text) > _LONGEST_VALUE:
            raise ValueError(f"A session value is at most {_LONGEST_VALUE} characters as JSON.")
        with self._lock:
            if value is None:
                self._kept.pop(key, None)
            elif len(self._kept) >= _MOST_KEYS and key not in self._kept:
                raise ValueError(f"A session keeps at most {_MOST_KEYS} keys.")
            else:
                self._kept[key] = text
