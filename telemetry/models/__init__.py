"""Signed reports, hours, prices and statements; who is told about budgets, and what was told."""

from telemetry.models.alerts import AlertDelivery, AlertDue, AlertEvent, AlertKind, AlertTarget, DeliveryStatus
from telemetry.models.usage import DailyCost, Delivery, RateCard, Report, ReportStatus, UsageHour, UsageStatement

__all__ = [
    "AlertDelivery",
    "AlertDue",
    "AlertEvent",
    "AlertKind",
    "AlertTarget",
    "DailyCost",
    "Delivery",
    "DeliveryStatus",
    "RateCard",
    "Report",
    "ReportStatus",
    "UsageHour",
    "UsageStatement",
]
