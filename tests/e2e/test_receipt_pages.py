"""Receipts and usage events in a real browser: with the keyboard, on a phone, in the dark, and without a script."""

from __future__ import annotations

import re
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from entitlements import ledger
from entitlements.models import Account
from tests.accessibility import problems_of, sideways
from tests.entitlements.callers import FAILED, SUCCEEDED, used
from tests.factories import make_account, make_tier
from tests.telemetry.workload import Workload
from webhost.ids import new_id
from webhost.local.product import Product

pytestmark = [pytest.mark.browser, pytest.mark.usefixtures("live_db")]

PASSWORD = "a-long-enough-secret"
LONG_NAME = "TypeError" + "X" * 71


@pytest.fixture
def alice() -> Workload:
    """A year's worth of variety: calls that ended in every way, and reports of every kind."""
    account = make_account("alice", make_tier(max_tokens_per_period=10**6), password=PASSWORD)
    workload = Workload(account)
    for n in range(27):
        workload.caller.call(tokens=n)
    failed = workload.caller.admit(tokens=4000)
    ledger.settle(failed, FAILED, used(tokens=10, tokens_estimated=True), error_class=LONG_NAME, latency_ms=81)
    ledger.void(workload.caller.admit(), "Unreachable")
    last = new_id()
    ledger.judge(last, workload.caller.subject, trace_id=f"trc_{last.hex}", session_id="s" * 200)
    ledger.settle(last, SUCCEEDED, used(tokens=12, compute_ms=34), latency_ms=120)
    event = workload.event(last, eventId="e" * 200, tokens=15)
    workload.post(event)
    workload.statuses()
    workload.post(event)
    workload.post(event | {"tokens": 16})
    workload.statuses()
    return workload


def sign_in(page: Page, product: Product, account: Account, to: str) -> None:
    page.goto(f"{product.url}/sign-in/?next={to}")
    page.get_by_label("E-mail address").fill(account.email)
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("navigation", name="Main")).to_be_visible()


def test_alice_finds_a_failed_call_and_reads_why_it_was_charged(product: Product, page: Page, alice: Workload) -> None:
    complaints: list[str] = []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("console", lambda m: complaints.append(m.text) if "Content Security Policy" in m.text else None)
    sign_in(page, product, alice.account, "/invocations/")
    rows = page.locator("#invocation-list tbody tr")
    expect(rows).to_have_count(25)
    page.get_by_role("link", name="Older").click()
    expect(rows).to_have_count(5)
    page.get_by_label("Outcome").select_option("failed")  # filtered at once, in place
    expect(rows).to_have_count(1)
    expect(page).to_have_url(re.compile("outcome=failed"))
    rows.get_by_role("link", name="Receipt").click()
    expect(page.get_by_text("The agent was reached and failed")).to_be_visible()
    expect(page.get_by_role("row", name=re.compile("^Tokens.*4,000.*estimated"))).to_be_visible()
    assert complaints == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [(1280, 900), (390, 844)])
def test_every_page_is_accessible_and_fits(
    product: Product, browser: Browser, alice: Workload, scheme: Any, size: tuple[int, int]
) -> None:
    context = browser.new_context(viewport={"width": size[0], "height": size[1]}, color_scheme=scheme)
    page = context.new_page()
    try:
        sign_in(page, product, alice.account, "/invocations/")
        newest = (
            page.locator("#invocation-list tbody tr").first.get_by_role("link", name="Receipt").get_attribute("href")
        )
        empty, refused = "/invocations/?outcome=expired", "/usage/events/?from=nonsense"
        for path in ("/invocations/", newest, "/usage/events/", empty, refused):
            page.goto(f"{product.url}{path}")
            expect(page.get_by_role("heading", level=1)).to_be_visible()
            assert problems_of(page) == [], path
            assert sideways(page) == 0, path
    finally:
        context.close()


def test_without_a_script_filters_pages_and_searches_are_forms_and_links(
    product: Product, browser: Browser, alice: Workload
) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    try:
        sign_in(page, product, alice.account, "/usage/events/")
        page.get_by_label("Status").select_option("rejected")
        page.get_by_role("button", name="Show").click()
        expect(page.locator("#event-list tbody tr")).to_have_count(1)
        expect(page.get_by_text("Use a new eventId for each event")).to_be_visible()
        page.get_by_role("link", name="Receipt").click()
        expect(page.get_by_text("the gateway and 1 signed report")).to_be_visible()
        trace = page.locator("dd code", has_text="trc_").inner_text()
        page.get_by_role("link", name="Invocations").first.click()
        page.get_by_role("link", name="Older").click()
        page.get_by_label("Invocation id or trace id").fill(trace)
        page.get_by_role("button", name="Show").click()
        expect(page.locator("#invocation-list tbody tr")).to_have_count(1)
        page.get_by_label("Invocation id or trace id").fill(f"inv_{trace.removeprefix('trc_')}")
        page.get_by_role("button", name="Show").click()
        expect(page.get_by_role("heading", name="Receipt inv_")).to_be_visible()
    finally:
        context.close()
