"""What django-allauth asks us: who signs in, what is refused and in which words, how secrets are kept."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Final

import qrcode
from allauth.account.adapter import DefaultAccountAdapter
from allauth.core import context
from allauth.mfa.adapter import DefaultMFAAdapter
from django.contrib.auth import authenticate
from django.http import HttpRequest, HttpResponseRedirect
from django.urls import reverse
from django.utils.html import format_html
from django.utils.http import url_has_allowed_host_and_scheme

from entitlements.models import Account
from entitlements.sign_in import attempts, door, encryption
from entitlements.sign_in.refusing import refused_as_invalid
from entitlements.sign_in.sessions import note_seen
from webhost.wire import client_address

_NO_MATCH: Final = "This address and password do not belong together, or the account is disabled."


class AccountAdapter(DefaultAccountAdapter):  # type: ignore[misc]  # untyped library
    """Signing in with e-mail and password. Signing up and forgotten passwords have actions of their own."""

    error_messages: ClassVar[Mapping[str, Any]] = {
        **DefaultAccountAdapter.error_messages,
        "email_password_mismatch": _NO_MATCH,
        "account_inactive": _NO_MATCH,
        "incorrect_password": "This is not your password.",
    }

    def is_open_for_signup(self, request: HttpRequest) -> bool:  # noqa: ARG002 - allauth's hook
        """Nobody signs up through allauth's own pages: ours are in entitlements/pages/sign_up.py."""
        return False

    def authenticate(self, request: HttpRequest, **credentials: Any) -> Account | None:
        """Return whose e-mail and password these are; raises ValidationError after too many wrong ones."""
        address = client_address(request)
        with refused_as_invalid():
            attempt = attempts.begin(attempts.Guessed.PASSWORD, credentials["email"].strip().lower(), address)
        account = authenticate(request, **credentials)
        if not isinstance(account, Account):
            return None
        attempt.succeeded()
        return account

    def reauthenticate(self, user: Account, password: str) -> bool:
        """Say whether this is the password of who is signed in; counted as at the door."""
        found = self.authenticate(context.request, email=user.email, password=password)
        return found is not None and found.pk == user.pk

    def login(self, request: HttpRequest, user: Account) -> None:
        """Begin a session with a new key; one of staff ends in time."""
        super().login(request, user)
        door.end_in_time(request)
        note_seen(request)

    def get_reauthentication_methods(self, user: Any) -> list[dict[str, str]]:  # noqa: ARG002 - allauth's hook
        """Ask for the password, whatever else there is."""
        return [{"id": "reauthenticate", "description": "Password", "url": reverse("account_reauthenticate")}]

    def respond_user_inactive(self, request: HttpRequest, user: Account) -> HttpResponseRedirect:  # noqa: ARG002 - allauth's hook
        """Tell a disabled account no more than a stranger."""
        return HttpResponseRedirect(reverse("account_login"))

    def is_safe_url(self, url: str) -> bool:
        """Lead back to pages of this very host only."""
        request = context.request
        return url_has_allowed_host_and_scheme(url, {request.get_host()}, require_https=request.is_secure())

    def get_client_ip(self, request: HttpRequest) -> str:
        """Believe as many proxies as everything else here does."""
        return client_address(request)

    def is_ajax(self, request: HttpRequest) -> bool:  # noqa: ARG002 - allauth's hook
        """Answer with pages; programs have the API."""
        return False


class SecondFactorAdapter(DefaultMFAAdapter):  # type: ignore[misc]  # untyped library
    """Second factors: secrets are encrypted, the QR code is a drawing in the page."""

    def encrypt(self, text: str) -> str:
        """Encrypt a secret for the database."""
        return encryption.encrypt(text)

    def decrypt(self, encrypted_text: str) -> str:
        """Decrypt a secret from the database."""
        return encryption.decrypt(encrypted_text)

    def build_totp_svg(self, url: str) -> str:
        """Draw a QR code as one path, without the style attributes that our policy forbids."""
        code = qrcode.QRCode(border=0, error_correction=qrcode.constants.ERROR_CORRECT_M)
        code.add_data(url)
        code.make()
        rows = code.get_matrix()
        path = "".join(f"M{x} {y}h1v1h-1z" for y, row in enumerate(rows) for x, dark in enumerate(row) if dark)
        return format_html(
            '<svg class="qr" viewBox="-4 -4 {} {}" role="img" aria-label="QR code for an authenticator app">'
            '<path d="{}"/></svg>',
            len(rows) + 8, len(rows) + 8, path,
        )  # fmt: skip
