"""`manage.py reconcile_billing`: the nightly comparison with Stripe, now, with its report."""

from __future__ import annotations

import json
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand

from billing.actions.reconcile import reconcile
from billing.models import Reconciliation


class Command(BaseCommand):
    """Converge every customer to what Stripe says, and say what had drifted."""

    help = "Compares every customer with Stripe, mends what drifted, and prints the report."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Let programs read it, too."""
        parser.add_argument("--json", action="store_true", help="one line of JSON")

    def handle(self, *_: Any, **options: Any) -> None:
        """Print the report."""
        report = reconcile()
        if options["json"]:
            names = ("customers", "drifted", "unread", "strangers")
            self.stdout.write(json.dumps({name: getattr(report, name) for name in names}))
            return
        for line in report_lines(report):
            self.stdout.write(line)


def report_lines(report: Reconciliation) -> list[str]:
    """Return the report as lines for people; the last one is the verdict."""
    lines = [f"{d['account']} ({d['customer']}): {d['before']} → {d['after']}" for d in report.drifted]
    lines += [f"{u['customer']} could not be read: {u['why']}" for u in report.unread]
    lines += [f"{s['subscription']} belongs to {s['customer']}, whom we do not know" for s in report.strangers]
    verdict = "as Stripe says" if not lines else f"{len(report.drifted)} had drifted and are mended"
    return [*lines, f"{report.customers} customers compared: {verdict}."]
