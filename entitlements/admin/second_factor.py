"""A lost phone: a superuser resets the second factor of somebody else, with a reason."""

from __future__ import annotations

from typing import Any, ClassVar

from allauth.mfa.models import Authenticator
from django import forms
from django.conf import settings
from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import reverse
from unfold.admin import ModelAdmin
from unfold.decorators import action
from unfold.enums import ActionVariant
from unfold.widgets import UnfoldAdminTextInputWidget

from entitlements.actions.second_factors import reset_second_factor
from entitlements.admin.base import account_id_in, actor_of
from entitlements.models import Account
from entitlements.sign_in.door import factor_of
from webhost.errors import WebhostError


class ResetForm(forms.Form):
    """Why somebody's second factor is reset."""

    why = forms.CharField(
        label="Reason",
        max_length=500,
        widget=UnfoldAdminTextInputWidget(),
        help_text="Why, for the audit log, and how you know that it is really them who asked.",
    )


class ResetsSecondFactor(ModelAdmin):  # type: ignore[misc]  # untyped library
    """Adds to the account page a button for superusers, where there is a second factor to reset."""

    actions_detail: ClassVar[Any] = ("reset_totp",)

    def has_reset_totp_permission(self, request: HttpRequest, object_id: str | None = None) -> bool:
        """Leave it to superusers; one's own is removed on the security page, which asks for the password."""
        account = account_id_in(str(object_id))
        if not request.user.is_superuser or account is None or account == request.user.pk:
            return False
        return factor_of(account) is not None

    @action(
        description="Reset second factor", url_path="reset-totp", permissions=["reset_totp"], icon="phonelink_erase",
        variant=ActionVariant.DANGER,
    )  # type: ignore[untyped-decorator]  # untyped library  # fmt: skip
    def reset_totp(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Ask for a reason, then reset it through the action; a GET changes nothing."""
        account = self._account(object_id)
        page = reverse("admin:entitlements_account_change", args=[account.pk])
        form = ResetForm(request.POST if request.method == "POST" else None)
        if form.is_valid():
            try:
                reset_second_factor(account.pk, actor=actor_of(request), reason=form.cleaned_data["why"])
            except WebhostError as error:
                self.message_user(request, error.message, messages.ERROR)
            else:
                self.message_user(request, f"The second factor of {account.email} is reset.", messages.SUCCESS)
            return HttpResponseRedirect(page)
        factor = Authenticator.objects.filter(user_id=account.pk, type=Authenticator.Type.TOTP).first()
        context = {
            **self.admin_site.each_context(request),
            "title": "Reset second factor?",
            "opts": self.opts,
            "account": account,
            "factor": factor,
            "closed": account.is_staff and settings.STAFF_TOTP,
            "form": form,
            "page": page,
        }
        return TemplateResponse(request, "entitlements/admin_reset_totp.html", context)

    @staticmethod
    def _account(object_id: str) -> Account:
        account_id = account_id_in(object_id)
        account = Account.objects.filter(pk=account_id).first() if account_id else None
        if account is None:
            raise Http404
        return account
