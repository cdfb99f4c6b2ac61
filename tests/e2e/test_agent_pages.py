"""A developer at work on an agent's pages in a real browser, on the running product."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from entitlements.models import Account, PeriodCounter
from runtimes.models import Agent
from tests.e2e.customers import puppet, until
from tests.factories import example, make_account, make_agent, make_tier, zip_of
from webhost.local.product import Product

pytestmark = [pytest.mark.browser, pytest.mark.usefixtures("live_db")]

PASSWORD = "a-long-enough-secret"
LONG = 40_000
# What a browser does when somebody lets go of a file over the zone.
DROP = """([name, data]) => {
    const bytes = Uint8Array.from(atob(data), (c) => c.charCodeAt(0));
    const dropped = new DataTransfer();
    dropped.items.add(new File([bytes], name, { type: "application/zip" }));
    const zone = document.querySelector("[data-drop]");
    for (const kind of ["dragover", "drop"])
        zone.dispatchEvent(new DragEvent(kind, { bubbles: true, cancelable: true, dataTransfer: dropped }));
}"""


@pytest.fixture
def alice() -> Account:
    return make_account("alice", make_tier(), password=PASSWORD)


@pytest.fixture
def agent(alice: Account) -> Agent:
    return make_agent(alice)


def visit(page: Page, product: Product, account: Account, agent: Agent, tail: str = "") -> None:
    page.goto(f"{product.url}/sign-in/?next=/agents/{agent.public_id}/{tail}")
    page.get_by_label("E-mail address").fill(account.email)
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("heading", name=agent.name)).to_be_visible()


def drop(page: Page, content: bytes, name: str = "bundle.zip") -> None:
    page.evaluate(DROP, [name, base64.b64encode(content).decode()])


def deployed(page: Page, version: int = 1) -> None:
    expect(page.locator("#agent-head").get_by_text(f"version {version} serves")).to_be_visible(timeout=LONG)


def in_flight(account: Account) -> int:
    return sum(PeriodCounter.objects.filter(account_id=account.pk).values_list("in_flight", flat=True))


def broken() -> bytes:
    config = {"name": "agent", "entrypoint": "a.ts", "runtimes": ["cloudflare"], "protocol": "invoke/v1"}
    code = "export default async function agent() {\n  return <\n"
    return zip_of({"agent.config.json": json.dumps(config), "a.ts": code})


def test_alice_drops_zips_sees_what_is_wrong_and_goes_back_to_the_first_version(
    product: Product, page: Page, alice: Account, agent: Agent
) -> None:
    complaints: list[str] = []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("console", lambda m: complaints.append(m.text) if "Content Security Policy" in m.text else None)
    visit(page, product, alice, agent)
    drop(page, broken(), "<img src=x onerror=alert(1)>.zip")
    refused = page.locator("#deploying [role=alert]")
    expect(refused).to_contain_text(re.compile(r"a\.ts\D{1,3}[23]"), timeout=LONG)
    expect(refused).to_be_focused()
    drop(page, example("echo"))
    expect(page.locator("#build")).to_contain_text("Version 1 is active.", timeout=LONG)
    deployed(page)
    expect(page.locator("#build progress")).to_have_count(0)
    drop(page, puppet())
    deployed(page, 2)
    page.locator("summary", has_text="Version 1").click()
    page.get_by_label("Reason").fill("2 is wrong")
    page.get_by_role("button", name="Let version 1 serve").click()
    deployed(page)
    expect(page.locator("details", has_text="Version 1 ").first).to_contain_text("2 is wrong")
    assert complaints == []


def test_an_upload_says_how_far_it_is(product: Product, page: Page, alice: Account, agent: Agent) -> None:
    visit(page, product, alice, agent)
    page.route("**/deploy/", lambda route: (page.wait_for_timeout(500), route.continue_()))
    page.get_by_label("Bundle").set_input_files(
        {"name": "a.zip", "mimeType": "application/zip", "buffer": example("echo")}
    )
    page.get_by_role("button", name="Deploy", exact=True).click()
    expect(page.locator(".upload progress")).to_be_visible()
    deployed(page)


def test_bob_deploys_with_the_keyboard_alone(
    product: Product, page: Page, alice: Account, agent: Agent, tmp_path: Path
) -> None:
    visit(page, product, alice, agent)
    file = tmp_path / "echo.zip"
    file.write_bytes(example("echo"))
    for _ in range(40):
        if page.evaluate("document.activeElement.id") == "bundle":
            break
        page.keyboard.press("Tab")
    with page.expect_file_chooser() as chooser:
        page.keyboard.press("Enter")
    chooser.value.set_files(file)
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    deployed(page)


def test_an_answer_is_read_as_it_comes_and_stopped_which_gives_back_what_was_held(
    product: Product, page: Page, alice: Account, agent: Agent
) -> None:
    visit(page, product, alice, agent)
    drop(page, puppet())
    deployed(page)
    page.get_by_role("link", name="Playground").click()
    page.get_by_label("Prompt").fill(json.dumps({"events": 3, "pause": 300, "text": "<b>x</b> ", "tokens": 5}))
    page.get_by_role("button", name="Send").click()
    answer = page.locator(".answer").first
    expect(answer).to_contain_text("<b>x</b>")
    expect(answer).to_contain_text("5 tokens", timeout=LONG)
    expect(answer.get_by_role("link")).to_have_attribute("href", re.compile(r"^/invocations/inv_[0-9a-f]{32}/$"))
    session = page.get_by_label("Session").input_value()
    assert session.startswith("ses_")

    page.get_by_label("Prompt").fill(json.dumps({"events": 100, "pause": 300}))
    page.get_by_role("button", name="Send").click()
    second = page.locator(".answer").nth(1)
    expect(second).to_contain_text("piece 1")
    assert in_flight(alice) == 1
    page.get_by_role("button", name="Stop").click()
    expect(second).to_contain_text("Stopped. What was used until then counts.")
    assert page.get_by_label("Session").input_value() == session
    assert until(lambda: in_flight(alice) == 0)


def test_without_a_script_the_same_is_done_by_forms(
    product: Product, browser: Browser, alice: Account, agent: Agent
) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    try:
        visit(page, product, alice, agent)
        zipped: Any = {"name": "a.zip", "mimeType": "application/zip", "buffer": example("echo")}
        page.get_by_label("Bundle").set_input_files(zipped)
        page.get_by_role("button", name="Deploy", exact=True).click()
        expect(page.get_by_text("Version 1 is being deployed.")).to_be_visible()
        deployed(page)  # the page asks again by itself
        page.get_by_role("link", name="Playground").click()
        page.get_by_label("Prompt").fill("good morning")
        page.get_by_role("button", name="Send").click()
        expect(page.locator(".answer")).to_contain_text("good morning")
        page.get_by_role("link", name="Metrics").click()
        expect(page.get_by_text(re.compile("1 request, 0 errors"))).to_be_visible()
        expect(page.locator("figure table").first).to_be_attached()
    finally:
        context.close()
