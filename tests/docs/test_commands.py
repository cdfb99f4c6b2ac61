"""What texts tell people to type exists: commands of manage.py, targets of make, verbs of whs, and options of each."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest
from django.core.management import get_commands, load_command_class

from whs.main import cli as whs

ROOT = Path(__file__).resolve().parents[2]
TEXTS = {
    str(path.relative_to(ROOT)): path.read_text(encoding="utf-8")
    for path in (
        ROOT / "README.md",
        *sorted((ROOT / "docs").rglob("*.md")),
        *sorted((ROOT / "examples").glob("*/README.md")),
    )
}
CODE = re.compile(r"`([^`\n]+)`|^ *\$ (.+)$|^(?=granian|celery|manage\.py)(.+)$", re.MULTILINE)


def commands_of(text: str) -> list[str]:
    """Return what stands in a text as code and begins like a command; several joined by && one by one."""
    found = ["".join(parts) for parts in CODE.findall(text)]
    return [part.strip() for line in found for part in line.split("&&")]


def named(program: str) -> list[tuple[str, str]]:
    """Return where a program's command is named, and the words after its name."""
    return sorted(
        {
            (where, found[1].strip())
            for where, text in TEXTS.items()
            for command in commands_of(text)
            if (found := re.match(rf"(?:\S*/)?(?:python (?:\S*/)?)?{re.escape(program)}(?= |$)(.*)", command))
        }
    )


@pytest.mark.parametrize(("where", "words"), named("manage.py"))
def test_a_command_of_manage_exists_and_knows_its_options(where: str, words: str) -> None:
    if not words or "<" in words:
        return
    name, *rest = words.split()
    known = get_commands()
    assert name in known, f"{where}: manage.py {words}"
    command = known[name]
    parser = (load_command_class(command, name) if isinstance(command, str) else command).create_parser(
        "manage.py", name
    )
    options = {option for action in parser._actions for option in action.option_strings}
    assert {word for word in rest if word.startswith("--")} <= options, f"{where}: manage.py {words}"


@pytest.mark.parametrize(("where", "words"), named("make"))
def test_a_target_of_make_exists(where: str, words: str) -> None:
    targets = set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    wanted = [word for word in words.split() if "=" not in word and word.isalpha()][:1]
    assert set(wanted) <= targets, f"{where}: make {words}"


@pytest.mark.parametrize(("where", "words"), named("whs"))
def test_a_verb_of_whs_exists_and_knows_its_options(where: str, words: str) -> None:
    command: click.Command = whs
    rest = words.split()
    while isinstance(command, click.Group) and rest and not rest[0].startswith("-") and not rest[0].isupper():
        verb = rest.pop(0)
        assert verb in command.commands, f"{where}: whs {words}"
        command = command.commands[verb]
    options = {option for parameter in command.params for option in parameter.opts} | {"--help", "--version"}
    asked = {word.partition("=")[0] for word in rest if re.fullmatch(r"--[a-z][a-z-]*(=.*)?", word)}
    assert asked <= options, f"{where}: whs {words}"


def test_each_of_them_is_named_somewhere() -> None:
    assert len(named("manage.py")) > 8
    assert len(named("make")) > 5
    assert len(named("whs")) > 20
