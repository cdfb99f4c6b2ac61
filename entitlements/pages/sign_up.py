"""Signing up, and proving that an address is one's own. Nothing changes by opening a link: scanners open them all."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from allauth.account.utils import get_next_redirect_url
from django.conf import settings
from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.core.exceptions import ValidationError
from django.http import HttpRequest, HttpResponse, HttpResponseBase, HttpResponseRedirect
from django.shortcuts import render
from django.urls import path, reverse
from django.utils.decorators import method_decorator
from django.views.decorators.cache import never_cache
from django.views.decorators.debug import sensitive_post_parameters
from django.views.decorators.http import require_GET, require_POST
from django.views.generic.edit import FormView

from entitlements.actions.addresses import address_of_link, confirm_address, send_link_again
from entitlements.actions.sign_up import sign_up
from entitlements.sign_in import attempts
from entitlements.sign_in.forms import SignUpForm, ask
from entitlements.sign_in.refusing import WaitingMixin
from entitlements.whose import account_of
from webhost.errors import ConflictError, NotFoundError

# Generic for the type checker only.
if TYPE_CHECKING:
    _FormView = FormView[Any]
else:
    _FormView = FormView


class ForStrangers(WaitingMixin, _FormView):
    """A form for who is not signed in; whoever is has no use for it."""

    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        """Show who is signed in their own pages."""
        if request.user.is_authenticated:
            return HttpResponseRedirect("/")
        return super().dispatch(request, *args, **kwargs)


@method_decorator(sensitive_post_parameters("password"), name="dispatch")
@method_decorator(never_cache, name="dispatch")
class SignUp(ForStrangers):
    """An address and a password; the answer is the same whether there is such an account or not."""

    form_class = SignUpForm
    template_name = "entitlements/sign_up.html"

    def form_valid(self, form: SignUpForm) -> HttpResponse:
        """Open the account, and say where to look."""
        sign_up(form.cleaned_data["email"], form.cleaned_data["password"])
        return HttpResponseRedirect(reverse("sign_up_sent"))


def mail_folder() -> str:
    """Return where a laptop's mails are files; empty wherever mails are sent."""
    return str(getattr(settings, "EMAIL_FILE_PATH", "")) if settings.LOCAL else ""


@never_cache
@require_GET
def sent(request: HttpRequest) -> HttpResponse:
    """Say that a mail is on its way, to whomever: this page knows no address."""
    return render(request, "entitlements/sign_up_sent.html", {"mail_folder": mail_folder()})


@never_cache
@require_GET
def confirm(request: HttpRequest, link: str) -> HttpResponse:
    """Ask whether this is one's address."""
    try:
        address = address_of_link(link)
    except NotFoundError:
        return _no_link(request)
    context = {"link": link, "address": address.email, "account": address.user, "done": address.verified}
    return render(request, "entitlements/confirm_address.html", context)


@never_cache
@require_POST
def take_confirmation(request: HttpRequest) -> HttpResponse:
    """Take the answer. The link is in the form, and not in the address, which is noted beside the change."""
    try:
        account = confirm_address(request.POST.get("link", "").replace("\x00", ""))
    except NotFoundError:
        return _no_link(request)
    except ConflictError as error:
        context = {"refused": error.message}
        return render(request, "entitlements/confirm_address.html", context, status=HTTPStatus.CONFLICT)
    messages.success(request, f"{account.email} is confirmed. You can deploy now.")
    return HttpResponseRedirect("/" if request.user.is_authenticated else reverse("account_login"))


@never_cache
@login_required
@require_POST
def send_again(request: HttpRequest) -> HttpResponse:
    """Send the link once more, and lead back."""
    account = account_of(request)
    try:
        ask(attempts.Guessed.MAIL, account.email)
    except ValidationError as error:
        messages.error(request, error.message)
    else:
        send_link_again(account)
        messages.success(request, f"A mail is on its way to {account.email}.")
    return HttpResponseRedirect(get_next_redirect_url(request) or "/")


def _no_link(request: HttpRequest) -> HttpResponse:
    return render(request, "entitlements/confirm_address.html", status=HTTPStatus.NOT_FOUND)


urlpatterns = [
    path("sign-up/", SignUp.as_view(), name="sign_up"),
    path("sign-up/sent/", sent, name="sign_up_sent"),
    path("confirm/", take_confirmation, name="take_confirmation"),
    path("confirm/again/", send_again, name="confirm_again"),
    path("confirm/<str:link>/", confirm, name="confirm_address"),
]
