"""The package by itself: installed without the product, completing in three shells, telling its exit codes."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.cli.program import WHS
from whs.errors import EXIT_CODES, Exit
from whs.main import cli

CLI = Path(__file__).resolve().parents[2] / "cli"
DOCUMENT = CLI.parent / "docs" / "cli.md"


@pytest.mark.slow
def test_it_is_installed_and_runs_without_the_product(tmp_path):
    uv = Path(sys.executable).with_name("uv")
    made = tmp_path / "env"
    source = shutil.copytree(CLI, tmp_path / "cli", ignore=shutil.ignore_patterns("__pycache__"))
    subprocess.run([uv, "venv", "--quiet", "--python", sys.executable, made], check=True)
    versions = CLI.parent / "requirements" / "development.txt"
    subprocess.run(
        [uv, "pip", "install", "--quiet", "--python", made, "--constraint", versions, str(source)], check=True
    )
    installed = subprocess.run(
        [uv, "pip", "list", "--python", made, "--format", "freeze"], check=True, capture_output=True, text=True
    ).stdout
    assert "whs==0.1.0" in installed
    assert not re.search(r"(?i)^(django|webhost)==", installed, re.MULTILINE)
    shown = subprocess.run(
        [made / "bin" / "whs", "--version"], check=True, capture_output=True, text=True, cwd=tmp_path
    )
    assert shown.stdout == "whs, version 0.1.0\n"


def test_it_needs_little():
    needs = tomllib.loads((CLI / "pyproject.toml").read_text())["project"]["dependencies"]
    assert {re.split(r"[<>=]", need)[0] for need in needs} == {"click", "platformdirs", "requests"}


def test_it_calls_only_what_the_api_documents():
    sources = "\n".join(path.read_text() for path in (CLI / "src").rglob("*.py"))
    called = {re.sub(r"\{part\([^}]*\)\}", "{}", path) for path in re.findall(r'"(/v1/[^"]*)"', sources)}
    documented = re.findall(r"^  (/v1/\S+):$", (CLI.parent / "docs" / "openapi.yaml").read_text(), re.MULTILINE)
    assert len(called) > 10
    assert called - {re.sub(r"\{\w+\}", "{}", path) for path in documented} == set()


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_it_completes_in_a_shell(whs, shell):
    script = whs("completion", shell)
    assert script.code == Exit.OK
    assert "_WHS_COMPLETE" in script.out
    if shutil.which(shell):
        subprocess.run([shell, "-n"], input=script.out, check=True, text=True)


def test_a_begun_command_is_completed(whs):
    done = whs(_WHS_COMPLETE="bash_complete", COMP_WORDS="whs depl", COMP_CWORD="1")
    assert done.out.split() == ["plain,deploy", "plain,deployments"]


def test_help_lists_every_exit_code(whs):
    shown = whs("--help").out
    for code, meaning in EXIT_CODES.items():
        assert re.search(rf"^ +{code.value}  {re.escape(meaning)}$", shown, re.MULTILINE)
    assert set(EXIT_CODES) == set(Exit)


def test_the_document_lists_every_command_and_exit_code():
    text = DOCUMENT.read_text()
    assert {name for name in cli.commands if f"`whs {name}" not in text} == set()
    for code, meaning in EXIT_CODES.items():
        assert f"| {code.value} | {meaning} |" in text


def test_a_command_that_is_not_there_is_a_usage_error(whs):
    ended = whs("deplyo")
    assert ended.code == Exit.USAGE
    assert "No such command" in ended.err
    for_programs = whs("invoke", "--json")
    assert (for_programs.code, for_programs.json["error"]["code"]) == (Exit.USAGE, "USAGE")


def test_a_reader_that_has_enough_ends_it_quietly(tmp_path):
    done = subprocess.run(
        ["bash", "-c", f"{WHS} --help | true; echo ${{PIPESTATUS[0]}}"], capture_output=True, text=True, check=True
    )
    assert "Traceback" not in done.stderr
