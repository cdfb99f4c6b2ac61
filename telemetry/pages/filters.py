"""What lists with filters share: texts of the address, times in UTC, one's own agents to choose from."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Final
from uuid import UUID

from django.http import HttpRequest
from django.utils.dateparse import parse_datetime

from runtimes.models import Agent
from webhost.errors import InvalidRequestError, NotFoundError
from webhost.ids import Prefix, parse_id

_LONGEST: Final = 80
_MOST_AGENTS: Final = 200
_YEARS: Final = (2000, 9990)


def texts_of(request: HttpRequest, names: Iterable[str]) -> dict[str, str]:
    """Return these fields of the address, trimmed; empty where they are not there."""
    return {name: request.GET.get(name, "").replace("\x00", "").strip()[:_LONGEST] for name in names}


def instant_of(name: str, text: str) -> datetime | None:
    """Read a field of a form, in UTC where it names no zone; raises InvalidRequestError for what is no time."""
    if not text:
        return None
    try:
        found = parse_datetime(text)
    except ValueError:
        found = None
    # A zone at the ends of the calendar leads out of it.
    if found is None or not _YEARS[0] <= found.year <= _YEARS[1]:
        raise InvalidRequestError("A time reads 2026-11-30T14:00.", path=name)
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def chosen_agent(account_id: UUID, text: str) -> Agent | None:
    """Return the agent that a filter names, also a deleted one; raises InvalidRequestError for nobody's and others'."""
    if not text:
        return None
    try:
        found = Agent.objects.filter(account_id=account_id, pk=parse_id(Prefix.AGENT, text)).first()
    except NotFoundError:
        found = None
    if found is None:
        raise InvalidRequestError("You have no such agent.", path="agent")
    return found


def agents_to_choose(account_id: UUID, chosen: Agent | None) -> list[Agent]:
    """Return the account's agents by name, at most 200, and always the chosen one."""
    found = list(Agent.objects.filter(account_id=account_id, deleted_at=None).order_by("name")[:_MOST_AGENTS])
    return found if chosen is None or chosen in found else [chosen, *found]
