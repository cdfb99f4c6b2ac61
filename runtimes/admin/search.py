"""What a search box of this app takes: the ids that support has on the phone, or an e-mail address."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from django.db.models import QuerySet
from django.db.models.functions import Lower

from entitlements.admin.base import account_ids_like
from runtimes.models import Agent
from webhost.errors import NotFoundError
from webhost.ids import Prefix, parse_id

_MOST_AGENTS: Final = 500


def found_by_id(rows: QuerySet[Any], term: str, fields: Mapping[Prefix, str], *, account: str) -> QuerySet[Any] | None:
    """Return the rows that a public id names, by the field that holds it; None where the term is no id.

    An id that is malformed finds nothing. `account` is the field with the account's id.
    """
    term = term.strip()
    prefix = next((p for p in (Prefix.ACCOUNT, *fields) if term.startswith(f"{p.value}_")), None)
    if prefix is None:
        return None
    try:
        return rows.filter(**{fields.get(prefix, account): parse_id(prefix, term)})
    except NotFoundError:
        return rows.none()


def found_by_id_or_account(
    rows: QuerySet[Any], term: str, fields: Mapping[Prefix, str], *, account: str
) -> QuerySet[Any]:
    """Return the rows that a public id names, or all of the accounts whose e-mail address has the term in it."""
    if not term.strip():
        return rows
    found = found_by_id(rows, term, fields, account=account)
    return rows.filter(**{f"{account}__in": account_ids_like(term)}) if found is None else found


def found_by_name(rows: QuerySet[Any], term: str, *, agent: str, account: str) -> QuerySet[Any]:
    """Return the rows of agents whose name begins with a term, or of accounts that are called like it.

    `agent` and `account` are the fields with their ids. An address has an @ and an agent's name has none, so each
    term asks one index; a word that begins no name may be a part of an address. The first agents are enough: whoever
    sees too many types more.
    """
    term = term.strip()
    if not term:
        return rows
    if "@" not in term:
        named = Agent.objects.alias(low=Lower("name")).filter(low__startswith=term.lower())
        ids = list(named.order_by().values_list("pk", flat=True)[:_MOST_AGENTS])
        if ids:
            return rows.filter(**{f"{agent}__in": ids})
    return rows.filter(**{f"{account}__in": account_ids_like(term)})
