"""Who appears in the demo, how they speak to the product, and what is expected of its answers."""

from __future__ import annotations

import io
import json
import re
import secrets
import subprocess
import sys
import time
import zipfile
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from uuid import UUID

import requests

ROOT = Path(__file__).resolve().parents[3]
EXAMPLES = ROOT / "examples"
_failed: list[str] = []


def say(text: str) -> None:
    """Print a line of the story."""
    print(text, flush=True)


def expect(what: str, true: object, seen: object = "") -> None:
    """Print whether it came true, and remember when not."""
    say(f"   {'ok  ' if true else 'FAIL'} {what}{f'  [{seen}]' if seen != '' else ''}")
    if not true:
        _failed.append(what)


def failures() -> list[str]:
    """Return what did not come true."""
    return list(_failed)


def manage(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run one of the operator's commands on the running product's database."""
    return subprocess.run(
        [sys.executable, str(ROOT / "manage.py"), *arguments], capture_output=True, text=True, check=False, cwd=ROOT
    )


def bundle_of(example: str) -> bytes:
    """Zip an example as a developer would."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted((EXAMPLES / example).rglob("*")):
            if path.is_file() and path.suffix != ".md":
                archive.write(path, path.relative_to(EXAMPLES / example).as_posix())
    return content.getvalue()


class Customer:
    """A customer of the running product: an account with a token, speaking the API."""

    def __init__(self, url: str, name: str) -> None:
        made = json.loads(
            manage("create_account", f"{name}-{secrets.token_hex(4)}@example.com", "--token", "demo").stdout
        )
        self.url, self.id, self.email = url, str(made["id"]), str(made["email"])
        self.token, self.password = str(made["token"]), str(made["password"])

    def call(self, method: str, path: str, *, quiet: bool = False, **options: Any) -> requests.Response:
        """Send one request and print it with its answer in short."""
        answer = requests.request(
            method, self.url + path, headers={"Authorization": f"Bearer {self.token}"}, timeout=60, **options
        )
        if not quiet:
            text = " ".join(answer.text.split())
            say(f"-> {method} {path}\n<- {answer.status_code} {text[:300]}{'…' if len(text) > 300 else ''}")
        return answer

    def deploy(self, name: str, example: str, *, runtime: str = "cloudflare") -> dict[str, Any]:
        """Create an agent, upload a bundle, and wait until it serves."""
        body = {"name": name, "runtimeProvider": runtime}
        agent: dict[str, Any] = self.call("POST", "/v1/agents", json=body).json()
        self.redeploy(agent, example)
        return agent

    def redeploy(self, agent: dict[str, Any], example: str) -> None:
        """Upload a bundle for an agent and wait until it serves."""
        name = agent["name"]
        began = time.monotonic()
        accepted = self.call(
            "POST",
            f"/v1/agents/{agent['id']}/deployments",
            files={"bundle": (f"{example}.zip", bundle_of(example), "application/zip")},
        ).json()
        deployment = accepted
        while deployment.get("status") == "deploying" and time.monotonic() - began < 60:
            time.sleep(0.1)
            deployment = self.call("GET", f"/v1/deployments/{accepted['id']}", quiet=True).json()
        active = deployment.get("status") == "active"
        expect(f"{name} is active", active, f"{time.monotonic() - began:.1f} s")
        if not active:
            self.call("GET", f"/v1/deployments/{accepted.get('id')}")
            self.call("GET", f"/v1/deployments/{accepted.get('id')}/logs")
            sys.exit("Without a deployment the story ends here.")

    def invoke(self, agent: str, prompt: str, *, quiet: bool = True, **more: Any) -> requests.Response:
        """Invoke an agent once."""
        return self.call("POST", f"/v1/invoke/{agent}", quiet=quiet, json={"input": {"prompt": prompt}, **more})


class Support:
    """Somebody on support, at work in the admin."""

    def __init__(self, url: str) -> None:
        made = json.loads(manage("create_account", f"stella-{secrets.token_hex(4)}@example.com", "--staff").stdout)
        self.url, self.http = url, requests.Session()
        self.email, self.password = str(made["email"]), str(made["password"])
        page = self.http.get(f"{url}/sign-in/", timeout=30)
        self.http.post(
            f"{url}/sign-in/?next=/admin/",
            data={"username": made["email"], "password": made["password"], "csrfmiddlewaretoken": _token(page.text)},
            headers={"Referer": f"{url}/sign-in/"},
            timeout=30,
        )

    def override(self, customer: Customer, key: str, value: int, reason: str) -> None:
        """Set one value for one customer, with a reason."""
        account = str(UUID(customer.id.removeprefix("acc_")))
        page = self.http.get(f"{self.url}/admin/entitlements/override/add/", timeout=30)
        answer = self.http.post(
            f"{self.url}/admin/entitlements/override/add/",
            data={
                "account": account, "key": key, "value": value, "reason": reason,
                "ends_at_0": "", "ends_at_1": "", "csrfmiddlewaretoken": _token(page.text),
            },
            headers={"Referer": f"{self.url}/admin/"},
            allow_redirects=False,
            timeout=30,
        )  # fmt: skip
        expect(f"support sets {key} to {value}: {reason}", answer.status_code == 302, answer.status_code)

    def tier(self, customer: Customer, slug: str, reason: str) -> None:
        """Set a customer's tier by hand, with a reason, in the account's form."""
        address = f"{self.url}/admin/entitlements/account/{UUID(customer.id.removeprefix('acc_'))}/change/"
        form = _Form(self.http.get(address, timeout=30).text)
        fields = form.values | {"support_tier": form.choices["support_tier"][slug], "why": reason}
        answer = self.http.post(address, data=fields, headers={"Referer": address}, allow_redirects=False, timeout=30)
        expect(f"support sets the tier to {slug}: {reason}", answer.status_code == 302, answer.status_code)


class _Form(HTMLParser):
    """The fields of an admin form as a browser would send them back, and what can be chosen."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.values: dict[str, str] = {}
        self.choices: dict[str, dict[str, str]] = {}
        self._select = self._option = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Take fields with what they hold."""
        found = {key: value or "" for key, value in attrs}
        name = found.get("name", "")
        if tag == "input" and name and found.get("type") not in ("submit", "button"):
            is_box = found.get("type") in ("checkbox", "radio")
            if not is_box or "checked" in found:
                self.values[name] = found.get("value", "on" if is_box else "")
        elif tag == "select":
            self._select = name
            self.choices[name] = {}
        elif tag == "option" and self._select:
            self._option = found.get("value", "")
            if "selected" in found:
                self.values[self._select] = self._option

    def handle_endtag(self, tag: str) -> None:
        """End a list of choices."""
        if tag == "select":
            self._select = ""

    def handle_data(self, data: str) -> None:
        """Note what a choice is called."""
        if self._select and data.strip():
            self.choices[self._select][data.strip().split(" (")[0].lower()] = self._option


def _token(page: str) -> str:
    match = re.search(r'name="csrfmiddlewaretoken" value="([^"]+)"', page)
    return match[1] if match else ""


def events_of(answer: requests.Response) -> list[tuple[str, dict[str, Any]]]:
    """Read server-sent events."""
    found = []
    for block in answer.text.split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.splitlines() if ": " in line)
        if "event" in fields:
            found.append((fields["event"], json.loads(fields.get("data", "{}"))))
    return found
