"""What people type to come in, and to set up what they come in with."""

from __future__ import annotations

from typing import Any, Final

from allauth.account.forms import LoginForm, ReauthenticateForm
from allauth.account.internal.flows.login import record_authentication
from allauth.core import context
from allauth.mfa.totp.internal.auth import generate_totp_secret
from cryptography.fernet import InvalidToken
from django import forms
from django.core.exceptions import ValidationError
from django.http import HttpRequest, HttpResponse

from entitlements.actions.second_factors import step_of_code, use_code
from entitlements.models import Account
from entitlements.sign_in import attempts, door
from entitlements.sign_in.encryption import decrypt, encrypt
from entitlements.sign_in.refusing import refused_as_invalid
from webhost.wire import client_address

# In the session while somebody sets up a phone, encrypted as it will be in the database.
_PENDING: Final = "pending_second_factor"
_WRONG_CODE: Final = "This code is wrong, or was used already. Codes change every 30 seconds."


def _code_field() -> forms.CharField:
    # No pattern and no numeric keyboard only: a recovery code may be typed with spaces or dashes.
    attrs = {"autocomplete": "one-time-code", "inputmode": "numeric", "autofocus": True}
    return forms.CharField(label="Code", max_length=32, widget=forms.TextInput(attrs=attrs))


class SignInForm(LoginForm):  # type: ignore[misc]  # untyped library
    """E-mail address and password; says the same of a wrong password and of an unknown or disabled account."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["login"].label = "E-mail address"
        for field in self.fields.values():
            field.widget.attrs.pop("placeholder", None)
            field.help_text = ""
        self.fields["login"].widget.attrs["autocomplete"] = "username"

    def add_prefix(self, field_name: str) -> str:
        """Call the address `username`, as password managers and our own programs know it."""
        return "username" if field_name == "login" else str(super().add_prefix(field_name))

    def login(self, request: HttpRequest, redirect_url: str | None = None) -> HttpResponse:
        """Sign in, or go on to the second step."""
        answer: HttpResponse = super().login(request, redirect_url)
        # Once more, because allauth says after signing in how long sessions are remembered.
        door.end_in_time(request)
        return answer


class PasswordForm(ReauthenticateForm):  # type: ignore[misc]  # untyped library
    """The password once more, before something that would let others in for good."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["password"].widget.attrs = {"autocomplete": "current-password", "autofocus": True}
        self.fields["password"].help_text = ""


class CodeForm(forms.Form):
    """A code of the phone, or a recovery code, to prove the second factor of an account."""

    code = _code_field()

    def __init__(self, *args: Any, user: Account, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.user = user
        self.used: Any = None

    def clean_code(self) -> str:
        """Take the code, once; raises ValidationError after too many wrong ones."""
        code = str(self.cleaned_data["code"])
        with refused_as_invalid():
            attempt = attempts.begin(attempts.Guessed.CODE, str(self.user.pk), client_address(context.request))
        self.used = use_code(self.user.pk, code)
        if self.used is None:
            raise ValidationError(_WRONG_CODE)
        attempt.succeeded()
        return code

    def save(self, request: HttpRequest) -> None:
        """Note in the session that the second factor was proven."""
        record_authentication(request, self.user, "mfa", id=self.used.pk, type=self.used.type)
        factor = door.factor_of(self.user.pk)
        if factor is not None:
            door.prove(request, factor)


class SetUpForm(forms.Form):
    """The first code of a phone, which proves that it has the secret."""

    code = _code_field()

    def __init__(self, *args: Any, request: HttpRequest, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.request = request
        self.secret = (_pending_secret(request) if self.is_bound else None) or _new_secret(request)
        self.step = -1

    def clean_code(self) -> str:
        """Compare with the secret that was shown."""
        code = str(self.cleaned_data["code"])
        step = step_of_code(self.secret, code)
        if step is None:
            raise ValidationError(
                "This code is wrong. Codes change every 30 seconds; is the clock of your phone right?"
            )
        self.step = step
        return code


def forget_pending_secret(request: HttpRequest) -> None:
    """Keep no secret in a session once it is in use."""
    request.session.pop(_PENDING, None)


def _pending_secret(request: HttpRequest) -> str | None:
    try:
        return decrypt(request.session[_PENDING])
    except (KeyError, InvalidToken):
        return None


def _new_secret(request: HttpRequest) -> str:
    secret: str = generate_totp_secret()
    request.session[_PENDING] = encrypt(secret)
    return secret
