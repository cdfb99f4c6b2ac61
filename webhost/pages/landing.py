"""The first page: for strangers what this is and what it costs, for who is signed in the overview."""

from __future__ import annotations

from django.conf import settings
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import render
from django.views.decorators.cache import cache_control
from django.views.decorators.http import require_GET

from billing.columns import public_columns, rows_of
from webhost.pages.overview import show_overview


@require_GET
def show_home(request: HttpRequest) -> HttpResponseBase:
    """Show the page that fits who asks."""
    return show_overview(request) if request.user.is_authenticated else _landing(request)


# Two pages have this address, so nobody but the visitor's own browser keeps it, and that asks before it shows it again.
@cache_control(private=True, no_cache=True)
def _landing(request: HttpRequest) -> HttpResponse:
    columns = public_columns()
    context = {"columns": columns, "rows": rows_of(columns), "public_url": settings.PUBLIC_URL}
    return render(request, "webhost/landing.html", context)
