"""The product's own statements, as the floor runs them: private where they live, because nobody else should."""

from __future__ import annotations

from entitlements.authentication import _FIND as FIND_TOKEN
from entitlements.ledger import SQL
from runtimes.actions.invoke import _BY_ID as RESOLVE
from webhost.db import _numbered as numbered

ADMIT, SETTLE = SQL["admit"], SQL["settle"]

__all__ = ["ADMIT", "FIND_TOKEN", "RESOLVE", "SETTLE", "numbered"]
