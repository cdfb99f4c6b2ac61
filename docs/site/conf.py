"""How docs/ becomes the site at /docs/ (`make docs`): Markdown as it stands, and the API out of its document."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx

HERE = Path(__file__).resolve().parent
DOCS = HERE.parent
sys.path.insert(0, str(HERE))

from reference import operations  # noqa: E402 - beside this file, which is no package

project = "webhost.systems"
extensions = ["myst_parser"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["site"]
myst_heading_anchors = 3
myst_enable_extensions = ["attrs_block"]
html_theme = "theme"
html_theme_path = [str(HERE)]
html_title = "webhost.systems"
html_copy_source = False
html_show_sourcelink = False
html_show_sphinx = False
html_show_copyright = False
html_use_index = False
html_permalinks_icon = "#"
smartquotes = False  # what is typed is what is meant

# Elsewhere in our texts a page is named by its path, which an editor opens; on the site it is a link.
_PAGE = re.compile(r"(?<![\w`/(\[])docs/((?:adr/)?[a-z0-9-]+)(?:\.md)?(?=[\s,.;:)])")
_FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)


def _linked(text: str) -> str:
    """Turn the paths of pages into links, but not in what is code."""
    parts, last = [], 0
    for fence in _FENCE.finditer(text):
        parts += [_PAGE.sub(_link, text[last : fence.start()]), fence[0]]
        last = fence.end()
    return "".join([*parts, _PAGE.sub(_link, text[last:])])


def _link(match: re.Match[str]) -> str:
    name = match[1]
    if re.fullmatch(r"adr/\d{4}", name):
        (page,) = DOCS.glob(f"{name}-*.md")
        return f"[decision {int(name[4:])}](/adr/{page.name})"
    title = (DOCS / f"{name}.md").read_text().partition("\n")[0].removeprefix("# ")
    return f"[{title}](/{name}.md)"


def _prepare(_app: Sphinx, name: str, source: list[str]) -> None:
    text = source[0]
    if name == "api":
        text = text.replace("<!-- operations -->", operations(DOCS / "openapi.yaml"))
    source[0] = _linked(text)


def _wrap_tables(app: Sphinx, tree: nodes.document, _name: str) -> None:
    """Let a wide table scroll by itself on a phone, not the page."""
    if app.builder.format != "html":
        return
    for table in list(tree.findall(nodes.table)):
        box = nodes.container(classes=["wide"])
        table.replace_self(box)
        box += table


def _reachable(_app: Sphinx, _page: str, _template: str, context: dict[str, Any], _tree: nodes.document | None) -> None:
    """Let the keyboard scroll code that is wider than a phone; a list's caption is no heading without a level."""
    if body := context.get("body"):
        context["body"] = body.replace("<pre>", '<pre tabindex="0">').replace(' role="heading"', "")


def setup(app: Sphinx) -> dict[str, Any]:
    """Join the builder."""
    app.connect("source-read", _prepare)
    app.connect("doctree-resolved", _wrap_tables)
    app.connect("html-page-context", _reachable)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
