"""Django admin of this app: what support staff work in. Saves go through actions, with a reason."""

from __future__ import annotations

from allauth.account.models import EmailAddress, EmailConfirmation
from allauth.mfa.models import Authenticator
from allauth.usersessions.models import UserSession
from django.contrib import admin
from django.contrib.auth.models import Group
from knox.models import AuthToken

from entitlements.admin.accounts import AccountAdmin
from entitlements.admin.denials import DenialAdmin, DenialFigureAdmin
from entitlements.admin.history import HistoryAdmin
from entitlements.admin.overrides import OverrideAdmin
from entitlements.admin.receipts import AdjustmentAdmin, AdmissionAdmin
from entitlements.admin.tiers import TierAdmin
from entitlements.admin.unsigned import UnsignedChangeAdmin

__all__ = [
    "AccountAdmin",
    "AdjustmentAdmin",
    "AdmissionAdmin",
    "DenialAdmin",
    "DenialFigureAdmin",
    "HistoryAdmin",
    "OverrideAdmin",
    "TierAdmin",
    "UnsignedChangeAdmin",
]

# Knox would list digests and print new tokens; tokens are made and shown once to their owner, nowhere else.
if admin.site.is_registered(AuthToken):
    admin.site.unregister(AuthToken)
# Membership of a group is not in the history yet, so nobody hands out rights here.
if admin.site.is_registered(Group):
    admin.site.unregister(Group)
# allauth's own pages would edit addresses without a reason, and secrets of second factors and sessions in the clear.
for _theirs in (EmailAddress, EmailConfirmation, Authenticator, UserSession):
    if admin.site.is_registered(_theirs):
        admin.site.unregister(_theirs)
