"""What people type to come in, and to set up what they come in with."""

from __future__ import annotations

from typing import Any, Final

from allauth.account.adapter import get_adapter
from allauth.account.forms import LoginForm, ReauthenticateForm
from allauth.account.internal.flows.login import record_authentication
from allauth.core import context
from allauth.mfa.totp.internal.auth import generate_totp_secret
from cryptography.fernet import InvalidToken
from django import forms
from django.contrib.auth.password_validation import validate_password
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
_LONGEST_ADDRESS: Final = 254
_LONGEST_PASSWORD: Final = 256
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


# --- Addresses and passwords of people ---------------------------------------------------------------


def _address_field(label: str = "E-mail address", complete: str = "username") -> forms.EmailField:
    attrs = {"autocomplete": complete, "autofocus": True}
    return forms.EmailField(label=label, max_length=_LONGEST_ADDRESS, widget=forms.EmailInput(attrs=attrs))


def _new_password_field(label: str = "Password") -> forms.CharField:
    widget = forms.PasswordInput(attrs={"autocomplete": "new-password"})
    return forms.CharField(label=label, strip=False, max_length=_LONGEST_PASSWORD, widget=widget)


class AddressForm(forms.Form):
    """An address to send a link to; wishes for mails are counted."""

    asks = attempts.Guessed.MAIL
    email = _address_field()

    def clean_email(self) -> str:
        """Return the address as accounts have it: in lower case, of ASCII."""
        address = str(self.cleaned_data["email"]).strip().lower()
        if not address.isascii():
            raise ValidationError("Enter a valid email address.")
        return address

    def clean(self) -> dict[str, Any] | None:
        """Count the wish, once there is nothing else wrong with it; raises ValidationError after too many."""
        cleaned = super().clean()
        if not self.errors:
            ask(self.asks, self.cleaned_data["email"])
        return cleaned


class SignUpForm(AddressForm):
    """An address and a password that fits the rules."""

    asks = attempts.Guessed.SIGN_UP
    password = _new_password_field()

    def clean(self) -> dict[str, Any] | None:
        """Hold the password to the rules, also against the address."""
        if not self.errors:
            _hold_to_rules(self, "password", Account(email=self.cleaned_data["email"]))
        return super().clean()


class NewPasswordForm(forms.Form):
    """A password that fits the rules, for somebody with a link."""

    password = _new_password_field("New password")

    def __init__(self, *args: Any, user: Account, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.user = user
        self.fields["password"].widget.attrs["autofocus"] = True

    def clean(self) -> dict[str, Any] | None:
        """Hold the password to the rules."""
        cleaned = super().clean()
        if not self.errors:
            _hold_to_rules(self, "password", self.user)
        return cleaned


class _ProvenForm(forms.Form):
    """Something that only who knows the present password may do."""

    current = forms.CharField(
        label="Your password now",
        strip=False,
        max_length=_LONGEST_PASSWORD,
        widget=forms.PasswordInput(attrs={"autocomplete": "current-password", "autofocus": True}),
    )

    def __init__(self, *args: Any, user: Account, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.user = user

    def clean_current(self) -> str:
        """Take the password; wrong ones are counted as at the door."""
        current = str(self.cleaned_data["current"])
        if not get_adapter().reauthenticate(self.user, current):
            raise ValidationError("This is not your password.")
        return current


class ChangePasswordForm(_ProvenForm):
    """The present password and a new one."""

    password = _new_password_field("New password")

    def clean(self) -> dict[str, Any] | None:
        """Hold the new password to the rules."""
        cleaned = super().clean()
        if not self.errors:
            _hold_to_rules(self, "password", self.user)
        return cleaned


class ChangeAddressForm(_ProvenForm, AddressForm):
    """The present password and another address."""

    email = _address_field("New e-mail address", "email")

    def clean_email(self) -> str:
        """Refuse the address that the account has."""
        address = super().clean_email()
        if address == self.user.email:
            raise ValidationError("This is your address already.")
        return address


def ask(what: attempts.Guessed, address: str) -> None:
    """Count a wish for a mail to an address; raises ValidationError after too many."""
    with refused_as_invalid():
        attempts.begin(what, address, client_address(context.request))


def _hold_to_rules(form: forms.Form, field: str, account: Account) -> None:
    try:
        validate_password(form.cleaned_data[field], account)
    except ValidationError as error:
        form.add_error(field, error)
