"""Find entries of the audit log, at any size: by indexes alone, and of signatures only the newest that match."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, time, timedelta
from typing import Any, Final
from uuid import UUID

from django.contrib.postgres.search import SearchQuery, SearchVectorField
from django.db.models import DateTimeField, F, Func, Q, QuerySet, TextField, Value
from django.db.models.fields.json import KT
from django.db.models.functions import Coalesce
from pghistory.models import Context

from entitlements.models import Account, HistoryEntry
from webhost.errors import InvalidRequestError, NotFoundError
from webhost.ids import Prefix, parse_id

ORDER: Final = ("-at", "-event_id", "-key")
# The same order, which no index has: for what is found by ids, so that the planner looks those up and sorts them,
# and does not walk through time until it has met fifty of them.
_SORTED: Final = (
    Func(Value("microseconds"), F("at"), function="date_trunc", output_field=DateTimeField()).desc(), *ORDER[1:],
)  # fmt: skip
# How many transactions a search for who, why or through what looks at, the newest first.
MOST_SIGNATURES: Final = 500
# How many entries with a name are read to know which rows it means.
_MOST_NAMED: Final = 200
_MOST_ACCOUNTS: Final = 100
_PAGE: Final = 1_000
_ACCOUNT: Final = "entitlements.Account"
_BY_OBJECT: Final = (Prefix.AGENT, Prefix.DEPLOYMENT, Prefix.SESSION, Prefix.ALERT_TARGET)
_LONGEST: Final = 254
# The doors that changes come through: the first word of a source.
DOORS: Final = ("admin", "page", "api", "stripe", "task", "command", "migration", "database")


@dataclass(frozen=True)
class HistoryQuery:
    """What somebody looks for in the audit log; empty is everything. Dates are whole days, UTC."""

    text: str = ""
    account: str = ""
    actor: str = ""
    kind: str = ""
    verb: str = ""
    door: str = ""
    tier: int | None = None
    row: tuple[str, str] | None = None
    context: UUID | None = None
    since: date | None = None
    until: date | None = None
    not_after: datetime | None = field(default=None, compare=False)
    kinds: frozenset[str] | None = None  # what the reader may see; None is all

    @classmethod
    def of(cls, given: Mapping[str, str]) -> HistoryQuery:
        """Read the parameters of a page. Raises InvalidRequestError where one is not what it should be."""
        # PostgreSQL keeps no NUL, so nothing that has one is found.
        said = {name: str(given.get(name) or "").replace("\x00", "").strip()[:_LONGEST] for name in _PARAMETERS}
        label, _, pk = said["object"].rpartition(":")
        return cls(
            text=said["q"],
            account=said["account"],
            actor=said["actor"],
            kind=said["kind"],
            verb=said["did"],
            door=said["source"],
            tier=_small_number(said["tier"]),
            row=(label, pk) if pk else None,
            context=_uuid(said["context"]) if said["context"] else None,
            since=_date(said["since"], "since"),
            until=_date(said["until"], "until"),
        )

    @property
    def is_about_signatures(self) -> bool:
        """Whether who, or through what, is asked for: that is in the contexts, and not in the entries."""
        return bool(self.actor or self.door)


_PARAMETERS: Final = (
    "q", "account", "actor", "kind", "did", "source", "tier", "object", "context", "since", "until",
)  # fmt: skip


def _date(text: str, path: str) -> date | None:
    try:
        return date.fromisoformat(text) if text else None
    except ValueError as error:
        raise InvalidRequestError(f"A date is written as 2026-11-30, not {text!r}.", path=path) from error


def _small_number(text: str) -> int | None:
    if not text:
        return None
    return int(text) if text.isascii() and text.isdigit() and int(text) < 2**15 else -1  # a tier that nobody has


def _uuid(text: str) -> UUID | None:
    try:
        return UUID(text)
    except ValueError:
        return None


def _parsed(prefix: Prefix, text: str) -> UUID | None:
    try:
        return parse_id(prefix, text)
    except NotFoundError:
        return None


# --- Signatures -----------------------------------------------------------------------------------


def _signatures(query: HistoryQuery) -> QuerySet[Context]:
    """Return the contexts that the query allows, the newest first."""
    contexts = Context.objects.order_by("-created_at", "-id")
    if query.actor:
        contexts = contexts.alias(actor=KT("metadata__actor")).filter(actor__in={query.actor, query.actor.lower()})
    if query.door:
        first_word = Func(
            KT("metadata__source"), Value(" "), Value(1), function="split_part", output_field=TextField()
        )  # fmt: skip
        contexts = contexts.alias(door=first_word).filter(door=query.door)
    return contexts.filter(_within(query, "created_at"))


def _within(query: HistoryQuery, at: str) -> Q:
    found = Q()
    if query.since:
        found &= Q(**{f"{at}__gte": datetime.combine(query.since, time(), UTC)})
    if query.until and query.until < date.max:
        found &= Q(**{f"{at}__lt": datetime.combine(query.until + timedelta(days=1), time(), UTC)})
    if query.not_after:
        found &= Q(**{f"{at}__lte": query.not_after})
    return found


def _saying(contexts: QuerySet[Context], text: str) -> QuerySet[Context]:
    """Keep contexts that say a text: who, a trace id, a token's id, a source, or words of the reason."""
    for prefix, name in (("trc_", "trace"), ("tok_", "token")):
        if text.startswith(prefix):
            return contexts.alias(**{name: KT(f"metadata__{name}")}).filter(**{name: text})
    if text.startswith("evt_"):
        return contexts.alias(source=KT("metadata__source")).filter(source=f"stripe {text}")
    said = Coalesce(KT("metadata__reason"), Value(""), output_field=TextField())
    # As the index has it; Django's own SearchVector wraps it once more.
    words = Func(Value("simple"), said, function="to_tsvector", output_field=SearchVectorField())
    # One query each, so that each reads its own index and not the newest contexts one by one.
    found = [
        contexts.alias(actor=KT("metadata__actor")).filter(actor__in={text, text.lower()}),
        contexts.alias(source=KT("metadata__source")).filter(source=text),
        contexts.alias(reason=words).filter(reason=SearchQuery(text, config="simple")),
    ]
    ids = {pk for query in found for pk in query.values_list("pk", flat=True)[:MOST_SIGNATURES]}
    return contexts.filter(pk__in=ids)


# --- Entries --------------------------------------------------------------------------------------


def accounts_called(text: str) -> list[UUID]:
    """Return the accounts that a text means, also those that are gone: an id, or how an e-mail address begins."""
    found = _parsed(Prefix.ACCOUNT, text) or _uuid(text)
    if found is not None:
        return [found]
    now = Account.objects.filter(email__startswith=text.lower()).values_list("pk", flat=True)[:_MOST_ACCOUNTS]
    then = [UUID(pk) for pk in _rows_called(text, kind=_ACCOUNT)]
    return sorted({*now, *then})


def _rows_called(text: str, **of: str) -> set[str]:
    """Return rows by how their name begins, or began once; of many only some, and those that are called just so."""
    named = HistoryEntry.objects.filter(**of).order_by().values_list("object_id", flat=True)
    exactly = set(named.filter(name=text.lower())[:_MOST_NAMED])
    return exactly | set(named.filter(name__startswith=text.lower())[:_MOST_NAMED])


def found_entries(query: HistoryQuery) -> tuple[QuerySet[HistoryEntry], bool]:
    """Return the entries that a query means, newest first, and whether older ones may match that were not looked at."""
    if not query.is_about_signatures:
        return _entries(query, None)
    ids = list(_signatures(query).values_list("pk", flat=True)[: MOST_SIGNATURES + 1])
    entries, is_cut = _entries(query, ids[:MOST_SIGNATURES])
    return entries, is_cut or len(ids) > MOST_SIGNATURES


def _entries(query: HistoryQuery, signed: list[UUID] | None) -> tuple[QuerySet[HistoryEntry], bool]:
    order = _SORTED if query.text or signed is not None else ORDER
    entries = HistoryEntry.objects.order_by(*order).filter(_within(query, "at"))
    same = {"kind": query.kind, "verb": query.verb, "context_id": query.context}
    entries = entries.filter(**{name: value for name, value in same.items() if value})
    if query.kinds is not None:
        entries = entries.filter(kind__in=sorted(query.kinds))
    if query.row:
        entries = entries.filter(kind=query.row[0], object_id=query.row[1])
    if query.account:
        entries = entries.filter(account_id__in=accounts_called(query.account))
    if query.tier is not None:
        entries = entries.filter(Q(tier_id=query.tier) | Q(other_tier_id=query.tier))
    if signed is not None:
        entries = entries.filter(context_id__in=signed)
    is_cut = False
    if query.text:
        ids = list(_saying(_signatures(query), query.text).values_list("pk", flat=True)[: MOST_SIGNATURES + 1])
        is_cut = len(ids) > MOST_SIGNATURES
        entries = entries.filter(_named(query.text) | Q(context_id__in=ids[:MOST_SIGNATURES]))
    return entries, is_cut


def _named(text: str) -> Q:
    """Return what a text may name besides a signature: an account, any row's id, how a row's name begins."""
    for prefix in _BY_OBJECT:
        if found := _parsed(prefix, text):
            return Q(object_id=str(found))
    if found := _parsed(Prefix.ACCOUNT, text):
        return Q(account_id=found)
    if found := _uuid(text):
        return Q(account_id=found) | Q(object_id=str(found)) | Q(context_id=found)
    named = Q(object_id__in={text, *_rows_called(text)})
    return named | Q(account_id__in=accounts_called(text)) if "@" in text else named


# --- All of them ----------------------------------------------------------------------------------


def pages_of(query: HistoryQuery, at: datetime) -> Iterator[list[HistoryEntry]]:
    """Yield everything that a query means as it was at a time, newest first, some at a time in bounded memory.

    By keys and not by a cursor, so that a slow reader holds no transaction open. What is written is never altered,
    so the pages fit together.
    """
    query = replace(query, not_after=at)
    if not query.is_about_signatures:
        yield from _keyset(_entries(query, None)[0])
        return
    contexts, last = _signatures(query), None
    while True:
        some = contexts if last is None else contexts.filter(_after(last, ("created_at", "id")))
        window = list(some[:MOST_SIGNATURES])
        if window:
            yield from _keyset(_entries(query, [context.pk for context in window])[0])
        if len(window) < MOST_SIGNATURES:
            return
        last = window[-1]


def _keyset(entries: QuerySet[HistoryEntry]) -> Iterator[list[HistoryEntry]]:
    last = None
    while True:
        some = entries if last is None else entries.filter(_after(last, ("at", "event_id", "key")))
        page = list(some[:_PAGE])
        if page:
            yield page
        if len(page) < _PAGE:
            return
        last = page[-1]


def _after(row: Any, names: tuple[str, ...]) -> Q:
    """Say what comes after a row in descending order; the first column bounds the index."""
    after = Q()
    for n, name in enumerate(names):
        same = {before: getattr(row, before) for before in names[:n]}
        after |= Q(**same, **{f"{name}__lt": getattr(row, name)})
    return Q(**{f"{names[0]}__lte": getattr(row, names[0])}) & after
