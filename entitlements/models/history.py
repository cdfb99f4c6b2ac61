"""The audit log as one list, and the changes in it that nobody signed."""

from __future__ import annotations

from typing import ClassVar

import pghistory
from django.db import models
from django.db.models import Q
from pghistory.models import Context


class HistoryEntry(models.Model):
    """One change of one row, of whatever kind: a view over all tables of history (entitlements/sealing.py)."""

    key = models.TextField(primary_key=True)
    kind = models.TextField()
    event_id = models.IntegerField()
    at = models.DateTimeField()
    verb = models.TextField()
    object_id = models.TextField()
    account_id = models.UUIDField(null=True)
    tier_id = models.SmallIntegerField(null=True)
    other_tier_id = models.SmallIntegerField(null=True)
    name = models.TextField(null=True)  # noqa: DJ001 - a view
    context = models.ForeignKey(
        Context, null=True, on_delete=models.DO_NOTHING, db_constraint=False, db_index=False, related_name="+"
    )
    data = models.JSONField()

    class Meta:
        managed = False
        ordering = ("-at", "-event_id")
        verbose_name_plural = "audit log"

    def __str__(self) -> str:
        return self.key


@pghistory.track(
    pghistory.UpdateEvent(condition=pghistory.AnyChange("acknowledged_at", "acknowledged_by", "acknowledged_reason")),
    append_only=True,
)
class UnsignedChange(models.Model):
    """A transaction that changed what is tracked and said neither who nor why: raw SQL. Written by the database."""

    context_id = models.UUIDField(primary_key=True, editable=False)
    at = models.DateTimeField()
    role = models.CharField("database role", max_length=63)
    application = models.CharField(max_length=63, blank=True)
    address = models.CharField(max_length=63)
    mailed_at = models.DateTimeField(null=True, help_text="When support was written to.")
    acknowledged_at = models.DateTimeField(null=True)
    acknowledged_by = models.CharField(max_length=254, blank=True)
    acknowledged_reason = models.CharField(max_length=500, blank=True)

    class Meta:
        ordering = ("-at", "-context_id")
        indexes: ClassVar = [
            models.Index("at", "context_id", name="unsigned_at"),
            models.Index("at", condition=Q(mailed_at__isnull=True), name="unsigned_to_mail"),
            models.Index("at", "context_id", condition=Q(acknowledged_at__isnull=True), name="unsigned_open"),
        ]

    def __str__(self) -> str:
        return f"{self.role}, {self.at:%Y-%m-%d %H:%M:%S}"
