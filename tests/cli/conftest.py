"""The command line, signed in to nothing, to a stub, or to the running product."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cli.program import Program
from tests.cli.stub import Stub
from tests.factories import make_account, make_tier, make_token
from webhost.local.product import Product


@pytest.fixture
def whs(tmp_path) -> Program:
    """The program, where nobody has signed in yet."""
    return Program(tmp_path, {})


@pytest.fixture
def stub() -> Iterator[Stub]:
    """A service that answers as the test says."""
    with Stub() as running:
        yield running


@pytest.fixture
def stubbed(tmp_path, stub) -> Program:
    """The program, speaking to the stub."""
    return Program(tmp_path, {"WHS_URL": stub.url, "WHS_TOKEN": "whs_" + "0" * 64})


@pytest.fixture
def account(live_db):
    """Alice, who may use both runtimes."""
    return make_account("alice", make_tier(agentcore_enabled=True))


@pytest.fixture
def alice(tmp_path, product: Product, account) -> Program:
    """Alice at her prompt, with a token for the running product."""
    return Program(tmp_path, {"WHS_URL": product.url, "WHS_TOKEN": make_token(account)})
