"""Who calls: a program with a token, or a person with a session. And what a token may be used for."""

from __future__ import annotations

import atexit
import logging
import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from uuid import UUID

from django.utils.functional import SimpleLazyObject
from knox.crypto import hash_token
from rest_framework.authentication import BaseAuthentication, SessionAuthentication
from rest_framework.permissions import BasePermission
from rest_framework.request import Request

from entitlements.enums import Scope
from entitlements.models import Account
from webhost import db
from webhost.errors import ForbiddenError, NotFoundError, UnauthenticatedError, UnavailableError

if TYPE_CHECKING:  # DRF's views import this module while they are being loaded themselves
    from rest_framework.views import APIView

logger = logging.getLogger(__name__)

_TOKEN: Final = re.compile(r"whs_[0-9a-f]{64}")
_ALL_SCOPES: Final = frozenset(Scope)
_SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})

# By the digest, which is the primary key: one row by one index. The database's clock judges expiry.
_FIND: Final = """
SELECT t.id, t.user_id, t.scopes, a.is_active
  FROM entitlements_apitoken t
  JOIN entitlements_account a ON a.id = t.user_id
 WHERE t.digest = %(digest)s AND (t.expiry IS NULL OR t.expiry > now())
"""
_NAMED: Final = "SELECT is_active FROM entitlements_account WHERE id = %(account)s"
_DISABLED: Final = "This account is disabled. Please contact support."


@dataclass(frozen=True, slots=True)
class Caller:
    """Who calls, and what they may do: all that the hot path needs to know. `token_id` is None for a session.

    `delegated_by` names the trusted backend that calls on the account's behalf, if one does.
    """

    account_id: UUID
    token_id: UUID | None
    scopes: frozenset[Scope]
    is_session: bool = False
    delegated_by: str = ""


def caller_of(request: Request) -> Caller:
    """Return who calls; raises UnauthenticatedError where nobody is known."""
    if isinstance(request.auth, Caller):
        return request.auth
    raise UnauthenticatedError


def account_of(request: Request) -> Account:
    """Return the caller's account, which costs a query the first time it is looked at."""
    caller_of(request)
    account: Account = request.user  # type: ignore[assignment]  # lazily loaded
    return account


def _load(account_id: UUID) -> Callable[[], Account]:
    return lambda: Account.objects.get(pk=account_id)


def _lazily(account_id: UUID) -> Account:
    return SimpleLazyObject(_load(account_id))  # type: ignore[return-value]  # stands for an Account


def account_named(account_id: UUID) -> Account:
    """Return the account that a trusted caller names, lazily loaded.

    Raises NotFoundError where there is none, ForbiddenError for a disabled one.
    """
    rows = db.run(_NAMED, {"account": account_id})
    if not rows:
        raise NotFoundError
    if not rows[0]["is_active"]:
        raise ForbiddenError(_DISABLED)
    return _lazily(account_id)


class BearerAuthentication(BaseAuthentication):
    """Knows a caller by `Authorization: Bearer whs_...`: knox's tokens, looked up in one indexed query."""

    def authenticate(self, request: Request) -> tuple[Account, Caller] | None:
        """Return account (lazily loaded) and caller; None without the header.

        Raises UnauthenticatedError for anything that is not a live token, ForbiddenError for a disabled account.
        """
        header = request.META.get("HTTP_AUTHORIZATION")
        if header is None:
            return None
        scheme, _, token = header.strip().partition(" ")
        token = token.strip()
        if scheme.lower() != "bearer" or not _TOKEN.fullmatch(token):
            raise UnauthenticatedError
        rows = db.run(_FIND, {"digest": hash_token(token)})
        if not rows:
            raise UnauthenticatedError("This API token is unknown, revoked or expired.")
        row = rows[0]
        if not row["is_active"]:
            raise ForbiddenError(_DISABLED)
        note_use(row["id"])
        caller = Caller(row["user_id"], row["id"], frozenset(map(Scope, row["scopes"])))
        return _lazily(caller.account_id), caller

    def authenticate_header(self, request: Request) -> str:  # noqa: ARG002 - DRF's signature
        """Return what a 401 asks for."""
        return "Bearer"


class PageSessionAuthentication(SessionAuthentication):
    """Knows a person by the session of the pages; every change needs the CSRF token."""

    def authenticate(self, request: Request) -> tuple[Account, Caller] | None:
        """Return account and caller for a signed-in person; None for anybody else."""
        user = getattr(request._request, "user", None)  # noqa: SLF001 - set by Django's own middleware
        if user is None or not user.is_authenticated:
            return None
        if not user.is_active:
            raise ForbiddenError(_DISABLED)
        self.enforce_csrf(request)
        return user, Caller(user.pk, None, _ALL_SCOPES, is_session=True)


class HasScope(BasePermission):
    """Lets a caller pass whose token has the view's `required_scope`.

    Where a view names none, reading needs `read` and changing needs `deploy`.
    """

    def has_permission(self, request: Request, view: APIView) -> bool:
        """Say whether the caller may; raises ForbiddenError naming the scope that is missing."""
        caller = request.auth
        if not isinstance(caller, Caller):
            return False
        needed = getattr(view, "required_scope", None) or (
            Scope.READ if request.method in _SAFE_METHODS else Scope.DEPLOY
        )
        if needed not in caller.scopes:
            raise ForbiddenError(
                f"This token lacks the scope `{needed.value}`.", details={"missingScope": needed.value}
            )
        return True


# --- Last use -------------------------------------------------------------------------------------

# Written at most once a minute per process, all tokens in one statement, so that a busy token costs nothing.
_FLUSH_EVERY: Final = 60.0
_FLUSH: Final = """
UPDATE entitlements_apitoken t SET last_used_at = greatest(t.last_used_at, u.at)
  FROM (SELECT * FROM unnest(%(ids)s::uuid[], %(seconds)s::float8[]) AS x(id, seconds)) s
 CROSS JOIN LATERAL (SELECT to_timestamp(s.seconds) AS at) u
 WHERE t.id = s.id
RETURNING t.id
"""
_uses: dict[UUID, float] = {}
_uses_lock = threading.Lock()
_flush_at = 0.0


def note_use(token_id: UUID) -> None:
    """Remember that a token was used; writes what is remembered when a minute is over."""
    global _flush_at  # noqa: PLW0603 - one clock per process
    _uses[token_id] = time.time()
    if time.monotonic() < _flush_at:
        return
    with _uses_lock:
        if time.monotonic() < _flush_at:
            return
        _flush_at = time.monotonic() + _FLUSH_EVERY
    flush_uses()


def flush_uses() -> None:
    """Write the last uses that this process remembers. Never fails a request."""
    with _uses_lock:
        taken = {token_id: _uses.pop(token_id) for token_id in list(_uses)}
    if not taken:
        return
    try:
        db.run(_FLUSH, {"ids": list(taken), "seconds": list(taken.values())})
    except UnavailableError:
        logger.warning("The last use of %d tokens could not be written: the database is away.", len(taken))


atexit.register(flush_uses)
