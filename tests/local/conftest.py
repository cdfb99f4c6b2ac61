"""The local AWS that its tests share; each test makes roles, runtimes and tools of its own."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.local.aws import PYTHON, LocalAws, zipped


@pytest.fixture(scope="session")
def aws() -> Iterator[LocalAws]:
    with tempfile.TemporaryDirectory(prefix="webhost-test-") as folder:
        cloud = LocalAws(Path(folder), hurry=40)  # an idle minute is a second and a half
        cloud.start()
        yield cloud
        cloud.child.stop()


@pytest.fixture(scope="session")
def role(aws: LocalAws) -> str:
    return aws.role()


@pytest.fixture(scope="session")
def runtime(aws: LocalAws, role: str) -> dict[str, Any]:
    return aws.runtime(role, aws.artifact(zipped(main_py=PYTHON)), environmentVariables={"WHS_DEPLOYMENT": "dep_1"})
