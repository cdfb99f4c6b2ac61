"""The call to the provider as the floor and the bare view make it: one kept pool, one attempt, the same fields."""

from __future__ import annotations

import hmac
import json
import os
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import urllib3

_ADDRESS = urlsplit(os.environ["CLOUDFLARE_DISPATCH_URL"])
_POOL = urllib3.HTTPConnectionPool(_ADDRESS.hostname or "", _ADDRESS.port, maxsize=128, retries=False)
_KEY = bytes(32)


def _send(deployment: str, invocation: str, trace: str, body: bytes, *, stream: bool) -> urllib3.BaseHTTPResponse:
    timestamp = str(int(time.time()))
    signed = b".".join([timestamp.encode(), deployment.encode(), invocation.encode(), body])
    return _POOL.urlopen(
        "POST",
        _ADDRESS.path + ("/stream" if stream else ""),
        body=body,
        headers={
            "Content-Type": "application/json",
            "X-Whs-Deployment": deployment,
            "X-Whs-Invocation": invocation,
            "X-Whs-Timestamp": timestamp,
            "X-Whs-Trace": trace,
            "X-Whs-Signature": f"v1={hmac.digest(_KEY, signed, 'sha256').hex()}",
        },
        preload_content=not stream,
        timeout=60,
    )


def call(deployment: str, invocation: str, trace: str, body: bytes) -> dict[str, Any]:
    """Return the upstream's answer."""
    answer: dict[str, Any] = json.loads(_send(deployment, invocation, trace, body, stream=False).data)
    return answer


class Events:
    """The upstream's events, one by one; `close` gives a whole stream's connection back and drops a broken one's."""

    def __init__(self, deployment: str, invocation: str, trace: str, body: bytes) -> None:
        self._response = _send(deployment, invocation, trace, body, stream=True)

    def __iter__(self) -> Iterator[tuple[str, dict[str, Any]]]:
        waiting = b""
        for chunk in self._response.stream(None):
            *whole, waiting = (waiting + chunk).split(b"\n\n")
            for event in whole:
                name, _, data = event.partition(b"\ndata: ")
                yield name[7:].decode(), json.loads(data)

    def close(self) -> None:
        """End it."""
        self._response.close()


def encode(event: str, data: dict[str, Any]) -> bytes:
    """Write one event for the client."""
    return f"event: {event}\ndata: {json.dumps(data, separators=(',', ':'))}\n\n".encode()
