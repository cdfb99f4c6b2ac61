"""Tiers: every field in the form, the list only shows; saved with a reason, never over somebody else's edit."""

from __future__ import annotations

from typing import Any, ClassVar

from django import forms
from django.contrib import admin, messages
from django.db.models import Case, IntegerField, QuerySet, Value, When
from django.http import HttpRequest, HttpResponseBase
from django.template.response import TemplateResponse

from entitlements.actions import tiers as actions
from entitlements.actions.accounts import accounts_by_tier
from entitlements.actions.drafts import differences_of, draft_digest, preview_tier
from entitlements.admin.base import DELETED_HERE, ActionAdmin, ReasonActionForm, ReasonForm, actor_of
from entitlements.admin.preview import EDIT, LOOKED, PreviewNeededError, preview_context, sent_again
from entitlements.display import shown
from entitlements.models import Tier
from entitlements.models.tiers import LIMIT_FIELDS
from webhost.errors import WebhostError

_QUOTAS = ("max_tool_calls_per_period", "max_code_execution_seconds_per_period", "max_browser_sessions_per_period")


class TierForm(ReasonForm):
    """A tier, and why it is changed."""

    class Meta:
        model = Tier
        fields = ("slug", *actions.EDITABLE_FIELDS)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for name in LIMIT_FIELDS:
            if name in self.fields:
                placeholder = "none" if name in _QUOTAS else "unlimited"
                self.fields[name].widget.attrs |= {"placeholder": placeholder, "min": "0", "inputmode": "numeric"}
        self._was_default = bool(self.instance.pk and self.instance.is_default)

    @staticmethod
    def state_of(row: Tier) -> str:
        """Return the version, which the database raises on every change."""
        return str(row.version)

    def clean(self) -> dict[str, Any] | None:
        """Say in words what the default tier may not do; making one the default moves it."""
        cleaned = super().clean()
        if EDIT in self.data:
            raise forms.ValidationError("Nothing is saved: this is your draft.")
        default, retired = self.cleaned_data.get("is_default"), self.cleaned_data.get("retired_at")
        if self._was_default and not default:
            self.add_error("is_default", "There must be a default: make another tier the default instead.")
        if default and retired is not None:
            self.add_error("retired_at", "The default tier cannot be retired.")
        return cleaned

    def _get_validation_exclusions(self) -> set[str]:
        # There is one default, says a constraint; the action moves it from the tier that is it now.
        exclude: set[str] = super()._get_validation_exclusions()  # type: ignore[misc]  # Django's hook, without a stub
        return exclude | {"is_default"}


@admin.action(description="Retire the selected tiers (needs a reason)", permissions=["change"])
def retire_selected(modeladmin: TierAdmin, request: HttpRequest, queryset: QuerySet[Tier]) -> None:
    """Stop selling tiers; their accounts keep them."""
    reason = request.POST.get("why", "")
    for tier in queryset:
        try:
            done = actions.retire_tier(tier.pk, actor=actor_of(request), reason=reason)
        except WebhostError as error:
            modeladmin.message_user(request, error.message, messages.ERROR)
        else:
            said = "is retired now" if done else "was retired already"
            modeladmin.message_user(request, f"{tier.name} {said}.", messages.SUCCESS)


@admin.register(Tier)
class TierAdmin(ActionAdmin):
    """The price list."""

    form = TierForm
    action_form = ReasonActionForm
    actions = (retire_selected,)
    list_display = (
        "name", "rank", "state", "accounts", "requests", "tokens", "compute_ms", "agents", "concurrent",
        "agentcore_enabled",
    )  # fmt: skip
    search_fields = ("name", "slug", "description")
    list_filter = ("is_public", "agentcore_enabled", ("retired_at", admin.EmptyFieldListFilter))
    ordering = ("rank",)
    list_per_page = 200
    change_form_outer_before_template = "entitlements/admin_tier.html"
    fieldsets: ClassVar[Any] = (
        ("What changes, and why", {"fields": ("why", "seen")}),
        (
            "On the price list",
            {"fields": (("name", "slug"), ("rank", "description"), ("is_public", "is_default"), "retired_at")},
        ),
        (
            "Budgets per calendar month (UTC)",
            {"fields": ("max_requests_per_period", "max_tokens_per_period", "max_compute_ms_per_period")},
        ),
        (
            "AgentCore",
            {
                "fields": (
                    ("agentcore_enabled", "memory_enabled"), ("code_interpreter_enabled", "browser_enabled"), *_QUOTAS,
                ),
                "description": "A capability needs AgentCore. Code interpreter and browser need their quotas above 0.",
            },
        ),
        (
            "Caps",
            {
                "fields": (
                    ("max_agents", "max_deployments_per_agent"), ("max_concurrent_invocations", "requests_per_minute"),
                )
            },
        ),
        ("Retention in days", {"fields": (("telemetry_retention_days", "logs_retention_days"),)}),
    )  # fmt: skip

    def get_queryset(self, request: HttpRequest) -> QuerySet[Tier]:
        """Add how many accounts each is in force for, to the list: counted once for all of them."""
        tiers: QuerySet[Tier] = super().get_queryset(request)
        if request.resolver_match is None or not str(request.resolver_match.url_name).endswith("_changelist"):
            return tiers
        counted = [When(pk=tier, then=Value(accounts)) for tier, accounts in accounts_by_tier().items()]
        return tiers.annotate(accounts_on_it=Case(*counted, default=Value(0), output_field=IntegerField()))

    def get_readonly_fields(self, request: HttpRequest, obj: Tier | None = None) -> tuple[str, ...]:
        """Keep the slug: receipts, sources and links name a tier by it."""
        return ("slug",) if obj is not None else ()

    def save_model(self, request: HttpRequest, obj: Tier, form: TierForm, change: bool) -> None:  # noqa: FBT001 - Django's hook
        """Save through the action, under the version that the form showed."""
        values = {name: form.cleaned_data[name] for name in actions.EDITABLE_FIELDS}
        before = Tier.objects.filter(pk=obj.pk).first() if change else None
        # A new tier has nobody on it, unless it becomes the default at once.
        if differences_of(before, values) and (change or values["is_default"]):
            digest = draft_digest(before, values)
            if request.POST.get(LOOKED) != digest:
                raise PreviewNeededError(before, values, digest, form.reason)
        if change:
            saved = actions.change_tier(
                obj.pk, values, actor=actor_of(request), reason=form.reason, expected_version=int(form.current)
            )
            if saved.version == int(form.current):
                self.message_user(request, "Nothing was different, so nothing was changed.", messages.INFO)
        else:
            values["slug"] = form.cleaned_data["slug"]
            saved = actions.create_tier(values, actor=actor_of(request), reason=form.reason)
        obj.pk = saved.pk
        obj.refresh_from_db()

    def changeform_view(
        self,
        request: HttpRequest,
        object_id: str | None = None,
        form_url: str = "",
        extra_context: dict[str, Any] | None = None,
    ) -> HttpResponseBase:
        """Show what a valid change would do before it is saved."""
        on_it = accounts_by_tier().get(int(object_id), 0) if object_id and object_id.isdigit() else None
        try:
            return super().changeform_view(request, object_id, form_url, {"on_it": on_it, **(extra_context or {})})
        except PreviewNeededError as wanted:
            named = wanted.tier.name if wanted.tier else str(wanted.values["name"])
            context = {
                **self.admin_site.each_context(request),
                **preview_context(preview_tier(wanted.tier, wanted.values)),
                "title": f"Change {named}?" if wanted.tier else f"Add {named} as the default?",
                "opts": self.opts,
                "sent": sent_again(request),
                "digest": wanted.digest,
                "reason": wanted.reason,
            }
            return TemplateResponse(request, "entitlements/admin_tier_preview.html", context)

    def why_not_deleted(self, obj: Tier) -> str:
        """Say why a tier cannot be deleted."""
        return actions.why_not_deleted(obj)

    def delete_model(self, request: HttpRequest, obj: Tier) -> None:
        """Delete through the action."""
        actions.delete_tier(obj.pk, actor=actor_of(request), reason=DELETED_HERE)

    @admin.display(description="sold as")
    def state(self, tier: Tier) -> str:
        """Show default, public, hidden or retired in one word."""
        if tier.retired_at is not None:
            return "retired"
        return "default" if tier.is_default else "public" if tier.is_public else "hidden"

    @admin.display(description="accounts")
    def accounts(self, tier: Tier) -> str:
        """Show how many accounts it is in force for."""
        return shown(getattr(tier, "accounts_on_it", None) or 0)

    @admin.display(description="requests", ordering="max_requests_per_period")
    def requests(self, tier: Tier) -> str:
        """Show the limit."""
        return shown(tier.max_requests_per_period)

    @admin.display(description="tokens", ordering="max_tokens_per_period")
    def tokens(self, tier: Tier) -> str:
        """Show the limit."""
        return shown(tier.max_tokens_per_period)

    @admin.display(description="compute ms", ordering="max_compute_ms_per_period")
    def compute_ms(self, tier: Tier) -> str:
        """Show the limit."""
        return shown(tier.max_compute_ms_per_period)

    @admin.display(description="agents", ordering="max_agents")
    def agents(self, tier: Tier) -> str:
        """Show the cap."""
        return shown(tier.max_agents)

    @admin.display(description="at once", ordering="max_concurrent_invocations")
    def concurrent(self, tier: Tier) -> str:
        """Show the cap."""
        return shown(tier.max_concurrent_invocations)
