"""What tests ask of any page."""

from __future__ import annotations

from html.parser import HTMLParser
from typing import Any


def inline_of(page: Any) -> list[str]:
    """Return what a strict policy would stop: scripts, styles and handlers in the page, and files of other hosts.

    JSON in the page, which is no script though its element is called one, passes.
    """
    reader = _Reader()
    reader.feed(page.content.decode())
    reader.close()
    return reader.found


class _Reader(HTMLParser):
    """Reads a page as a browser does: what is escaped is text."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        is_ours = given.get("src", "").startswith("/static/") or given.get("type") == "application/json"
        if tag == "style" or (tag == "script" and not is_ours):
            self.found.append(self.get_starttag_text() or tag)
        for name, value in given.items():
            loads = name in ("src", "srcset") or (tag == "link" and name == "href") or name == "action"
            if (
                name == "style"
                or name.startswith(("on", "hx-on"))
                or value.strip().lower().startswith("javascript:")
                or (loads and "//" in value)
            ):
                self.found.append(f"{tag} {name}={value}")
