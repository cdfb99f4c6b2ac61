"""The console sessions of README, docs/ and examples/, run as they stand there: what they show is what comes out.

Every ```console block is run, those of one page in one shell. What cannot be run here is a plain block. … stands for
anything within a line, and on a line of its own for any lines.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from tests.factories import EXAMPLES, make_account, make_token

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "examples").glob("*/README.md"))]
_END = "=== end of a command ==="


def session(page: Path) -> list[tuple[str, str]]:
    """Return each command of a page's console blocks, and what it shows below it."""
    commands: list[tuple[str, str]] = []
    for block in re.findall(r"^```console\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL):
        parts = re.split(r"^\$ (.*)\n", block, flags=re.MULTILINE)
        assert parts[0] == "", f"{page}: a block begins with its command"
        commands += zip(parts[1::2], parts[2::2], strict=True)
    return commands


def shape(shown: str) -> str:
    """Return the pattern of what is shown."""
    lines = ["(?:[^\n]*\n)*?" if line == "…\n" else re.escape(line).replace("…", r"[^\n]*")
             for line in shown.splitlines(keepends=True)]  # fmt: skip
    return "".join(lines)


RUN = [page for page in PAGES if session(page)]


@pytest.mark.parametrize("page", RUN, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_documented_session_is_what_happens(alice, live_db, page):
    tier = "enterprise" if EXAMPLES in page.parents else "free"  # all tools, or what everybody has
    prompt = replace(alice, variables={**alice.variables, "WHS_TOKEN": make_token(make_account("alice", tier))})
    shutil.copytree(EXAMPLES, alice.folder / "examples", ignore=shutil.ignore_patterns("node_modules"))
    commands = session(page)
    script = "\n".join(f"{command}\necho '{_END}'" for command, _ in commands)
    done = subprocess.run(
        ["bash"], input=f"exec 2>&1\n{script}\n", cwd=prompt.folder, env=prompt.environment, capture_output=True,
        text=True, timeout=240, check=False,
    )  # fmt: skip
    answers = done.stdout.split(f"{_END}\n")
    for (command, shown), said in zip(commands, answers, strict=False):
        assert re.fullmatch(shape(shown), said), f"$ {command}\n{said}"
    assert len(answers) == len(commands) + 1


def test_readme_quickstart_and_examples_have_such_sessions():
    found = {str(page.relative_to(ROOT)): len(session(page)) for page in RUN}
    assert found["README.md"] >= 5
    assert found["docs/quickstart.md"] >= 12
    assert {page.parent.name for page in RUN if EXAMPLES in page.parents} == {
        folder.name for folder in EXAMPLES.iterdir() if folder.is_dir() and folder.name != "framework"  # test_framework
    }  # fmt: skip


def test_the_shape_of_what_is_shown_is_strict():
    assert re.fullmatch(shape("a … c (x)\n"), "a b c (x)\n")
    assert not re.fullmatch(shape("a … c\n"), "a b\nx c\n")
    assert not re.fullmatch(shape("a\n"), "a\nb\n")
    assert re.fullmatch(shape("a\n…\nd\n"), "a\nb\nc\nd\n")
    assert not re.fullmatch(shape("a\n…\nd\n"), "a\nb\nc\n")
