"""Second factors, for the audit log, and what their owners are told about them by mail."""

from __future__ import annotations

from typing import Any, ClassVar

import pghistory
import pgtrigger
from allauth.mfa.models import Authenticator
from django.conf import settings
from django.db import models
from django.db.models import F
from django.utils import timezone


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


class Notice(models.Model):
    """A mail about a second factor that is still to be sent. It is deleted once it was sent."""

    class Kind(models.TextChoices):
        """What happened."""

        SET_UP = "set_up"
        REMOVED = "removed"
        RESET = "reset"
        NEW_RECOVERY_CODES = "new_recovery_codes"

    account = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="+")
    kind = models.CharField(max_length=20, choices=Kind.choices)
    happened_at = models.DateTimeField(default=timezone.now)
    due_at = models.DateTimeField(default=timezone.now, db_index=True)

    class Meta:
        ordering: ClassVar = ["due_at"]

    def __str__(self) -> str:
        return f"{self.kind} at {self.happened_at:%Y-%m-%d %H:%M}"
