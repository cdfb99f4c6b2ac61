"""A trusted backend for tests: it signs with its own code, as one would that only read docs/delegated.md."""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

ROUTE = "/v1/delegated/invoke/"


@dataclass(frozen=True)
class Backend:
    """A source with a key."""

    source: str
    key: bytes

    @classmethod
    def listed(cls, sources: str) -> list[Backend]:
        """Return all that DELEGATED_SOURCES lists, with each key."""
        pairs = [item.split(":") for item in sources.split(",")]
        return [cls(name, bytes.fromhex(key)) for name, key in pairs]

    def signature(self, agent: str, body: bytes, timestamp: str) -> str:
        """Sign."""
        said = b".".join([timestamp.encode(), self.source.encode(), agent.encode(), body])
        return "v1=" + hmac.new(self.key, said, hashlib.sha256).hexdigest()

    def headers(self, agent: str, body: bytes, *, ago: int = 0) -> dict[str, str]:
        """Return the headers of a call that was signed so many seconds ago."""
        timestamp = str(int(time.time()) - ago)
        return {
            "X-Whs-Source": self.source,
            "X-Whs-Timestamp": timestamp,
            "X-Whs-Signature": self.signature(agent, body, timestamp),
        }


def envelope(account: str, prompt: str | Mapping[str, Any] = "hello", *, key: str | None = None) -> dict[str, Any]:
    """Return an envelope for an account, under a key of its own if none is given."""
    said = prompt if isinstance(prompt, str) else json.dumps(prompt, ensure_ascii=False)
    return {
        "accountId": account,
        "idempotencyKey": key or secrets.token_hex(16),
        "request": {"input": {"prompt": said}},
    }
