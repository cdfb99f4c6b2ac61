"""What the frame of every page says of who is signed in."""

from __future__ import annotations

from functools import partial
from typing import Any

from django.http import HttpRequest

from entitlements.actions.addresses import is_confirmed
from entitlements.models import Account


def unconfirmed_address(request: HttpRequest) -> dict[str, Any]:
    """Return whether the page asks for a confirmation, looked up where it is drawn (a context processor)."""
    return {"asks_to_confirm": partial(_asks, request)}


def _asks(request: HttpRequest) -> bool:
    return isinstance(request.user, Account) and not is_confirmed(request.user.pk)
