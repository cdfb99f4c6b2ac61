"""E-mail addresses of accounts: proven by their owner, or vouched for by whoever opened the account.

An account's address is `Account.email`; django-allauth's table says whether it was proven. It is, when there is a row
with this very address that is verified: an address that was changed by other means counts as unproven by itself.
"""

from __future__ import annotations

from typing import Final
from uuid import UUID

from allauth.account.models import EmailAddress
from django.conf import settings
from django.core import signing
from django.db import IntegrityError
from django.db.models import F

from entitlements.actions.authorship import ChangeSource, written_by
from entitlements.actions.notices import tell, tell_address
from entitlements.models import Account, Notice
from webhost.errors import ConflictError, ForbiddenError, NotFoundError

_SALT: Final = "entitlements.address"
_LASTS: Final = 24 * 60 * 60 * settings.ACCOUNT_EMAIL_CONFIRMATION_EXPIRE_DAYS
_BAD_LINK: Final = "This link is not valid, or no longer."
CONFIRM_FIRST: Final = (
    "Confirm your e-mail address before you deploy: open the link in the mail that we sent you. "
    "Every page has a button that sends it again."
)


def is_confirmed(account_id: UUID) -> bool:
    """Say whether an account's present address was proven to be its owner's. One query."""
    proven = EmailAddress.objects.filter(user_id=account_id, email=F("user__email"), verified=True)
    return bool(proven.exists())


def require_confirmed(account_id: UUID) -> None:
    """Raise ForbiddenError where an account's address was not proven yet."""
    if not is_confirmed(account_id):
        raise ForbiddenError(CONFIRM_FIRST, details={"reason": "addressNotConfirmed"})


def vouch_for_address(account: Account) -> None:
    """Take an account's present address as proven, on the word of whoever opened the account. Needs a transaction."""
    _prove(EmailAddress.objects.get_or_create(user_id=account.pk, email=account.email)[0])


def ask_for_proof(account: Account) -> None:
    """Forget what was proven, and send the account's present address a link. Needs a transaction."""
    EmailAddress.objects.filter(user_id=account.pk).delete()
    EmailAddress.objects.create(user_id=account.pk, email=account.email, verified=False, primary=True)
    tell(account, Notice.Kind.CONFIRM_ADDRESS)


def send_link_again(account: Account) -> None:
    """Send the link once more; nothing where the address is proven already."""
    if not is_confirmed(account.pk):
        with written_by(account.email, "Asked for the link again", ChangeSource.PAGE):
            # Changed by other means, an address has no row yet.
            EmailAddress.objects.get_or_create(user_id=account.pk, email=account.email, defaults={"verified": False})
            tell(account, Notice.Kind.CONFIRM_ADDRESS)


def wanted_address(account_id: UUID) -> str | None:
    """Return the address that an account's owner wants to change to and has not confirmed yet."""
    found = EmailAddress.objects.filter(user_id=account_id, verified=False).exclude(email=F("user__email"))
    address: str | None = found.values_list("email", flat=True).first()
    return address


def want_address(account: Account, address: str) -> None:
    """Send a link to an address that shall become the account's; until it is opened nothing changes.

    Does and says the same whether the address is somebody's or not; its mail differs.
    """
    with written_by(account.email, "Wants another address", ChangeSource.PAGE):
        EmailAddress.objects.filter(user_id=account.pk, verified=False).exclude(email=account.email).delete()
        EmailAddress.objects.get_or_create(user_id=account.pk, email=address, defaults={"verified": False})
        tell_address(address, Notice.Kind.NEW_ADDRESS, account)


def forget_wanted_address(account: Account) -> None:
    """Keep the present address; a link that was sent to another one is worth nothing any more."""
    EmailAddress.objects.filter(user_id=account.pk, verified=False).exclude(email=account.email).delete()


# --- Links -------------------------------------------------------------------------------------------


def link_of(address: EmailAddress) -> str:
    """Return what a link carries: which address of which account, signed, with the time."""
    return signing.dumps([address.pk, address.email], salt=_SALT)


def address_of_link(link: str) -> EmailAddress:
    """Return the address that a link was sent to. Raises NotFoundError where it is forged, old or no longer wanted."""
    try:
        key, email = signing.loads(link, salt=_SALT, max_age=_LASTS)
    except (signing.BadSignature, ValueError, TypeError) as error:
        raise NotFoundError(_BAD_LINK) from error
    address: EmailAddress | None = EmailAddress.objects.select_related("user").filter(pk=key, email=email).first()
    if address is None or not address.user.is_active:
        raise NotFoundError(_BAD_LINK)
    return address


def confirm_address(link: str) -> Account:
    """Take the proof: the address is its account's from now on, and its only one. Safe to repeat.

    The address that was replaced is told. Raises ConflictError where the address became another account's meanwhile.
    """
    found = address_of_link(link)
    try:
        with written_by(found.user.email, "Confirmed by its owner", ChangeSource.PAGE):
            account = Account.objects.select_for_update(no_key=True).get(pk=found.user_id)
            # Again, now that nobody else can change it: two links may be opened at once.
            address = EmailAddress.objects.filter(pk=found.pk, user_id=account.pk).first()
            if address is None:
                raise NotFoundError(_BAD_LINK)
            before = account.email
            if before != address.email:
                account.email = address.email
                account.save(update_fields=["email"])
                tell_address(before, Notice.Kind.ADDRESS_CHANGED, account)
            _prove(address)
    except IntegrityError as error:
        raise ConflictError("This address belongs to another account.") from error
    return account


def _prove(address: EmailAddress) -> None:
    EmailAddress.objects.filter(user_id=address.user_id).exclude(pk=address.pk).delete()
    # What somebody else only wants, or once had, is no proof against who can open its mails.
    EmailAddress.objects.filter(email=address.email).exclude(pk=address.pk).delete()
    EmailAddress.objects.filter(pk=address.pk).update(verified=True, primary=True)
