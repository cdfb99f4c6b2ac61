"""The documentation's site: built, complete, with every link leading somewhere, under the policy of all pages."""

from __future__ import annotations

import hashlib
import hmac
import json
import re
from dataclasses import dataclass, field
from datetime import date
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import urljoin, urlsplit

import pytest
import yaml
from django.conf import settings
from django.test import Client

from entitlements import rules
from entitlements.display import docs_of
from entitlements.enums import LimitType
from entitlements.refusals import sentence
from tests.pages import inline_of
from webhost.errors import ErrorCode, anchor_of
from webhost.signing import Purpose, derive_key

ROOT = Path(__file__).resolve().parents[2]
HERE = "http://here"
# Addresses of the product that the documentation and its frame lead to.
_OURS = {"/", "/v1/docs"}


@dataclass
class Read(HTMLParser):
    """What a page has and leads to."""

    ids: set[str] = field(default_factory=set)
    links: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        self.ids |= {given["id"]} if given.get("id") else set()
        self.links += [given[name] for name in ("href", "src") if given.get(name) and tag != "script"]


@pytest.fixture(scope="module")
def site() -> dict[str, Read]:
    """Every page of the built site, by its address."""
    pages = {}
    for file in settings.DOCS_DIR.rglob("index.html"):
        folder = file.parent.relative_to(settings.DOCS_DIR).as_posix()
        read = Read()
        read.feed(file.read_text())
        pages["/docs/" if folder == "." else f"/docs/{folder}/"] = read
    return pages


def is_there(site: dict[str, Read], link: str) -> bool:
    at = urlsplit(link)
    if at.path in site:
        return not at.fragment or at.fragment in site[at.path].ids
    return at.path in _OURS or (settings.DOCS_DIR / at.path.removeprefix("/docs/")).is_file()


def test_every_page_of_docs_is_in_the_site(site):
    pages = {
        f"/docs/{file.relative_to(ROOT / 'docs').with_suffix('').as_posix()}/" for file in (ROOT / "docs").rglob("*.md")
    }
    assert pages - set(site) == {"/docs/index/"}


def test_every_link_and_anchor_inside_leads_somewhere(site):
    broken = [
        (page, link)
        for page, read in site.items()
        for link in read.links
        if not urlsplit(link).scheme and not is_there(site, urljoin(f"{HERE}{page}", link).removeprefix(HERE))
    ]
    assert broken == []


def test_links_of_the_product_into_the_documentation_lead_somewhere(site):
    links = [
        link
        for file in (ROOT / "templates").rglob("*.html")
        for link in re.findall(r'href="(/docs/[^"{]*)"', file.read_text())
    ]
    assert links
    assert [link for link in links if not is_there(site, link)] == []


def test_every_code_and_every_limit_has_its_heading(site):
    words = [*ErrorCode, *LimitType]
    assert [word for word in words if anchor_of(word) not in site["/docs/errors/"].ids] == []
    assert all(is_there(site, docs_of(limit)) for limit in LimitType)
    headings = re.findall(r"^### (.*)$", (ROOT / "docs/errors.md").read_text(), re.MULTILINE)
    assert headings == [word.value for word in words]  # and none of what is gone


@pytest.mark.parametrize("limit", list(LimitType))
def test_the_example_of_a_limit_is_what_the_product_says(limit):
    text = (ROOT / "docs/errors.md").read_text()
    section = re.split(r"^### ", text.split(f"\n### {limit.value}\n")[1], maxsplit=1, flags=re.MULTILINE)[0]
    (example,) = re.findall(r"```json\n(.*?)```", section, re.DOTALL)
    error = json.loads(example)["error"]
    details = error["details"]
    refusal = rules.Refusal(limit, details.get("current"), details.get("limit"))
    tier = details["source"].removeprefix("tier:").title()
    assert error["message"] == sentence(refusal, tier, date(2026, 11, 1))
    assert details["limitType"] == limit.value
    assert details["docs"].endswith(docs_of(limit))


def test_every_operation_has_its_section(site):
    paths = yaml.safe_load((ROOT / "docs/openapi.yaml").read_text())["paths"]
    text = (settings.DOCS_DIR / "api/index.html").read_text()
    for path, methods in paths.items():
        for method in methods:
            assert f"{method.upper()} {path}<" in text.replace("&#123;", "{")


def test_every_page_is_served_with_the_policy_and_nothing_inline(site):
    for page in site:
        answer = Client().get(page)
        assert answer.status_code == 200, page
        body = b"".join(answer.streaming_content)
        answer = type(
            "Page",
            (),
            {
                "content": re.sub(rb'(src|href)="(?:\.\./)*(_static/|searchindex)', rb'\1="/static/', body),
                "headers": answer.headers,
            },
        )
        assert "default-src 'self'" in answer.headers["Content-Security-Policy"]
        assert [one for one in inline_of(answer) if not one.startswith(("form action", "link href"))] == [], page


def test_a_folder_without_its_slash_is_led_to_it_and_nothing_outside_is_read():
    assert Client().get("/docs/errors").headers["Location"] == "/docs/errors/"
    for path in (
        "/docs/../manage.py",
        "/docs/%2e%2e/manage.py",
        "/docs/nothing/",
        "/docs/.doctrees/environment.pickle",
        "/docs//etc/passwd",
    ):
        assert Client().get(path).status_code == 404, path


def test_where_no_site_was_built_it_says_so(settings, tmp_path):
    settings.DOCS_DIR = tmp_path
    answer = Client().get("/docs/errors/")
    assert answer.status_code == 404
    assert "was not built here" in answer.content.decode()


def test_the_vectors_of_telemetry_are_what_our_own_signing_says():
    text = (ROOT / "docs/telemetry.md").read_text()
    root, deployment, derived, body, signature = re.findall(
        r"^\| (?:root|dep|der|raw|X-Tel)[^|]*\| `(.*)` \|$", text, re.MULTILINE
    )
    key = derive_key(bytes.fromhex(root), Purpose.TELEMETRY, deployment)
    assert key.hex() == derived
    assert signature == f"v1={hmac.new(key, body.encode(), hashlib.sha256).hexdigest()}"


@pytest.mark.browser
def test_the_search_finds_a_limit_without_leaving_the_house(page, product):
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    wrong: list[str] = []
    page.on("console", lambda said: wrong.append(said.text) if said.type == "error" else None)
    page.goto(f"{product.url}/docs/")
    page.fill(".top input[name=q]", "codeExecutionSeconds")
    page.click(".top button")
    page.locator("#search-results li a").first.wait_for()
    assert "What an error means" in page.locator("#search-results").inner_text()
    assert wrong == []
    assert all(url.startswith((product.url, "data:")) for url in asked)
