"""What `manage.py check --deploy` says about signing in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.conf import settings
from django.core.checks import CheckMessage, Tags, Warning, register  # noqa: A004 - Django's name


@register(Tags.security, deploy=True)
def staff_prove_a_second_factor(app_configs: Sequence[Any] | None, **_: Any) -> list[CheckMessage]:
    """Warn of a production where a password alone opens the admin."""
    del app_configs
    if settings.STAFF_TOTP:
        return []
    return [
        Warning(
            "STAFF_TOTP is off: a password alone opens the admin.",
            hint="Leave STAFF_TOTP out of the environment; it is on wherever ENVIRONMENT is production.",
            id="entitlements.W001",
        )
    ]
