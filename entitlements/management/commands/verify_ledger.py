"""`manage.py verify_ledger`: prove that every counter equals its admissions."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from entitlements import ledger
from webhost.ids import Prefix, parse_id, public_id
from webhost.period import key_of


class Command(BaseCommand):
    """Compare all counters with the sum of their admissions and adjustments, in one snapshot."""

    help = "Prints equal, or each counter that differs, column by column. Ends 1 when one does."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Take one account, or all."""
        parser.add_argument("--account", help="acc_...; default: all accounts")

    def handle(self, *_: Any, **options: Any) -> None:
        """Print the verdict."""
        account = parse_id(Prefix.ACCOUNT, options["account"]) if options["account"] else None
        differences = ledger.verify(account_id=account)
        for d in differences:
            self.stdout.write(f"counter {public_id(Prefix.ACCOUNT, d.account_id)} {key_of(d.period)} differs:")
            for column in _COLUMNS:
                counter = (d.counter or {}).get(column)
                adjusted = (d.adjustments or {}).get(column.removeprefix("used_"), 0) if column[0] == "u" else 0
                admissions = ((d.admissions or {}).get(column) or 0) + (adjusted or 0)
                if counter != admissions:
                    shown = "no row" if counter is None else counter
                    self.stdout.write(f"  {column}: counter {shown}, admissions and adjustments {admissions}")
        if differences:
            raise CommandError(f"{len(differences)} counters differ.")
        self.stdout.write("equal")


_MEASURES = ("tokens", "compute_ms", "tool_calls", "code_ms", "browser_sessions")
_COLUMNS = ("used_requests", *[f"used_{m}" for m in _MEASURES], *[f"held_{m}" for m in _MEASURES], "in_flight")
