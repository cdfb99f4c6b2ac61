"""`make up`: the product on a laptop until Ctrl-C, with people to sign in as."""

from __future__ import annotations

import json
import os
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from webhost.local import environment
from webhost.local.processes import LocalServiceError, is_free
from webhost.local.product import Product

USER = "alice@example.com"
ADMIN = "stella@example.com"
_DEFAULT_PORT = 8000


def up(directory: Path = environment.STATE) -> None:
    """Run the product until interrupted, keeping its data. Raises LocalServiceError when a part dies."""
    port = os.environ.get("PORT", str(_DEFAULT_PORT))
    if not is_free(int(port)):
        raise LocalServiceError(f"Port {port} is taken. Choose another: make up PORT={int(port) + 1}")
    began = time.monotonic()
    with Product(directory, {**os.environ, "LOCAL_WEB_PORT": port}) as product:
        people = make_people(product)
        print(_welcome(product, people, time.monotonic() - began), flush=True)
        while True:
            product.check_alive()
            time.sleep(0.5)


def make_people(product: Product) -> dict[str, str]:
    """Make a customer with a token and somebody on support, or find them again; return how to be them."""
    password = product.sign_in_password
    made = {"email": USER, "admin": ADMIN, "password": password}
    note = product.directory / "token"
    token = note.read_text().strip() if note.exists() else ""
    if not token or not _is_valid(product, token):
        account: dict[str, Any] = json.loads(
            product.manage("create_account", USER, "--password", password, "--token", "make up")
        )
        product.manage("create_account", ADMIN, "--password", password, "--staff")
        token = str(account["token"])
        note.touch(mode=0o600)
        note.write_text(token)
    return made | {"token": token}


def _is_valid(product: Product, token: str) -> bool:
    request = urllib.request.Request(f"{product.url}/v1/me", headers={"Authorization": f"Bearer {token}"})
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return bool(answer.status == 200)
    except urllib.error.HTTPError:
        return False


def _welcome(product: Product, people: dict[str, str], seconds: float) -> str:
    url = product.url
    return f"""
webhost.systems runs at {url} (ready after {seconds:.1f} s; data and logs in {product.directory})

  Overview   {url}/           {people["email"]} / {people["password"]}
  Admin      {url}/admin/     {people["admin"]} / {people["password"]}
  Billing    {url}/billing/   card 4242 4242 4242 4242; no money moves
  Docs       {url}/docs/      the API to try: {url}/v1/docs
  Mail       none leaves this machine: files in {product.directory / "mail"}; `make mail` prints the newest

Try, in another terminal:

  export WHS_URL={url} WHS_TOKEN={people["token"]}
  .venv/bin/whs deploy examples/streaming
  .venv/bin/whs invoke streaming "one two three"

  make an agent of your own: README.md, "An agent of your own"
  make demo    the whole story by itself: a limit reached, the refusal explained, the usage proven

Ctrl-C stops everything; the next `make up` has your data. `make clean` forgets them.
"""
