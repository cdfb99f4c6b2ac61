"""People with a browser and a phone: a real client, and codes computed from the secret that a page showed."""

from __future__ import annotations

import base64
import hmac
import re
import secrets
import time
from typing import Any

from django.test import Client

from entitlements.models import Account
from tests.entitlements.admin_pages import said

PASSWORD = "a-long-enough-secret"
STEP = 30


def code_at(secret: str, at: float) -> str:
    """Compute a code as RFC 6238 says, without the library that checks it."""
    key = base64.b32decode(secret.replace(" ", ""))
    digest = hmac.digest(key, (int(at) // STEP).to_bytes(8, "big"), "sha1")
    offset = digest[-1] & 15
    number = int.from_bytes(digest[offset : offset + 4], "big") & 0x7FFFFFFF
    return f"{number % 10**6:06}"


class Person:
    """Somebody with an account, a browser of their own at an address of their own, and perhaps a phone."""

    def __init__(self, account: Account, address: str = "") -> None:
        self.account = account
        self.address = address or f"2001:db8:{secrets.token_hex(2)}:{secrets.token_hex(2)}::1"
        self.secret = ""
        self.recovery_codes: list[str] = []
        self.client = Client()
        self.new_browser()

    def new_browser(self) -> None:
        """Begin anew, without cookies."""
        self.client = Client(REMOTE_ADDR=self.address)

    def type_password(self, password: str = PASSWORD, back: str = "") -> Any:
        """Take the first step of signing in."""
        sent = {"username": self.account.email, "password": password, "next": back}
        return self.client.post("/sign-in/", {k: v for k, v in sent.items() if v})

    def code(self, later: int = 0) -> str:
        """Read the phone, perhaps some steps later."""
        return code_at(self.secret, time.time() + later * STEP)

    def type_code(self, code: str) -> Any:
        """Take the second step of signing in."""
        return self.client.post("/sign-in/code/", {"code": code})

    def confirm_password(self, back: str, password: str = PASSWORD) -> Any:
        """Type the password once more, where a page asks for it."""
        return self.client.post("/settings/security/password/", {"password": password, "next": back})

    def set_up(self, back: str = "") -> Any:
        """Set up a phone, from the page that shows the secret to the recovery codes."""
        address = "/settings/security/app/"
        self.confirm_password(address)
        page = self.client.get(address)
        assert page.status_code == 200, page.status_code
        self.secret = shown_secret(page)
        answer = self.client.post(address, {"code": self.code(), "next": back} if back else {"code": self.code()})
        self.recovery_codes = re.findall(r"<li><code>(\d+)</code>", answer.content.decode())
        return answer


def shown_secret(page: Any) -> str:
    """Return the secret that a page writes out."""
    (secret,) = re.findall(r'<code id="secret">([A-Z2-7 ]+)</code>', page.content.decode())
    return str(secret)


def alerts(page: Any) -> str:
    """Return what a page says of what went wrong."""
    return " ".join(re.findall(r'role="alert">(.*?)</(?:div|p)>', page.content.decode(), flags=re.DOTALL)) or said(page)
