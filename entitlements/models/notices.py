"""Mails to people that are still to be sent."""

from __future__ import annotations

from typing import ClassVar

from django.conf import settings
from django.db import models
from django.utils import timezone


class Notice(models.Model):
    """A mail that is still to be sent; deleted once it was. Holds no link: those are made on sending."""

    class Kind(models.TextChoices):
        """What happened."""

        SET_UP = "set_up"
        REMOVED = "removed"
        RESET = "reset"
        NEW_RECOVERY_CODES = "new_recovery_codes"
        CONFIRM_ADDRESS = "confirm_address"
        NEW_ADDRESS = "new_address"
        ADDRESS_CHANGED = "address_changed"
        ADDRESS_KNOWN = "address_known"
        FORGOT_PASSWORD = "forgot_password"  # noqa: S105 - a name
        PASSWORD_CHANGED = "password_changed"  # noqa: S105 - a name

    # Nobody's where an address was typed by a stranger: whether it is somebody's is looked up on sending.
    account = models.ForeignKey(settings.AUTH_USER_MODEL, null=True, on_delete=models.CASCADE, related_name="+")
    kind = models.CharField(max_length=20, choices=Kind.choices)
    address = models.EmailField(blank=True, help_text="Where it is not the account's present address.")
    happened_at = models.DateTimeField(default=timezone.now)
    due_at = models.DateTimeField(default=timezone.now, db_index=True)

    class Meta:
        ordering: ClassVar = ["due_at"]

    def __str__(self) -> str:
        return f"{self.kind} at {self.happened_at:%Y-%m-%d %H:%M}"
