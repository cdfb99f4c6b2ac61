"""Browser sessions of an account: which there are, when each was last seen, and ending one.

Kept in django-allauth's table, beside Django's own, which does not know whose a session is. Being seen is written at
most once a minute by each process; calls of programs with a token do not come by here at all.
"""

from __future__ import annotations

import ipaddress
import logging
import threading
import time
from collections.abc import Callable
from typing import Final
from uuid import UUID

from allauth.usersessions.models import UserSession
from django.contrib.sessions.models import Session
from django.db import OperationalError, connection
from django.db.models import Exists, OuterRef, QuerySet
from django.http import HttpRequest, HttpResponseBase
from django.utils import timezone

from entitlements.models import Account
from webhost.wire import client_address

logger = logging.getLogger(__name__)

_EVERY: Final = 60.0
_MOST_KEYS: Final = 50_000
_MOST_AGENT: Final = 200
_SEEN: Final = """
INSERT INTO usersessions_usersession (user_id, session_key, ip, user_agent, created_at, last_seen_at, data)
SELECT a.id, %(key)s, %(address)s, %(agent)s, now(), now(), '{}' FROM entitlements_account a WHERE a.id = %(account)s
    ON CONFLICT (session_key) DO UPDATE SET user_id = excluded.user_id, ip = excluded.ip,
       user_agent = excluded.user_agent, last_seen_at = excluded.last_seen_at
"""
# When this process last wrote which session, and with which address.
_written: dict[str, tuple[float, str]] = {}
_lock = threading.Lock()


class SeenMiddleware:
    """Notes when, and from where, a signed-in session was last used."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        """Answer one request; look at nobody's account that the view did not look at."""
        response = self.get_response(request)
        if hasattr(request, "_cached_user"):
            note_seen(request)
        return response


def note_seen(request: HttpRequest) -> None:
    """Note that this session was used just now, unless that was written within the minute."""
    key = request.session.session_key
    if not key or not isinstance(getattr(request.user, "pk", None), UUID):
        return
    address, now = client_address(request), time.monotonic()
    with _lock:
        at, from_where = _written.get(key, (-_EVERY, address))
        if now - at < _EVERY and from_where == address:
            return
        if len(_written) >= _MOST_KEYS:
            _written.clear()
        _written[key] = (now, address)
    agent = request.headers.get("User-Agent", "").replace("\x00", "")[:_MOST_AGENT]
    try:
        with connection.cursor() as cursor:
            cursor.execute(_SEEN, {"account": request.user.pk, "key": key, "address": _ip(address), "agent": agent})
    except OperationalError as error:  # the page was answered all the same
        logger.warning("A session could not be noted: %s.", type(error).__name__)


def _ip(text: str) -> str:
    try:
        return str(ipaddress.ip_address(text))
    except ValueError:  # a socket of this machine has none
        return "0.0.0.0"  # noqa: S104 - nobody listens there


def rename_session(before: str | None, after: str | None) -> None:
    """Keep what is known of a session that was given another key."""
    if before and after and before != after:
        UserSession.objects.filter(session_key=before).update(session_key=after)


def live_sessions(account: Account) -> QuerySet[UserSession]:
    """Return the sessions of an account that would still be let in, newest first."""
    alive = Session.objects.filter(session_key=OuterRef("session_key"), expire_date__gt=timezone.now())
    found: QuerySet[UserSession] = UserSession.objects.filter(Exists(alive), user_id=account.pk)
    return found.order_by("-last_seen_at", "-pk")


def end_session(account: Account, session_id: int) -> bool:
    """End one session of an account: its next request is a stranger's. Says whether there was one."""
    return bool(_end(UserSession.objects.filter(user_id=account.pk, pk=session_id)))


def end_sessions(account: Account, *, but: str | None = None) -> int:
    """End all sessions of an account but the one with this key; return how many there were."""
    return _end(UserSession.objects.filter(user_id=account.pk).exclude(session_key=but or ""))


def _end(sessions: QuerySet[UserSession]) -> int:
    keys = list(sessions.values_list("session_key", flat=True))
    ended, _ = Session.objects.filter(session_key__in=keys).delete()
    UserSession.objects.filter(session_key__in=keys).delete()
    return ended


def forget_sessions() -> int:
    """Delete sessions that ran out, and what is known of those that are no more; return how many."""
    forgotten, _ = Session.objects.filter(expire_date__lt=timezone.now()).delete()
    alive = Session.objects.filter(session_key=OuterRef("session_key"))
    UserSession.objects.filter(~Exists(alive)).delete()
    return forgotten
