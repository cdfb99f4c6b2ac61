"""application/vnd.amazon.eventstream, as far as it is needed.

TLS and TCP have checked the bytes, so the checksums are not looked at.
https://smithy.io/2.0/aws/amazon-eventstream.html
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

_PRELUDE, _TRAILER = 12, 4
_TEXT = 7
# How long a value of each type is; None is text or bytes, with its length before it.
_LENGTHS = (0, 0, 1, 2, 4, 8, None, None, 8, 16)


def messages(data: bytes) -> Iterator[tuple[dict[str, str], bytes]]:
    """Yield the headers and the payload of each message; raises ValueError when the stream breaks off."""
    at = 0
    while at < len(data):
        if at + _PRELUDE > len(data):
            raise ValueError("The event stream broke off.")
        whole, headers = struct.unpack_from(">II", data, at)
        end, body = at + whole, at + _PRELUDE + headers
        if end > len(data):
            raise ValueError("The event stream broke off.")
        if whole < _PRELUDE + _TRAILER or body > end - _TRAILER:
            raise ValueError("The event stream cannot be read.")
        yield _headers(data[at + _PRELUDE : body]), data[body : end - _TRAILER]
        at = end


def _headers(data: bytes) -> dict[str, str]:
    headers = {}
    at = 0
    while at < len(data):
        start = at + 1
        at = start + data[at]
        name, kind = data[start:at].decode(), data[at]
        at += 1
        if kind >= len(_LENGTHS):
            raise ValueError("The event stream holds a header of an unknown type.")
        length = _LENGTHS[kind]
        if length is None:
            (length,) = struct.unpack_from(">H", data, at)
            at += 2
        if kind == _TEXT:
            headers[name] = data[at : at + length].decode()
        at += length
    return headers
