"""Accounts and tokens, tiers and overrides, the ledger."""

from entitlements.models.accounts import Account, ApiToken, GroupMembership, IdempotencyRecord
from entitlements.models.history import HistoryEntry, UnsignedChange
from entitlements.models.ledger import Adjustment, Admission, Denial, DenialFigure, Movement, PeriodCounter
from entitlements.models.notices import Notice
from entitlements.models.second_factors import SecondFactor
from entitlements.models.tiers import ENTITLEMENT_FIELDS, Override, Tier, TierPrice

__all__ = [
    "ENTITLEMENT_FIELDS",
    "Account",
    "Adjustment",
    "Admission",
    "ApiToken",
    "Denial",
    "DenialFigure",
    "GroupMembership",
    "HistoryEntry",
    "IdempotencyRecord",
    "Movement",
    "Notice",
    "Override",
    "PeriodCounter",
    "SecondFactor",
    "Tier",
    "TierPrice",
    "UnsignedChange",
]
