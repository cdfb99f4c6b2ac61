"""One's own password and address, changed by who is signed in and knows the password."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import path, reverse
from django.utils.decorators import method_decorator
from django.views.decorators.cache import never_cache
from django.views.decorators.debug import sensitive_post_parameters
from django.views.decorators.http import require_POST
from django.views.generic.edit import FormView

from entitlements.actions import addresses
from entitlements.actions.passwords import change_password
from entitlements.pages.security import proven_if_any
from entitlements.sign_in.forms import ChangeAddressForm, ChangePasswordForm
from entitlements.sign_in.refusing import WaitingMixin
from entitlements.whose import account_of

# Generic for the type checker only.
if TYPE_CHECKING:
    _FormView = FormView[Any]
else:
    _FormView = FormView


@method_decorator(sensitive_post_parameters("current", "password"), name="dispatch")
@method_decorator([never_cache, login_required, proven_if_any], name="dispatch")
class _Own(WaitingMixin, _FormView):
    """A form of who is signed in, which asks for the present password."""

    extra_context = {"tab": "security"}  # noqa: RUF012 - Django's name

    def get_form_kwargs(self) -> dict[str, Any]:
        """Say whose password it is."""
        return {**super().get_form_kwargs(), "user": account_of(self.request)}


class ChangePassword(_Own):
    """Another password; all other sessions end."""

    form_class = ChangePasswordForm
    template_name = "entitlements/change_password.html"

    def form_valid(self, form: ChangePasswordForm) -> HttpResponse:
        """Set it."""
        change_password(self.request, form.user, form.cleaned_data["password"])
        messages.success(self.request, "Your password is changed. All other sessions were ended.")
        return HttpResponseRedirect(reverse("security"))


class ChangeAddress(_Own):
    """Another address, which counts once its link was opened."""

    form_class = ChangeAddressForm
    template_name = "entitlements/change_address.html"

    def form_valid(self, form: ChangeAddressForm) -> HttpResponse:
        """Send the link; the answer is the same whether the address is somebody's or not."""
        address = form.cleaned_data["email"]
        addresses.want_address(form.user, address)
        messages.success(self.request, f"A mail is on its way to {address}. Until its link is opened nothing changes.")
        return HttpResponseRedirect(reverse("security"))


@never_cache
@login_required
@require_POST
def keep_address(request: HttpRequest) -> HttpResponse:
    """Change one's mind about another address."""
    addresses.forget_wanted_address(account_of(request))
    messages.success(request, "Your address stays as it is.")
    return HttpResponseRedirect(reverse("security"))


urlpatterns = [
    path("settings/security/new-password/", ChangePassword.as_view(), name="change_password"),
    path("settings/security/e-mail/", ChangeAddress.as_view(), name="change_address"),
    path("settings/security/e-mail/keep/", keep_address, name="keep_address"),
]
