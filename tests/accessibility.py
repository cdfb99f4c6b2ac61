"""What axe-core, the field's own checker, finds on a page that is open in a real browser."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from django.conf import settings
from playwright.sync_api import Page

_ASK = """async () => {
  const { violations } = await axe.run(document, { resultTypes: ["violations"] });
  return violations.filter(({ impact }) => impact === "serious" || impact === "critical")
    .flatMap(({ id, help, nodes }) => nodes.map((node) => `${id} (${help}): ${node.html.slice(0, 200)}`));
}"""


@cache
def _axe() -> str:
    return (Path(settings.NODE_MODULES_DIR) / "axe-core" / "axe.min.js").read_text(encoding="utf-8")


def problems_of(page: Page) -> list[str]:
    """Return the serious and critical problems of the page, each with the element that has it."""
    page.evaluate(_axe())
    found: list[str] = page.evaluate(_ASK)
    return found


def sideways(page: Page) -> int:
    """Return by how many pixels the page is wider than its window."""
    wider: int = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    return wider
