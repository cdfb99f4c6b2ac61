"""The providers, by runtime. A new one is a module here and an entry in this dict."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from entitlements.enums import Runtime
from runtimes.providers.agentcore import AgentCoreProvider
from runtimes.providers.base import Provider
from runtimes.providers.cloudflare import CloudflareProvider

PROVIDERS: Final[Mapping[str, Provider]] = {
    Runtime.CLOUDFLARE: CloudflareProvider(),
    Runtime.AGENTCORE: AgentCoreProvider(),
}
