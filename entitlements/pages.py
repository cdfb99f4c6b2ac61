"""Signing in and out, server-rendered."""

from __future__ import annotations

from django.contrib.auth.forms import AuthenticationForm
from django.contrib.auth.views import LoginView, LogoutView
from django.http import HttpRequest
from django.urls import path


class SignInForm(AuthenticationForm):
    """E-mail address and password; says the same of a wrong password and of an unknown or disabled account."""

    error_messages = {  # noqa: RUF012 - Django's own attribute
        "invalid_login": "This address and password do not belong together, or the account is disabled.",
        "inactive": "This address and password do not belong together, or the account is disabled.",
    }

    def __init__(self, request: HttpRequest | None = None, *args: object, **kwargs: object) -> None:
        super().__init__(request, *args, **kwargs)
        self.fields["username"].widget.input_type = "email"
        self.fields["username"].widget.attrs["autocomplete"] = "username"


sign_in = LoginView.as_view(
    template_name="entitlements/sign_in.html",
    authentication_form=SignInForm,
    redirect_authenticated_user=True,
)
# A POST: a link cannot sign anybody out.
sign_out = LogoutView.as_view()

urlpatterns = [
    path("sign-in/", sign_in, name="sign_in"),
    path("sign-out/", sign_out, name="sign_out"),
]
