"""The command line session of the README, run as it stands there: what it shows is what comes out."""

from __future__ import annotations

import re
import subprocess
from dataclasses import replace
from pathlib import Path

from tests.factories import make_account, make_token

README = Path(__file__).resolve().parents[2] / "README.md"


def session() -> list[tuple[str, str]]:
    """Return each command of the README's console block, and what it shows below it."""
    (block,) = re.findall(r"^```console\n(.*?)^```$", README.read_text(), re.MULTILINE | re.DOTALL)
    parts = re.split(r"^\$ (.*)\n", block, flags=re.MULTILINE)
    assert parts[0] == ""
    return list(zip(parts[1::2], parts[2::2], strict=True))


def shape(shown: str) -> str:
    """Return the pattern of what is shown: … stands for anything within a line."""
    return re.escape(shown).replace("…", r"[^\n]*")


def test_the_session_of_the_readme_is_what_happens(alice, live_db):
    somebody = make_account("alice", "free")
    prompt = replace(alice, variables={**alice.variables, "WHS_TOKEN": make_token(somebody)})
    commands = session()
    assert len(commands) >= 5
    for command, shown in commands:
        done = subprocess.run(
            ["bash", "-c", f"{{ {command}; }} 2>&1"], cwd=prompt.folder, env=prompt.environment, capture_output=True,
            text=True, timeout=120, check=False,
        )  # fmt: skip
        assert re.fullmatch(shape(shown), done.stdout), f"$ {command}\n{done.stdout}"


def test_the_shape_of_what_is_shown_is_strict():
    assert re.fullmatch(shape("a … c (x)\n"), "a b c (x)\n")
    assert not re.fullmatch(shape("a … c\n"), "a b\nx c\n")
    assert not re.fullmatch(shape("a\n"), "a\nb\n")
