"""Somebody's first day, in real browsers: signing up, a mail, two browsers, a forgotten password, a first deployment."""

from __future__ import annotations

import re
import secrets
from pathlib import Path

import pytest
from django.conf import settings
from playwright.sync_api import Browser, Page, expect

from tests.e2e.customers import until
from tests.factories import example
from webhost.local.product import Product

pytestmark = [pytest.mark.browser, pytest.mark.usefixtures("live_db")]
PASSWORD, NEW = "a-long-enough-secret", "another-long-secret"


def link_in_mail(address: str, subject: str) -> str:
    """Read the mail that the worker wrote; return its link."""

    def found() -> str:
        for path in sorted(Path(settings.EMAIL_FILE_PATH).glob("*.log")):
            text = path.read_text()
            if f"To: {address}" in text and subject in text:
                return re.findall(r"http://\S+", text)[0]
        return ""

    return until(found)


def sign_in(page: Page, product: Product, address: str, password: str) -> None:
    page.goto(f"{product.url}/sign-in/")
    page.get_by_label("E-mail address").fill(address)
    page.get_by_label("Password").fill(password)
    page.get_by_role("button", name="Sign in", exact=True).click()


def make_token(page: Page, product: Product) -> str:
    """Make a token on the page, which shows it once."""
    page.goto(f"{product.url}/settings/tokens/")
    page.get_by_label("Name").fill("laptop")
    page.get_by_role("button", name="Make a token").click()
    token = page.locator("#token").inner_text()
    page.get_by_role("link", name="Done").click()
    expect(page.get_by_role("row", name=re.compile("laptop"))).to_be_visible()
    assert token not in page.content()
    return token


def deploy(page: Page, product: Product, token: str) -> None:
    """Deploy as a program with this token does."""
    headers = {"Authorization": f"Bearer {token}"}
    made = page.request.post(f"{product.url}/v1/agents", headers=headers, data={"name": "hello"}).json()
    bundle = {"name": "echo.zip", "mimeType": "application/zip", "buffer": example("echo")}
    deployed = page.request.post(
        f"{product.url}/v1/agents/{made['id']}/deployments", headers=headers, multipart={"bundle": bundle}
    )
    assert deployed.status == 202


def test_alices_first_day(product: Product, page: Page, browser: Browser) -> None:
    complaints: list[str] = []
    page.on("console", lambda said: complaints.append(said.text))
    address = f"alice-{secrets.token_hex(6)}@example.com"
    page.goto(product.url)
    page.get_by_role("link", name="Sign up").first.click()
    page.get_by_label("E-mail address").fill(address)
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Sign up").click()
    expect(page.get_by_role("heading", name="Look into your mail")).to_be_visible()
    expect(page.get_by_text("No mail leaves this machine")).to_be_visible()

    sign_in(page, product, address, PASSWORD)
    expect(page.get_by_text("Confirm your address.")).to_be_visible()
    page.goto(link_in_mail(address, "Confirm your e-mail address"))
    page.get_by_role("button", name="Yes, confirm it").click()
    expect(page.get_by_text("is confirmed. You can deploy now.")).to_be_visible()
    expect(page.get_by_text("Confirm your address.")).to_have_count(0)

    token = make_token(page, product)
    deploy(page, product, token)

    elsewhere = browser.new_context().new_page()
    sign_in(elsewhere, product, address, PASSWORD)
    expect(elsewhere).to_have_url(f"{product.url}/")
    page.goto(f"{product.url}/settings/sessions/")
    page.get_by_role("button", name=re.compile("^End Chrome")).click()
    expect(page.get_by_text("The session was ended.")).to_be_visible()
    elsewhere.goto(f"{product.url}/settings/sessions/")
    expect(elsewhere).to_have_url(re.compile("/sign-in/"))

    elsewhere.get_by_role("link", name="Forgot your password?").click()
    elsewhere.get_by_label("E-mail address").fill(address)
    elsewhere.get_by_role("button", name="Send me a link").click()
    expect(elsewhere.get_by_role("heading", name="Look into your mail")).to_be_visible()
    elsewhere.goto(link_in_mail(address, "Choose a new password"))
    elsewhere.get_by_label("New password").fill(NEW)
    elsewhere.get_by_role("button", name="Set this password").click()
    expect(elsewhere.get_by_text("Your new password is set.")).to_be_visible()
    page.goto(f"{product.url}/settings/sessions/")
    expect(page).to_have_url(re.compile("/sign-in/"))
    sign_in(elsewhere, product, address, NEW)
    expect(elsewhere).to_have_url(f"{product.url}/")
    elsewhere.context.close()
    assert not [text for text in complaints if "Content Security Policy" in text]
    logs = "".join(path.read_text(errors="replace") for path in product.logs.glob("*"))
    assert token not in logs
    assert PASSWORD not in logs
