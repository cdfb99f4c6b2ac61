"""Trace ids: accepted where well-formed, made otherwise, on every answer and every line of log."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime

from webhost.ids import Prefix, new_id, public_id

TRACE_HEADER = "X-Trace-Id"
_WELL_FORMED = re.compile(r"trc_[0-9a-f]{32}")
_NO_TRACE = "-"
_current: ContextVar[str] = ContextVar("trace_id", default=_NO_TRACE)


def trace_id_of(header: str | None) -> str:
    """Return the caller's trace id where it is `trc_` and 32 hex digits, and a new one otherwise."""
    if header and _WELL_FORMED.fullmatch(header):
        return header
    return public_id(Prefix.TRACE, new_id())


def current_trace_id() -> str:
    """Return the trace id of the work at hand, or `-` outside any."""
    return _current.get()


@contextmanager
def bind_trace_id(trace_id: str) -> Iterator[str]:
    """Make this the trace id of everything inside, such as one request, one task or one stream's rest."""
    token = _current.set(trace_id)
    try:
        yield trace_id
    finally:
        _current.reset(token)


class TraceFilter(logging.Filter):
    """Give every line of log the trace id of the work at hand."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Add `trace_id`, unless the line brought its own; drop nothing."""
        if not hasattr(record, "trace_id"):
            record.trace_id = current_trace_id()
        return True


class JsonFormatter(logging.Formatter):
    """Write a line of log as one JSON object: never a body, never a header."""

    def format(self, record: logging.LogRecord) -> str:
        """Return time, level, logger, trace id, message and, where there is one, the traceback."""
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(),
            "level": record.levelname,
            "logger": record.name,
            "traceId": getattr(record, "trace_id", _NO_TRACE),
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)
