"""What an agent prints goes to the log of its own invocation, also from threads that it starts."""

from __future__ import annotations

import contextvars
import io
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TextIO

_LONGEST_LINE = 8_192
_LONGEST_LOG = 65_536
_MOST_LINES = 1_000

current: contextvars.ContextVar[Log | None] = contextvars.ContextVar("current", default=None)


class Log:
    """The lines that one invocation prints, bounded."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._parts: dict[tuple[int, str], str] = {}
        self._size = 0
        self._closed = False
        self._lock = threading.Lock()

    def write(self, stream: str, text: str) -> None:
        """Take a piece of what is printed; lines that threads print at the same time are not mixed."""
        with self._lock:
            if self._closed:
                return
            place = threading.get_ident(), stream
            *lines, rest = (self._parts.pop(place, "") + text).split("\n")
            for line in lines:
                self._add(line)
            if rest and not self._closed:
                self._parts[place] = rest[:_LONGEST_LINE]

    def add(self, text: str) -> None:
        """Take something whole, of one or more lines, and keep it together."""
        with self._lock:
            self._flush()
            self._add(text)

    def close(self) -> list[str]:
        """Take nothing more; return what was kept."""
        with self._lock:
            self._flush()
            self._closed = True
            return self.lines

    def _flush(self) -> None:
        for rest in self._parts.values():
            self._add(rest)
        self._parts.clear()

    def _add(self, line: str) -> None:
        if self._closed:
            return
        kept = line[: min(_LONGEST_LINE, _LONGEST_LOG - self._size)]
        self.lines.append(kept)
        self._size += len(kept) + 1
        if self._size >= _LONGEST_LOG or len(self.lines) >= _MOST_LINES:
            self.lines.append("(the rest is not kept)")
            self._closed = True


class _Diverted(io.TextIOBase):
    """A standard stream that writes to the log of whichever invocation is running here."""

    def __init__(self, name: str, plain: TextIO) -> None:
        super().__init__()
        self._name = name
        self._plain = plain

    @property
    def encoding(self) -> str:  # type: ignore[override]  # read-only, like the stream's own
        return self._plain.encoding

    @property
    def buffer(self) -> Any:
        """The bytes below, for code that asks for them; they belong to no invocation."""
        return self._plain.buffer

    def writable(self) -> bool:
        return True

    def write(self, text: str, /) -> int:
        log = current.get()
        if log is None:
            return self._plain.write(text)
        log.write(self._name, text)
        return len(text)

    def flush(self) -> None:
        self._plain.flush()


def divert() -> None:
    """Divert the standard streams, and have new threads belong to the invocation that starts them."""
    sys.stdout = _Diverted("stdout", sys.stdout)
    sys.stderr = _Diverted("stderr", sys.stderr)
    start, submit = threading.Thread.start, ThreadPoolExecutor.submit

    def start_here(self: threading.Thread) -> None:
        context, run = contextvars.copy_context(), self.run
        self.run = lambda: context.run(run)  # type: ignore[method-assign]  # before it starts
        start(self)

    def submit_here(pool: ThreadPoolExecutor, work: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        return submit(pool, contextvars.copy_context().run, work, *args, **kwargs)

    threading.Thread.start = start_here  # type: ignore[method-assign]
    ThreadPoolExecutor.submit = submit_here  # type: ignore[method-assign,assignment]
