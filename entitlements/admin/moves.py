"""Moving accounts to another tier from their list: choose, look at what it would do, confirm."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import admin, messages
from django.db.models import QuerySet
from django.http import HttpRequest
from django.template.response import TemplateResponse
from django.utils import timezone
from unfold.widgets import UnfoldAdminSelectWidget, UnfoldAdminSplitDateTimeWidget, UnfoldAdminTextInputWidget

from entitlements.actions.accounts import with_tier_in_force
from entitlements.actions.drafts import preview_move
from entitlements.actions.moves import MOST_MOVED, move_accounts, selection_digest, tiers_to_move_to
from entitlements.admin.base import actor_of
from entitlements.admin.preview import LOOKED, preview_context
from entitlements.models import Account, Tier
from webhost.errors import WebhostError


class MoveForm(forms.Form):
    """Where to, until when, and why."""

    tier = forms.ModelChoiceField(Tier.objects.none(), widget=UnfoldAdminSelectWidget())
    until = forms.SplitDateTimeField(
        required=False,
        widget=UnfoldAdminSplitDateTimeWidget(),
        help_text="UTC. Empty: until support changes it. Then what is paid for counts again.",
    )
    why = forms.CharField(
        label="reason", max_length=500, widget=UnfoldAdminTextInputWidget(), help_text="Why, for the audit log."
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        choice = self.fields["tier"]
        if isinstance(choice, forms.ModelChoiceField):
            choice.queryset = tiers_to_move_to()

    def clean_until(self) -> Any:
        """Refuse an end that is over."""
        until = self.cleaned_data["until"]
        if until is not None and until <= timezone.now():
            raise forms.ValidationError("The end must lie ahead.")
        return until


@admin.action(description="Move the selected accounts to a tier", permissions=["change"])
def move_selected(modeladmin: Any, request: HttpRequest, queryset: QuerySet[Account]) -> TemplateResponse | None:
    """Ask where to, show what it would do, and move once that was confirmed."""
    chosen = Account.objects.filter(pk__in=queryset.order_by().values("pk"))
    refused = _why_not(request, chosen)
    if refused:
        modeladmin.message_user(request, refused, messages.ERROR)
        return None
    asked = "why" in request.POST
    form = MoveForm(request.POST if asked else None)
    seen = selection_digest(chosen)
    context: dict[str, Any] = {}
    if asked and form.is_valid():
        tier, until = form.cleaned_data["tier"], form.cleaned_data["until"]
        digest = f"{seen}-{tier.pk}-{tier.version}-{until}"
        if request.POST.get(LOOKED) == digest:
            return _move(modeladmin, request, chosen, form, seen)
        now = timezone.now()
        context = preview_context(preview_move(with_tier_in_force(chosen, now), tier, now)) | {
            "digest": digest, "tier": tier,
            "changed": LOOKED in request.POST,
        }  # fmt: skip
    context |= {
        **modeladmin.admin_site.each_context(request),
        "title": "Move accounts to a tier",
        "opts": modeladmin.opts,
        "form": form,
        "count": chosen.count(),
        "selected": request.POST.getlist("_selected_action"),
        "select_across": request.POST.get("select_across", "0"),
    }
    return TemplateResponse(request, "entitlements/admin_move.html", context)


def _why_not(request: HttpRequest, chosen: QuerySet[Account]) -> str:
    if chosen.order_by()[: MOST_MOVED + 1].count() > MOST_MOVED:
        return f"At most {MOST_MOVED:,} accounts are moved at a time. Filter the list, and move them in parts."
    if not request.user.is_superuser and chosen.filter(is_staff=True).exists():
        return "Some of these are staff, whom only a superuser changes. Nothing was moved."
    return ""


def _move(
    modeladmin: Any, request: HttpRequest, chosen: QuerySet[Account], form: MoveForm, seen: str
) -> TemplateResponse | None:
    tier = form.cleaned_data["tier"]
    try:
        moved = move_accounts(
            chosen.values_list("pk", flat=True), tier.pk, until=form.cleaned_data["until"],
            actor=actor_of(request), reason=form.cleaned_data["why"], seen=seen,
        )  # fmt: skip
    except WebhostError as error:
        modeladmin.message_user(request, error.message, messages.ERROR)
    else:
        said = "1 account is" if moved == 1 else f"{moved:,} accounts are"
        modeladmin.message_user(request, f"{said} on {tier.name} now.", messages.SUCCESS)
    return None
