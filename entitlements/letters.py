"""What is written to people: plain text, short, one link. Links are made here, on sending, and are kept nowhere."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from allauth.account.models import EmailAddress
from django.conf import settings
from django.urls import reverse

from entitlements.actions import addresses, passwords
from entitlements.models import Account, Notice

_DAYS: Final = settings.ACCOUNT_EMAIL_CONFIRMATION_EXPIRE_DAYS
_IGNORE: Final = "If this was not you, do nothing: nothing changes."
_Kind = Notice.Kind

_HAPPENED: Final = {
    _Kind.SET_UP: (
        "An authenticator app was set up",
        "From now on signing in asks for a code of your authenticator app.",
    ),
    _Kind.REMOVED: ("Your authenticator app was removed", "Signing in asks for your password only from now on."),
    _Kind.RESET: (
        "Your second factor was reset by support",
        "Support removed your authenticator app and your recovery codes.",
    ),
    _Kind.NEW_RECOVERY_CODES: (
        "New recovery codes were made",
        "The recovery codes that you had before are no longer taken.",
    ),
    _Kind.PASSWORD_CHANGED: ("Your password was changed", "All other browser sessions were ended."),
}


@dataclass(frozen=True)
class Letter:
    """A mail, ready to be sent."""

    to: str
    subject: str
    text: str


def letter_of(notice: Notice) -> Letter | None:
    """Return the mail that a notice is about; None where there is nobody to tell, or nothing any more."""
    kind = Notice.Kind(notice.kind)
    if kind == _Kind.FORGOT_PASSWORD:
        return _forgotten(notice.address)
    if notice.account is None:
        return None
    match kind:
        case _Kind.CONFIRM_ADDRESS:
            return _confirm(notice.account)
        case _Kind.NEW_ADDRESS:
            return _new_address(notice.account, notice.address)
        case _Kind.ADDRESS_KNOWN:
            return _known(notice.account.email)
        case _Kind.ADDRESS_CHANGED:
            subject, text = "Your e-mail address was changed", "From now on you sign in with the new one."
            return _happened(notice, notice.address, subject, text)
        case _:
            return _happened(notice, notice.account.email, *_HAPPENED[kind])


def _happened(notice: Notice, to: str, subject: str, text: str) -> Letter:
    return Letter(
        to,
        subject,
        f"{subject}: {to}, {notice.happened_at:%Y-%m-%d %H:%M} UTC.\n\n{text}\n\n"
        f"If this was not you, write to {settings.SUPPORT_EMAIL} at once.\n\n"
        f"{_page('security')}\n",
    )


def _confirm(account: Account) -> Letter | None:
    address = EmailAddress.objects.filter(user_id=account.pk, email=account.email, verified=False).first()
    if address is None:
        return None
    return Letter(
        account.email,
        "Confirm your e-mail address",
        f"An account at webhost.systems has the address {account.email}. If it is yours, confirm the address within "
        f"{_DAYS} days; then you can deploy:\n\n"
        f"{_page('confirm_address', addresses.link_of(address))}\n\n{_IGNORE}\n",
    )


def _new_address(account: Account, wanted: str) -> Letter | None:
    if Account.objects.filter(email=wanted).exclude(pk=account.pk).exists():
        return _known(wanted)
    address = EmailAddress.objects.filter(user_id=account.pk, email=wanted, verified=False).first()
    if address is None:  # the owner changed their mind
        return None
    return Letter(
        wanted,
        "Confirm your new e-mail address",
        f"{account.email} would like to use {wanted} at webhost.systems from now on. If this was you, confirm within "
        f"{_DAYS} days:\n\n{_page('confirm_address', addresses.link_of(address))}\n\n{_IGNORE}\n",
    )


def _known(address: str) -> Letter:
    return Letter(
        address,
        "You have an account already",
        f"Somebody tried to use {address} for an account at webhost.systems, and there is one already. "
        f"If this was you, sign in, or ask for a new password:\n\n{_page('forgot_password')}\n\n{_IGNORE}\n",
    )


def _forgotten(address: str) -> Letter | None:
    account = Account.objects.filter(email=address, is_active=True).first()
    if account is None:
        return None
    minutes = settings.PASSWORD_RESET_TIMEOUT // 60
    return Letter(
        account.email,
        "Choose a new password",
        f"Somebody asked for a new password for {account.email} at webhost.systems. If this was you, choose one within "
        f"{minutes} minutes:\n\n{_page('reset_password', passwords.link_of(account))}\n\n{_IGNORE}\n",
    )


def _page(name: str, *args: str) -> str:
    return f"{settings.PUBLIC_URL}{reverse(name, args=args)}"
