"""API tokens: made, listed, revoked by their owner."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from uuid import UUID

from django.db import transaction
from django.utils import timezone

from entitlements.actions.gates import lock_account
from entitlements.authentication import Caller
from entitlements.enums import Scope
from entitlements.models import Account, ApiToken
from webhost.errors import ConflictError, ForbiddenError, InvalidRequestError, NotFoundError

_PREFIX = "whs_"
_MOST_TOKENS = 100


def create_token(
    caller: Caller,
    account: Account,
    *,
    token_id: UUID,
    name: str,
    scopes: Collection[Scope],
    expires_at: datetime | None,
) -> tuple[ApiToken, str]:
    """Make a token and return it with its text, which is shown this once and kept nowhere.

    A token makes none that may do more or lives longer than itself: raises ForbiddenError.
    """
    if expires_at is not None and expires_at <= timezone.now():
        raise InvalidRequestError("A token expires in the future.", path="expiresAt")
    missing = sorted(set(scopes) - caller.scopes)
    if missing:
        raise ForbiddenError(f"This token lacks the scope `{missing[0]}`, so it cannot give it away.")
    with transaction.atomic():
        lock_account(account.pk)  # so that two at once cannot both be the last that fits
        if ApiToken.objects.filter(user=account).count() >= _MOST_TOKENS:
            raise ConflictError(f"An account has at most {_MOST_TOKENS} tokens. Revoke one that you do not need.")
        if caller.token_id is not None:
            own = ApiToken.objects.filter(id=caller.token_id).first()
            if own is None or (own.expiry is not None and (expires_at is None or expires_at > own.expiry)):
                raise ForbiddenError("A token that expires cannot make one that lives longer.")
        token, text = ApiToken.objects.create(
            account, expiry=None, prefix=_PREFIX, id=token_id, name=name, scopes=sorted(set(scopes))
        )
        if expires_at is not None:
            token.expiry = expires_at
            token.save(update_fields=["expiry"])
    return token, text


def revoke_token(account_id: UUID, token_id: UUID) -> None:
    """Revoke a token: its next call is 401. Raises NotFoundError for nobody's and somebody else's."""
    deleted, _ = ApiToken.objects.filter(user_id=account_id, id=token_id).delete()
    if not deleted:
        raise NotFoundError
