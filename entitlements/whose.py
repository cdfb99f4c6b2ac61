"""Whose page it is."""

from __future__ import annotations

from django.http import HttpRequest

from entitlements.models import Account


def account_of(request: HttpRequest) -> Account:
    """Return who is signed in; only for views behind `login_required`, TypeError anywhere else."""
    if not isinstance(request.user, Account):
        raise TypeError("A page for an account was reached without one.")
    return request.user
