"""People at work in a real browser, on the running product."""

from __future__ import annotations

import re
from collections.abc import Iterator
from uuid import uuid4

import pytest
from playwright.sync_api import Browser, Page, expect

from entitlements.models import Account, Tier
from tests.factories import make_account, make_tier
from webhost.local.product import Product

pytestmark = [pytest.mark.browser, pytest.mark.usefixtures("live_db")]

PASSWORD = "a-long-enough-secret"


@pytest.fixture
def another_page(browser: Browser) -> Iterator[Page]:
    """A second person's browser."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    yield context.new_page()
    context.close()


def sign_in(page: Page, product: Product, account: Account) -> None:
    """Sign in as a person would."""
    page.goto(f"{product.url}/sign-in/")
    page.get_by_label("E-mail address").fill(account.email)
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("heading", name="Overview")).to_be_visible()


def requests_limit(page: Page) -> str:
    """Return the limit of requests on the overview."""
    return page.locator("#use-requests .limit").inner_text()


def test_support_raises_a_tiers_limit_and_the_customer_sees_it_on_the_next_look(
    product: Product, page: Page, another_page: Page
) -> None:
    tier = make_tier(max_requests_per_period=1234)
    sign_in(page, product, make_account("alice", tier, password=PASSWORD))
    assert requests_limit(page) == "1,234"

    stella = another_page
    sign_in(stella, product, make_account("stella", staff=True, password=PASSWORD))
    stella.goto(f"{product.url}/admin/entitlements/tier/{tier.pk}/change/")
    stella.locator("#id_max_requests_per_period").fill("5678")
    stella.get_by_role("button", name="Save", exact=True).click()
    expect(stella.get_by_text("This field is required.")).to_be_visible()  # the reason
    stella.locator("#id_why").fill("A better offer")
    stella.get_by_role("button", name="Save", exact=True).click()
    expect(stella.get_by_text("Nothing is saved yet.")).to_be_visible()
    expect(stella.get_by_role("row", name="Requests 1,234 5,678")).to_be_visible()
    stella.get_by_role("button", name="Save this change").press("Enter")
    expect(stella).to_have_url(re.compile(r"/admin/entitlements/tier/$"))

    page.reload()
    assert requests_limit(page) == "5,678"
    stella.goto(f"{product.url}/admin/entitlements/historyentry/?object=entitlements.Tier:{tier.pk}")
    expect(stella.get_by_text("max requests per period: 1,234")).to_be_visible()
    expect(stella.get_by_text("A better offer").first).to_be_visible()


def test_support_retires_tiers_from_the_list_with_a_reason(product: Product, page: Page) -> None:
    tier = make_tier()
    sign_in(page, product, make_account("stella", staff=True, password=PASSWORD))
    page.goto(f"{product.url}/admin/entitlements/tier/?q={tier.slug}")
    page.locator("input.action-select").last.check()
    page.locator("select[name=action]").select_option("retire_selected")
    page.get_by_label("Reason").fill("No longer sold")
    page.get_by_role("button", name="Run").click()
    expect(page.get_by_text(f"{tier.name} is retired now.")).to_be_visible()
    assert Tier.objects.get(pk=tier.pk).retired_at is not None


def test_support_sets_an_override_by_finding_the_account(product: Product, page: Page) -> None:
    alice = make_account("alice", make_tier(max_agents=1))
    sign_in(page, product, make_account("stella", staff=True, password=PASSWORD))
    page.goto(f"{product.url}/admin/entitlements/override/add/")
    page.locator(".select2-selection").first.click()
    page.locator(".select2-search__field").fill(alice.email)
    page.locator(".select2-results__option", has_text=alice.email).click()
    page.locator("#id_key").select_option("maxAgents")
    page.locator("#id_value").fill("7")
    page.locator("#id_reason").fill("Ticket 12")
    page.get_by_role("button", name="Save", exact=True).click()
    expect(page).to_have_url(re.compile(rf"/admin/entitlements/account/{alice.pk}/change/#overrides$"))
    assert alice.overrides.get().value == 7


def test_a_customer_creates_an_agent_and_finds_agentcore_locked(product: Product, page: Page) -> None:
    complaints: list[str] = []
    page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
    sign_in(page, product, make_account("alice", make_tier(), password=PASSWORD))
    page.get_by_role("link", name="Agents", exact=True).click()
    expect(page.get_by_text("unlocked by the Pro tier")).to_be_visible()
    expect(page.get_by_role("radio")).to_have_count(1)
    name = f"bot-{uuid4().hex[:8]}"
    page.get_by_label("Name").fill(name)
    page.get_by_role("button", name="Create agent").click()
    expect(page.get_by_role("status")).to_contain_text(f"{name} is created.")
    expect(page.get_by_role("heading", name=name)).to_be_visible()
    assert complaints == []  # nothing that the content security policy had to stop


def test_a_phone_shows_the_overview_without_scrolling_sideways(product: Product, browser: Browser) -> None:
    context = browser.new_context(viewport={"width": 360, "height": 740}, color_scheme="dark")
    page = context.new_page()
    sign_in(page, product, make_account("alice", make_tier(), password=PASSWORD))
    wider = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    assert wider <= 0
    context.close()
