"""Refusals: who met which limit how often, minute by minute, and in numbers by tier and day. Read-only."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, Final

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.template.response import TemplateResponse
from django.urls import path
from django.utils import timezone

from entitlements.actions.refused import Figure, figures_by_day, refusals_by_account
from entitlements.admin.base import ReadOnlyAdmin, account_ids_like
from entitlements.admin.listing import LAST_DAY, SPANS, begin_of, one_of, since
from entitlements.admin.receipts import OfAccountAdmin
from entitlements.display import LABELS
from entitlements.enums import LimitType
from entitlements.models import Denial, DenialFigure, Tier
from webhost.ids import Prefix, public_id

_MOST_SHOWN: Final = 100
_DAYS: Final = {"7": "7 days", "28": "28 days", "90": "90 days"}
NOT_RECORDED: Final = "not recorded"


@admin.register(Denial)
class DenialAdmin(OfAccountAdmin):
    """How often an account met a limit: in all of a span of time, or minute by minute with the last trace of each."""

    list_display = ("minute", "account", "limit", "count", "shown_tier", "agent", "trace_id")
    list_filter = (since("minute"), one_of("limit_type", tuple(LimitType), "limit"))
    list_before_template = "entitlements/admin_denials_link.html"
    ordering = ("-minute", "-pk")
    sortable_by = ("minute",)
    search_fields = ("trace_id",)
    fields = ("minute", "account", "limit", "limit_type", "period", "count", "shown_tier", "agent", "trace_id")
    readonly_fields = fields

    def get_urls(self) -> list[Any]:
        """Add the page by account."""
        by_account = self.admin_site.admin_view(self.by_account_view)
        return [path("by-account/", by_account, name="entitlements_denial_by_account"), *super().get_urls()]

    def by_account_view(self, request: HttpRequest) -> HttpResponseBase:
        """Show who met which limit in a span of time, the most refused first."""
        if request.method != "GET" or not self.has_view_permission(request):
            raise PermissionDenied
        span = request.GET.get("since", LAST_DAY)
        begin = begin_of(span, timezone.now())
        if begin is None:
            span, begin = LAST_DAY, begin_of(LAST_DAY, timezone.now())
        term = request.GET.get("q", "").strip()
        limit, tier = request.GET.get("limit", ""), request.GET.get("tier", "")
        met = refusals_by_account(
            begin or timezone.now(),
            accounts=account_ids_like(term) if term else None,
            limit_type=limit if limit in list(LimitType) else None,
            tier=tier or None,
            most=_MOST_SHOWN + 1,
        )
        context = {
            **self.admin_site.each_context(request),
            "title": "Refusals by account",
            "opts": self.opts,
            "met": [(m, LABELS[m.limit_type], public_id(Prefix.ACCOUNT, m.account_id)) for m in met[:_MOST_SHOWN]],
            "more": len(met) > _MOST_SHOWN,
            "most": _MOST_SHOWN,
            "term": term, "span": span, "spans": SPANS, "limit": limit, "tier": tier,
            "limits": [(limit_type.value, LABELS[limit_type]) for limit_type in LimitType],
            "tiers": Tier.objects.order_by("rank").values_list("slug", "name"),
        }  # fmt: skip
        return TemplateResponse(request, "entitlements/admin_denials.html", context)

    @admin.display(description="limit")
    def limit(self, denial: Denial) -> str:
        """Name the limit for people."""
        return LABELS[LimitType(denial.limit_type)]

    @admin.display(description="tier")
    def shown_tier(self, denial: Denial) -> str:
        """Show the tier that it was judged by."""
        return denial.tier or NOT_RECORDED

    @admin.display(description="last agent")
    def agent(self, denial: Denial) -> str:
        """Show the last agent that met the limit."""
        return public_id(Prefix.AGENT, denial.agent_id) if denial.agent_id else "-"


@admin.register(DenialFigure)
class DenialFigureAdmin(ReadOnlyAdmin):
    """How many accounts met which limit, by tier and day. Numbers only: who looks at prices sees no addresses."""

    def get_urls(self) -> list[Any]:
        """Offer the figures, and them as CSV; no row has a page of its own."""
        export = self.admin_site.admin_view(self.export_csv)
        return [
            path("", self.admin_site.admin_view(self.changelist_view), name="entitlements_denialfigure_changelist"),
            path("figures.csv", export, name="entitlements_denialfigure_export"),
            path("add/", self.admin_site.admin_view(self.add_view), name="entitlements_denialfigure_add"),
        ]

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponseBase:
        """Show the figures of some days."""
        self._require_look(request)
        days, figures = _asked(request)
        columns = columns_of(figures)
        context = {
            **self.admin_site.each_context(request),
            **(extra_context or {}),
            "title": "Refusals by tier and day",
            "opts": self.opts,
            "days": days,
            "choices": _DAYS,
            "columns": [name for _, name in columns],
            "rows": [(f, LABELS[f.limit_type], [f.by_tier.get(slug, 0) for slug, _ in columns]) for f in figures],
            "most": max((f.accounts for f in figures), default=1),
        }
        return TemplateResponse(request, "entitlements/admin_denial_figures.html", context)

    def export_csv(self, request: HttpRequest) -> HttpResponseBase:
        """Send the same figures as CSV, a line per day, limit and tier and one for all tiers."""
        self._require_look(request)
        _, figures = _asked(request)
        answer = HttpResponse(
            content_type="text/csv; charset=utf-8",
            headers={"Content-Disposition": 'attachment; filename="refusals-by-tier.csv"'},
        )
        lines = csv.writer(answer)
        lines.writerow(("day (UTC)", "limit", "tier", "accounts", "refusals"))
        columns = columns_of(figures)
        for figure in figures:
            for slug, _ in columns:
                if slug in figure.by_tier:
                    tier = slug or NOT_RECORDED
                    lines.writerow((
                        figure.day, figure.limit_type.value, tier, figure.by_tier[slug],
                        figure.refusals_by_tier[slug],
                    ))  # fmt: skip
            lines.writerow((figure.day, figure.limit_type.value, "all", figure.accounts, figure.refusals))
        return answer

    def _require_look(self, request: HttpRequest) -> None:
        if request.method != "GET" or not self.has_view_permission(request):
            raise PermissionDenied


def _asked(request: HttpRequest) -> tuple[str, list[Figure]]:
    days = request.GET.get("days", "7")
    days = days if days in _DAYS else "7"
    now = timezone.now()
    return days, figures_by_day(_midnight(now) - timedelta(days=int(days) - 1), now)


def _midnight(now: datetime) -> datetime:
    return now.replace(hour=0, minute=0, second=0, microsecond=0)


def columns_of(figures: Sequence[Figure]) -> list[tuple[str, str]]:
    """Return the tiers that figures name, in the order of the price list, those that are gone next, unknown last."""
    named = {slug for figure in figures for slug in figure.by_tier}
    known = [(slug, name) for slug, name in Tier.objects.order_by("rank").values_list("slug", "name") if slug in named]
    gone = sorted(named - {slug for slug, _ in known} - {""})
    return [*known, *((slug, slug) for slug in gone), *([("", NOT_RECORDED)] if "" in named else [])]
