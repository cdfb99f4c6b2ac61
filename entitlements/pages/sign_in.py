"""Signing in and out, server-rendered."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from allauth.account.internal.decorators import login_stage_required
from allauth.account.utils import get_next_redirect_url
from allauth.account.views import LoginView
from allauth.mfa.stages import AuthenticateStage
from django.contrib.auth.views import LogoutView
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import path, reverse
from django.utils.decorators import method_decorator
from django.views.decorators.cache import never_cache
from django.views.decorators.debug import sensitive_post_parameters
from django.views.decorators.http import require_safe
from django.views.generic.edit import FormView

from entitlements.sign_in.forms import CodeForm, SignInForm
from entitlements.sign_in.refusing import WaitingMixin

# Generic for the type checker only.
if TYPE_CHECKING:
    _FormView = FormView[Any]
else:
    _FormView = FormView


class SignIn(WaitingMixin, LoginView):  # type: ignore[misc]  # untyped library
    """The first step: e-mail address and password."""

    form_class = SignInForm
    template_name = "entitlements/sign_in.html"


@method_decorator(never_cache, name="dispatch")
@method_decorator(sensitive_post_parameters("code"), name="dispatch")
@method_decorator(login_stage_required(stage=AuthenticateStage.key, redirect_urlname="account_login"), name="dispatch")
class SignInCode(WaitingMixin, _FormView):
    """The second step: a code, for who has an authenticator app. Nobody is signed in before it."""

    form_class = CodeForm
    template_name = "entitlements/sign_in_code.html"

    def get_form_kwargs(self) -> dict[str, Any]:
        """Say whose code it is."""
        return {**super().get_form_kwargs(), "user": self._stage.login.user}

    def form_valid(self, form: CodeForm) -> HttpResponse:
        """Sign in."""
        form.save(self.request)
        answer: HttpResponse = self._stage.exit()
        return answer

    @property
    def _stage(self) -> Any:
        return self.request._login_stage  # type: ignore[attr-defined]  # noqa: SLF001 - set by the decorator


# A POST: a link cannot sign anybody out.
sign_out = LogoutView.as_view()


@never_cache
@require_safe
def admin_sign_in(request: HttpRequest) -> HttpResponse:
    """Lead from the admin's own sign-in page, which would ask for no code, to ours."""
    back = get_next_redirect_url(request) or reverse("admin:index")
    if not request.user.is_authenticated:
        return HttpResponseRedirect(f"{reverse('account_login')}?{urlencode({'next': back})}")
    if not request.user.is_staff:
        raise PermissionDenied
    return HttpResponseRedirect(back)


urlpatterns = [
    path("sign-in/", SignIn.as_view(), name="account_login"),
    path("sign-in/code/", SignInCode.as_view(), name="mfa_authenticate"),
    path("sign-out/", sign_out, name="account_logout"),
]
