"""What all tests stand on: a real database with committed rows, the running product, a real browser."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import django
import pytest

if "DATABASE_URL" not in os.environ:
    raise SystemExit(
        "The tests need PostgreSQL and Valkey: run `make test`, or `make test ARGS='tests/entitlements -k name'`."
    )
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "webhost.settings")
django.setup()

from django.core.management import call_command  # noqa: E402 - after the settings are known to be there
from django.db import connections  # noqa: E402
from playwright.sync_api import Browser, Page, sync_playwright  # noqa: E402
from pytest_django.plugin import DjangoDbBlocker  # noqa: E402

from webhost.local.environment import SETTINGS  # noqa: E402
from webhost.local.product import Part, Product  # noqa: E402
from webhost.local.stack import Stack  # noqa: E402

_running: list[Product] = []
_stacks: list[Stack] = []
_BROWSERS = ("chromium", "chromium-browser", "google-chrome")
# As root there is no sandbox; the rest keeps a browser from calling home.
_BROWSER_FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
]  # fmt: skip


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(specs: list[Any]) -> None:
    """Give each worker but the first its own PostgreSQL and Valkey, so that no two meet in one database."""
    for spec in specs[1:]:
        folder = Path(tempfile.mkdtemp(prefix="webhost-worker-"))
        folder.chmod(0o711)  # PostgreSQL, which is another user where we are root, has its data below it
        stack = Stack(folder)
        _stacks.append(stack)
        stack.start()
        spec.env.update({name: stack.environment[name] for name in SETTINGS if name in stack.environment})


def pytest_unconfigure() -> None:
    """Stop what was started for workers."""
    for stack in _stacks:
        stack.remove()
    _stacks.clear()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip browser tests where there is no browser; in CI that is a failure."""
    if _browser() or os.environ.get("CI"):
        return
    for item in items:
        if item.get_closest_marker("browser"):
            item.add_marker(pytest.mark.skip(reason="no Chromium on this machine"))


@pytest.fixture(scope="session")
def django_db_setup(django_test_environment: None, django_db_blocker: DjangoDbBlocker) -> None:
    """Use the database of DATABASE_URL itself: the product's processes work on the same one."""
    with django_db_blocker.unblock():
        call_command("migrate", verbosity=0)
        call_command("seed_tiers", verbosity=0)
        connections.close_all()


@pytest.fixture
def live_db(django_db_setup: None, django_db_blocker: DjangoDbBlocker) -> Iterator[None]:
    """Let a test commit. Nothing is rolled back or flushed: each test makes its own accounts."""
    with django_db_blocker.unblock():
        yield
        connections.close_all()


@pytest.fixture(scope="session")
def product(django_db_setup: None) -> Iterator[Product]:
    """The whole product as processes, on the same database and Valkey as the tests."""
    folder = Path(tempfile.mkdtemp(prefix="webhost-product-"))
    running = Product(folder, os.environ)
    try:
        with running:
            _running.append(running)
            yield running
    finally:
        _running.clear()
        if logs := os.environ.get("KEEP_LOGS"):
            shutil.copytree(running.logs, logs, dirs_exist_ok=True)
        running.remove()


@pytest.fixture(scope="module")
def nobody_sweeps() -> Iterator[None]:
    """Keep the running product's worker, if there is one, from sweeping what a test sweeps itself."""
    workers = [running.pids[Part.WORKER] for running in _running]
    for pid in workers:
        os.kill(pid, signal.SIGSTOP)
    time.sleep(0.5 if workers else 0)  # what it had begun
    yield
    for pid in workers:
        os.kill(pid, signal.SIGCONT)


@pytest.fixture
def own_product() -> Iterator[Product]:
    """A second product with a database and a Valkey of its own, for tests that kill things. Not started."""
    folder = Path(tempfile.mkdtemp(prefix="webhost-own-"))
    folder.chmod(0o711)
    own = Product(folder)
    try:
        yield own
    finally:
        own.remove()


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """A real browser, headless."""
    program = _browser()
    if program is None:
        pytest.fail("There is no Chromium on this machine: .ci/run installs it.")
    # Playwright runs an event loop in this thread; Django would refuse to speak to the database beside it.
    os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"] = "true"
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=program, args=_BROWSER_FLAGS)
        yield running
        running.close()


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A page in a fresh profile."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    yield context.new_page()
    context.close()


def _browser() -> str | None:
    return next((path for name in _BROWSERS if (path := shutil.which(name))), None)
