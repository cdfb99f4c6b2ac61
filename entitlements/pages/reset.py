"""A new password for who forgot the old one, by a link that is mailed."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from django.contrib import messages
from django.contrib.auth import logout
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import render
from django.urls import path, reverse
from django.utils.decorators import method_decorator
from django.views.decorators.cache import never_cache
from django.views.decorators.debug import sensitive_post_parameters
from django.views.decorators.http import require_GET, require_POST

from entitlements.actions import passwords
from entitlements.pages.sign_up import ForStrangers, mail_folder
from entitlements.sign_in.forms import AddressForm, NewPasswordForm
from webhost.errors import NotFoundError


@method_decorator(never_cache, name="dispatch")
class Forgot(ForStrangers):
    """An address; the answer is the same whether it is somebody's or not."""

    form_class = AddressForm
    template_name = "entitlements/forgot_password.html"

    def form_valid(self, form: AddressForm) -> HttpResponse:
        """Have a link sent, and say where to look."""
        passwords.ask_for_new_password(form.cleaned_data["email"])
        return HttpResponseRedirect(reverse("forgot_password_sent"))


@never_cache
@require_GET
def sent(request: HttpRequest) -> HttpResponse:
    """Say that a mail is on its way if the address is somebody's: this page knows no address."""
    return render(request, "entitlements/forgot_password_sent.html", {"mail_folder": mail_folder()})


@never_cache
@require_GET
def choose(request: HttpRequest, link: str) -> HttpResponse:
    """Ask for a new password."""
    try:
        account = passwords.account_of_link(link)
    except NotFoundError:
        return _no_link(request)
    return _form(request, link, NewPasswordForm(user=account))


@sensitive_post_parameters("password", "link")
@never_cache
@require_POST
def take_password(request: HttpRequest) -> HttpResponse:
    """Set the password. Nobody is signed in by it: a second factor is asked for at the door, as ever."""
    link = request.POST.get("link", "").replace("\x00", "")
    try:
        form = NewPasswordForm(request.POST, user=passwords.account_of_link(link))
        if not form.is_valid():
            return _form(request, link, form)
        account = passwords.reset_password(link, form.cleaned_data["password"])
    except NotFoundError:
        return _no_link(request)
    if request.user.pk == account.pk:
        logout(request)
    messages.success(request, "Your new password is set. Sign in with it.")
    return HttpResponseRedirect(reverse("account_login"))


def _form(request: HttpRequest, link: str, form: NewPasswordForm) -> HttpResponse:
    context: dict[str, Any] = {"link": link, "form": form, "account": form.user}
    return render(request, "entitlements/reset_password.html", context)


def _no_link(request: HttpRequest) -> HttpResponse:
    return render(request, "entitlements/reset_password.html", status=HTTPStatus.NOT_FOUND)


urlpatterns = [
    path("reset/", Forgot.as_view(), name="forgot_password"),
    path("reset/sent/", sent, name="forgot_password_sent"),
    path("reset/new/", take_password, name="take_password"),
    path("reset/<str:link>/", choose, name="reset_password"),
]
