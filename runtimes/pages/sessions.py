"""The sessions of an agent: listed, and stopped."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils import timezone
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET, require_POST

from runtimes.actions.sessions import list_sessions, stop_session
from runtimes.display import session_status
from runtimes.enums import SessionStatus
from runtimes.models import Agent, AgentSession
from runtimes.pages.frame import Refused, listed, own_agent, render_tab
from webhost.errors import WebhostError

_A_PAGE: Final = 25
_STOPPED_BY_PAGE: Final = "stopped by its owner, on the page"


@dataclass(frozen=True)
class SessionLine:
    """A conversation, and whether it can be stopped."""

    session: AgentSession
    status: SessionStatus

    @property
    def is_running(self) -> bool:
        """Whether there is something to stop."""
        return self.status == SessionStatus.RUNNING


def _render(request: HttpRequest, agent: Agent, refused: Refused | None = None) -> HttpResponse:
    now = timezone.now()
    page = listed(request, list_sessions(agent), by=("last_used_at", "id"), many=_A_PAGE)
    context: dict[str, Any] = {
        "sessions": [SessionLine(s, session_status(s, now)) for s in page.items],
        "next_cursor": page.next_cursor,
        "is_first": not request.GET.get("cursor"),
    }
    return render_tab(request, agent, "sessions", context, refused=refused)


@never_cache
@login_required
@require_GET
def show_sessions(request: HttpRequest, agent: str) -> HttpResponse:
    """List the agent's sessions, the last used first."""
    return _render(request, own_agent(request, agent))


@never_cache
@login_required
@require_POST
def end_session(request: HttpRequest, agent: str) -> HttpResponse:
    """Stop one of the agent's sessions."""
    own = own_agent(request, agent)
    session_id = request.POST.get("sessionId", "").replace("\x00", "")
    try:
        stop_session(own, session_id, because=_STOPPED_BY_PAGE)
    except WebhostError as error:
        return _render(request, own, Refused("sessions", error))
    messages.success(request, f"Session {session_id} is stopped.")
    return HttpResponseRedirect(f"/agents/{own.public_id}/sessions/")
