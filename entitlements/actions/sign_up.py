"""Signing up: an account with an address that is still to be proven."""

from __future__ import annotations

from allauth.account.models import EmailAddress
from django.contrib.auth.hashers import make_password
from django.db import IntegrityError

from entitlements.actions.authorship import ChangeSource, written_by
from entitlements.actions.notices import tell
from entitlements.models import Account, Notice


def sign_up(address: str, password: str) -> None:
    """Open an account on the default tier, and send its address a link.

    Does and says the same where there is one with this address: then its owner is told, and nothing else happens.
    """
    hashed = make_password(password)  # the costly part, whether there is an account or not
    try:
        with written_by(address, "Signed up", ChangeSource.PAGE):
            account = Account(email=address, password=hashed)
            account.save(force_insert=True)
            EmailAddress.objects.create(user_id=account.pk, email=address, primary=True)
            tell(account, Notice.Kind.CONFIRM_ADDRESS)
    except IntegrityError:
        owner = Account.objects.filter(email=address).first()
        if owner is not None:
            tell(owner, Notice.Kind.ADDRESS_KNOWN)
