"""Mails to people: a row each, sent by a worker (send_notices.py) and tried again until it worked.

No page waits for a mail server, and none that is away loses a mail.
"""

from __future__ import annotations

from typing import Final

from entitlements.models import Account, Notice
from webhost.queue import send_on_commit

SEND: Final = "entitlements.send_notices"


def tell(account: Account, kind: Notice.Kind) -> None:
    """Write to an account's present address once the transaction at hand commits."""
    Notice.objects.create(account=account, kind=kind)
    send_on_commit(SEND)


def tell_address(address: str, kind: Notice.Kind, account: Account | None = None) -> None:
    """Write to another address than an account's present one, or to whoever has this one."""
    Notice.objects.create(account=account, kind=kind, address=address)
    send_on_commit(SEND)
