"""Read a usage event strictly: what is signed may still be absurd. Pure; imports no Django.

Python's own reader takes NaN and Infinity, turns 1e400 into infinity, keeps the last of repeated keys,
and calls True an int. Here each of these is marked while reading, so that the one event that holds it
is refused by name and the rest of its batch is not.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

from entitlements.enums import Runtime
from webhost.errors import Issue, NotFoundError
from webhost.ids import Prefix, parse_id, public_id

MOST: Final = 10**12  # of any measure in one event, so that no sum overflows 64 bits
MOST_EVENTS: Final = 100
LONGEST_EVENT_ID: Final = 200
LARGEST_PROVIDER: Final = 4096
AHEAD: Final = timedelta(minutes=5)
BEHIND: Final = timedelta(hours=72)

_DIGITS = 20  # more cannot be in range, and a huge literal costs quadratic time to read
_RFC_3339 = re.compile(
    r"\d{4}-(?:0[1-9]|1[0-2])-\d{2}[Tt]\d{2}:\d{2}:\d{2}(?:\.\d{1,9})?(?:[Zz]|[+-]\d{2}:\d{2})", re.ASCII
)
_ERROR_CLASS = re.compile(r"[\x21-\x7e](?:[\x20-\x7e]{0,78}[\x21-\x7e])?")
_TRACE = re.compile(r"trc_[0-9a-f]{32}")


class MalformedError(ValueError):
    """Not JSON, or not in one of the two shapes: nothing in it can be told apart."""


class _Fault:
    """Stands where JSON said something that has no exact value: NaN, Infinity, a number too long."""


class _Repeated(dict[str, Any]):
    """An object that names a key twice."""


_FAULT = _Fault()


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    return found if len(found) == len(pairs) else _Repeated(found)


_decoder = json.JSONDecoder(
    object_pairs_hook=_object,
    parse_constant=lambda _: _FAULT,
    parse_int=lambda text: int(text) if len(text) <= _DIGITS else _FAULT,
    parse_float=lambda text: Decimal(text) if len(text) <= _DIGITS * 2 else _FAULT,
)


@dataclass(frozen=True)
class Event:
    """What one workload says about one invocation. Code execution in milliseconds."""

    event_id: bytes
    invocation_id: UUID
    deployment_id: UUID
    at: datetime
    tokens: int
    compute_ms: int
    tool_calls: int = 0
    code_ms: int = 0
    browser_sessions: int = 0
    errors: int = 0
    error_class: str | None = None
    account_id: UUID | None = None
    agent_id: UUID | None = None
    runtime: str | None = None
    trace_id: str = ""
    tokens_estimated: bool = False

    def measures(self) -> dict[str, int]:
        """Return the five measures under the ledger's names."""
        return {
            "tokens": self.tokens,
            "compute_ms": self.compute_ms,
            "tool_calls": self.tool_calls,
            "code_ms": self.code_ms,
            "browser_sessions": self.browser_sessions,
        }

    @property
    def facts(self) -> str:
        """What a repeat of this event must say again, in one line; anything else is a conflict."""
        figures = "|".join(map(str, (*self.measures().values(), self.errors)))
        return f"{public_id(Prefix.INVOCATION, self.invocation_id)}|{figures}"


@dataclass(frozen=True)
class Batch:
    """The events of one delivery in their order: each read, or what is wrong with it."""

    items: tuple[Event | list[Issue], ...]
    is_single: bool


def parse_delivery(body: bytes) -> Batch:
    """Read one event, or `{"events": [...]}`. Raises MalformedError where not even items can be told."""
    try:
        text = body.decode("utf-8")
        found = _decoder.decode(text)
    except (ValueError, RecursionError) as error:
        raise MalformedError("The body is not JSON in UTF-8.") from error
    if not isinstance(found, dict):
        raise MalformedError('The body is one event, or {"events": [...]}.')
    if "events" not in found:
        return Batch((parse_event(found),), is_single=True)
    events = found["events"]
    if isinstance(found, _Repeated) or not isinstance(events, list) or not events:
        raise MalformedError(f"events is a list of 1 to {MOST_EVENTS} events, named once.")
    return Batch(tuple(parse_event(e) for e in events[: MOST_EVENTS + 1]), is_single=False)


def parse_event(found: Any) -> Event | list[Issue]:
    """Return the event, or everything that is wrong with it. Keys that we do not know are passed over."""
    if not isinstance(found, dict):
        return [{"path": "", "message": "An event is an object."}]
    issues: list[Issue] = []
    if _has_fault(found):
        issues.append({"path": "", "message": "Numbers are exact (no NaN, no Infinity) and keys are not repeated."})

    def take(path: str, read: Callable[[Any], Any], default: Any = ...) -> Any:
        value = found.get(path, default)
        if value is ...:
            issues.append({"path": path, "message": "It is missing."})
            return None
        if path not in found:
            return value
        try:
            return read(value)
        except (ValueError, NotFoundError) as error:
            message = str(error) if isinstance(error, ValueError) else "It is not a well-formed id."
            issues.append({"path": path, "message": message})
            return None

    def identified(prefix: Prefix) -> Callable[[Any], UUID]:
        return lambda value: parse_id(prefix, value)

    take("requests", _none_or_one, 1)
    event = Event(
        event_id=take("eventId", _event_id),
        invocation_id=take("invocationId", identified(Prefix.INVOCATION)),
        deployment_id=take("deploymentId", identified(Prefix.DEPLOYMENT)),
        at=take("timestamp", _timestamp),
        tokens=take("tokens", _measure),
        compute_ms=take("computeMs", _measure),
        tool_calls=take("toolCalls", _measure, 0),
        code_ms=take("codeExecutionMs", _measure, 0),
        browser_sessions=take("browserSessions", _measure, 0),
        errors=take("errors", _measure, 0),
        error_class=take("errorClass", _error_class, None),
        account_id=take("accountId", identified(Prefix.ACCOUNT), None),
        agent_id=take("agentId", identified(Prefix.AGENT), None),
        runtime=take("runtimeProvider", _runtime, None),
        trace_id=take("traceId", _trace, ""),
        tokens_estimated=bool(take("provider", _provider, None)),
    )
    return issues or event


def timestamp_issue(at: datetime, received_at: datetime) -> Issue | None:
    """Refuse an event from more than 5 minutes ahead or more than 72 hours ago, as it was received."""
    if at > received_at + AHEAD:
        return {"path": "timestamp", "message": "It is more than 5 minutes ahead."}
    if at < received_at - BEHIND:
        return {"path": "timestamp", "message": "It is more than 72 hours old."}
    return None


def _has_fault(value: Any) -> bool:
    if isinstance(value, dict):
        return isinstance(value, _Repeated) or any(map(_has_fault, value.values()))
    if isinstance(value, list):
        return any(map(_has_fault, value))
    return isinstance(value, _Fault)


def _measure(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= MOST:  # a bool is an int to isinstance
        raise ValueError(f"It is an integer from 0 to {MOST}.")
    return value


def _none_or_one(value: Any) -> int:
    if type(value) is not int or value not in (0, 1):
        raise ValueError("It is 1: an event is about one invocation.")
    return value


def _event_id(value: Any) -> bytes:
    try:
        encoded = value.encode("utf-8") if isinstance(value, str) else b""
    except UnicodeEncodeError:  # half a surrogate pair has no bytes
        encoded = b""
    if not 1 <= len(encoded) <= LONGEST_EVENT_ID:
        raise ValueError(f"It is text of 1 to {LONGEST_EVENT_ID} bytes.")
    return encoded


def _timestamp(value: Any) -> datetime:
    if isinstance(value, str) and _RFC_3339.fullmatch(value):
        try:
            return datetime.fromisoformat(value.upper()).astimezone(UTC)
        except (ValueError, OverflowError):
            pass  # the 31st of February, the 25th hour, the year 0
    raise ValueError("It is a time as RFC 3339 writes it, with its zone.")


def _error_class(value: Any) -> str | None:
    if value is not None and not (isinstance(value, str) and _ERROR_CLASS.fullmatch(value)):
        raise ValueError("It is null, or a name of 1 to 80 printable ASCII characters.")
    return value or None


def _trace(value: Any) -> str:
    if value is not None and not (isinstance(value, str) and _TRACE.fullmatch(value)):
        raise ValueError("It is null or trc_ and 32 hex digits.")
    return value or ""


def _runtime(value: Any) -> str:
    try:
        return Runtime(value).value
    except ValueError:
        raise ValueError(f"It is one of {', '.join(Runtime)}.") from None


def _provider(value: Any) -> bool:
    """Return the one thing in it that we read: whether the tokens were counted from the text."""
    if value is not None and not isinstance(value, dict):
        raise ValueError("It is an object.")
    if value and len(json.dumps(value, default=str)) > LARGEST_PROVIDER:
        raise ValueError(f"It is at most {LARGEST_PROVIDER} characters of JSON.")
    return value is not None and value.get("tokensEstimated") is True
