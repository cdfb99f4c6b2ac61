"""A module beside the agent's own."""

from __future__ import annotations

import re


def split_words(text: str) -> list[str]:
    """Cut a text into words, each with the space behind it."""
    return re.findall(r"\S+\s*|\s+", text)
