"""Accounts and tokens, tiers and overrides, the ledger."""

from entitlements.models.accounts import Account, ApiToken, GroupMembership, IdempotencyRecord
from entitlements.models.ledger import Adjustment, Admission, Denial, Movement, PeriodCounter
from entitlements.models.second_factors import Notice, SecondFactor
from entitlements.models.tiers import ENTITLEMENT_FIELDS, Override, Tier, TierPrice

__all__ = [
    "ENTITLEMENT_FIELDS",
    "Account",
    "Adjustment",
    "Admission",
    "ApiToken",
    "Denial",
    "GroupMembership",
    "IdempotencyRecord",
    "Movement",
    "Notice",
    "Override",
    "PeriodCounter",
    "SecondFactor",
    "Tier",
    "TierPrice",
]
