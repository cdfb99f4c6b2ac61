"""The account (our user model), its API tokens, and the answers kept for repeated requests."""

from __future__ import annotations

from typing import Any, ClassVar

import pghistory
from django.contrib.auth.base_user import AbstractBaseUser, BaseUserManager
from django.contrib.auth.models import PermissionsMixin
from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models.functions import Lower
from django.utils import timezone
from knox.models import AbstractAuthToken

from webhost.ids import new_id


class AccountManager(BaseUserManager["Account"]):
    """Makes accounts; an e-mail address is kept in lower case, so that it is one account's only."""

    def create_user(self, email: str, password: str | None = None, **fields: Any) -> Account:
        """Create an account that signs in with its e-mail address."""
        if not email or "@" not in email:
            raise ValueError("An account needs an e-mail address.")
        account = self.model(email=email.strip().lower(), **fields)
        account.set_password(password)
        account.save(using=self._db)
        return account

    def create_superuser(self, email: str, password: str | None = None, **fields: Any) -> Account:
        """Create an account that may do everything in the admin."""
        return self.create_user(email, password, is_staff=True, is_superuser=True, **fields)

    def get_by_natural_key(self, username: str | None) -> Account:
        """Find an account by its address, whatever its case."""
        return self.get(email=(username or "").strip().lower())


@pghistory.track(
    pghistory.UpdateEvent(
        condition=pghistory.AnyChange(
            "billing_tier",
            "billing_tier_until",
            "support_tier",
            "support_tier_until",
            "support_tier_reason",
            "is_active",
            "disabled_reason",
            "is_staff",
            "is_superuser",
            "email",
        )
    ),
    pghistory.InsertEvent(),
    pghistory.DeleteEvent(),
    exclude=["password", "last_login"],
    append_only=True,
)
class Account(AbstractBaseUser, PermissionsMixin):  # type: ignore[django-manager-missing]  # knox is untyped, its manager with it
    """A customer, or staff. Its tier is support's while that is in force, else billing's, else the default."""

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    email = models.EmailField("e-mail address", unique=True)
    name = models.CharField(max_length=120, blank=True)
    is_active = models.BooleanField("active", default=True, help_text="A disabled account is answered 403.")
    disabled_reason = models.CharField(max_length=500, blank=True)
    is_staff = models.BooleanField("staff", default=False)
    date_joined = models.DateTimeField(default=timezone.now, editable=False)

    billing_tier = models.ForeignKey(
        "entitlements.Tier", null=True, blank=True, on_delete=models.PROTECT, related_name="billed_accounts"
    )
    billing_tier_until = models.DateTimeField(null=True, blank=True)
    support_tier = models.ForeignKey(
        "entitlements.Tier", null=True, blank=True, on_delete=models.PROTECT, related_name="supported_accounts"
    )
    support_tier_until = models.DateTimeField(null=True, blank=True)
    support_tier_reason = models.CharField(max_length=500, blank=True)

    USERNAME_FIELD = "email"
    REQUIRED_FIELDS: ClassVar[list[str]] = []
    objects: ClassVar[AccountManager] = AccountManager()

    class Meta:
        ordering = ("email",)
        constraints: ClassVar = [
            models.UniqueConstraint(Lower("email"), name="account_email_any_case"),
            models.CheckConstraint(
                name="account_support_tier_has_reason",
                condition=models.Q(support_tier__isnull=True) | ~models.Q(support_tier_reason=""),
            ),
        ]

    def __str__(self) -> str:
        return self.email

    @property
    def public_id(self) -> str:
        """The id that the API shows."""
        return f"acc_{self.id.hex}"


@pghistory.track(pghistory.InsertEvent(), pghistory.DeleteEvent(), obj_field=None, append_only=True)
class GroupMembership(Account.groups.through):  # type: ignore[name-defined,misc]  # made by Django
    """Who is in which group of staff, for the audit log."""

    class Meta:
        proxy = True


class ApiToken(AbstractAuthToken):  # type: ignore[misc]  # knox is untyped
    """A bearer token: stored hashed, named, scoped, expiring, revocable."""

    id = models.UUIDField(default=new_id, unique=True, editable=False)
    name = models.CharField(max_length=80)
    scopes = ArrayField(models.CharField(max_length=10), default=list)
    last_used_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ("-created",)

    def __str__(self) -> str:
        return f"{self.name} ({self.token_key}…)"


class IdempotencyRecord(models.Model):
    """What a request with an Idempotency-Key did, so that its repeat does nothing twice (contracts.md)."""

    class State(models.TextChoices):
        """Running until the answer is known; released when nothing happened, so that a repeat may try."""

        RUNNING = "running"
        DONE = "done"

    id = models.BigAutoField(primary_key=True)
    account_id = models.UUIDField()
    operation = models.CharField(max_length=200)
    key_digest = models.BinaryField(max_length=32)
    body_digest = models.BinaryField(max_length=32)
    state = models.CharField(max_length=10, choices=State.choices, default=State.RUNNING)
    invocation_id = models.UUIDField(null=True)
    response_status = models.SmallIntegerField(null=True)
    response_body = models.BinaryField(null=True)
    created_at = models.DateTimeField(default=timezone.now)
    expires_at = models.DateTimeField(db_index=True)

    class Meta:
        constraints: ClassVar = [
            models.UniqueConstraint("account_id", "operation", "key_digest", name="one_answer_per_key"),
        ]

    def __str__(self) -> str:
        return f"{self.operation} ({self.state})"
