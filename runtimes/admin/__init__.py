"""Django admin of this app: what runs, for support to look at; sessions to stop, runtimes to switch off."""

from __future__ import annotations

from runtimes.admin import account
from runtimes.admin.agents import AgentAdmin
from runtimes.admin.deployments import DeploymentAdmin, SecretNameAdmin
from runtimes.admin.sessions import SessionAdmin
from runtimes.admin.switches import SwitchAdmin
from runtimes.admin.tools import GrantAdmin, ToolUseAdmin

__all__ = [
    "AgentAdmin",
    "DeploymentAdmin",
    "GrantAdmin",
    "SecretNameAdmin",
    "SessionAdmin",
    "SwitchAdmin",
    "ToolUseAdmin",
    "account",
]  # fmt: skip
