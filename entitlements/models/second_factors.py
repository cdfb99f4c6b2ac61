"""Second factors, for the audit log."""

from __future__ import annotations

from typing import Any

import pghistory
import pgtrigger
from allauth.mfa.models import Authenticator
from django.db import models
from django.db.models import F


def _copy(column: str, field: models.Field[Any, Any]) -> models.GeneratedField:
    return models.GeneratedField(expression=F(column), output_field=field, db_persist=True)  # type: ignore[arg-type]  # documented


@pghistory.track(
    pghistory.InsertEvent(),
    pghistory.DeleteEvent(),
    # Codes are used with every sign-in and that is no news; another secret, put there by hand, is.
    pghistory.UpdateEvent(
        condition=pgtrigger.Condition(
            "((OLD.data->>'secret', OLD.data->>'seed', OLD.user_id) "
            "IS DISTINCT FROM (NEW.data->>'secret', NEW.data->>'seed', NEW.user_id))"
        )
    ),
    # Never `data`, which holds the secret.
    fields=["id", "user", "type", "created_at"],
    obj_field=None,
    model_name="SecondFactorEvent",
    append_only=True,
    attrs={
        # The audit log finds everything about an account by this column, and names a row by the other.
        "account_id": _copy("user", models.UUIDField()),
        "name": _copy("type", models.TextField()),
    },
)
class SecondFactor(Authenticator):  # type: ignore[misc]  # untyped library
    """A second factor: codes of a phone, or the recovery codes beside them."""

    class Meta:
        proxy = True
