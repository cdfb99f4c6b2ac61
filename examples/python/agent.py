"""A Python agent: a generator, so that its answer can be streamed."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from words import split_words


def agent(request: dict[str, Any], context: Any) -> Generator[str, None, dict[str, Any]]:
    """Say what the user said last, word by word, and count the turns of the session."""
    turns = (context.session.get("turns") or 0) + 1
    context.session.put("turns", turns)
    print(f"turn {turns}")  # noqa: T201 - this is how an agent logs
    said = [message["content"] for message in request["input"]["messages"] if message["role"] == "user"]
    words = split_words(said[-1] if said else "")
    yield from words
    return {"usage": {"tokens": len(words)}}
