"""One's browser sessions: which there are, and ending them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import render
from django.urls import path, reverse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET, require_POST

from entitlements.sign_in import sessions
from entitlements.sign_in.browsers import browser_in_words
from entitlements.whose import account_of

_MOST = 100
_LONGEST_ID = 18


@dataclass(frozen=True)
class SessionLine:
    """One session, as it is shown."""

    id: int
    browser: str
    address: str
    began_at: datetime
    seen_at: datetime
    is_this: bool


@never_cache
@login_required
@require_GET
def list_sessions(request: HttpRequest) -> HttpResponse:
    """Show where one is signed in, this browser first."""
    here = request.session.session_key
    lines = [
        SessionLine(s.pk, browser_in_words(s.user_agent), s.ip, s.created_at, s.last_seen_at, s.session_key == here)
        for s in sessions.live_sessions(account_of(request))[:_MOST]
    ]
    lines.sort(key=lambda line: not line.is_this)
    return render(request, "entitlements/sessions.html", {"tab": "sessions", "lines": lines})


@never_cache
@login_required
@require_POST
def end(request: HttpRequest) -> HttpResponse:
    """End one of them; it is out at its next request."""
    chosen = request.POST.get("session", "")
    if not (chosen.isascii() and chosen.isdigit() and len(chosen) <= _LONGEST_ID):
        raise Http404
    if not sessions.end_session(account_of(request), int(chosen)):
        raise Http404
    messages.success(request, "The session was ended.")
    return HttpResponseRedirect(reverse("sessions"))


@never_cache
@login_required
@require_POST
def end_others(request: HttpRequest) -> HttpResponse:
    """End all but this one."""
    ended = sessions.end_sessions(account_of(request), but=request.session.session_key)
    messages.success(request, f"{ended} other session{'' if ended == 1 else 's'} ended.")
    return HttpResponseRedirect(reverse("sessions"))


urlpatterns = [
    path("settings/sessions/", list_sessions, name="sessions"),
    path("settings/sessions/end/", end, name="end_session"),
    path("settings/sessions/end-others/", end_others, name="end_other_sessions"),
]
