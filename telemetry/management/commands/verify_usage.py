"""`manage.py verify_usage`: prove what an account is charged for a month from what was signed."""

from __future__ import annotations

from argparse import ArgumentParser
from datetime import date
from typing import Any
from uuid import UUID

from django.core.management.base import BaseCommand, CommandError
from django.utils import timezone

from entitlements.models import Admission, PeriodCounter
from telemetry.actions.verify import verify_usage
from telemetry.models import UsageHour
from webhost.errors import WebhostError
from webhost.ids import Prefix, parse_id, public_id
from webhost.period import ends_at, key_of, parse_key, period_of, starts_at


class Command(BaseCommand):
    """Recompute totals from admissions and signed bytes, and check every signature again."""

    help = "Prints equal, or names each counter, admission, report, roll-up and statement that is off. Ends 1 then."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Take one account (default: all that used something) and a month (default: this one)."""
        parser.add_argument("--account", help="acc_...; default: every account with usage or hours in the period")
        parser.add_argument("--period", help="YYYY-MM, UTC; default: the current month")

    def handle(self, *_: Any, **options: Any) -> None:
        """Print the verdict."""
        try:
            period = parse_key(options["period"]) if options["period"] else period_of(timezone.now())
            one = parse_id(Prefix.ACCOUNT, options["account"]) if options["account"] else None
        except WebhostError as error:
            raise CommandError(error.message) from error
        accounts = [one] if one else _accounts_of(period)
        off = checked = 0
        for account_id in accounts:
            proof = verify_usage(account_id, period)
            name = f"{public_id(Prefix.ACCOUNT, account_id)} {key_of(period)}"
            for finding in proof.findings:
                self.stdout.write(f"{name} {finding}")
            if one:
                self.stdout.write(
                    f"{name} checked: {proof.admissions} admissions, {proof.reports} reports, {proof.hours} hours"
                )
            off += len(proof.findings)
            checked += 1
        if off:
            raise CommandError(f"{off} differences.")
        self.stdout.write("equal" if one else f"equal ({checked} accounts)")


def _accounts_of(period: date) -> list[UUID]:
    """Return every account that left a trace in a month: one whose counter was deleted has others."""
    hours = UsageHour.objects.filter(hour__gte=starts_at(period), hour__lt=ends_at(period))
    traces = [PeriodCounter.objects.filter(period=period), Admission.objects.filter(period=period), hours]
    return sorted(
        {account for rows in traces for account in rows.order_by().values_list("account_id", flat=True).distinct()}
    )
