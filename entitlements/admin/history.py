"""The audit log: every change of every tracked row, as the database's own triggers wrote it. To read only."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, cast

from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponseBase, HttpResponseRedirect, StreamingHttpResponse
from django.urls import NoReverseMatch, path, reverse
from django.utils import timezone
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from unfold.views import ChangeList

from entitlements.admin.base import ReadOnlyAdmin
from entitlements.admin.history_export import export_lines
from entitlements.admin.history_filters import FILTERS, NarrowForm
from entitlements.admin.receipts import BoundedPaginator
from entitlements.history.finding import MOST_SIGNATURES, ORDER, HistoryQuery, found_entries
from entitlements.history.telling import Told, tell
from entitlements.models import HistoryEntry
from entitlements.sealing import shapes
from webhost.errors import InvalidRequestError


class ToldList(ChangeList):  # type: ignore[misc]  # untyped library
    """A list whose entries know what they changed: old and new values are looked up for what is shown alone."""

    def get_ordering(self, request: HttpRequest, queryset: QuerySet[HistoryEntry]) -> list[Any]:
        """Keep the order in which it was found."""
        return list(queryset.query.order_by)

    def get_results(self, request: HttpRequest) -> None:
        """Read a page, and tell it in a handful of queries."""
        super().get_results(request)
        entries: list[Any] = list(self.result_list)  # type: ignore[has-type]  # untyped library
        for entry, told in zip(entries, tell(entries), strict=True):
            entry.told = told
        self.result_list = entries


def _kinds_open_to(request: HttpRequest) -> frozenset[str] | None:
    """Return the kinds of rows whose history somebody may read: all, for who may look at customers, else what he may.

    Whoever sets prices reads what became of them, and no customer's address.
    """
    if request.user.has_perm("entitlements.view_account"):
        return None
    parts = ((shape.kind, *shape.kind.lower().split(".")) for shape in shapes())
    return frozenset(kind for kind, app, model in parts if request.user.has_perm(f"{app}.view_{model}"))


def _asked(request: HttpRequest) -> HistoryQuery:
    return replace(HistoryQuery.of(request.GET.dict()), kinds=_kinds_open_to(request))


@admin.register(HistoryEntry)
class HistoryAdmin(ReadOnlyAdmin):
    """The audit log. Nobody adds, changes or deletes, a superuser included; the database refuses it too."""

    list_display = ("when", "row", "changes", "account", "actor", "why", "source")
    list_display_links = ("when",)
    list_filter = FILTERS
    search_fields = ("key",)
    search_help_text = (
        "E-mail address; acc_, agt_, dep_, tok_, trc_ or evt_ id; how a name begins; who; words of the reason"
    )
    ordering = ORDER
    sortable_by = ()
    list_per_page = 50
    list_max_show_all = 50
    paginator = BoundedPaginator
    list_before_template = "entitlements/admin_history_filters.html"
    fields = ("when", "row", "changes", "account", "actor", "why", "source", "notes", "state")
    readonly_fields = fields

    def get_queryset(self, request: HttpRequest) -> QuerySet[HistoryEntry]:
        """Find what the parameters of the page ask for, all of them at once."""
        return found_entries(_asked(request))[0]

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[HistoryEntry], search_term: str
    ) -> tuple[QuerySet[HistoryEntry], bool]:
        """Leave it: get_queryset searched already."""
        return queryset, False

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> HistoryEntry | None:
        """Find one entry: by its history and its number there, which have an index."""
        label, _, number = object_id.rpartition(":")
        if not (number.isascii() and number.isdigit() and int(number) < 2**31):
            return None
        kind = label.removesuffix("Event")
        entry = HistoryEntry.objects.filter(kind=kind, event_id=int(number)).order_by().first()
        kinds = _kinds_open_to(request)
        if entry is not None and entry.key == object_id and (kinds is None or kind in kinds):
            entry.told = tell([entry])[0]  # type: ignore[attr-defined]  # for this page
            return entry
        return None

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> Any:
        """Tell what is listed."""
        return ToldList

    def get_urls(self) -> list[Any]:
        """Add the export."""
        export = self.admin_site.admin_view(self.export_csv)
        return [path("export.csv", export, name="entitlements_historyentry_export"), *super().get_urls()]

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponseBase:
        """Show the list, and say where it is not all of it."""
        try:
            query = _asked(request)
        except InvalidRequestError as error:
            self.message_user(request, error.message, messages.ERROR)
            return HttpResponseRedirect(request.path)
        if request.method == "GET" and self.has_view_permission(request) and found_entries(query)[1]:
            self.message_user(
                request,
                f"Only the newest {MOST_SIGNATURES:,} matching transactions were looked at. "
                "Give dates to see older ones.",
                messages.WARNING,
            )
        kept = [(n, v) for n, v in request.GET.items() if n not in NarrowForm.base_fields and n not in {"p", "e"}]
        context = {"narrow": NarrowForm(request.GET), "kept": kept, **(extra_context or {})}
        return super().changelist_view(request, context)

    def export_csv(self, request: HttpRequest) -> HttpResponseBase:
        """Send what the list shows under the same search and filters, newest first, as CSV."""
        if request.method != "GET" or not self.has_view_permission(request):
            raise PermissionDenied
        try:
            query = _asked(request)
        except InvalidRequestError as error:
            self.message_user(request, error.message, messages.ERROR)
            return HttpResponseRedirect(reverse("admin:entitlements_historyentry_changelist"))
        lines: Iterator[str] = export_lines(query, timezone.now())
        return StreamingHttpResponse(
            lines,
            content_type="text/csv; charset=utf-8",
            headers={"Content-Disposition": 'attachment; filename="audit-log.csv"'},
        )

    @admin.display(description="when (UTC)")
    def when(self, entry: HistoryEntry) -> str:
        """Show the instant, to the second."""
        return f"{entry.at:%Y-%m-%d %H:%M:%S}"

    @admin.display(description="what")
    def row(self, entry: HistoryEntry) -> SafeString | str:
        """Name the row as it was then, and what happened to it; link to it where it may have a page."""
        told = _told(entry)
        text = f"{told.kind} {told.name}"
        app, _, model = entry.kind.partition(".")
        if entry.verb == "delete":
            return f"{text} {told.verb}"
        try:
            url = reverse(f"admin:{app}_{model.lower()}_change", args=[entry.object_id])
        except NoReverseMatch:
            return f"{text} {told.verb}"
        return format_html('<a href="{}">{}</a> {}', url, text, told.verb)

    @admin.display(description="old → new")
    def changes(self, entry: HistoryEntry) -> SafeString | str:
        """Show each changed column, before and after."""
        lines = [(change.label, change.old, change.new) for change in _told(entry).changes]
        said = format_html_join(format_html("<br>"), "{}: {} → <strong>{}</strong>", lines)
        return format_html('<div class="min-w-56">{}</div>', said) if said else "-"

    @admin.display(description="account")
    def account(self, entry: HistoryEntry) -> str:
        """Name whose it is, or was."""
        told = _told(entry)
        return told.account if told.account not in {"", told.name} else "-"

    @admin.display(description="who")
    def actor(self, entry: HistoryEntry) -> str:
        """Name who did it; of raw SQL the database role."""
        return _told(entry).actor

    @admin.display(description="why")
    def why(self, entry: HistoryEntry) -> str:
        """Show the reason that was given."""
        return _told(entry).reason

    @admin.display(description="through")
    def source(self, entry: HistoryEntry) -> str:
        """Name the door it came through."""
        return _told(entry).source

    @admin.display(description="noted beside it")
    def notes(self, entry: HistoryEntry) -> SafeString | str:
        """Show everything that was noted beside it, such as address and trace id; lead to what else it covers."""
        told = _told(entry)
        lines = [(name, str(value)) for name, value in sorted(told.notes.items()) if value not in (None, "")]
        if not lines:
            return "-"
        url = f"{reverse('admin:entitlements_historyentry_changelist')}?context={entry.context_id}"
        return format_html(
            '{}<br><a href="{}">everything in this transaction</a>',
            format_html_join(format_html("<br>"), "{}: {}", lines),
            url,
        )

    @admin.display(description="the row afterwards")
    def state(self, entry: HistoryEntry) -> SafeString:
        """Show every column as it was after the change."""
        return format_html_join(format_html("<br>"), "{}: {}", _told(entry).state)


def _told(entry: HistoryEntry) -> Told:
    return cast("Told", entry.told)  # type: ignore[attr-defined]  # set for the rows of a page
