"""Find accounts by what somebody says on the phone: an address, the beginning of one, a part of one."""

from __future__ import annotations

from django.db.models import QuerySet

from entitlements.models import Account


def accounts_like(text: str, *, most: int) -> list[Account]:
    """Return the accounts whose e-mail address is this, or begins with it, or at least has it in it.

    Addresses are kept in lower case, so the unique index and its twin for prefixes answer the first two. The last
    reads the table until enough are found: 30 ms at 100,000 accounts, which needs no extension.
    """
    term = text.strip().lower()
    if not term:
        return []
    accounts: QuerySet[Account] = Account.objects.order_by("email")
    for condition in ({"email": term}, {"email__startswith": term}):
        found = list(accounts.filter(**condition)[:most])
        if found:
            return found
    # Sorted afterwards: in the order of the index, each row would be looked up for itself.
    return sorted(Account.objects.filter(email__contains=term).order_by()[:most], key=lambda account: account.email)
