"""django-allauth's list of sessions, as we use it: its table, without its signals."""

from __future__ import annotations

from allauth.usersessions.apps import UserSessionsConfig


class BrowserSessionsConfig(UserSessionsConfig):  # type: ignore[misc]  # untyped library
    """Which browser sessions an account has."""

    def ready(self) -> None:
        """Connect nothing: its receiver reads every session of an account, one by one, whenever somebody signs in.

        What is noted instead, and when, is in entitlements/sign_in/sessions.py.
        """
