"""Switches of runtimes: off for everybody and on again, with the alarm on what they cost a day."""

from __future__ import annotations

from typing import Any, ClassVar

from django.contrib import admin
from django.http import HttpRequest

from entitlements.admin.base import ActionAdmin, ReasonForm, actor_of
from entitlements.enums import Runtime
from runtimes.actions import switches as actions
from runtimes.models import RuntimeSwitch


class SwitchForm(ReasonForm):
    """A switch, and why it is moved."""

    class Meta:
        model = RuntimeSwitch
        fields = ("runtime", *actions.FIELDS)

    @staticmethod
    def state_of(row: RuntimeSwitch) -> str:
        """Return a digest of what can be edited."""
        return actions.switch_fingerprint(row)


@admin.register(RuntimeSwitch)
class SwitchAdmin(ActionAdmin):
    """One switch per runtime. A runtime without one is on and has no alarm."""

    form = SwitchForm
    actions = None
    list_display = ("runtime", "deploys", "invocations", "message", "daily_cost_alarm")
    fieldsets: ClassVar[Any] = (
        ("What changes, and why", {"fields": ("why", "seen")}),
        (
            "For everybody",
            {
                "fields": ("runtime", ("deploys", "invocations"), "message"),
                "description": "What is off is refused at once; what runs already goes on.",
            },
        ),
        (
            "Cost",
            {
                "fields": ("daily_cost_alarm",),
                "description": "Support is told once a day, and again when the alarm is raised and passed again.",
            },
        ),
    )

    def get_readonly_fields(self, request: HttpRequest, obj: RuntimeSwitch | None = None) -> tuple[str, ...]:
        """Keep the runtime: a switch is one runtime's."""
        return ("runtime",) if obj is not None else ()

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Offer to add one while a runtime has none."""
        return bool(super().has_add_permission(request)) and RuntimeSwitch.objects.count() < len(Runtime)

    def has_delete_permission(self, request: HttpRequest, obj: RuntimeSwitch | None = None) -> bool:
        """Nobody deletes: it is switched on instead, and its history stays one."""
        return False

    def save_model(self, request: HttpRequest, obj: RuntimeSwitch, form: SwitchForm, change: bool) -> None:  # noqa: FBT001 - Django's hook
        """Save through the action."""
        values = {name: form.cleaned_data[name] for name in actions.FIELDS}
        if change:
            actions.change_switch(obj.pk, values, actor=actor_of(request), reason=form.reason, expected=form.current)
        else:
            actions.create_switch(form.cleaned_data["runtime"], values, actor=actor_of(request), reason=form.reason)
        obj.refresh_from_db()
