"""Who changes what, and why: the database writes it into the history of every row that moves."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import Any

from django.core.exceptions import ValidationError
from django.db import transaction
from django.db.models import Model
from django.forms.models import model_to_dict

from webhost.errors import InvalidRequestError, Issue
from webhost.history import noted


class ChangeSource(StrEnum):
    """Which door a change came through."""

    ADMIN = "admin"
    COMMAND = "command"
    PAGE = "page"


@contextmanager
def written_by(actor: str, reason: str, source: ChangeSource = ChangeSource.ADMIN) -> Iterator[None]:
    """Run changes in one transaction, signed with who makes them and why. Raises without a reason."""
    if not reason.strip():
        raise InvalidRequestError("A change needs a reason.", path="reason")
    # A command is its own actor: what the audit log shows is which one.
    through = f"{source.value} {actor}" if source is ChangeSource.COMMAND else source.value
    with transaction.atomic(), noted(actor=actor, reason=reason.strip(), source=through):
        yield


def fingerprint(row: Model, fields: Iterable[str]) -> str:
    """Return a digest of a row's values, so that a form can tell that somebody changed them meanwhile."""
    values = model_to_dict(row, fields=list(fields))
    values = {
        name: sorted(str(v) for v in value) if isinstance(value, list) else value for name, value in values.items()
    }
    return hashlib.sha256(repr(sorted(values.items())).encode()).hexdigest()[:32]


def changed_fields(row: Model, values: dict[str, Any]) -> list[str]:
    """Set values on a row; return the names of those that are different now."""
    changed = [name for name, value in values.items() if getattr(row, name) != value]
    for name in changed:
        setattr(row, name, values[name])
    return changed


@contextmanager
def problems_as_issues() -> Iterator[None]:
    """Turn what a model's own validation finds into an InvalidRequestError that names the fields."""
    try:
        yield
    except ValidationError as error:
        found = error.message_dict if hasattr(error, "error_dict") else {"__all__": error.messages}
        issues: list[Issue] = [{"path": path, "message": text} for path, texts in found.items() for text in texts]
        raise InvalidRequestError("; ".join(i["message"] for i in issues), issues=issues) from error
