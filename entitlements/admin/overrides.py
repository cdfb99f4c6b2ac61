"""Overrides: one value for one account, with a reason and often an end, under the same rules as a tier."""

from __future__ import annotations

from typing import Any, ClassVar

from django import forms
from django.contrib import admin
from django.db.models import Q, QuerySet
from django.http import HttpRequest
from django.utils import timezone

from entitlements import rules
from entitlements.actions import overrides as actions
from entitlements.admin.base import DELETED_HERE, ActionAdmin, ReasonForm, account_ids_like, actor_of
from entitlements.display import label_of, shown
from entitlements.models import Account, Override


class OverrideForm(ReasonForm):
    """An override. Its reason is a field of its own, so the extra one is not asked."""

    why = None  # type: ignore[assignment]  # Django's way to drop an inherited field

    class Meta:
        model = Override
        fields = ("account", "key", "value", "ends_at", "reason")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
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
    date_hierarchy = None
    fieldsets: ClassVar[Any] = ((None, {"fields": ("account", ("key", "value"), "ends_at", "reason", "seen")}),)

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

    def save_model(self, request: HttpRequest, obj: Override, form: OverrideForm, change: bool) -> None:  # noqa: FBT001 - Django's hook
        """Save through the action, which asks the rules again with the account locked."""
        key, value, ends_at = (form.cleaned_data[name] for name in ("key", "value", "ends_at"))
        if change:
            saved = actions.change_override(
                obj.pk, rules.Key(key), value, ends_at=ends_at,
                actor=actor_of(request), reason=form.reason, seen=form.current,
            )  # fmt: skip
        else:
            saved = actions.set_override(
                form.cleaned_data["account"].pk, rules.Key(key), value, ends_at=ends_at,
                created_by=request.user if isinstance(request.user, Account) else None,
                actor=actor_of(request), reason=form.reason,
            )  # fmt: skip
        obj.pk = saved.pk
        obj.refresh_from_db()

    def delete_model(self, request: HttpRequest, obj: Override) -> None:
        """Remove through the action."""
        actions.remove_override(obj.pk, actor=actor_of(request), reason=DELETED_HERE)

    @admin.display(description="value", ordering="value")
    def shown_value(self, override: Override) -> str:
        """Show a limit, a switch or days as their reader thinks of them."""
        if override.key in rules.FLAGS:
            return "on" if override.value else "off"
        return shown(override.value)
