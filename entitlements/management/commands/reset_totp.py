"""`manage.py reset_totp`: for the last superuser who lost a phone."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from entitlements.actions.authorship import ChangeSource
from entitlements.actions.second_factors import reset_second_factor
from entitlements.models import Account
from webhost.errors import WebhostError


class Command(BaseCommand):
    """Remove the second factor of an account, with a reason that goes into the audit log."""

    help = "Removes an account's authenticator app and recovery codes; a mail tells its owner."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Take whose, and why."""
        parser.add_argument("email")
        parser.add_argument("--reason", required=True)

    def handle(self, *_: Any, **options: Any) -> None:
        """Say what was done."""
        account = Account.objects.filter(email=options["email"].strip().lower()).first()
        if account is None:
            raise CommandError("There is no account with this address.")
        try:
            reset_second_factor(account.pk, actor="reset_totp", reason=options["reason"], source=ChangeSource.COMMAND)
        except WebhostError as error:
            raise CommandError(error.message) from error
        self.stdout.write(f"The second factor of {account.email} is reset.")
