"""Who changes something, and why: notes that the database writes beside every row of history.

The notes are in force inside a block and end with it: what one piece of work says about its changes is never said
about the next one's. (pghistory alone keeps what a nested context adds until the outermost ends.)
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pghistory
from django.core.serializers.json import DjangoJSONEncoder

# What the database's own functions read (entitlements/history.sql).
SETTING = "pghistory.context_metadata"


@contextmanager
def noted(**notes: Any) -> Iterator[None]:
    """Note something beside every change that this thread makes inside; over, and besides, what is noted around it."""
    with pghistory.context() as context:
        before = dict(context.metadata)
        context.metadata.update(notes)
        try:
            yield
        finally:
            context.metadata.clear()
            context.metadata.update(before)


def note(**notes: Any) -> None:
    """Add to the notes of the block at hand; outside of any, do nothing."""
    pghistory.context(**notes)


def notes_at_hand() -> str:
    """Return the notes in force as JSON, for a connection that is not Django's; empty where there are none."""
    with pghistory.context() as context:
        return json.dumps(context.metadata, cls=DjangoJSONEncoder) if context.metadata else ""
