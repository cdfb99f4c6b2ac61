"""What support does from the account's page: disable and enable it, adjust its usage, read all that happened to it.

Each is a page of its own that works without JavaScript; only its POST writes, with a reason, through an action.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import date
from http import HTTPStatus
from typing import Any, Final
from uuid import UUID

from django.contrib import messages
from django.contrib.admin import AdminSite
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils import timezone

from entitlements.actions.accounts import set_active
from entitlements.actions.adjustments import adjust_usage, adjustable_periods, closing_of, used_in
from entitlements.admin.account_forms import AdjustForm, WhyForm, moved_lines
from entitlements.admin.account_lines import May, may_on
from entitlements.admin.base import actor_of
from entitlements.admin.sections import sources_for, timeline_of
from entitlements.models import Account
from webhost.errors import InvalidRequestError, WebhostError
from webhost.period import key_of, parse_key, period_of

_MOMENTS: Final = 50
_View = Callable[..., HttpResponse]


def account_url(account_id: UUID) -> str:
    """Return the address of an account's page."""
    return reverse("admin:entitlements_account_change", args=[account_id])


class AccountDesk:
    """The pages beside the account's own, for its admin class to serve."""

    def __init__(self, site: AdminSite, may_look: Callable[[HttpRequest, Account], bool]) -> None:
        self.site, self.may_look = site, may_look

    def urls(self) -> list[URLPattern]:
        """Return the addresses of these pages."""

        def at(name: str, view: _View) -> URLPattern:
            served = self.site.admin_view(view)
            return path(f"<uuid:account_id>/{name}/", served, name=f"entitlements_account_{name}")

        return [
            at("disable", self.disable), at("enable", self.enable), at("adjust", self.adjust),
            at("timeline", self.timeline),
        ]  # fmt: skip

    # --- Disable, enable --------------------------------------------------------------------------

    def disable(self, request: HttpRequest, account_id: UUID) -> HttpResponse:
        """Ask for a reason and disable the account."""
        return self._switch(request, account_id, active=False)

    def enable(self, request: HttpRequest, account_id: UUID) -> HttpResponse:
        """Ask for a reason and enable the account again."""
        return self._switch(request, account_id, active=True)

    def _switch(self, request: HttpRequest, account_id: UUID, *, active: bool) -> HttpResponse:
        account = self._account(request, account_id, lambda may: may.switch)
        form = WhyForm(request.POST if request.method == "POST" else None)
        if request.method == "POST" and form.is_valid():
            by = request.user
            if not isinstance(by, Account):
                raise PermissionDenied
            try:
                set_active(account.pk, active, by=by, reason=form.reason)
            except WebhostError as error:
                messages.error(request, error.message)
            else:
                said = "enabled; its calls are served again" if active else "disabled; its next call is answered 403"
                messages.success(request, f"{account.email} is {said}.")
            return HttpResponseRedirect(account_url(account.pk))
        title = f"{'Enable' if active else 'Disable'} {account.email}"
        return self._page(request, "state", account, title, form=form, active=active)

    # --- Adjust -----------------------------------------------------------------------------------

    def adjust(self, request: HttpRequest, account_id: UUID) -> HttpResponse:
        """Show what is used, then what an adjustment would make of it, then make it."""
        account = self._account(request, account_id, lambda may: may.adjust)
        periods = adjustable_periods(account.pk)
        period = _period(request)
        used = used_in(account.pk, period)
        context: dict[str, Any] = {"periods": [key_of(p) for p in periods], "period": key_of(period)}
        title = f"Adjust usage of {account.email}"
        if used is None:
            return self._page(request, "adjust", account, title, **context)
        closing = closing_of(account.pk, period, timezone.now())
        sent = request.POST if request.method == "POST" else None
        form = AdjustForm(sent, account_id=account.pk, period=period, used=used, closing=closing)
        context |= {"form": form, "closing": closing}
        if sent is None or not form.is_valid():
            return self._page(request, "adjust", account, title, **context)
        if sent.get("confirmed") != form.shown:
            return self._page(request, "adjust", account, title, preview=form.preview(), **context)
        try:
            done = adjust_usage(
                account.pk, period, form.change, once=form.cleaned_data["once"],
                restate=bool(form.cleaned_data.get("restate")), actor=actor_of(request), reason=form.reason,
            )  # fmt: skip
        except InvalidRequestError as error:  # used moved since: say so where it can be corrected
            form.add_error(None, error.message)
            return self._page(request, "adjust", account, title, **context)
        except WebhostError as error:
            messages.warning(request, error.message)
            return HttpResponseRedirect(account_url(account.pk))
        said = ", ".join(f"{m.label} {m.before} → {m.after}" for m in moved_lines(done.before, done.after))
        messages.success(request, f"Usage of {key_of(period)} is adjusted: {said}.")
        return HttpResponseRedirect(account_url(account.pk))

    # --- Timeline ---------------------------------------------------------------------------------

    def timeline(self, request: HttpRequest, account_id: UUID) -> HttpResponse:
        """Show everything that happened to the account, newest first, by pages and by kind."""
        account = self._account(request, account_id, lambda _: True)
        kinds = sources_for(request)
        kind = request.GET.get("kind", "")
        if kind not in {source.kind for source in kinds}:
            kind = ""
        page = timeline_of(request, account.pk, most=_MOMENTS, kind=kind, after=request.GET.get("after", ""))
        title = f"What happened to {account.email}"
        return self._page(
            request,
            "timeline",
            account,
            title,
            timeline=page,
            kinds=kinds,
            kind=kind,
            is_first="after" not in request.GET,
        )

    # --- Shared -----------------------------------------------------------------------------------

    def _account(self, request: HttpRequest, account_id: UUID, allows: Callable[[May], bool]) -> Account:
        if request.method not in {"GET", "HEAD", "POST"}:
            raise PermissionDenied
        account = Account.objects.filter(pk=account_id).first()
        if account is None:
            if not request.user.has_perm("entitlements.view_account"):
                raise PermissionDenied
            raise Http404
        if not self.may_look(request, account) or not allows(may_on(request, account)):
            raise PermissionDenied
        return account

    def _page(self, request: HttpRequest, name: str, account: Account, title: str, **context: Any) -> TemplateResponse:
        form = context.get("form")
        status = (
            HTTPStatus.UNPROCESSABLE_ENTITY if form is not None and form.is_bound and form.errors else HTTPStatus.OK
        )
        return TemplateResponse(
            request,
            f"entitlements/admin_account_{name}.html",
            {**self.site.each_context(request), "title": title, "account": account, "opts": Account._meta, **context},  # noqa: SLF001 - documented
            status=status,
        )


def _period(request: HttpRequest) -> date:
    """Read the month that is asked for; this one where none, or none that is a month, is named."""
    try:
        return parse_key(request.GET.get("period", ""))
    except InvalidRequestError:
        return period_of(timezone.now())
