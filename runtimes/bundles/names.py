"""Which file names a bundle may hold: those that mean one and the same file on every system."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator
from typing import Final

LONGEST_NAME: Final = 200
DEEPEST_FOLDER: Final = 10
RESERVED_PREFIX: Final = "_whs"
_DRIVE = re.compile(r"[A-Za-z]:")
# Controls, invisible formatting (which reorders text), lone surrogates, line and paragraph separators.
_UNSEEN: Final = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})


def name_problem(name: str) -> str | None:
    """Return why a file or folder (ending in /) may not be called that, or None."""
    parts = name.removesuffix("/").split("/")
    problems = {
        "The name holds control or invisible characters.": any(unicodedata.category(c) in _UNSEEN for c in name),
        f"A name has 1 to {LONGEST_NAME} characters.": not 1 <= len(name) <= LONGEST_NAME,
        "The name holds a backslash; folders are separated by /.": "\\" in name,
        "The path is absolute.": name.startswith("/") or _DRIVE.match(name) is not None,
        "The name holds a colon.": ":" in name,
        "The path leads out of the bundle.": ".." in parts,
        "The path has an empty part.": any(part in {"", "."} for part in parts),
        "A part of the path ends in a dot or a space.": any(part.endswith((".", " ")) for part in parts),
        f"Folders are at most {DEEPEST_FOLDER} deep.": len(parts) > DEEPEST_FOLDER + (not name.endswith("/")),
        f"Names that start with {RESERVED_PREFIX} are ours.": any(
            canonical(part).startswith(RESERVED_PREFIX) for part in parts
        ),
    }
    return next((problem for problem, found in problems.items() if found), None)


def canonical(name: str) -> str:
    """Return what a name is on a system that ignores case and Unicode composition (canonical caseless form)."""
    folded = unicodedata.normalize("NFD", name).casefold()
    return unicodedata.normalize("NFC", folded)


def alias_problems(names: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield (name, why) for names that are, or on some systems would be, the same file as another.

    Two files of one name, `A.ts` beside `a.ts`, folders spelled in two ways, a file where a folder is.
    """
    entries: set[str] = set()
    files: set[str] = set()
    spelled: dict[str, str] = {}
    for name in names:
        key = canonical(name)
        is_file = not name.endswith("/")
        other = spelled.get(key.removesuffix("/"))
        if key in entries or (is_file and other is not None):
            same = "is there twice" if other in {None, name.removesuffix("/")} else f"is, for some systems, {other}"
            yield name, f"The name {same}."
            continue
        entries.add(key)
        parts = name.removesuffix("/").split("/")
        for depth in range(1, len(parts) + 1):
            part = "/".join(parts[:depth])
            other = spelled.setdefault(canonical(part), part)
            if other != part:
                yield name, f"{part} is also spelled {other}."
            elif canonical(part) in files:
                yield name, f"{part} is a file as well as a folder."
        if is_file:
            files.add(key)
