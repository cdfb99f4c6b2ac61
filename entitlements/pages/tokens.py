"""One's API tokens: which there are, making one, which is shown once, and revoking one."""

from __future__ import annotations

from datetime import timedelta
from http import HTTPStatus
from typing import Any, Final

from django import forms
from django.conf import settings
from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.db import IntegrityError
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import render
from django.urls import path, reverse
from django.utils import timezone
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods

from entitlements.actions.tokens import create_token, revoke_token
from entitlements.authentication import Caller
from entitlements.enums import Scope
from entitlements.models import Account, ApiToken
from entitlements.whose import account_of, unknown_as_404
from webhost.errors import WebhostError
from webhost.ids import Prefix, new_id, parse_id, public_id

SCOPES: Final = {
    Scope.INVOKE: "Invoke agents",
    Scope.READ: "Read agents, logs, usage and limits",
    Scope.DEPLOY: "Create and deploy agents, set secrets, make tokens",
}
_DAYS: Final = {"30": "30 days", "90": "90 days", "365": "A year", "": "Never"}
_SENT_TWICE: Final = "This form was sent before, and made a token then. What it says is not shown again: make another."


class TokenForm(forms.Form):
    """A name, what it may do, how long it lives."""

    # Made with the page, so that a form that is sent twice makes one token.
    token = forms.UUIDField(widget=forms.HiddenInput, initial=new_id)
    name = forms.CharField(max_length=80, widget=forms.TextInput(attrs={"autocomplete": "off"}))
    scopes = forms.MultipleChoiceField(
        choices=[(scope.value, text) for scope, text in SCOPES.items()],
        error_messages={"required": "Choose at least one."},
    )
    days = forms.ChoiceField(choices=list(_DAYS.items()), required=False, initial="90")


@never_cache
@login_required
@require_http_methods(["GET", "POST"])
def tokens(request: HttpRequest) -> HttpResponse:
    """Show one's tokens, never what they say; make one and show it, this once."""
    account = account_of(request)
    if request.method != "POST":
        return _render(request, account, TokenForm(initial={"scopes": [scope.value for scope in SCOPES]}))
    form = TokenForm(request.POST)
    if not form.is_valid():
        return _render(request, account, form, status=HTTPStatus.BAD_REQUEST)
    try:
        token, text = _made(account, form.cleaned_data)
    except WebhostError as error:
        return _render(request, account, form, said=error.message, status=int(error.status))
    except IntegrityError:
        return _render(request, account, TokenForm(), said=_SENT_TWICE, status=HTTPStatus.CONFLICT)
    context = {"tab": "tokens", "token": token, "text": text, "public_url": settings.PUBLIC_URL}
    return render(request, "entitlements/token_made.html", context)


def _made(account: Account, given: dict[str, Any]) -> tuple[ApiToken, str]:
    days = given["days"]
    return create_token(
        Caller(account.pk, None, frozenset(Scope), is_session=True),
        account,
        token_id=given["token"],
        name=given["name"],
        scopes=frozenset(map(Scope, given["scopes"])),
        expires_at=timezone.now() + timedelta(days=int(days)) if days else None,
    )


def _render(
    request: HttpRequest, account: Account, form: TokenForm, *, said: str = "", status: int = HTTPStatus.OK
) -> HttpResponse:
    now = timezone.now()
    found = [
        {"token": t, "id": public_id(Prefix.TOKEN, t.id), "is_over": t.expiry is not None and t.expiry <= now}
        for t in ApiToken.objects.filter(user=account).order_by("-created", "-id")
    ]
    context = {"tab": "tokens", "tokens": found, "form": form, "scopes": SCOPES, "days": _DAYS, "said": said}
    return render(request, "entitlements/tokens.html", context, status=status)


@never_cache
@login_required
@require_http_methods(["GET", "POST"])
def revoke(request: HttpRequest, token: str) -> HttpResponse:
    """Ask whether a token shall be refused from now on, and do it."""
    account = account_of(request)
    with unknown_as_404():
        token_id = parse_id(Prefix.TOKEN, token)
        if request.method == "POST":
            revoke_token(account.pk, token_id)
    if request.method == "POST":
        messages.success(request, "The token is revoked: its next call is refused.")
        return HttpResponseRedirect(reverse("token_page"))
    found = ApiToken.objects.filter(user=account, id=token_id).first()
    if found is None:
        raise Http404
    return render(request, "entitlements/token_revoke.html", {"tab": "tokens", "token": found})


urlpatterns = [
    path("settings/tokens/", tokens, name="token_page"),
    path("settings/tokens/<str:token>/revoke/", revoke, name="revoke_token"),
]
