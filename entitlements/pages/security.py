"""One's own second factor: set up, proven in a session that did not yet, removed; new recovery codes.

Each change asks for the password again, and, where there is a second factor, for a session that proved it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import urlencode

from allauth.account.decorators import reauthentication_required
from allauth.account.utils import get_next_redirect_url
from allauth.account.views import ReauthenticateView
from allauth.mfa.adapter import get_adapter
from django.conf import settings
from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.forms import Form
from django.http import HttpRequest, HttpResponse, HttpResponseBase, HttpResponseRedirect
from django.shortcuts import render
from django.urls import path, reverse
from django.utils.decorators import method_decorator
from django.views.decorators.cache import never_cache
from django.views.decorators.debug import sensitive_post_parameters
from django.views.decorators.http import require_GET
from django.views.generic.edit import FormView

from entitlements.actions import second_factors as actions
from entitlements.actions.addresses import is_confirmed, wanted_address
from entitlements.sign_in import door
from entitlements.sign_in.forms import CodeForm, PasswordForm, SetUpForm, forget_pending_secret
from entitlements.sign_in.refusing import WaitingMixin
from entitlements.whose import account_of
from webhost.errors import ConflictError

# Generic for the type checker only.
if TYPE_CHECKING:
    _FormView = FormView[Any]
else:
    _FormView = FormView
View = Callable[..., HttpResponseBase]


def proven_if_any(view: View) -> View:
    """Let a session in that proved the account's second factor, or whose account has none."""

    @wraps(view)
    def proven_view(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        factor = door.factor_of(account_of(request).pk)
        if factor is None or door.is_proven(request, factor):
            return view(request, *args, **kwargs)
        return HttpResponseRedirect(f"{reverse('prove_second_factor')}?{urlencode({'next': request.path})}")

    return proven_view


guarded = [never_cache, login_required, proven_if_any, reauthentication_required(app="allauth.mfa")]


@never_cache
@login_required
@require_GET
def security(request: HttpRequest) -> HttpResponse:
    """Show whether there is a second factor, and what can be done about it."""
    account = account_of(request)
    factor = door.factor_of(account.pk)
    context = {
        "tab": "security",
        "confirmed": is_confirmed(account.pk),
        "wanted": wanted_address(account.pk),
        "factor": factor,
        "codes_left": actions.recovery_codes_left(account.pk) if factor else 0,
        "required": settings.STAFF_TOTP and account.is_staff,
    }
    return render(request, "entitlements/security.html", context)


@method_decorator(sensitive_post_parameters("password"), name="dispatch")
@method_decorator(never_cache, name="dispatch")
class Password(WaitingMixin, ReauthenticateView):  # type: ignore[misc]  # untyped library
    """The password once more; what was asked for goes on then."""

    form_class = PasswordForm
    template_name = "entitlements/security_password.html"


@method_decorator(sensitive_post_parameters("code"), name="dispatch")
@method_decorator([never_cache, login_required], name="dispatch")
class Prove(WaitingMixin, _FormView):
    """A code, for a session that came without one: signed in before there was a second factor, say."""

    form_class = CodeForm
    template_name = "entitlements/security_prove.html"

    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        """Ask only where there is something to prove."""
        factor = door.factor_of(account_of(request).pk)
        if factor is None or door.is_proven(request, factor):
            return HttpResponseRedirect(_back(request))
        return super().dispatch(request, *args, **kwargs)

    def get_form_kwargs(self) -> dict[str, Any]:
        """Say whose code it is."""
        return {**super().get_form_kwargs(), "user": account_of(self.request)}

    def form_valid(self, form: CodeForm) -> HttpResponse:
        """Go on to where the code was asked for."""
        form.save(self.request)
        return HttpResponseRedirect(_back(self.request))

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        """Remember where to go on."""
        return super().get_context_data(next=_back(self.request), **kwargs)


@method_decorator(sensitive_post_parameters("code"), name="dispatch")
@method_decorator(guarded, name="dispatch")
class SetUp(_FormView):
    """Set up an authenticator app: the secret, a first code, and then the recovery codes, shown once."""

    form_class = SetUpForm
    template_name = "entitlements/security_set_up.html"

    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        """Set up only where there is none."""
        if door.factor_of(account_of(request).pk) is not None:
            return HttpResponseRedirect(_back(request))
        return super().dispatch(request, *args, **kwargs)

    def get_form_kwargs(self) -> dict[str, Any]:
        """Let the form keep its secret in the session."""
        return {**super().get_form_kwargs(), "request": self.request}

    def form_valid(self, form: SetUpForm) -> HttpResponse:
        """Ask for codes from now on; this session proved it just now."""
        account = account_of(self.request)
        try:
            factor, codes = actions.set_up_totp(
                account.pk, form.secret, form.step, actor=account.email, reason="Set up by its owner"
            )
        except ConflictError:  # in another window, at the same moment
            return HttpResponseRedirect(_back(self.request))
        forget_pending_secret(self.request)
        door.prove(self.request, factor)
        return show_once(self.request, codes, "Your authenticator app is set up.")

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        """Draw the secret, and write it out for who cannot scan it."""
        context = super().get_context_data(next=_back(self.request), **kwargs)
        secret, adapter = context["form"].secret, get_adapter()
        url = adapter.build_totp_url(self.request.user, secret)
        groups = " ".join(secret[at : at + 4] for at in range(0, len(secret), 4))
        return {**context, "secret": groups, "svg": adapter.build_totp_svg(url), "url": url}


@method_decorator(guarded, name="dispatch")
class ChangeView(_FormView):
    """A change that needs nothing but a yes."""

    form_class = Form
    template_name = "entitlements/security_change.html"
    words: ClassVar[dict[str, str]] = {}

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        """Say what would happen."""
        return super().get_context_data(words=self.words, **kwargs)


class Remove(ChangeView):
    """Remove the authenticator app, and the recovery codes with it."""

    words: ClassVar[dict[str, str]] = {
        "title": "Remove your authenticator app",
        "text": "Signing in asks for your password only then. Your recovery codes are gone, too.",
        "button": "Remove it",
    }

    def form_valid(self, form: Form) -> HttpResponse:
        """Remove it."""
        del form
        account = account_of(self.request)
        actions.remove_second_factor(account.pk, actor=account.email, reason="Removed by its owner")
        messages.success(self.request, "Your authenticator app is removed.")
        return HttpResponseRedirect(reverse("security"))


class NewRecoveryCodes(ChangeView):
    """Replace the recovery codes."""

    words: ClassVar[dict[str, str]] = {
        "title": "Make new recovery codes",
        "text": "The codes that you have now are no longer taken then.",
        "button": "Make new codes",
    }

    def form_valid(self, form: Form) -> HttpResponse:
        """Make new ones and show them, this once."""
        del form
        account = account_of(self.request)
        try:
            codes = actions.renew_recovery_codes(account.pk, actor=account.email, reason="Renewed by its owner")
        except ConflictError as error:
            messages.error(self.request, error.message)
            return HttpResponseRedirect(reverse("security"))
        return show_once(self.request, codes, "These are your new recovery codes.")


def show_once(request: HttpRequest, codes: list[str], title: str) -> HttpResponse:
    """Show recovery codes in the answer that made them; no page shows them again."""
    context = {"codes": codes, "title": title, "next": _back(request)}
    return render(request, "entitlements/security_codes.html", context)


def _back(request: HttpRequest) -> str:
    return get_next_redirect_url(request) or reverse("security")


_AT = "settings/security/"
urlpatterns = [
    path(_AT, security, name="security"),
    path(f"{_AT}password/", Password.as_view(), name="account_reauthenticate"),
    path(f"{_AT}code/", Prove.as_view(), name="prove_second_factor"),
    path(f"{_AT}app/", SetUp.as_view(), name="set_up_second_factor"),
    path(f"{_AT}app/remove/", Remove.as_view(), name="remove_second_factor"),
    path(f"{_AT}recovery-codes/", NewRecoveryCodes.as_view(), name="new_recovery_codes"),
]
