"""What somebody typed into the search box: the shape of an id tells which tables may hold it. Knows no Django."""

from __future__ import annotations

import re
from dataclasses import dataclass
from uuid import UUID

_PREFIXED = re.compile(r"([a-z]{2,8})_([A-Za-z0-9_]+)")
_HEX = re.compile(r"[0-9a-f]{32}")
_OVERRIDE = re.compile(r"override[ :#]+([0-9]{1,18})", re.IGNORECASE)
_AROUND = " \t\r\n<>\"'`,;:.()[]"
LEAST = 2
MOST = 300


@dataclass(frozen=True)
class Term:
    """A search: as it was typed, with the prefix of an id and its UUID where it has them."""

    text: str
    prefix: str = ""
    uuid: UUID | None = None
    override: int | None = None

    @property
    def is_words(self) -> bool:
        """Whether it may be a name or an address, or a part of one."""
        return not self.is_id and LEAST <= len(self.text) <= MOST

    @property
    def is_id(self) -> bool:
        """Whether it is an id, ours or a provider's, and so no word."""
        return self.uuid is not None or bool(self.prefix) or self.override is not None

    def names(self, prefix: str) -> UUID | None:
        """Return the UUID that it names under one of our prefixes; a bare UUID may be anything's."""
        return self.uuid if self.prefix in (prefix, "") else None


def read_term(typed: str) -> Term:
    """Read what was typed or pasted, with the brackets, quotes and dots that it was found among."""
    # A null character is in no id and no name, and PostgreSQL takes none.
    text = typed.replace("\x00", "").strip(_AROUND)
    if named := _OVERRIDE.fullmatch(text):
        return Term(text, override=int(named[1]))
    if prefixed := _PREFIXED.fullmatch(text):
        prefix, rest = prefixed.groups()
        if _HEX.fullmatch(rest.lower()) and prefix in _OURS:
            return Term(f"{prefix}_{rest.lower()}", prefix, UUID(rest))
        if prefix in _OURS or prefix in _STRIPES:
            return Term(text, prefix)
        return Term(text)
    try:
        # uuid takes a URN and braces too, and so did whoever pasted it.
        return Term(text, uuid=UUID(text))
    except ValueError:
        return Term(text)


_OURS = frozenset({"acc", "agt", "dep", "inv", "trc", "ses", "tok", "evt"})
# What is common of Stripe: customers, subscriptions, events, prices, products, checkouts, invoices, payments.
_STRIPES = frozenset({"cus", "sub", "evt", "price", "prod", "cs", "in", "pi", "ch"})
