"""Support at work with an angry customer on the phone: in a real browser, by keyboard alone, in less than a minute."""

from __future__ import annotations

import re
import time

import pytest
from django.contrib.auth.models import Group
from playwright.sync_api import Page, expect

from entitlements.models import Account
from tests.e2e.customers import Customer, until
from tests.e2e.test_browser import PASSWORD
from tests.factories import make_account, make_tier, make_token
from webhost.local.product import Product

pytestmark = [pytest.mark.browser, pytest.mark.usefixtures("live_db")]

_MOST_TABS = 200


class Keyboard:
    """Somebody who touches no mouse: every step is a key."""

    def __init__(self, page: Page) -> None:
        self.page = page

    def write(self, text: str, *, then: str = "") -> None:
        """Type into what has the focus, as fast as a practised person."""
        self.page.keyboard.type(text, delay=20)
        if then:
            self.page.keyboard.press(then)

    def press(self, key: str) -> None:
        """Press one key."""
        self.page.keyboard.press(key)

    def tab_to(self, words: str) -> None:
        """Press Tab until something of this name has the focus."""
        for _ in range(_MOST_TABS):
            self.page.keyboard.press("Tab")
            if re.search(words, self._focused()):
                return
        raise AssertionError(f"Tab never came to {words}.")

    def _focused(self) -> str:
        said = "e => [e.getAttribute('aria-label'), e.labels?.[0]?.innerText, e.innerText, e.name].join(' | ')"
        return str(self.page.evaluate(f"({said})(document.activeElement)"))


@pytest.fixture
def sue() -> Account:
    """Somebody in the group support, with no other right."""
    account = make_account("sue", password=PASSWORD)
    Account.objects.filter(pk=account.pk).update(is_staff=True)
    account.groups.set([Group.objects.get(name="support")])
    return account


def test_support_raises_a_limit_by_keyboard_in_under_a_minute_and_the_customer_goes_on(
    product: Product, page: Page, sue: Account
) -> None:
    alice = make_account("alice", make_tier(max_requests_per_period=2))
    customer = Customer(product.url, alice.public_id, make_token(alice))
    agent = customer.deploy()
    assert [agent.invoke().status_code for _ in range(3)] == [200, 200, 402]

    # The call comes in. Sue is signed in already, as somebody on duty is.
    keyboard = Keyboard(page)
    page.goto(f"{product.url}/sign-in/?next=/admin/")
    page.get_by_label("E-mail address").focus()
    keyboard.write(sue.email, then="Tab")
    keyboard.write(PASSWORD, then="Enter")
    expect(page).to_have_url(f"{product.url}/admin/")

    expect(page.locator("input[name=q]:focus")).to_be_visible()  # the search box waits for her
    began = time.monotonic()
    keyboard.write(alice.email, then="Enter")
    expect(page).to_have_url(re.compile(rf"/admin/entitlements/account/{alice.pk}/change/"))
    expect(page.locator("#answer")).to_contain_text("Blocked: Requests")
    expect(page.locator("#blocked")).to_contain_text("You have used all 2 requests")
    keyboard.tab_to(r"Raise")
    keyboard.press("Enter")
    expect(page).to_have_url(re.compile(r"/admin/entitlements/override/add/"))
    expect(page.locator("#id_reason")).to_be_visible()
    keyboard.tab_to(r"(?i)reason")
    expect(page.locator("#id_reason")).to_be_focused()
    keyboard.write("On the phone: launch day, ticket 4711", then="Enter")
    expect(page).to_have_url(re.compile(rf"/admin/entitlements/account/{alice.pk}/change/"))
    took = time.monotonic() - began

    assert agent.invoke().status_code == 200
    assert took < 60
    made = alice.overrides.get()
    assert made.reason == "On the phone: launch day, ticket 4711"
    assert made.ends_at is not None
    expect(page.locator("#answer")).to_contain_text("Nothing blocks this account now")


def test_support_disables_and_enables_an_account_and_both_are_in_its_timeline(
    product: Product, page: Page, sue: Account
) -> None:
    alice = make_account("alice", make_tier())
    customer = Customer(product.url, alice.public_id, make_token(alice))
    page.goto(f"{product.url}/sign-in/?next=/admin/entitlements/account/{alice.pk}/change/")
    page.get_by_label("E-mail address").fill(sue.email)
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Sign in").click()
    for button, status in (("Disable", 403), ("Enable", 200)):
        page.locator("#switch-why").fill(f"{button}: ticket 7")
        page.get_by_role("button", name=button, exact=True).click()
        expect(page.get_by_role("status").or_(page.locator("#timeline")).first).to_be_visible()
        assert until(lambda status=status: customer.call("GET", "/v1/agents").status_code == status, 5)
        expect(page.locator("#timeline")).to_contain_text(f"{button}: ticket 7")
