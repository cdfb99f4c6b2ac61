"""The search box of every admin page: a plain form, and the same for the command palette."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponse, HttpResponseBase, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import path
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from webhost.desk.lookups import Hit, search
from webhost.desk.navigation import pages_of
from webhost.desk.terms import read_term

# In words, for whoever found nothing.
SEARCHED = (
    "an e-mail address, or a part of one",
    "an id: acc_, agt_, dep_, inv_, ses_, tok_, evt_, or the bare UUID",
    "a trace id: trc_",
    "an id of Stripe's: cus_, sub_, evt_, price_, or what an event is about",
    "the beginning of an agent's name",
    "the name of a tier, of what an override sets, or “override 12”",
)


@never_cache
@require_safe
def find(request: HttpRequest) -> HttpResponseBase:
    """Show what a term names, by kind; what is named alone is opened at once."""
    if "s" in request.GET:
        return _palette(request)
    typed = request.GET.get("q", "")
    term = read_term(typed)
    found = search(request, term)
    hits = [hit for kind in found for hit in kind.hits]
    if len(hits) == 1:
        return HttpResponseRedirect(hits[0].url)
    context: dict[str, Any] = {
        **admin.site.each_context(request),
        "title": "Search",
        "typed": typed.strip(),
        "found": found,
        "searched": SEARCHED,
    }
    return TemplateResponse(request, "webhost/search.html", context)


def _palette(request: HttpRequest) -> HttpResponse:
    """Answer the command palette in unfold's own form: pages by their name, then what the term names.

    Unfold's view would keep the answers in a cache, beyond the rights that they were found with.
    """
    typed = request.GET["s"]
    term = read_term(typed)
    pages = [Hit(name, task, url) for task, name, url in pages_of(request) if typed.strip().lower() in name.lower()]
    results = [
        {"title": hit.title, "description": f"{kind}, {hit.detail}", "link": hit.url, "icon": icon}
        for kind, icon, hits in [
            *((f.kind, "data_object", f.hits) for f in search(request, term)),
            ("Page", "tag", pages if typed.strip() else []),
        ]
        for hit in hits
    ]
    page = Paginator(results, max(len(results), 1)).page(1)
    context = {"page_obj": page.paginator, "results": page, "page_counter": 0, "execution_time": 0}
    return TemplateResponse(request, "unfold/helpers/command_results.html", context, headers={"HX-Trigger": "search"})


# In front of the admin's own routes: unfold has a view at the same address.
urlpatterns = [path("admin/search/", admin.site.admin_view(find), name="desk_search")]
