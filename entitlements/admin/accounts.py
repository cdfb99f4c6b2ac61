"""Accounts: the tier in force and where it comes from, what is used now, and what support may change."""

from __future__ import annotations

from typing import Any, ClassVar
from uuid import UUID

from django import forms
from django.contrib import admin
from django.contrib.auth.password_validation import validate_password
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponseBase
from django.utils import timezone
from unfold.widgets import UnfoldAdminPasswordWidget

from entitlements.actions import accounts as actions
from entitlements.actions.refused import last_refusals
from entitlements.actions.standing import read_standing
from entitlements.admin.base import (
    DELETED_HERE,
    ActionAdmin,
    ReasonForm,
    TierListFilter,
    account_id_in,
    actor_of,
)
from entitlements.admin.second_factor import ResetsSecondFactor
from entitlements.display import refusal_line, use_lines, value_lines
from entitlements.models import Account, Override, Tier
from webhost.errors import ForbiddenError, NotFoundError
from webhost.ids import Prefix, public_id

_RIGHTS = ("is_staff", "is_superuser", "groups")


class AccountForm(ReasonForm):
    """What staff may change of an account, and why."""

    class Meta:
        model = Account
        fields = actions.EDITABLE_FIELDS

    @staticmethod
    def state_of(row: Account) -> str:
        """Return a digest of what can be edited."""
        return actions.account_fingerprint(row)

    def clean_email(self) -> str:
        """Keep addresses in lower case, so that one address is one account."""
        return str(self.cleaned_data["email"]).strip().lower()

    def clean(self) -> dict[str, Any] | None:
        """Ask for a tier where there is an end, and for an end that lies ahead."""
        cleaned = super().clean()
        tier, until = self.cleaned_data.get("support_tier"), self.cleaned_data.get("support_tier_until")
        if until is not None and tier is None:
            self.add_error("support_tier_until", "An end needs a tier that ends.")
        if until is not None and until <= timezone.now() and "support_tier_until" in self.changed_data:
            self.add_error("support_tier_until", "The end must lie ahead.")
        if tier is not None:
            # A database constraint asks for it; the action writes the same.
            self.instance.support_tier_reason = self.instance.support_tier_reason or self.cleaned_data.get("why", "-")
        return cleaned


class NewAccountForm(AccountForm):
    """A new account, by its e-mail address."""

    password = forms.CharField(
        required=False,
        widget=UnfoldAdminPasswordWidget(attrs={"autocomplete": "new-password"}),
        help_text="Leave empty for an account that nobody can sign in to yet.",
    )

    class Meta:
        model = Account
        fields = ("email", "name", *actions.EDITABLE_FIELDS[1:])

    def clean_password(self) -> str | None:
        """Hold it to the same rules as everybody's."""
        password = self.cleaned_data["password"] or None
        if password:
            validate_password(password, self.instance)
        return password


@admin.register(Account)
class AccountAdmin(ResetsSecondFactor, ActionAdmin):
    """Customers and staff. Tokens and password hashes are never shown."""

    form = AccountForm
    list_display = ("email", "name", "tier_name", "set_by", "is_active", "is_staff", "date_joined")
    list_filter = (TierListFilter, "is_active", "is_staff")
    search_fields = ("email", "name")
    search_help_text = "E-mail address, name, or acc_ id"
    ordering = ("email",)
    change_form_before_template = "entitlements/admin_account.html"
    fieldsets: ClassVar[Any] = (
        ("What changes, and why", {"fields": ("why", "seen")}),
        ("Account", {"fields": (("email", "name"), "is_active")}),
        (
            "Tier set by support",
            {
                "fields": ("support_tier", "support_tier_until"),
                "description": "While it lasts it is in force over what is paid for. Empty: what is paid for counts.",
            },
        ),
        ("Rights", {"fields": (_RIGHTS[:2], "groups")}),
    )
    add_fieldsets: ClassVar[Any] = (
        ("Why", {"fields": ("why", "seen")}),
        ("Account", {"fields": (("email", "name"), "password", "is_active")}),
        ("Tier set by support", {"fields": ("support_tier", "support_tier_until")}),
        ("Rights", {"fields": (_RIGHTS[:2], "groups")}),
    )

    def get_queryset(self, request: HttpRequest) -> QuerySet[Account]:
        """Add the tier in force."""
        accounts: QuerySet[Account] = super().get_queryset(request)
        return actions.with_tier_in_force(accounts, timezone.now())

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Account], search_term: str
    ) -> tuple[QuerySet[Account], bool]:
        """Find by what support has on the phone."""
        account = account_id_in(search_term)
        if account is not None:
            return queryset.filter(pk=account), False
        found: tuple[QuerySet[Account], bool] = super().get_search_results(request, queryset, search_term)
        return found

    def has_change_permission(self, request: HttpRequest, obj: Account | None = None) -> bool:
        """Let only a superuser change staff: nobody gives themselves more."""
        if obj is not None and obj.is_staff and not request.user.is_superuser:
            return False
        return bool(super().has_change_permission(request, obj))

    def get_readonly_fields(self, request: HttpRequest, obj: Account | None = None) -> tuple[str, ...]:
        """Leave rights and addresses to superusers, and a name to its owner."""
        # An address is where a new password is sent: changing one is taking the account over.
        rights = () if request.user.is_superuser else _RIGHTS if obj is None else ("email", *_RIGHTS)
        return rights if obj is None else ("name", *rights)

    def get_form(self, request: HttpRequest, obj: Account | None = None, change: bool = False, **kwargs: Any) -> Any:  # noqa: FBT001, FBT002 - Django's hook
        """Ask for a password only once."""
        if obj is None:
            kwargs["form"] = NewAccountForm
        form = super().get_form(request, obj, change=change, **kwargs)
        widget = form.base_fields["support_tier"].widget if "support_tier" in form.base_fields else None
        for link in ("can_add_related", "can_change_related", "can_delete_related", "can_view_related"):
            if widget is not None:
                setattr(widget, link, False)
        return form

    def save_model(self, request: HttpRequest, obj: Account, form: AccountForm, change: bool) -> None:  # noqa: FBT001 - Django's hook
        """Save through the action."""
        values = {n: form.cleaned_data[n] for n in ("name", *actions.EDITABLE_FIELDS) if n in form.cleaned_data}
        if change:
            if obj.pk == request.user.pk and not values.get("is_active", True):
                raise ForbiddenError("You cannot disable yourself.")
            saved = actions.change_account(
                obj.pk, values, actor=actor_of(request), reason=form.reason, seen=form.current
            )
        else:
            password = form.cleaned_data.get("password")
            saved = actions.create_account(values, password, actor=actor_of(request), reason=form.reason)
        obj.pk = saved.pk
        obj.refresh_from_db()

    def why_not_deleted(self, obj: Account) -> str:
        """Say why an account cannot be deleted."""
        return actions.why_not_deleted(obj)

    def delete_model(self, request: HttpRequest, obj: Account) -> None:
        """Delete through the action."""
        actions.delete_account(obj.pk, actor=actor_of(request), reason=DELETED_HERE)

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponseBase:
        """Show above the form what this account may do, what it used, and what refused it."""
        context = dict(extra_context or {})
        try:
            look = read_standing(UUID(object_id))
        except (NotFoundError, ValueError):
            look = None
        if look is not None:
            context |= {
                "look": look,
                "uses": use_lines(look),
                "values": value_lines(look.entitlements),
                "refusals": [refusal_line(look, r, _agent(r.agent_id)) for r in last_refusals(look.account_id)],
                "overrides": Override.objects.filter(account_id=look.account_id).select_related("created_by"),
            }
        answer: HttpResponseBase = super().change_view(request, object_id, form_url, context)
        return answer

    @admin.display(description="tier in force")
    def tier_name(self, account: Any) -> str:
        """Name the tier."""
        return self._tiers().get(account.tier_in_force_id, "-")

    @admin.display(description="set by")
    def set_by(self, account: Any) -> str:
        """Say whether support, billing or nobody set it."""
        now = timezone.now()
        if account.support_tier_id and (account.support_tier_until is None or account.support_tier_until > now):
            return "support"
        if account.billing_tier_id and (account.billing_tier_until is None or account.billing_tier_until > now):
            return "billing"
        return "default"

    @staticmethod
    def _tiers() -> dict[int, str]:
        return dict(Tier.objects.values_list("pk", "name"))


def _agent(agent_id: UUID | None) -> str:
    return public_id(Prefix.AGENT, agent_id) if agent_id else "-"
