"""Removal at the provider that is stuck: where it stands, and a try at once, with a reason."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Final
from uuid import UUID

from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponseBase, HttpResponseNotAllowed, HttpResponseRedirect
from django.urls import path, reverse
from django.utils import timezone

from entitlements.admin.base import ReadOnlyAdmin, actor_of
from runtimes.models import Agent
from webhost.errors import WebhostError

# The sweep tries every half minute: what is not gone after some tries does not go by itself.
STUCK_AFTER: Final = timedelta(minutes=10)


class RemovalFilter(admin.SimpleListFilter):
    """Filter by where the removal at the provider stands."""

    title = "removal at the provider"
    parameter_name = "removal"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        """Offer the three states of what was given up."""
        return [("waiting", "Under way"), ("stuck", f"Stuck for {STUCK_AFTER.seconds // 60} minutes"), ("gone", "Gone")]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """Keep one state; what is not gone has a small index of its own."""
        asked = "deleted_at" if queryset.model is Agent else "removal_requested_at"
        waiting = {f"{asked}__isnull": False, "removed_at__isnull": True}
        if self.value() == "waiting":
            return queryset.filter(**waiting)
        if self.value() == "stuck":
            return queryset.filter(**waiting, **{f"{asked}__lt": timezone.now() - STUCK_AFTER})
        return queryset.filter(removed_at__isnull=False) if self.value() == "gone" else queryset


class RemovalAdmin(ReadOnlyAdmin):
    """A page to look at, with one thing to do: try a removal again."""

    removal_asked: str

    def retry_removal(self, object_id: UUID, *, actor: str, reason: str) -> None:
        """Try it, through the action."""
        raise NotImplementedError

    def may_retry(self, request: HttpRequest) -> bool:
        """Let those try who may change these rows; looking needs less."""
        return bool(request.user.has_perm(f"{self.opts.app_label}.change_{self.opts.model_name}"))

    def get_urls(self) -> list[Any]:
        """Add the try, which is only ever sent."""
        name = f"{self.opts.app_label}_{self.opts.model_name}_retry_removal"
        view = self.admin_site.admin_view(self.retry_removal_view)
        return [path("<uuid:object_id>/retry-removal/", view, name=name), *super().get_urls()]

    def retry_removal_view(self, request: HttpRequest, object_id: UUID) -> HttpResponseBase:
        """Try a removal, and say on the row's page what came of it."""
        if not (self.has_view_permission(request) and self.may_retry(request)):
            raise PermissionDenied
        if request.method != "POST":
            return HttpResponseNotAllowed(["POST"])
        try:
            self.retry_removal(object_id, actor=actor_of(request), reason=request.POST.get("why", "")[:500])
        except WebhostError as error:
            self.message_user(request, error.message, messages.ERROR)
        else:
            self.message_user(request, "Nothing of it is left at the provider.", messages.SUCCESS)
        page = f"admin:{self.opts.app_label}_{self.opts.model_name}_change"
        return HttpResponseRedirect(reverse(page, args=[object_id]))

    def removal_context(self, request: HttpRequest, row: Any) -> dict[str, Any]:
        """Return what the page says of the removal, and where a try is sent by those who may."""
        asked = getattr(row, self.removal_asked)
        url = reverse(f"admin:{self.opts.app_label}_{self.opts.model_name}_retry_removal", args=[row.pk])
        is_waiting = asked is not None and row.removed_at is None
        return {
            "removal_asked": asked,
            "removal_done": row.removed_at,
            "removal_waits": is_waiting,
            "retry_url": url if is_waiting and self.may_retry(request) else "",
        }
