"""A member of staff sets up a phone and comes in with it, in a real browser on the running product."""

from __future__ import annotations

import re
import time

import pytest
from playwright.sync_api import Page, expect

from tests.entitlements.phones import STEP, code_at
from tests.factories import make_account
from webhost.local.product import Product

pytestmark = [pytest.mark.browser, pytest.mark.usefixtures("live_db")]

PASSWORD = "a-long-enough-secret"


def type_password(page: Page, product: Product, email: str) -> None:
    page.goto(f"{product.url}/sign-in/?next=/admin/")
    page.get_by_label("E-mail address").fill(email)
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Sign in", exact=True).click()


def test_stella_sets_up_a_phone_and_from_then_on_the_admin_asks_for_it(product: Product, page: Page) -> None:
    complaints: list[str] = []
    page.on("console", lambda said: complaints.append(said.text))
    stella = make_account("stella", staff=True, password=PASSWORD)
    type_password(page, product, stella.email)
    page.goto(f"{product.url}/settings/security/")
    page.get_by_role("link", name="Set up an authenticator app").click()
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Go on").click()

    drawing = page.get_by_role("img", name="QR code")
    box = drawing.bounding_box()
    assert box is not None
    assert box["width"] == box["height"] > 150, "it can be scanned"
    page.get_by_text("It cannot be scanned?").click()
    secret = page.locator("#secret").inner_text()
    page.get_by_label("Code", exact=True).fill(code_at(secret, time.time()))
    page.get_by_role("button", name="Set it up").click()
    expect(page.get_by_role("heading", name="Recovery codes")).to_be_visible()
    codes = page.locator(".codes code").all_inner_texts()
    assert len(codes) == 10
    page.get_by_role("link", name="go on").click()
    expect(page.get_by_text("10 recovery codes left")).to_be_visible()
    page.goto(f"{product.url}/admin/")
    expect(page).to_have_url(f"{product.url}/admin/")

    page.context.clear_cookies()
    type_password(page, product, stella.email)
    expect(page).to_have_url(f"{product.url}/sign-in/code/")
    page.goto(f"{product.url}/admin/")
    expect(page).to_have_url(re.compile("/sign-in/"))
    page.get_by_label("Code", exact=True).fill("000000")
    page.get_by_role("button", name="Sign in", exact=True).click()
    expect(page.get_by_role("alert")).to_contain_text("This code is wrong")
    page.get_by_label("Code", exact=True).fill(code_at(secret, time.time() + STEP))
    page.get_by_role("button", name="Sign in", exact=True).click()
    expect(page).to_have_url(f"{product.url}/admin/")

    page.context.clear_cookies()
    type_password(page, product, stella.email)
    page.get_by_label("Code", exact=True).fill(codes[0])
    page.get_by_role("button", name="Sign in", exact=True).click()
    expect(page).to_have_url(f"{product.url}/admin/")
    assert not [text for text in complaints if "Content Security Policy" in text]
