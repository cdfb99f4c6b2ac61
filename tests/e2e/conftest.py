"""A product of its own for the tests that kill its parts."""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.customers import Cloud
from tests.e2e.story import Books
from webhost.local.product import Product

# In more of a hurry than usual to find out that something was killed; and with a backend whose key rotates.
_SETTINGS = {
    "OVERDUE_GRACE_SECONDS": "2",
    "DEPLOY_LEASE_SECONDS": "8",
    "DELEGATED_SOURCES": ",".join(f"{name}:{secrets.token_hex(32)}" for name in ("shop", "shop", "crm")),
}


@pytest.fixture(scope="session")
def own() -> Iterator[Product]:
    """The product that is hurt; each test leaves it whole."""
    folder = Path(tempfile.mkdtemp(prefix="webhost-hurt-"))
    folder.chmod(0o711)
    running = Product(folder, _SETTINGS)
    try:
        with running:
            yield running
    finally:
        if logs := os.environ.get("KEEP_LOGS"):
            shutil.copytree(running.logs, f"{logs}-hurt", dirs_exist_ok=True)
        running.remove()


@pytest.fixture
def own_cloud(own: Product) -> Iterator[Cloud]:
    """Its Cloudflare, without leftover faults."""
    found = Cloud(own)
    yield found
    found.forgive()


@pytest.fixture(scope="session")
def books(own: Product) -> Books:
    """Its database."""
    return Books(own)
