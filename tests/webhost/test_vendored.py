"""What browsers load is ours to serve, and is what the lock file says."""

from __future__ import annotations

from pathlib import Path

import pytest
from django.conf import settings

from webhost.local.vendor import VENDORED

STATIC = Path(settings.BASE_DIR) / "static"


@pytest.mark.parametrize(("source", "name"), VENDORED.items())
def test_a_vendored_file_is_the_locked_packages_own(source: str, name: str) -> None:
    assert (STATIC / "vendor" / name).read_bytes() == (Path(settings.NODE_MODULES_DIR) / source).read_bytes()


def test_nothing_else_is_vendored() -> None:
    assert {file.name for file in (STATIC / "vendor").iterdir()} == set(VENDORED.values())


def test_no_script_or_style_of_ours_names_another_host() -> None:
    for file in (*STATIC.glob("*.js"), *STATIC.glob("*.css")):
        assert "://" not in file.read_text(), file.name
