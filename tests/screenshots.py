"""`make screenshots`: pictures of the pages of a running product, light, dark and phone-sized.

Run beside a product (`python -m webhost.local product -- ...`): it makes a customer with a deployed agent, some use and
some refusals, and writes PNG files to .local/screenshots/.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import time
from pathlib import Path
from uuid import UUID

import requests
from playwright.sync_api import Page, sync_playwright

from webhost.local.demo.people import Customer, Support

FOLDER = Path(__file__).resolve().parents[1] / ".local" / "screenshots"
PAGES = {
    "overview": "/", "usage": "/usage/?by=day", "billing": "/billing/?tier=pro", "docs": "/v1/docs", "tokens": "/settings/tokens/",
    "alerts": "/settings/alerts/", "security": "/settings/security/", "sessions": "/settings/sessions/",
}  # fmt: skip
STRANGERS = {"landing": "/", "sign-up": "/sign-up/", "forgot": "/reset/", "sign-in": "/sign-in/"}
DESK = {
    "admin": "/admin/", "search": "/admin/search/?q=example.com", "refusals": "/admin/entitlements/denial/by-account/",
    "figures": "/admin/entitlements/denialfigure/", "agents": "/admin/runtimes/agent/",
    "tiers": "/admin/entitlements/tier/", "tier": "/admin/entitlements/tier/1/change/",
    "accounts": "/admin/entitlements/account/", "audit": "/admin/entitlements/historyentry/",
    "reports": "/admin/telemetry/report/", "prices": "/admin/entitlements/tierprice/", "events": "/admin/billing/stripeevent/",
    "subscriptions": "/admin/billing/subscription/",
}  # fmt: skip
SIZES = {"desktop": (1280, 900), "phone": (390, 844)}


def sign_in(page: Page, url: str, email: str, password: str) -> None:
    """Sign in as a person would."""
    page.goto(f"{url}/sign-in/")
    page.fill("input[name=username]", email)
    page.fill("input[name=password]", password)
    page.click("main button[type=submit]")
    page.wait_for_load_state("networkidle")


def _opened(customer: Customer) -> str:
    return str(customer.call("POST", "/v1/billing/checkout", json={"tier": "pro"}).json()["url"])


def _bought(customer: Customer, checkout: str) -> str:
    """Pay, and arrange an end, so that there is something to see; return the portal's address."""
    requests.post(checkout, data={"card": "4242424242424242"}, timeout=10, allow_redirects=False)
    portal = str(customer.call("POST", "/v1/billing/portal").json()["url"])
    found = re.findall(r'name="subscription" value="(sub_\w+)"', requests.get(portal, timeout=10).text)
    requests.post(portal, data={"do": "end", "subscription": found[0]}, timeout=10)
    time.sleep(2)
    return portal


def _pictures(page: Page, url: str, pages: dict[str, str], of: str) -> None:
    for name, path in pages.items():
        page.goto(url + path)
        page.wait_for_load_state("networkidle")
        page.screenshot(path=FOLDER / f"{name}-{of}.png", full_page=True)


def _previews(page: Page, url: str) -> None:
    """Leave the browser on the preview of a tier's change, and take its picture; then the same of a move."""
    page.goto(f"{url}/admin/entitlements/tier/1/change/")
    page.fill("#id_max_requests_per_period", "3")
    page.fill("#id_logs_retention_days", "2")
    page.fill("#id_why", "What tokens cost")
    page.get_by_role("button", name="Save", exact=True).click()
    page.get_by_role("button", name="Save this change").wait_for()
    page.screenshot(path=FOLDER / "tier-preview.png", full_page=True)
    page.goto(f"{url}/admin/entitlements/account/?tier=1")
    page.locator("input.action-select").first.check()
    page.locator("select[name=action]").select_option("move_selected")
    page.get_by_role("button", name="Run").click()
    page.locator("#id_tier").select_option(index=2)
    page.fill("#id_why", "A merger")
    page.get_by_role("button", name="Show what it would do").click()
    page.get_by_role("button", name=re.compile("^Move")).wait_for()
    page.screenshot(path=FOLDER / "move-preview.png", full_page=True)


def main() -> int:
    """Write every picture; return 1 where there is no Chromium."""
    program = shutil.which("chromium")
    if program is None:
        print("There is no Chromium on this machine.")
        return 1
    url = os.environ["WHS_URL"]
    FOLDER.mkdir(parents=True, exist_ok=True)
    customer, support = Customer(url, "alice"), Support(url)
    agent = customer.deploy("weather-bot", "tokens")
    support.override(customer, "maxRequestsPerPeriod", 5, "For the pictures")
    for n in range(7):
        customer.invoke(agent["id"], f"What will the weather be in {n} days?")
    customer.call("POST", "/v1/billing/checkout", json={"tier": "pro"})
    checkout = customer.call("POST", "/v1/billing/checkout", json={"tier": "starter"}).json()["url"]
    portal = _bought(customer, checkout)
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-sync"]
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=program, args=[*flags, "--disable-component-update"])
        account = f"/admin/entitlements/account/{UUID(customer.id.removeprefix('acc_'))}"
        desk = DESK | {
            "account": f"{account}/change/", "timeline": f"{account}/timeline/", "adjust": f"{account}/adjust/",
            "agent": f"/admin/runtimes/agent/{UUID(agent['id'].removeprefix('agt_'))}/change/",
        }  # fmt: skip
        tabs = ("metrics", "playground", "secrets", "sessions", "settings", "delete")
        mine = PAGES | {
            "invocations": "/invocations/",
            "usage-events": "/usage/events/",
            "agents-list": "/agents/",
            "agent-page": f"/agents/{agent['id']}/",
        }
        newest = customer.call("GET", "/v1/invocations?limit=1").json()["items"][0]["id"]
        mine["receipt"] = f"/invocations/{newest}/"
        mine |= {f"agent-{tab}": f"/agents/{agent['id']}/{tab}/" for tab in tabs}
        for person, pages in ((customer, mine), (support, desk)):
            for size, (width, height) in SIZES.items():
                for scheme in ("light", "dark"):
                    page = chromium.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)
                    if person is customer:
                        _pictures(page, url, STRANGERS, f"{size}-{scheme}")
                    sign_in(page, url, person.email, person.password)
                    _pictures(page, url, pages, f"{size}-{scheme}")
                    page.close()
        page = chromium.new_page(viewport={"width": 1280, "height": 900})
        sign_in(page, url, support.email, support.password)
        _previews(page, url)
        for name, address in (("checkout", _opened(Customer(url, "erin"))), ("portal", portal)):
            page.goto(address)
            page.screenshot(path=FOLDER / f"{name}.png", full_page=True)
        chromium.close()
    print(f"{len(list(FOLDER.glob('*.png')))} pictures in {FOLDER.relative_to(FOLDER.parents[1])}/")
    return 0


if __name__ == "__main__":
    sys.exit(main())
