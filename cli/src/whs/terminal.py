"""What comes in: from a person at a terminal, or from a file or another program."""

from __future__ import annotations

import sys

from whs.errors import UsageError


def is_interactive() -> bool:
    """Say whether a person can be asked."""
    return sys.stdin.isatty()


def speaks_to_person() -> bool:
    """Say whether standard output is a terminal, which control characters would drive."""
    return sys.stdout.isatty()


def read_input() -> str:
    """Return all of standard input as text."""
    try:
        return sys.stdin.buffer.read().decode("utf-8")
    except UnicodeDecodeError:
        raise UsageError("Standard input is not UTF-8.") from None
