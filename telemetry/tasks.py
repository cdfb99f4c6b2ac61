"""Periodic and woken work of telemetry. Each calls one action and is safe to run twice, also at once."""

from __future__ import annotations

from celery import shared_task
from django.utils import timezone

from telemetry.actions import alert_targets, closing, process, retention
from telemetry.actions import daily_cost as costs
from telemetry.actions import deliver_alerts as delivering
from telemetry.actions import roll_up as rolling
from telemetry.actions import watch_budgets as watching


@shared_task(name="telemetry.process_reports")
def process_reports() -> int:
    """Judge what is pending and fold it into the ledger; return how many reports were concluded."""
    return process.process_reports()


@shared_task(name="telemetry.roll_up")
def roll_up() -> int:
    """Take what the ledger journalled into the hours; return how many lines were taken."""
    return rolling.roll_up()


@shared_task(name="telemetry.apply_retention")
def apply_retention() -> int:
    """Delete what is past its account's retention; return how many rows went or were emptied."""
    return retention.apply_retention()


@shared_task(name="telemetry.close_periods")
def close_periods() -> int:
    """Sign the totals of periods that are over, and restate what was corrected since; return how many."""
    return closing.close_periods()


@shared_task(name="telemetry.daily_cost")
def daily_cost() -> int:
    """Estimate what each runtime costs today and did yesterday; return how many alarms were raised."""
    return costs.estimate_daily_cost(timezone.now())


@shared_task(name="telemetry.watch_budgets")
def watch_budgets() -> int:
    """Look at the budgets of accounts that changed; return how many thresholds fired or recovered."""
    return watching.watch_budgets()


@shared_task(name="telemetry.watch_all_budgets")
def watch_all_budgets() -> int:
    """Look at everybody's budgets: what the quick look missed; return how many thresholds fired or recovered."""
    return watching.watch_all_budgets()


@shared_task(name="telemetry.deliver_alerts")
def deliver_alerts() -> int:
    """Send the alerts that are due; return how many were taken."""
    return delivering.deliver_alerts()


@shared_task(name="telemetry.ask_addresses")
def ask_addresses() -> int:
    """Ask addresses that were named whether they want alerts; return how many were asked."""
    return alert_targets.ask_addresses()
