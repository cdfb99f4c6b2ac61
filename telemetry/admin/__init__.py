"""Django admin of this app: prices are edited with a reason; reports, costs, statements and alerts are read."""

from telemetry.admin import account
from telemetry.admin.alerts import AlertDeliveryAdmin, AlertEventAdmin
from telemetry.admin.reports import ReportAdmin
from telemetry.admin.usage import DailyCostAdmin, RateCardAdmin, UsageStatementAdmin

__all__ = [
    "AlertDeliveryAdmin",
    "AlertEventAdmin",
    "DailyCostAdmin",
    "RateCardAdmin",
    "ReportAdmin",
    "UsageStatementAdmin",
    "account",
]
