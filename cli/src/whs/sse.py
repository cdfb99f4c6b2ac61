"""Read server-sent events (WHATWG HTML, 9.2.6) from bytes as they come, however they are cut."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Event:
    """One event."""

    name: str
    data: str


def read_events(chunks: Iterable[bytes]) -> Iterator[Event]:
    """Yield each event when its empty line has come; what is begun and not ended is dropped, as the standard says."""
    name, data = "", list[str]()
    for line in _lines(chunks):
        if not line:
            if data:
                yield Event(name or "message", "\n".join(data))
            name, data = "", []
            continue
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if field == "event":
            name = value
        elif field == "data":
            data.append(value)
        # A line that starts with a colon is a comment: its field is empty, and like others it is ignored.


def _lines(chunks: Iterable[bytes]) -> Iterator[str]:
    """Yield lines that end in LF, CR LF or CR, without their ends."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    rest, is_first, after_cr = "", True, False
    for chunk in chunks:
        text = decoder.decode(chunk)
        if is_first and text:
            text, is_first = text.removeprefix("\ufeff"), False
        if after_cr and text:
            # The CR ended a line already; an LF that follows belongs to it.
            text, after_cr = text.removeprefix("\n"), False
        if text.endswith("\r"):
            after_cr = True
        *whole, rest = (rest + text).replace("\r\n", "\n").replace("\r", "\n").split("\n")
        yield from whole
