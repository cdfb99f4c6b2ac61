"""The product's own statements, as the floor runs them: private where they live, because nobody else should."""

from __future__ import annotations

from entitlements.authentication import _FIND as FIND_TOKEN
from runtimes.actions.invoke import _BY_ID as RESOLVE

__all__ = ["FIND_TOKEN", "RESOLVE"]
