"""The door to the admin: what a session proved, what it still has to prove, and when it ends.

This is the one place where it is decided. It stands before every page below /admin/, by the address, so that no page
of a library, and none of ours that forgot to ask, opens by another way.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from enum import StrEnum
from typing import Final
from urllib.parse import urlencode
from uuid import UUID

from allauth.mfa.models import Authenticator
from django.conf import settings
from django.http import HttpRequest, HttpResponseBase, HttpResponseRedirect
from django.urls import reverse
from django.utils import timezone

from entitlements.sign_in.sessions import rename_session

STAFF_SESSION: Final = timedelta(hours=12)
ADMIN: Final = "/admin/"
# In the session: which second factor was proven in it. Another one since then has to be proven again.
_PROVEN: Final = "second_factor"
_SAFE_METHODS: Final = frozenset({"GET", "HEAD"})


class Step(StrEnum):
    """What a session of staff still has to do before the admin opens."""

    NONE = "none"
    SET_UP = "set_up"
    PROVE = "prove"


def step_needed(*, required: bool, factor: int | None, proven: int | None) -> Step:
    """Say what is missing. Who has a second factor is always asked for it; the setting asks who has none."""
    if factor is None:
        return Step.SET_UP if required else Step.NONE
    return Step.NONE if factor == proven else Step.PROVE


def factor_of(account_id: UUID) -> int | None:
    """Return which second factor an account has now, if any."""
    factors = Authenticator.objects.filter(user_id=account_id, type=Authenticator.Type.TOTP)
    found: int | None = factors.values_list("pk", flat=True).first()
    return found


def is_proven(request: HttpRequest, factor: int | None) -> bool:
    """Say whether this session proved the second factor that its account has now."""
    return factor is not None and request.session.get(_PROVEN) == factor


def prove(request: HttpRequest, factor: int) -> None:
    """Note in the session that this second factor was proven; the session gets a new key, and ends in time."""
    request.session[_PROVEN] = factor
    before = request.session.session_key
    request.session.cycle_key()
    rename_session(before, request.session.session_key)
    end_in_time(request)


def end_in_time(request: HttpRequest) -> None:
    """Let a session of staff end twelve hours from now, or when it would have ended earlier."""
    if not getattr(request.user, "is_staff", False):
        return
    end = timezone.now() + STAFF_SESSION
    if request.session.get_expiry_date() > end:
        # A moment, not a span: a span would begin anew whenever the session is written.
        request.session.set_expiry(end)


class SecondFactorMiddleware:
    """Opens nothing below /admin/ to a session of staff that did not prove a second factor."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        """Answer one request, or lead to the step that is missing."""
        if request.path_info.startswith(ADMIN) and request.user.is_authenticated and request.user.is_staff:
            step = step_needed(
                required=settings.STAFF_TOTP,
                factor=factor_of(request.user.pk),
                proven=request.session.get(_PROVEN),
            )
            if step is not Step.NONE:
                return _lead_to(step, request)
        return self.get_response(request)


def _lead_to(step: Step, request: HttpRequest) -> HttpResponseRedirect:
    # What was sent is not sent again after the detour, so a form leads back to where it could be filled in.
    back = request.get_full_path() if request.method in _SAFE_METHODS else ADMIN
    name = "set_up_second_factor" if step is Step.SET_UP else "prove_second_factor"
    return HttpResponseRedirect(f"{reverse(name)}?{urlencode({'next': back})}")
