"""What operators do to a runtime for everybody: switch it off and on, and set the alarm on its daily cost."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from entitlements.actions.authorship import changed_fields, fingerprint, problems_as_issues, written_by
from runtimes.models import RuntimeSwitch
from webhost.errors import ConflictError, NotFoundError

FIELDS: Final = ("deploys", "invocations", "message", "daily_cost_alarm")


def switch_fingerprint(switch: RuntimeSwitch) -> str:
    """Return a digest of what can be edited."""
    return fingerprint(switch, FIELDS)


def create_switch(runtime: str, values: Mapping[str, Any], *, actor: str, reason: str) -> RuntimeSwitch:
    """Give a runtime its switch; without one it is on. Raises InvalidRequestError where it has one."""
    with written_by(actor, reason):
        switch = RuntimeSwitch(runtime=runtime, **values)
        with problems_as_issues():
            switch.full_clean()
        switch.save(force_insert=True)
    return switch


def change_switch(runtime: str, values: Mapping[str, Any], *, actor: str, reason: str, expected: str) -> RuntimeSwitch:
    """Change a switch that nobody else changed meanwhile (`expected` is the fingerprint that its author saw)."""
    with written_by(actor, reason):
        switch = RuntimeSwitch.objects.select_for_update().filter(pk=runtime).first()
        if switch is None:
            raise NotFoundError
        if switch_fingerprint(switch) != expected:
            raise ConflictError("This switch was changed by somebody else meanwhile. Nothing was saved; look again.")
        changed = changed_fields(switch, dict(values))
        if changed:
            with problems_as_issues():
                switch.full_clean()
            switch.save(update_fields=changed)
    return switch
