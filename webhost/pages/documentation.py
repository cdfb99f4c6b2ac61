"""The documentation, as `make docs` built it, at /docs/: files of one folder, under the policy of all pages."""

from __future__ import annotations

from http import HTTPStatus
from pathlib import Path

from django.conf import settings
from django.http import Http404, HttpRequest, HttpResponsePermanentRedirect
from django.http.response import HttpResponseBase
from django.shortcuts import render
from django.utils.cache import patch_cache_control
from django.views.decorators.http import require_safe
from django.views.static import serve

from webhost.tracing import current_trace_id

_FRESH_SECONDS = 300
_NOT_BUILT = "The documentation was not built here. `make docs` builds it, and DOCS_DIR names its folder."


@require_safe
def show_documentation(request: HttpRequest, path: str = "") -> HttpResponseBase:
    """Answer one file of the site. Where none was built, 404 says so; raises Http404 for what it does not have."""
    site: Path = settings.DOCS_DIR
    if not (site / "index.html").is_file():
        context = {"title": "No documentation", "message": _NOT_BUILT, "trace_id": current_trace_id()}
        return render(request, "error.html", context, status=HTTPStatus.NOT_FOUND)
    if any(part.startswith(".") for part in path.split("/")):  # no way out, and nothing of the builder's own
        raise Http404
    if not path or path.endswith("/"):
        path += "index.html"
    elif (site / path / "index.html").is_file():
        return HttpResponsePermanentRedirect(f"/docs/{path}/")
    response = serve(request, path, document_root=str(site))
    patch_cache_control(response, public=True, max_age=_FRESH_SECONDS)
    return response
