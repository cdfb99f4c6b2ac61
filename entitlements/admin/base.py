"""What our admin pages share: a reason on every save, saves through actions, and pages nobody can write to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import UUID

from django import forms
from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.db.models import Model, QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseBase, HttpResponseRedirect
from django.urls import reverse
from unfold.admin import ModelAdmin
from unfold.forms import ActionForm
from unfold.widgets import UnfoldAdminTextInputWidget

from entitlements.actions.lookup import accounts_like
from entitlements.admin.listing import BoundedPaginator
from entitlements.models import Account, Tier
from webhost.errors import NotFoundError, WebhostError
from webhost.ids import Prefix, parse_id

DELETED_HERE = "Deleted in the admin"
STALE = (
    "This was changed by somebody else while you were editing it. Nothing was saved: "
    "open it again to see what it is now."
)


def actor_of(request: HttpRequest) -> str:
    """Return who is at work, as the history names them."""
    return request.user.get_username()


def account_id_in(text: str) -> UUID | None:
    """Read an account's id as support has it on the phone: acc_..., or the bare UUID."""
    try:
        return parse_id(Prefix.ACCOUNT, text.strip())
    except NotFoundError:
        pass
    try:
        return UUID(text.strip())
    except ValueError:
        return None


def account_ids_like(text: str) -> list[UUID]:
    """Return the accounts that a search box means: an id, or a part of the e-mail address."""
    found = account_id_in(text)
    if found is not None:
        return [found]
    return [account.pk for account in accounts_like(text, most=100)]


def account_emails(ids: set[UUID]) -> dict[UUID, str]:
    """Return the addresses of accounts that still exist."""
    return dict(Account.objects.filter(pk__in=ids).values_list("pk", "email"))


# Generic for the type checker only.
if TYPE_CHECKING:
    _ModelForm = forms.ModelForm[Any]
else:
    _ModelForm = forms.ModelForm


class ReasonForm(_ModelForm):
    """A form that asks why, and notices that its row was changed since it was shown."""

    why = forms.CharField(
        label="reason",
        max_length=500,
        widget=UnfoldAdminTextInputWidget(),
        help_text="Why, for the audit log. A ticket, a name, a sentence.",
    )
    seen = forms.CharField(required=False, widget=forms.HiddenInput())

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.current = self.state_of(self.instance) if self.instance.pk and not self.instance._state.adding else ""  # noqa: SLF001 - documented
        self.initial["seen"] = self.current

    @staticmethod
    def state_of(row: Any) -> str:
        """Return what changes whenever somebody edits the row."""
        raise NotImplementedError

    def clean(self) -> dict[str, Any] | None:
        """Refuse what was filled in over a row that is no longer what was shown."""
        cleaned: dict[str, Any] | None = super().clean()
        if self.current and self.cleaned_data.get("seen") != self.current:
            raise forms.ValidationError(STALE)
        return cleaned

    @property
    def reason(self) -> str:
        """The reason as it was given."""
        return str(self.cleaned_data["why"])


class ReasonActionForm(ActionForm):  # type: ignore[misc]  # untyped library
    """What runs on several rows asks why, too."""

    why = forms.CharField(
        label="",
        required=False,
        max_length=500,
        widget=UnfoldAdminTextInputWidget(attrs={"placeholder": "Reason", "aria-label": "Reason"}),
    )


class ActionAdmin(ModelAdmin):  # type: ignore[misc]  # untyped library
    """An admin page whose saves and deletions are actions of this app. The audit log is the database's own."""

    compressed_fields = True
    warn_unsaved_form = True
    show_full_result_count = False
    paginator = BoundedPaginator
    delete_confirmation_template = "entitlements/admin_delete.html"
    delete_selected_confirmation_template = "entitlements/admin_delete_selected.html"

    def changeform_view(
        self,
        request: HttpRequest,
        object_id: str | None = None,
        form_url: str = "",
        extra_context: dict[str, Any] | None = None,
    ) -> HttpResponseBase:
        """Tell what an action refused; nothing was saved then."""
        try:
            answer: HttpResponseBase = super().changeform_view(request, object_id, form_url, extra_context)
        except WebhostError as error:
            self.message_user(request, error.message, messages.ERROR)
            return HttpResponseRedirect(request.get_full_path())
        return answer

    def delete_view(
        self, request: HttpRequest, object_id: str, extra_context: dict[str, Any] | None = None
    ) -> HttpResponseBase:
        """Tell what an action refused; nothing was deleted then."""
        try:
            answer: HttpResponseBase = super().delete_view(request, object_id, extra_context)
        except WebhostError as error:
            self.message_user(request, error.message, messages.ERROR)
            return HttpResponseRedirect(request.get_full_path())
        return answer

    def why_not_deleted(self, obj: Any) -> str:
        """Say why a row cannot be deleted; empty when it can."""
        del obj
        return ""

    def get_deleted_objects(
        self, objs: Any, request: HttpRequest
    ) -> tuple[list[Any], dict[str, int], set[str], list[Any]]:
        """Refuse in words, on the row's own page and for a selection alike, before anything is deleted."""
        to_delete, counts, _, protected = super().get_deleted_objects(objs, request)
        said = [why_not for obj in objs if (why_not := self.why_not_deleted(obj))]
        # What goes along is decided by the action, not by rights on each table.
        return to_delete, counts, set(), said or list(protected)

    def delete_queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> None:
        """Delete one by one, so that each leaves its own entry."""
        for obj in queryset:
            self.delete_model(request, obj)

    def history_view(
        self, request: HttpRequest, object_id: str, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """Show the database's history of this row, not Django's own notes."""
        del extra_context
        if not self.has_view_or_change_permission(request):
            raise PermissionDenied
        return HttpResponseRedirect(
            f"{reverse('admin:entitlements_historyentry_changelist')}?object={self.opts.label}:{object_id}"
        )

    # One audit log, written by the database: Django's own would repeat it, and miss what is not done here.
    def log_addition(self, request: HttpRequest, obj: Model, message: Any) -> None:
        """Write nothing."""

    def log_change(self, request: HttpRequest, obj: Model, message: Any) -> None:
        """Write nothing."""

    def log_deletions(self, request: HttpRequest, queryset: QuerySet[Any]) -> None:
        """Write nothing."""


class ReadOnlyAdmin(ModelAdmin):  # type: ignore[misc]  # untyped library
    """A page to look at: nobody adds, changes or deletes here, a superuser included."""

    actions = None
    show_full_result_count = False
    paginator = BoundedPaginator

    def has_add_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        """Nobody adds."""
        return False

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        """Nobody changes."""
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        """Nobody deletes."""
        return False

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponseBase:
        """Show the list; a POST to it, say of an action that is not offered, is refused."""
        if request.method == "POST":
            raise PermissionDenied
        answer: HttpResponseBase = super().changelist_view(request, extra_context)
        return answer


class TierListFilter(admin.SimpleListFilter):
    """Filter accounts by the tier that is in force for them."""

    title = "tier in force"
    parameter_name = "tier"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        """Offer every tier."""
        return [(str(t.pk), t.name) for t in Tier.objects.order_by("rank")]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """Keep the accounts on it; the list annotates which one that is."""
        value = self.value()
        return queryset.filter(tier_in_force_id=value) if value and value.isdigit() else queryset
