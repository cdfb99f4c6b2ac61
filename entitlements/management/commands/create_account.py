"""`manage.py create_account`: make an account on the spot, for operators and for a laptop."""

from __future__ import annotations

import json
import secrets
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.db import transaction

from entitlements.actions.addresses import vouch_for_address
from entitlements.enums import Scope
from entitlements.models import Account, ApiToken
from webhost.history import noted
from webhost.ids import Prefix, public_id


class Command(BaseCommand):
    """Create an account, or find it again; print its id, password and a token as one line of JSON."""

    help = "Creates an account (the default tier) and prints id, e-mail, password and token once, as JSON."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Take the address, and what else it should have."""
        parser.add_argument("email")
        parser.add_argument("--password", help="default: made on the spot")
        parser.add_argument("--staff", action="store_true", help="may sign in to the admin and do everything there")
        parser.add_argument("--token", metavar="NAME", help="also make an API token with all scopes")

    def handle(self, *_: Any, **options: Any) -> None:
        """Print the account as JSON."""
        context = {"actor": "create_account", "reason": "An operator's command", "source": "command create_account"}
        with noted(**context), transaction.atomic():
            self.stdout.write(json.dumps(self._account(options)))

    @staticmethod
    def _account(options: dict[str, Any]) -> dict[str, str]:
        email = options["email"].strip().lower()
        password = options["password"] or secrets.token_urlsafe(12)
        account = Account.objects.filter(email=email).first()
        if account is not None and account.is_staff != options["staff"]:
            raise CommandError("There is an account with this address, with other rights.")
        if account is None:
            account = Account.objects.create_user(
                email, password, is_staff=options["staff"], is_superuser=options["staff"]
            )
            vouch_for_address(account)
        else:
            account.set_password(password)
            account.save(update_fields=["password"])
        made = {"id": public_id(Prefix.ACCOUNT, account.id), "email": email, "password": password}
        if options["token"]:
            _, made["token"] = ApiToken.objects.create(
                account, expiry=None, prefix="whs_", name=options["token"], scopes=[s.value for s in Scope]
            )
        return made
