"""Whose page it is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from django.http import Http404, HttpRequest

from entitlements.models import Account
from webhost.errors import NotFoundError


def account_of(request: HttpRequest) -> Account:
    """Return who is signed in; only for views behind `login_required`, TypeError anywhere else."""
    if not isinstance(request.user, Account):
        raise TypeError("A page for an account was reached without one.")
    return request.user


@contextmanager
def unknown_as_404() -> Iterator[None]:
    """Answer what is nobody's, somebody else's or no id at all with the page for that."""
    try:
        yield
    except NotFoundError as error:
        raise Http404 from error
