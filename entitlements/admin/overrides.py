"""Overrides: one value for one account, with a reason and often an end, under the same rules as a tier."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any, ClassVar

from django import forms
from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.db.models import Q, QuerySet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import path
from django.utils import timezone
from unfold.widgets import UnfoldAdminRadioSelectWidget

from entitlements import rules
from entitlements.actions import overrides as actions
from entitlements.actions.standing import read_standing
from entitlements.admin.account_desk import account_url
from entitlements.admin.account_forms import WhyForm
from entitlements.admin.account_lines import may_on
from entitlements.admin.base import DELETED_HERE, ActionAdmin, ReasonForm, account_id_in, account_ids_like, actor_of
from entitlements.admin.override_values import (
    End,
    amount_text,
    end_of,
    named_ends,
    tier_amount,
    value_in_force,
    value_text,
    what_it_replaces,
)
from entitlements.display import label_of
from entitlements.models import Account, Override
from webhost.errors import ForbiddenError, WebhostError


class OverrideForm(ReasonForm):
    """An override. Its reason is a field of its own, so the extra one is not asked."""

    why = None  # type: ignore[assignment]  # Django's way to drop an inherited field
    ends = forms.ChoiceField(
        label="It ends", required=False, choices=(), initial=End.GIVEN.value, widget=UnfoldAdminRadioSelectWidget()
    )

    class Meta:
        model = Override
        fields = ("account", "key", "value", "ends_at", "reason")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if isinstance(self.fields.get("ends"), forms.ChoiceField):
            self.fields["ends"].choices = named_ends(timezone.now())  # type: ignore[attr-defined]
            self.fields["ends_at"].label = "Time"
        if "key" in self.fields:  # absent for those who may only look
            keys = [(k.value, f"{label_of(k)} ({k})") for k in rules.Key]
            field = self.fields["key"]
            if isinstance(field, forms.ChoiceField):
                field.choices = [("", "Select what to set"), *keys]
        if self.current and "reason" in self.fields:
            self.initial["reason"] = ""  # a change has its own reason
            self.fields["reason"].help_text = f"Why it is changed. So far: {self.instance.reason}"

    @staticmethod
    def state_of(row: Override) -> str:
        """Return a digest of what can be edited."""
        return actions.override_fingerprint(row)

    def clean(self) -> dict[str, Any] | None:
        """Say which rule the account's tier and all its overrides together would break."""
        cleaned = super().clean()
        named = self.cleaned_data.get("ends")
        if named:
            self.cleaned_data["ends_at"] = end_of(End(named), timezone.now())
        account = self.instance.account if self.current else self.cleaned_data.get("account")
        key = self.cleaned_data.get("key")
        if account is None or key is None or "value" not in self.cleaned_data or "ends_at" not in self.cleaned_data:
            return cleaned
        value, ends_at = self.cleaned_data["value"], self.cleaned_data["ends_at"]
        for issue in actions.issues_of_override(account.pk, rules.Key(key), value, ends_at, itself=self.instance.pk):
            field = issue["path"] if issue["path"] in self.fields else None
            self.add_error(field, forms.ValidationError(issue["message"]))
        return cleaned

    @property
    def reason(self) -> str:
        """The reason as it was given."""
        return str(self.cleaned_data["reason"])


class LiveFilter(admin.SimpleListFilter):
    """Filter overrides by whether they are in force."""

    title = "in force"
    parameter_name = "live"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        """Offer both."""
        return [("yes", "In force"), ("no", "Ended")]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Override]) -> QuerySet[Override]:
        """Compare the end with now."""
        live = Q(ends_at__isnull=True) | Q(ends_at__gt=timezone.now())
        if self.value() == "yes":
            return queryset.filter(live)
        return queryset.exclude(live) if self.value() == "no" else queryset


@admin.register(Override)
class OverrideAdmin(ActionAdmin):
    """Exceptions that support granted."""

    form = OverrideForm
    list_display = ("account", "key", "shown_value", "ends_at", "reason", "created_by", "created_at")
    list_select_related = ("account", "created_by")
    list_filter = (LiveFilter, "key")
    ordering = ("-pk",)
    sortable_by = ("ends_at",)
    search_fields = ("reason",)
    search_help_text = "E-mail address, acc_ id, or a part of the reason"
    autocomplete_fields = ("account",)
    change_form_before_template = "entitlements/admin_override.html"

    class Media:
        css: ClassVar = {"all": ["desk.css"]}

    fieldsets: ClassVar[Any] = ((None, {"fields": ("account", ("key", "value"), "ends", "ends_at", "reason", "seen")}),)

    def get_readonly_fields(self, request: HttpRequest, obj: Override | None = None) -> tuple[str, ...]:
        """Keep the account: an override never moves to another one."""
        return ("account",) if obj is not None else ()

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Override], search_term: str
    ) -> tuple[QuerySet[Override], bool]:
        """Find by what support has on the phone."""
        term = search_term.strip()
        of_account = queryset.filter(account__in=account_ids_like(term)) if term else queryset
        if term.startswith("acc_") or "@" in term or (term and of_account.exists()):
            return of_account, False
        found: tuple[QuerySet[Override], bool] = super().get_search_results(request, queryset, search_term)
        return found

    def get_changeform_initial_data(self, request: HttpRequest) -> dict[str, Any]:
        """Fill in what a link of the account's page gives."""
        account = account_id_in(request.GET.get("account", ""))
        given = {name: request.GET[name] for name in ("key", "value", "ends") if name in request.GET}
        return given if account is None else {"account": str(account), **given}

    def changeform_view(
        self,
        request: HttpRequest,
        object_id: str | None = None,
        form_url: str = "",
        extra_context: dict[str, Any] | None = None,
    ) -> HttpResponseBase:
        """Show beside the form what is in force now: what the override replaces."""
        answer = super().changeform_view(request, object_id, form_url, extra_context)
        context = getattr(answer, "context_data", None)
        if isinstance(answer, TemplateResponse) and context is not None and "adminform" in context:
            context |= what_it_replaces(context.get("original"), context["adminform"].form)
        return answer

    def save_model(self, request: HttpRequest, obj: Override, form: OverrideForm, change: bool) -> None:  # noqa: FBT001 - Django's hook
        """Save through the action, which asks the rules again with the account locked."""
        key, value, ends = (form.cleaned_data[name] for name in ("key", "value", "ends_at"))
        account = obj.account
        if not may_on(request, account).add_override and not may_on(request, account).change_override:
            raise ForbiddenError("Only a superuser grants staff more.")
        before = value_in_force(read_standing(account.pk), rules.Key(key))
        if change:
            saved = actions.change_override(
                obj.pk, rules.Key(key), value, ends_at=ends,
                actor=actor_of(request), reason=form.reason, seen=form.current,
            )  # fmt: skip
        else:
            saved = actions.set_override(
                account.pk, rules.Key(key), value, ends_at=ends,
                created_by=request.user if isinstance(request.user, Account) else None,
                actor=actor_of(request), reason=form.reason,
            )  # fmt: skip
        obj.pk = saved.pk
        obj.refresh_from_db()
        was, now = amount_text(rules.Key(key), before), amount_text(rules.Key(key), value)
        self.message_user(request, f"{label_of(rules.Key(key))}: {was} → {now}", messages.INFO)

    def response_add(self, request: HttpRequest, obj: Override, post_url_continue: str | None = None) -> HttpResponse:
        """Go back to the account, unless something else was asked for."""
        answer: HttpResponse = super().response_add(request, obj, post_url_continue)
        return self._back(request, obj, answer)

    def response_change(self, request: HttpRequest, obj: Override) -> HttpResponse:
        """Go back to the account, unless something else was asked for."""
        answer: HttpResponse = super().response_change(request, obj)
        return self._back(request, obj, answer)

    def _back(self, request: HttpRequest, override: Override, answer: HttpResponse) -> HttpResponse:
        if {"_continue", "_addanother", "_popup"} & request.POST.keys():
            return answer
        if not request.user.has_perm("entitlements.view_account"):
            return answer
        return HttpResponseRedirect(f"{account_url(override.account_id)}#overrides")

    def get_urls(self) -> list[Any]:
        """Add the page that ends one now."""
        end = self.admin_site.admin_view(self.end_view)
        return [path("<int:override_id>/end/", end, name="entitlements_override_end"), *super().get_urls()]

    def end_view(self, request: HttpRequest, override_id: int) -> HttpResponse:
        """Ask for a reason, and end an override now."""
        if not request.user.has_perm("entitlements.change_override"):
            raise PermissionDenied
        override = Override.objects.filter(pk=override_id).select_related("account").first()
        if override is None:
            raise Http404
        if not may_on(request, override.account).change_override:
            raise PermissionDenied
        key = rules.Key(override.key)
        form = WhyForm(request.POST if request.method == "POST" else None)
        if request.method == "POST" and form.is_valid():
            try:
                actions.end_override(override.pk, actor=actor_of(request), reason=form.reason)
            except WebhostError as error:
                messages.warning(request, error.message)
            else:
                now = amount_text(key, value_in_force(read_standing(override.account_id), key))
                was = amount_text(key, override.value)
                messages.success(request, f"The override has ended. {label_of(key)}: {was} → {now}")
            return HttpResponseRedirect(f"{account_url(override.account_id)}#overrides")
        look = read_standing(override.account_id)
        context = {
            **self.admin_site.each_context(request), "title": "End this override now?", "opts": self.opts, "form": form,
            "override": override, "account": override.account, "label": label_of(key),
            "value": amount_text(key, override.value), "tier_value": amount_text(key, tier_amount(look.tier, key)),
            "tier_name": look.tier.name,
        }  # fmt: skip
        status = HTTPStatus.UNPROCESSABLE_ENTITY if form.errors else HTTPStatus.OK
        return TemplateResponse(request, "entitlements/admin_override_end.html", context, status=status)

    def delete_model(self, request: HttpRequest, obj: Override) -> None:
        """Remove through the action."""
        actions.remove_override(obj.pk, actor=actor_of(request), reason=DELETED_HERE)

    @admin.display(description="value", ordering="value")
    def shown_value(self, override: Override) -> str:
        """Show a limit, a switch or days as their reader thinks of them."""
        return value_text(override.key, override.value)
