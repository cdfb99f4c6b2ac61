"""The links at the top of every page of an account."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from django.conf import settings
from django.http import HttpRequest

_LINKS: Final = (
    ("/", "Overview"),
    ("/agents/", "Agents"),
    ("/invocations/", "Invocations"),
    ("/billing/", "Billing"),
    ("/settings/tokens/", "Settings"),
)


@dataclass(frozen=True)
class Link:
    """One of them, and whether the page that is shown belongs to it."""

    href: str
    text: str
    is_here: bool


def navigation(request: HttpRequest) -> dict[str, Any]:
    """Return what the frame of every page shows (a context processor)."""
    links = [Link(href, text, _is_below(request.path, href)) for href, text in _LINKS]
    return {"navigation": links, "support_email": settings.SUPPORT_EMAIL}


def _is_below(path: str, href: str) -> bool:
    top = f"/{href.split('/')[1]}/"
    return path == "/" if href == "/" else path.startswith(top)
