"""Browsers in words, from what they say of themselves. A hint for people; anybody can say anything."""

from __future__ import annotations

from typing import Final

# Looked for in this order: most say that they are Chrome and Safari, too.
_BROWSERS: Final = (
    ("Edg", "Edge"), ("OPR/", "Opera"), ("SamsungBrowser/", "Samsung Internet"), ("FxiOS/", "Firefox"),
    ("Firefox/", "Firefox"), ("CriOS/", "Chrome"), ("Chrome/", "Chrome"), ("Chromium/", "Chromium"),
    ("Safari/", "Safari"),
)  # fmt: skip
_SYSTEMS: Final = (
    ("iPhone", "iPhone"), ("iPad", "iPad"), ("Android", "Android"), ("Windows", "Windows"), ("CrOS", "ChromeOS"),
    ("Mac OS X", "macOS"), ("Linux", "Linux"),
)  # fmt: skip
UNKNOWN: Final = "Another program"


def browser_in_words(agent: str) -> str:
    """Return what a User-Agent names, as `Firefox on Windows`; what is not known is another program."""
    browser = next((name for mark, name in _BROWSERS if mark in agent), None)
    system = next((name for mark, name in _SYSTEMS if mark in agent), None)
    if browser is None:
        return UNKNOWN
    return f"{browser} on {system}" if system else browser
