"""Accounts: the tier in force and where it comes from, what is used now, and what support may change."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, ClassVar

from django import forms
from django.contrib import admin
from django.contrib.auth.password_validation import validate_password
from django.db.models import OuterRef, QuerySet, Subquery, prefetch_related_objects
from django.http import HttpRequest, HttpResponseBase
from django.template.response import TemplateResponse
from django.utils import timezone
from unfold.widgets import UnfoldAdminPasswordWidget

from entitlements.actions import accounts as actions
from entitlements.admin.account_desk import AccountDesk
from entitlements.admin.account_page import page_of
from entitlements.admin.base import (
    DELETED_HERE,
    ActionAdmin,
    ReasonForm,
    TierListFilter,
    account_id_in,
    actor_of,
)
from entitlements.admin.moves import move_selected
from entitlements.admin.second_factor import ResetsSecondFactor
from entitlements.models import Account, Tier
from webhost.errors import NotFoundError

_RIGHTS_TITLE = "Rights"
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
    """Customers and staff. Tokens and password hashes are never shown.

    Its page is in account_page.py; what higher apps add to it (boxes, buttons, verdicts, history) in sections.py.
    """

    class Media:
        css: ClassVar = {"all": ["desk.css"]}

    form = AccountForm
    list_display = ("email", "name", "tier_name", "set_by", "is_active", "is_staff", "date_joined")
    list_filter = (TierListFilter, "is_active", "is_staff")
    search_fields = ("email", "name")
    search_help_text = "E-mail address, name, or acc_ id"
    ordering = ("email",)
    actions = (move_selected,)
    change_form_outer_before_template = "entitlements/admin_account.html"
    fieldsets: ClassVar[Any] = (
        ("What changes, and why", {"fields": ("why", "seen")}),
        ("Account", {"fields": (("email", "name"),)}),
        (
            "Tier set by support",
            {
                "fields": ("support_tier", "support_tier_until"),
                "description": "While it lasts it is in force over what is paid for. Empty: what is paid for counts.",
            },
        ),
        (_RIGHTS_TITLE, {"fields": (_RIGHTS[:2], "groups")}),
    )
    add_fieldsets: ClassVar[Any] = (
        ("Why", {"fields": ("why", "seen")}),
        ("Account", {"fields": (("email", "name"), "password")}),
        ("Tier set by support", {"fields": ("support_tier", "support_tier_until")}),
        (_RIGHTS_TITLE, {"fields": (_RIGHTS[:2], "groups")}),
    )

    def get_queryset(self, request: HttpRequest) -> QuerySet[Account]:
        """Add the tier in force."""
        accounts: QuerySet[Account] = super().get_queryset(request)
        name = Tier.objects.filter(pk=OuterRef("tier_in_force_id")).values("name")[:1]
        named: QuerySet[Account] = actions.with_tier_in_force(accounts, timezone.now()).annotate(
            tier_in_force_name=Subquery(name)
        )
        return named

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Account | None:
        """Read its groups along: the form shows them, and notices when somebody else changes them."""
        account: Account | None = super().get_object(request, object_id, from_field)
        if account is not None:
            prefetch_related_objects([account], "groups")
        return account

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

    def get_fieldsets(self, request: HttpRequest, obj: Account | None = None) -> Any:
        """Leave rights out for those who cannot give them; that somebody is staff is in the head of the page."""
        fieldsets = super().get_fieldsets(request, obj)
        return [f for f in fieldsets if f[0] != _RIGHTS_TITLE or request.user.is_superuser]

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
        """Show above the form why this account is blocked, what it may and did use, and what happened to it."""
        answer: HttpResponseBase = super().change_view(request, object_id, form_url, extra_context)
        account = (getattr(answer, "context_data", None) or {}).get("original")
        if isinstance(answer, TemplateResponse) and isinstance(account, Account) and answer.context_data is not None:
            with suppress(NotFoundError, Account.DoesNotExist):  # deleted meanwhile
                # Afresh after a form that was refused: it has written what was typed into its own copy.
                fresh = Account.objects.get(pk=account.pk) if request.method == "POST" else account
                answer.context_data |= page_of(request, fresh)
        return answer

    def get_urls(self) -> list[Any]:
        """Add the pages beside it."""
        return [*AccountDesk(self.admin_site, self.has_view_or_change_permission).urls(), *super().get_urls()]

    @admin.display(description="tier in force")
    def tier_name(self, account: Any) -> str:
        """Name the tier."""
        return account.tier_in_force_name or "-"

    @admin.display(description="set by")
    def set_by(self, account: Any) -> str:
        """Say whether support, billing or nobody set it."""
        return str(account.tier_set_by)
