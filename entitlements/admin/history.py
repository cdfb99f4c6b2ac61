"""The audit log: every change of every tracked row, as the database's own triggers wrote it. To read only."""

from __future__ import annotations

import csv
import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from django.contrib import admin
from django.contrib.auth.models import Group
from django.core.exceptions import PermissionDenied
from django.db.models import Q, QuerySet
from django.http import HttpRequest, HttpResponseBase, StreamingHttpResponse
from django.urls import NoReverseMatch, path, reverse
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from pghistory.core import event_models
from pghistory.models import Events

from entitlements.admin.base import ReadOnlyAdmin, account_id_in
from entitlements.admin.listing import GivenFilter
from entitlements.display import shown
from entitlements.models import Account, Tier

_VERBS = {"insert": "created", "update": "changed", "delete": "deleted"}
# What names a row to people, whatever kind it is.
_NAMES = ("name", "email", "key", "reason", "version")
# Columns that move with everything else and tell a reader nothing.
_NOISE = frozenset({"version"})


def _histories() -> dict[str, Any]:
    """Return the history of every tracked kind, by the kind's label."""
    events: list[Any] = event_models()
    return {event.pgh_tracked_model._meta.label: event for event in events}  # noqa: SLF001 - documented


class KindFilter(admin.SimpleListFilter):
    """Filter by the kind of row; reads that history alone."""

    title = "kind"
    parameter_name = "kind"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        """Offer every tracked kind."""
        return sorted((label, label.partition(".")[2].lower()) for label in _histories())

    def queryset(self, request: HttpRequest, queryset: QuerySet[Events]) -> QuerySet[Events]:
        """Keep one kind."""
        history = _histories().get(self.value() or "")
        return queryset.across(history) if history else queryset  # type: ignore[attr-defined]  # of pghistory


class VerbFilter(admin.SimpleListFilter):
    """Filter by what was done."""

    title = "what happened"
    parameter_name = "did"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        """Offer the three verbs."""
        return list(_VERBS.items())

    def queryset(self, request: HttpRequest, queryset: QuerySet[Events]) -> QuerySet[Events]:
        """Keep one verb."""
        return queryset.filter(pgh_label=self.value()) if self.value() in _VERBS else queryset


class ObjectFilter(GivenFilter):
    """The history of one row: `entitlements.Tier:3`."""

    title = "one row"
    parameter_name = "object"

    def queryset(self, request: HttpRequest, queryset: QuerySet[Events]) -> QuerySet[Events]:
        """Keep one row's."""
        label, _, pk = (self.value() or "").partition(":")
        return queryset.filter(pgh_obj_model=label, pgh_obj_id=pk) if pk else queryset


class AccountFilter(GivenFilter):
    """Everything about one account: itself, its overrides, agents, deployments, corrections."""

    title = "one account"
    parameter_name = "account"

    def queryset(self, request: HttpRequest, queryset: QuerySet[Events]) -> QuerySet[Events]:
        """Keep one account's."""
        account = account_id_in(self.value() or "")
        return queryset.filter(_of_account(str(account))) if account else queryset


_MOST_EXPORTED = 50_000
_EXPORTED = ("when (UTC)", "kind", "row", "did", "who", "why", "through", "address", "trace", "old -> new")


class _Echo:
    """Gives a line of CSV back instead of writing it anywhere."""

    def write(self, line: str) -> str:
        return line


def _plain(cell: str) -> str:
    """Keep a spreadsheet from taking somebody's text for a formula."""
    return f"'{cell}" if len(cell) > 1 and cell.startswith(("=", "+", "-", "@", "\t", "\r")) else cell


def _of_account(account: str) -> Q:
    return Q(pgh_obj_model="entitlements.Account", pgh_obj_id=account) | Q(pgh_data__account_id=account)


@admin.register(Events)
class HistoryAdmin(ReadOnlyAdmin):
    """The audit log. Nobody adds, changes or deletes, a superuser included; the database refuses it too."""

    list_display = ("when", "row", "did", "changes", "actor", "why", "source")
    list_display_links = ("when",)
    list_filter = (KindFilter, VerbFilter, ObjectFilter, AccountFilter)
    search_fields = ("pgh_context",)
    search_help_text = "Actor, reason, trace id, acc_ id, or the name of a row"
    ordering = ("-pgh_created_at", "-pgh_id")
    list_per_page = 50
    list_before_template = "entitlements/admin_history_export.html"
    fields = ("when", "row", "did", "changes", "actor", "why", "source", "context", "state")
    readonly_fields = fields

    def get_queryset(self, request: HttpRequest) -> QuerySet[Events]:
        """Read across all kinds of history."""
        del request
        return Events.objects.order_by(*self.ordering)

    def get_urls(self) -> list[Any]:
        """Add the export."""
        export = self.admin_site.admin_view(self.export_csv)
        return [path("export.csv", export, name="pghistory_events_export"), *super().get_urls()]

    def export_csv(self, request: HttpRequest) -> HttpResponseBase:
        """Send what the list shows under the same search and filters, newest first, as CSV."""
        if request.method != "GET" or not self.has_view_permission(request):
            raise PermissionDenied
        events = self.get_changelist_instance(request).get_queryset(request)[:_MOST_EXPORTED]
        lines = csv.writer(_Echo())
        rows = (lines.writerow([_plain(cell) for cell in row]) for row in self._rows(events))
        return StreamingHttpResponse(
            itertools.chain([lines.writerow(_EXPORTED)], rows),
            content_type="text/csv; charset=utf-8",
            headers={"Content-Disposition": 'attachment; filename="audit-log.csv"'},
        )

    def _rows(self, events: Iterable[Events]) -> Iterator[list[str]]:
        for event in events:
            context: Mapping[str, Any] = event.pgh_context or {}
            changed = event.pgh_diff if event.pgh_label == "update" else None
            changes = [f"{n}: {o} -> {v}" for n, (o, v) in sorted((changed or {}).items()) if n not in _NOISE]
            yield [
                f"{event.pgh_created_at:%Y-%m-%dT%H:%M:%S.%fZ}", str(event.pgh_obj_model), str(event.pgh_obj_id or ""),
                self.did(event), self.actor(event), self.why(event), self.source(event),
                str(context.get("address") or ""), str(context.get("trace") or ""),
                "; ".join(changes),
            ]  # fmt: skip

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Events], search_term: str
    ) -> tuple[QuerySet[Events], bool]:
        """Find by who, why, trace, account, or the name of the row."""
        term = search_term.strip()
        if not term:
            return queryset, False
        account = account_id_in(term)
        if account is not None:
            return queryset.filter(_of_account(str(account))), False
        contains = Q()
        for where in ("pgh_context__actor", "pgh_context__reason", "pgh_context__trace"):
            contains |= Q(**{f"{where}__icontains": term})
        for name in ("name", "email", "slug"):
            contains |= Q(**{f"pgh_data__{name}__icontains": term})
        return queryset.filter(contains), False

    @admin.display(description="when (UTC)", ordering="pgh_created_at")
    def when(self, event: Events) -> str:
        """Show the instant, to the second."""
        return f"{event.pgh_created_at:%Y-%m-%d %H:%M:%S}"

    @admin.display(description="what")
    def row(self, event: Events) -> SafeString | str:
        """Name the row as it was then; link to it where it has a page."""
        data: Mapping[str, Any] = event.pgh_data or {}
        name = next((str(data[key]) for key in _NAMES if data.get(key) not in (None, "")), event.pgh_obj_id)
        app, _, model = str(event.pgh_obj_model).partition(".")
        if model == "GroupMembership":
            return _membership(data)
        text = f"{model.lower()} {name}"
        try:
            url = reverse(f"admin:{app}_{model.lower()}_change", args=[event.pgh_obj_id])
        except NoReverseMatch:
            return text
        return format_html('<a href="{}">{}</a>', url, text)

    @admin.display(description="did")
    def did(self, event: Events) -> str:
        """Say what happened to it."""
        return _VERBS.get(event.pgh_label, event.pgh_label)

    @admin.display(description="old → new")
    def changes(self, event: Events) -> SafeString | str:
        """Show each changed column, before and after."""
        lines = [
            (_column(name), _value(name, old), _value(name, new))
            for name, (old, new) in sorted((event.pgh_diff or {}).items())
            if name not in _NOISE
        ]
        if event.pgh_label != "update" or not lines:
            return "-"
        return format_html_join(format_html("<br>"), "{}: {} → <strong>{}</strong>", lines)

    @admin.display(description="who")
    def actor(self, event: Events) -> str:
        """Name who did it; raw SQL, for one, leaves no name."""
        return str((event.pgh_context or {}).get("actor") or "not recorded")

    @admin.display(description="why")
    def why(self, event: Events) -> str:
        """Show the reason that was given."""
        return str((event.pgh_context or {}).get("reason") or "no reason given")

    @admin.display(description="through")
    def source(self, event: Events) -> str:
        """Name the door it came through."""
        return str((event.pgh_context or {}).get("source") or "-")

    @admin.display(description="context")
    def context(self, event: Events) -> SafeString | str:
        """Show everything that was noted beside it, such as address and trace id."""
        context = event.pgh_context or {}
        return format_html_join(format_html("<br>"), "{}: {}", sorted((k, str(v)) for k, v in context.items())) or "-"

    @admin.display(description="the row afterwards")
    def state(self, event: Events) -> SafeString:
        """Show every column as it was after the change."""
        data = event.pgh_data or {}
        lines = [(_column(name), _value(name, value)) for name, value in sorted(data.items())]
        return format_html_join(format_html("<br>"), "{}: {}", lines)


def _membership(data: Mapping[str, Any]) -> str:
    """Name who is, or was, in which group of staff; both may be gone by now."""
    group = Group.objects.filter(pk=data["group_id"]).first()
    account = Account.objects.filter(pk=data["account_id"]).first()
    return f"group {group or data['group_id']} of {account or data['account_id']}"


def _column(name: str) -> str:
    return name.removesuffix("_id").replace("_", " ")


def _value(name: str, value: Any) -> str:
    """Show a stored value: an empty limit is unlimited, an empty anything else is nothing."""
    if value is None:
        return "unlimited" if name.startswith("max_") or name in {"requests_per_minute", "value"} else "none"
    if name in {"support_tier_id", "billing_tier_id"}:
        tier = Tier.objects.filter(pk=value).first()
        return tier.name if tier else f"tier {value} (deleted)"
    return shown(value) if value != "" else "empty"
