"""The whole story of a new person, in a real browser on the running product; and every page, looked at by a checker."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, Response, expect

from entitlements.models import Account, Tier
from tests.accessibility import problems_of, sideways
from tests.e2e.customers import until
from tests.e2e.test_people import link_in_mail
from tests.factories import example, override
from webhost.local.product import Product

pytestmark = [pytest.mark.browser, pytest.mark.usefixtures("live_db")]

PASSWORD = "a-long-enough-secret"
EVIL = "<img src=x onerror=alert(1)>"
_SLOWLY = 40_000
_MOST_BYTES = 150_000


def sign_up(page: Page, product: Product) -> str:
    """Sign up and confirm the address, as the mail says; return it."""
    address = f"alice-{secrets.token_hex(6)}@example.com"
    page.goto(f"{product.url}/")
    page.get_by_role("link", name="Sign up").first.click()
    page.get_by_label("E-mail address").fill(address)
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Sign up").click()
    expect(page.get_by_role("heading", name="Look into your mail")).to_be_visible()
    page.goto(f"{product.url}/sign-in/")
    page.get_by_label("E-mail address").fill(address)
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Sign in", exact=True).click()
    expect(page.get_by_role("heading", name="Overview")).to_be_visible()
    page.goto(link_in_mail(address, "Confirm your e-mail address"))
    page.get_by_role("button", name="Yes, confirm it").click()
    expect(page.get_by_text("is confirmed.")).to_be_visible()
    return address


def create(page: Page, product: Product, name: str) -> str:
    """Create an agent; return the address of its page."""
    page.goto(f"{product.url}/agents/")
    page.get_by_label("Name", exact=True).fill(name)
    page.get_by_role("button", name="Create agent").click()
    expect(page.get_by_role("heading", name=name)).to_be_visible()
    return page.url


def deploy(page: Page, bundle: str) -> None:
    """Deploy an example with the form, and wait until it serves."""
    zipped = {"name": "bundle.zip", "mimeType": "application/zip", "buffer": example(bundle)}
    page.locator("input[type=file]").set_input_files(files=[zipped])
    page.get_by_role("button", name="Deploy", exact=True).click()
    for _ in range(60):  # without a script the page is loaded again
        if page.get_by_text("version 1 serves").count():
            return
        page.wait_for_timeout(500)
        page.goto(page.url)
    pytest.fail("Version 1 never served.")


def say(page: Page, prompt: str) -> None:
    """Send one prompt in the playground."""
    page.get_by_label("Prompt").fill(prompt)
    page.get_by_role("button", name="Send").click()


def buy(page: Page, product: Product, tier: str) -> None:
    """Buy a tier on the billing page and at Stripe's own page, and wait until it is in force."""
    page.goto(f"{product.url}/billing/?tier={tier}")
    page.get_by_role("button", name=re.compile(f"{tier}, monthly", re.IGNORECASE)).click()
    page.get_by_label("Card number").fill("4242424242424242")
    page.get_by_role("button", name=re.compile("^Pay|^Subscribe")).click()
    page.wait_for_url(re.compile(r"/billing/\?checkout=done"))


def test_somebody_new_signs_up_deploys_meets_the_limit_upgrades_and_goes_on(product: Product, page: Page) -> None:
    complaints: list[str] = []
    page.on("console", lambda said: complaints.append(said.text))
    address = sign_up(page, product)
    account = Account.objects.get(email=address)
    override(account, "max_requests_per_period", 2)  # so that the limit is near; it ends when the tier changes

    home = create(page, product, "my-bot")
    deploy(page, "streaming")
    page.goto(f"{home}playground/")
    for prompt in ("one two three", "four five"):
        say(page, prompt)
        expect(page.locator("#conversation")).to_contain_text("tokens", timeout=_SLOWLY)
        page.goto(f"{home}playground/")
    say(page, "six")
    refused = page.get_by_text(re.compile("You have used all 2 requests")).first
    expect(refused).to_be_visible(timeout=_SLOWLY)

    page.goto(f"{home}metrics/")
    expect(page.locator(".plot canvas").first).to_be_visible()
    page.locator("summary", has_text="The figures as a table").first.click()
    expect(page.get_by_role("columnheader", name="Requests").first).to_be_visible()
    expect(page.locator(".figures tbody tr").first).to_contain_text("2")

    page.goto(f"{product.url}/")
    expect(page.locator("#use-requests")).to_contain_text("100 %")
    expect(page.get_by_role("region", name="Last refusals")).to_contain_text("Requests refused 1 time")
    expect(page.get_by_role("region", name="Last refusals")).to_contain_text("my-bot")

    account.overrides.all().delete()
    Tier.objects.get(slug="starter")
    buy(page, product, "starter")
    until(lambda: Account.objects.get(pk=account.pk).billing_tier is not None)
    page.goto(f"{product.url}/")
    expect(page.locator("h2#tier")).to_contain_text("Starter")
    page.goto(f"{home}playground/")
    say(page, "and on")
    expect(page.locator("#conversation")).to_contain_text("tokens", timeout=_SLOWLY)
    assert not [text for text in complaints if "Content Security Policy" in text]


@pytest.fixture(scope="module")
def without_script(browser: Browser) -> Iterator[Page]:
    """A browser that runs no script."""
    context = browser.new_context(java_script_enabled=False, viewport={"width": 1280, "height": 900})
    yield context.new_page()
    context.close()


def test_all_of_it_but_live_output_works_without_a_script(product: Product, without_script: Page) -> None:
    page = without_script
    sign_up(page, product)
    home = create(page, product, "plain-bot")
    deploy(page, "echo")
    page.goto(f"{home}playground/")
    say(page, "hello there")
    expect(page.locator("#conversation")).to_contain_text("hello there")
    page.locator("#conversation a").first.click()
    expect(page.get_by_role("heading", level=1)).to_be_visible()
    page.goto(f"{home}metrics/")
    page.locator("summary", has_text="The figures as a table").first.click()
    expect(page.get_by_role("columnheader", name="Requests").first).to_be_visible()
    page.goto(f"{product.url}/settings/tokens/")
    page.get_by_label("Name").fill("laptop")
    page.get_by_role("button", name="Make a token").click()
    assert page.locator("#token").inner_text().startswith("whs_")


def pages_of(home: str) -> list[str]:
    """Return every page that a person with an agent can open without a form."""
    tabs = [f"{home}{tab}" for tab in ("", "metrics/", "playground/", "secrets/", "sessions/", "settings/", "delete/")]
    return [
        "/", "/agents/", "/invocations/", "/usage/", "/usage/events/", "/billing/", "/settings/tokens/",
        "/settings/alerts/", "/settings/security/", "/settings/sessions/", "/nowhere/", *tabs,
    ]  # fmt: skip


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_no_page_has_a_serious_problem_scrolls_sideways_weighs_much_or_runs_a_name(
    product: Product, browser: Browser, width: int, scheme: str
) -> None:
    context = browser.new_context(viewport={"width": width, "height": 844}, color_scheme=scheme)  # type: ignore[arg-type]
    page = context.new_page()
    alarms: list[str] = []
    page.on("dialog", lambda dialog: (alarms.append(dialog.message), dialog.dismiss()))
    strangers = ["/", "/sign-in/", "/sign-up/", "/reset/", "/docs/", "/docs/errors/"]
    found = [problem for path in strangers for problem in _look(page, product.url, path)]
    address = sign_up(page, product)
    home = create(page, product, "long-name-" + "x" * 54)
    deploy(page, "echo")
    page.goto(f"{home}playground/")
    say(page, EVIL)
    expect(page.locator("#conversation")).to_contain_text("tokens", timeout=_SLOWLY)
    expect(page.locator("#conversation")).to_contain_text(EVIL)
    account = Account.objects.get(email=address)
    account.agents.update(description=EVIL)
    page.goto(f"{product.url}/invocations/")
    receipt = page.locator("main a[href^='/invocations/inv_']").first.get_attribute("href") or ""
    assert receipt
    for path in [*pages_of(home.removeprefix(product.url)), receipt]:
        found += _look(page, product.url, path)
    context.close()
    assert not found, "\n".join(found)
    assert alarms == []


def _look(page: Page, url: str, path: str) -> list[str]:
    """Open a page as for the first time; return what is wrong with it."""
    sizes: list[int] = []

    def weigh(answer: Response) -> None:
        sizes.append(int(answer.headers.get("content-length", "0")))

    page.on("response", weigh)
    page.goto(f"{url}{path}")
    page.wait_for_load_state("networkidle")
    page.remove_listener("response", weigh)
    found = [f"{path}: {problem}" for problem in problems_of(page)]
    if sideways(page) > 0:
        found.append(f"{path}: scrolls sideways by {sideways(page)} px")
    if sum(sizes) > _MOST_BYTES:
        found.append(f"{path}: {sum(sizes):,} bytes before the first paint")
    return found
