"""The words of this app: measures, limits, capabilities, outcomes. Imports no Django."""

from __future__ import annotations

from enum import StrEnum


class Runtime(StrEnum):
    """Where an agent runs."""

    CLOUDFLARE = "cloudflare"
    AGENTCORE = "agentcore"


class Capability(StrEnum):
    """What AgentCore may lend to a deployment, under the names of the public API."""

    MEMORY = "memory"
    CODE_INTERPRETER = "codeInterpreter"
    BROWSER = "browser"


class LimitType(StrEnum):
    """What a refusal may name, in the order in which the first one is chosen (contracts.md)."""

    REQUESTS = "requests"
    TOKENS = "tokens"
    COMPUTE_MS = "computeMs"
    TOOL_CALLS = "toolCalls"
    CODE_EXECUTION_SECONDS = "codeExecutionSeconds"
    BROWSER_SESSIONS = "browserSessions"
    CONCURRENCY = "concurrency"
    REQUESTS_PER_MINUTE = "requestsPerMinute"
    AGENTS = "agents"
    DEPLOYMENTS = "deployments"
    RUNTIME_GATED = "runtimeGated"
    MEMORY_ENABLED = "memoryEnabled"
    CODE_INTERPRETER_ENABLED = "codeInterpreterEnabled"
    BROWSER_ENABLED = "browserEnabled"


class Outcome(StrEnum):
    """How an admitted invocation ended."""

    OPEN = "open"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    VOIDED = "voided"
    EXPIRED = "expired"


class Source(StrEnum):
    """Who made an admission: the gateway, or a signed report about an invocation we never saw."""

    GATEWAY = "gateway"
    REPORT = "report"


class Scope(StrEnum):
    """What an API token may be used for."""

    INVOKE = "invoke"
    DEPLOY = "deploy"
    READ = "read"


class TierSource(StrEnum):
    """Whose word an account's tier is."""

    SUPPORT = "support"
    BILLING = "billing"
    DEFAULT = "default"


class Interval(StrEnum):
    """How often a price is paid."""

    MONTH = "month"
    YEAR = "year"
