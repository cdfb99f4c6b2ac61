"""What the account's page is made of, and where higher apps add to it: they register here, in their admin modules.

BLOCKERS   whether the calls of its agents would pass now, and what else may be refused: caps, disabled agents
SECTIONS   boxes of facts beside the head, such as what Stripe says
BUTTONS    links in the head to pages of a higher app, such as resetting a second factor; None where it is not allowed
TIMELINE   sources of what happened to it; each is one indexed and limited query
NAMES      what ids of agents are called
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final
from uuid import UUID

from django.core.exceptions import ValidationError
from django.db.models import QuerySet
from django.http import HttpRequest
from django.urls import NoReverseMatch, reverse

from entitlements.actions.standing import AccountStanding
from entitlements.blocked import Verdict
from entitlements.models import Account

_THE_END: Final = datetime(9999, 1, 1, tzinfo=UTC)
_CURSOR: Final = re.compile(r"(?P<at>[0-9T:.Z+-]{20,40})~(?P<kind>[a-z-]{1,30})~(?P<key>[0-9A-Za-z_-]{1,64})")


@dataclass(frozen=True)
class Fact:
    """One line of a box: what it is, and what is known; a link where there is more."""

    label: str
    text: str
    url: str = ""
    is_bad: bool = False


@dataclass(frozen=True)
class Section:
    """A box of facts about an account."""

    title: str
    facts: Sequence[Fact]
    empty: str = ""


@dataclass(frozen=True)
class Button:
    """A link to a page about the account that a higher app has; what it does there is a POST of its own."""

    text: str
    url: str


@dataclass(frozen=True)
class Moment:
    """One thing that happened: when, what in a sentence, by whom or which machine, and why. `key` orders within it."""

    at: datetime
    key: str
    what: str
    who: str = ""
    why: str = ""
    source: str = ""
    trace: str = ""
    url: str = ""


@dataclass(frozen=True)
class Before:
    """Where a page of the timeline begins: before an instant, and within it before a key."""

    at: datetime
    inclusive: bool = False
    key: str = ""

    def rows(self, rows: QuerySet[Any], at: str, key: str) -> QuerySet[Any]:
        """Keep what lies before it, newest first; a key that is none keeps nothing."""
        ordered = rows.order_by(f"-{at}", f"-{key}")
        if not self.inclusive:
            return ordered.filter(**{f"{at}__lt": self.at})
        ordered = ordered.filter(**{f"{at}__lte": self.at})
        if not self.key:
            return ordered
        try:
            return ordered.exclude(**{at: self.at, f"{key}__gte": self.key})
        except (ValueError, ValidationError):
            return rows.none()

    def keeps(self, moment: Moment) -> bool:
        """Say whether a moment lies before it, for sources that cannot ask the database that exactly."""
        if moment.at != self.at:
            return moment.at < self.at
        return self.inclusive and (not self.key or sortable(moment.key) < sortable(self.key))


@dataclass(frozen=True)
class Source:
    """A kind of things that happened, the right that it needs, and how to read so many before some instant."""

    kind: str
    label: str
    needs: str
    read: Callable[[UUID, Before, int], Sequence[Moment]]


BLOCKERS: Final[list[Callable[[AccountStanding], Sequence[Verdict]]]] = []
SECTIONS: Final[list[Callable[[HttpRequest, Account], Section | None]]] = []
BUTTONS: Final[list[Callable[[HttpRequest, Account], Button | None]]] = []
TIMELINE: Final[list[Source]] = []
NAMES: Final[list[Callable[[set[UUID]], Mapping[UUID, str]]]] = []


@dataclass(frozen=True)
class Entry:
    """A moment with its kind, and the place from which the page after it begins."""

    kind: str
    label: str
    moment: Moment

    @property
    def cursor(self) -> str:
        """Name the place just after it."""
        return f"{self.moment.at:%Y-%m-%dT%H:%M:%S.%fZ}~{self.kind}~{self.moment.key}"


@dataclass(frozen=True)
class Page:
    """A page of the timeline; `after` begins the next one, empty where there is none."""

    entries: Sequence[Entry]
    after: str


def _start(text: str) -> tuple[datetime, str, str] | None:
    match = _CURSOR.fullmatch(text)
    if match is None:
        return None
    try:
        at = datetime.fromisoformat(match["at"])
    except ValueError:
        return None
    return None if at.tzinfo is None else (at, match["kind"], match["key"])


def _before(source: Source, start: tuple[datetime, str, str] | None) -> Before:
    """Return where one source goes on: moments of one instant are ordered by kind, then by key, both downwards."""
    if start is None:
        return Before(_THE_END)
    at, kind, key = start
    if source.kind == kind:
        return Before(at, inclusive=True, key=key)
    return Before(at, inclusive=source.kind < kind)


def timeline_of(request: HttpRequest, account_id: UUID, *, most: int, kind: str = "", after: str = "") -> Page:
    """Return what happened to an account, newest first, of the kinds that this reader may see."""
    start = _start(after)
    found: list[Entry] = []
    for source in sources_for(request):
        if kind in ("", source.kind):
            moments = source.read(account_id, _before(source, start), most + 1)
            found += [Entry(source.kind, source.label, moment) for moment in moments]
    found.sort(key=lambda e: (e.moment.at, e.kind, sortable(e.moment.key)), reverse=True)
    page = found[:most]
    return Page(page, page[-1].cursor if len(found) > most else "")


def sortable(key: str) -> tuple[int, str]:
    """Compare numbers as numbers, and ids as they are written."""
    return (int(key), "") if key.isdigit() else (0, key)


def sources_for(request: HttpRequest) -> list[Source]:
    """Return the sources that a reader has the right to."""
    return [source for source in TIMELINE if request.user.has_perm(source.needs)]


def names_of(agent_ids: Iterable[UUID | None]) -> dict[UUID, str]:
    """Return the names of agents, as far as anybody knows them."""
    wanted = {agent for agent in agent_ids if agent is not None}
    names: dict[UUID, str] = {}
    for ask in NAMES if wanted else ():
        names |= ask(wanted)
    return names


def page_of_row(model: str, pk: object) -> str:
    """Return the address of a row's page in the admin (`runtimes_agent`); empty where there is none."""
    try:
        return reverse(f"admin:{model}_change", args=[pk])
    except NoReverseMatch:
        return ""
