"""A local Cloudflare for the tests of the runtime: real workerd, real HTTP, one for each module of tests."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.runtimes.cloud import Cloud, Reports


@pytest.fixture(scope="module")
def cloud() -> Iterator[Cloud]:
    """A local Cloudflare, its adapter, and a place that takes its reports."""
    with tempfile.TemporaryDirectory(prefix="webhost-cloud-") as folder:
        reports = Reports()
        with reports.listening(), Cloud(Path(folder), reports).running() as running:
            yield running


@pytest.fixture(autouse=True)
def _no_fault_is_left(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "cloud" in request.fixturenames:
        request.getfixturevalue("cloud").forget_faults()
