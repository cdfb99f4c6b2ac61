"""Passwords: asked for again by mail, chosen anew, changed. Whoever had a session before has none after."""

from __future__ import annotations

from typing import Final
from uuid import UUID

from django.contrib.auth import update_session_auth_hash
from django.contrib.auth.tokens import default_token_generator
from django.http import HttpRequest

from entitlements.actions.addresses import is_confirmed, vouch_for_address
from entitlements.actions.authorship import ChangeSource, written_by
from entitlements.actions.notices import tell, tell_address
from entitlements.models import Account, ApiToken, Notice
from entitlements.sign_in import sessions
from webhost.errors import NotFoundError

_BAD_LINK: Final = "This link is not valid, or no longer."


def ask_for_new_password(address: str) -> None:
    """Send a link to whoever has this address. Does the same whether it is somebody's: the worker looks that up."""
    tell_address(address, Notice.Kind.FORGOT_PASSWORD)


def link_of(account: Account) -> str:
    """Return what a link carries. It ends with the next sign-in, another password or address, and in time."""
    return f"{account.pk.hex}-{default_token_generator.make_token(account)}"


def account_of_link(link: str) -> Account:
    """Return whose link it is. Raises NotFoundError where it is forged, old or used."""
    key, _, token = link.partition("-")
    try:
        account = Account.objects.filter(pk=UUID(hex=key), is_active=True).first()
    except ValueError as error:
        raise NotFoundError(_BAD_LINK) from error
    if account is None or not default_token_generator.check_token(account, token):
        raise NotFoundError(_BAD_LINK)
    return account


def reset_password(link: str, password: str) -> Account:
    """Set a password with a link, once. Ends all sessions, and proves the address that the link was sent to.

    Where nobody had proven it before, somebody else may have signed up with it: their API tokens end, too.
    """
    owner = account_of_link(link)
    with written_by(owner.email, "A new password by mail", ChangeSource.PAGE):
        # Locked, and looked at again: a link that is sent twice at once works once.
        Account.objects.select_for_update(no_key=True).get(pk=owner.pk)
        account = account_of_link(link)
        account.set_password(password)
        account.save(update_fields=["password"])
        if not is_confirmed(account.pk):
            ApiToken.objects.filter(user=account).delete()
            vouch_for_address(account)
        sessions.end_sessions(account)
        tell(account, Notice.Kind.PASSWORD_CHANGED)
    return account


def change_password(request: HttpRequest, account: Account, password: str) -> None:
    """Set a password from the session of its owner, which stays; all others end."""
    with written_by(account.email, "Changed by its owner", ChangeSource.PAGE):
        account.set_password(password)
        account.save(update_fields=["password"])
        before = request.session.session_key
        update_session_auth_hash(request, account)
        sessions.rename_session(before, request.session.session_key)
        sessions.end_sessions(account, but=request.session.session_key)
        tell(account, Notice.Kind.PASSWORD_CHANGED)
