"""How things look on a terminal: tables, numbers, moments, errors. Pure, but for what prints."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import urljoin

_KEPT: Final = frozenset("\n\t")
_STEPS: Final = ((86_400, "day"), (3_600, "hour"), (60, "minute"))
# What helps against refusals that say nothing of it themselves.
_TODO: Final[Mapping[str, str]] = {
    "UNAUTHENTICATED": "run `whs login`; the token is unknown here, has expired, or was revoked.",
    "NOT_FOUND": "see `whs agents list` for the names.",
    "INTERNAL": "try again; if it stays, quote the trace id to support.",
}
_UNSEEN: Final = frozenset({"Cc", "Cs"})


def clean(text: str) -> str:
    """Return text without control characters: what an agent says must not drive the terminal."""
    return "".join(c for c in text if c in _KEPT or unicodedata.category(c) not in _UNSEEN)


def number(value: int | None, *, none: str = "unlimited") -> str:
    """Return a number with its thousands separated."""
    return none if value is None else f"{value:,}"


def moment(value: str | None, *, seconds: bool = False) -> str:
    """Return a moment of the API as people read it, in UTC."""
    return "" if value is None else f"{_parsed(value):%Y-%m-%d %H:%M{':%S' if seconds else ''}}"


def resets(value: str, now: datetime) -> str:
    """Return when something resets: the day, the time, and how long that is from now."""
    at = _parsed(value)
    return f"{at.day} {at:%B %Y at %H:%M} UTC ({_from_now((at - now).total_seconds())})"


def table(headings: Sequence[str], rows: Iterable[Sequence[str]], *, right: Iterable[int] = ()) -> str:
    """Return an aligned table; the columns in `right` are set to the right, as numbers are."""
    lines = [list(headings), *([clean(cell).replace("\n", " ") for cell in row] for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(headings))]
    numeric = frozenset(right)

    def one(line: list[str]) -> str:
        cells = (
            cell.rjust(width) if column in numeric else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        return "  ".join(cells).rstrip()

    return "\n".join(map(one, lines))


def error_lines(envelope: Mapping[str, Any], url: str, now: datetime) -> list[str]:
    """Return an error in the user's words: what, of how much, until when, what to do, and the trace id."""
    error = envelope["error"]
    details = error.get("details") or {}
    lines = [f"Error: {error['message']}"]
    lines += [f"  {issue['path']}: {issue['message']}" for issue in _issues(error, details)]
    if details.get("current") is not None and details.get("limit") is not None:
        counted = f"  {details.get('limitType', 'Limit')}: {number(details['current'])} of {number(details['limit'])}"
        lines.append(
            counted + (f", this call about {number(details['estimate'])} more" if details.get("estimate") else "")
        )
    if details.get("resetsAt"):
        lines.append(f"  Resets on {resets(details['resetsAt'], now)}.")
    if todo := _todo(error, details, url):
        lines.append(f"  What to do: {todo}")
    if details.get("docs"):
        lines.append(f"  More: {details['docs']}")
    if envelope.get("traceId"):
        lines.append(f"  Trace id: {envelope['traceId']}")
    return [clean(line) for line in lines]


def _issues(error: Mapping[str, Any], details: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the issues that the message has not told already."""
    found = [issue for issue in details.get("issues") or [] if issue.get("path")]
    return [] if len(found) == 1 and found[0]["message"] in error["message"] else found


def _todo(error: Mapping[str, Any], details: Mapping[str, Any], url: str) -> str:
    action = details.get("suggestedAction") or {}
    if action.get("type") == "upgrade_tier":
        return f"upgrade to {action.get('tier')}: {urljoin(url + '/', action.get('url') or '/billing/')}"
    if action.get("type") == "contact_support":
        return "contact support, and quote the trace id."
    if details.get("todo"):
        todo = str(details["todo"])
        return todo[0].lower() + todo[1:]
    return "try again in a moment." if error.get("retryable") else _TODO.get(error["code"], "")


def _parsed(value: str) -> datetime:
    return datetime.fromisoformat(value).astimezone(UTC)


def _from_now(seconds: float) -> str:
    if seconds <= 0:
        return "now"
    for length, name in _STEPS:
        if seconds >= length:
            many = int(seconds // length)
            return f"in {many} {name}{'s' if many != 1 else ''}"
    return "in less than a minute"
