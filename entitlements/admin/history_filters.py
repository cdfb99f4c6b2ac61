"""The filters of the audit log. They only offer choices: HistoryQuery reads all parameters at once."""

from __future__ import annotations

from typing import Any, Final

from django import forms
from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from unfold.widgets import UnfoldAdminTextInputWidget

from entitlements.history.finding import DOORS
from entitlements.history.telling import VERBS
from entitlements.models import HistoryEntry, Tier
from entitlements.sealing import shapes


class NarrowForm(forms.Form):
    """What is typed and not chosen: whose, who, from when to when."""

    account = forms.CharField(
        label="Account", required=False, widget=UnfoldAdminTextInputWidget({"placeholder": "e-mail address or acc_ id"})
    )
    actor = forms.CharField(
        label="Who",
        required=False,
        widget=UnfoldAdminTextInputWidget({"placeholder": "staff, Stripe, a database role"}),
    )
    since = forms.CharField(label="From (UTC)", required=False, widget=UnfoldAdminTextInputWidget({"type": "date"}))
    until = forms.CharField(label="To (UTC)", required=False, widget=UnfoldAdminTextInputWidget({"type": "date"}))


class HistoryFilter(admin.SimpleListFilter):
    """A parameter of the audit log's page."""

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        """Offer what the form gave, so that it can be taken away again; nothing while it is not on."""
        given = request.GET.get(self.parameter_name or "")
        return [(given, given)] if given else []

    def queryset(self, request: HttpRequest, queryset: QuerySet[HistoryEntry]) -> QuerySet[HistoryEntry]:
        """Leave it: get_queryset did it."""
        return queryset


class KindFilter(HistoryFilter):
    """Filter by the kind of row."""

    title = "kind"
    parameter_name = "kind"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        """Offer every tracked kind."""
        return sorted(((s.kind, s.kind.partition(".")[2].lower()) for s in shapes()), key=lambda kind: kind[1])


class VerbFilter(HistoryFilter):
    """Filter by what was done."""

    title = "what happened"
    parameter_name = "did"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        """Offer the verbs."""
        return list(VERBS.items())


class DoorFilter(HistoryFilter):
    """Filter by the door that a change came through."""

    title = "source"
    parameter_name = "source"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        """Offer the doors."""
        return [(door, door) for door in DOORS]


class TierFilter(HistoryFilter):
    """Filter by the tier that an entry is about: its own, its prices, and what it was given to."""

    title = "tier"
    parameter_name = "tier"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        """Offer every tier."""
        return [(str(t.pk), t.name) for t in Tier.objects.order_by("rank")]


def _given(parameter: str, name: str) -> type[HistoryFilter]:
    return type(f"{parameter.title()}Filter", (HistoryFilter,), {"title": name, "parameter_name": parameter})


FILTERS: Final = (
    KindFilter, VerbFilter, DoorFilter, TierFilter,
    _given("account", "account"), _given("actor", "who"), _given("since", "from"), _given("until", "to"),
    _given("object", "one row"), _given("context", "one transaction"),
)  # fmt: skip
