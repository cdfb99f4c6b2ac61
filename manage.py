#!/usr/bin/env python
"""Django's command line for this project."""

import os
import sys

from django.core.management import execute_from_command_line

from webhost.history import noted

# Signed otherwise: by each migration's name (entitlements/management/commands/migrate.py), and not at all. What
# somebody types into a shell has no reason and no author; support is told of it as of raw SQL.
_NOT_SIGNED_HERE = frozenset({"migrate", "shell", "dbshell"})

if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "webhost.settings")
    name = sys.argv[1] if len(sys.argv) > 1 else ""
    if name in _NOT_SIGNED_HERE:
        execute_from_command_line(sys.argv)
    else:
        with noted(source=f"command {name}", actor=name):
            execute_from_command_line(sys.argv)
