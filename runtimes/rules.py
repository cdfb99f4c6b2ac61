"""invoke/v1 and the life of deployments: pure decisions. Imports no Django."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from entitlements import rules as limits
from entitlements.enums import Capability, LimitType, Runtime
from webhost.errors import InvalidRequestError, Issue

ROLES: Final = frozenset({"system", "user", "assistant", "tool"})
MOST_MESSAGES: Final = 200
LONGEST_TEXT: Final = 200_000
LONGEST_SESSION_ID: Final = 256
_TOP = frozenset({"input", "sessionId", "options", "metadata"})
_OPTIONS = frozenset({"maxSteps", "maxTokens", "temperature", "tools"})
_SECRET_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
_SESSION_ID = re.compile(r"[^\x00-\x1f\x7f]+")


@dataclass(frozen=True)
class InvokeRequest:
    """A request as invoke/v1 allows it; `prompt` has become one user message."""

    messages: tuple[Mapping[str, str], ...]
    session_id: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    client: Mapping[str, Any] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """Everything that goes in as text, for the estimate of tokens."""
        return "\n".join(m["content"] for m in self.messages)


def parse_invoke(body: Any) -> InvokeRequest:
    """Read an invoke/v1 request; raises InvalidRequestError that lists every issue with its path."""
    issues: list[Issue] = []
    if not isinstance(body, dict):
        raise InvalidRequestError("The body must be a JSON object.", path="")
    issues += [{"path": key, "message": "Unknown field."} for key in sorted(body.keys() - _TOP)]
    messages = _messages(body.get("input"), issues)
    session_id = body.get("sessionId")
    if session_id is not None and not (
        isinstance(session_id, str) and 1 <= len(session_id) <= LONGEST_SESSION_ID and _SESSION_ID.fullmatch(session_id)
    ):
        issues.append({"path": "sessionId", "message": "1 to 256 printable characters."})
    options = _options(body.get("options"), issues)
    metadata = body.get("metadata")
    if metadata is not None and not isinstance(metadata, dict):
        issues.append({"path": "metadata", "message": "An object."})
        metadata = None
    client = (metadata or {}).get("client") or {}
    if not isinstance(client, dict) or len(json.dumps(client)) > 4096:
        issues.append({"path": "metadata.client", "message": "An object of at most 4,096 bytes."})
    if issues:
        raise InvalidRequestError("The request is not valid invoke/v1.", issues=issues)
    return InvokeRequest(tuple(messages), session_id, options, client)


def _messages(given: Any, issues: list[Issue]) -> list[Mapping[str, str]]:
    if not isinstance(given, dict) or ("prompt" in given) == ("messages" in given):
        issues.append({"path": "input", "message": "An object with either `prompt` or `messages`."})
        return []
    if "prompt" in given:
        prompt = given["prompt"]
        if not isinstance(prompt, str) or not 1 <= len(prompt) <= LONGEST_TEXT:
            issues.append({"path": "input.prompt", "message": f"Text of 1 to {LONGEST_TEXT:,} characters."})
            return []
        return [{"role": "user", "content": prompt}]
    messages = given["messages"]
    if not isinstance(messages, list) or not 1 <= len(messages) <= MOST_MESSAGES:
        issues.append({"path": "input.messages", "message": f"A list of 1 to {MOST_MESSAGES} messages."})
        return []
    found: list[Mapping[str, str]] = []
    for n, message in enumerate(messages):
        path = f"input.messages[{n}]"
        if not isinstance(message, dict):
            issues.append({"path": path, "message": "An object with `role` and `content`."})
            continue
        role, content = message.get("role"), message.get("content")
        if role not in ROLES:
            issues.append({"path": f"{path}.role", "message": "One of system, user, assistant, tool."})
        if not isinstance(content, str) or len(content) > LONGEST_TEXT:
            issues.append({"path": f"{path}.content", "message": f"Text of at most {LONGEST_TEXT:,} characters."})
        found.append({"role": str(role), "content": content if isinstance(content, str) else ""})
    return found


def _options(given: Any, issues: list[Issue]) -> dict[str, Any]:
    if given is None:
        return {}
    if not isinstance(given, dict):
        issues.append({"path": "options", "message": "An object."})
        return {}
    issues += [{"path": f"options.{key}", "message": "Unknown option."} for key in sorted(given.keys() - _OPTIONS)]
    for name, most in (("maxSteps", 1000), ("maxTokens", 10_000_000)):
        value = given.get(name)
        if value is not None and (type(value) is not int or not 1 <= value <= most):
            issues.append({"path": f"options.{name}", "message": f"A whole number from 1 to {most:,}."})
    temperature = given.get("temperature")
    if temperature is not None and (type(temperature) not in (int, float) or not 0 <= temperature <= 2):
        issues.append({"path": "options.temperature", "message": "A number from 0 to 2."})
    if given.get("tools") not in (None, "auto", "off"):
        issues.append({"path": "options.tools", "message": "`auto` or `off`."})
    return dict(given)


def runtime_body(
    request: InvokeRequest,
    *,
    session_id: str,
    trace_id: str,
    capabilities: frozenset[str],
    remaining: Mapping[str, Any],
) -> bytes:
    """Return the JSON that the runtime receives: the request, what is allowed now, and what is left."""
    return json.dumps(
        {
            "input": {"messages": list(request.messages)},
            "sessionId": session_id,
            "options": request.options,
            "metadata": {"traceId": trace_id, "client": request.client},
            "capabilities": {
                "memory": "memory" in capabilities,
                "codeInterpreter": "codeInterpreter" in capabilities,
                "browser": "browser" in capabilities,
            },
            "limits": {"remaining": remaining},
        },
        ensure_ascii=False,
        separators=(",", ":"),
    ).encode()


@dataclass(frozen=True)
class Need:
    """What one invocation is estimated to need, or did use. Code execution in milliseconds."""

    tokens: int = 0
    compute_ms: int = 0
    tool_calls: int = 0
    code_ms: int = 0
    browser_sessions: int = 0


# Fewer calls than this say nothing about the next one.
_ENOUGH_CALLS: Final = 5
# What an answer takes where neither its caller nor its history says.
_USUAL_ANSWER_TOKENS: Final = 1_000
_USUAL_TOOL_CALLS: Final = 10
_USUAL_CODE_MS: Final = 60_000


def estimate_of(
    request: InvokeRequest, *, timeout_seconds: int, tools: Collection[LimitType], calls: int, recent: Need
) -> Need:
    """Return what to set aside for a call before it starts: an estimate, so a call may use more.

    `recent` is a high percentile of what the deployment's last `calls` calls used. What the request bounds
    itself (maxTokens, maxSteps) goes before history, history before what is usual; and nothing is above what
    one call can spend before its timeout. `tools` are the quotas that speak for this call.
    """
    known = calls >= _ENOUGH_CALLS
    at_most_ms = timeout_seconds * 1000
    prompt = estimate_tokens(request.text)
    if (bound := request.options.get("maxTokens")) is not None:
        tokens = prompt + int(bound)
    else:
        tokens = max(recent.tokens, prompt) if known else prompt + _USUAL_ANSWER_TOKENS
    steps = request.options.get("maxSteps")
    tool_calls = max(recent.tool_calls, 1) if known else _USUAL_TOOL_CALLS
    return Need(
        tokens=max(tokens, 1),
        compute_ms=min(max(recent.compute_ms, 1), at_most_ms) if known else at_most_ms,
        tool_calls=(min(tool_calls, int(steps)) if steps else tool_calls) if LimitType.TOOL_CALLS in tools else 0,
        code_ms=min(max(recent.code_ms, 1) if known else _USUAL_CODE_MS, at_most_ms)
        if LimitType.CODE_EXECUTION_SECONDS in tools
        else 0,
        browser_sessions=(max(recent.browser_sessions, 1) if known else 1)
        if LimitType.BROWSER_SESSIONS in tools
        else 0,
    )


TOOLS: Final = frozenset({Capability.CODE_INTERPRETER.value, Capability.BROWSER.value})
_GRANTABLE: Final = frozenset({
    LimitType.MEMORY_ENABLED.value, LimitType.CODE_INTERPRETER_ENABLED.value, LimitType.BROWSER_ENABLED.value,
})  # fmt: skip


def tools_off(request: InvokeRequest) -> bool:
    """Say whether the caller wants no tools used."""
    return request.options.get("tools") == "off"


def allowed_now(granted: frozenset[str], request: InvokeRequest) -> frozenset[str]:
    """Return the capabilities that a call may use: what is granted, without tools where the caller says so."""
    return granted - TOOLS if tools_off(request) else granted


def quotas_of(capabilities: Collection[str]) -> frozenset[LimitType]:
    """Return the quotas that speak where these capabilities may be used."""
    limit_of_key = {key: limit for limit, key in limits.KEY_OF_LIMIT.items()}
    return frozenset(
        limit_of_key[quota]
        for capability, flag in limits.FLAG_OF_CAPABILITY.items()
        if capability in capabilities
        for quota in limits.QUOTAS_OF_FLAG.get(flag, ())
    )


def only_waits_for_withdrawal(exceeded: Collection[str]) -> bool:
    """Say whether all that refuses is a capability the tier no longer has: it is taken away, then the call passes."""
    return bool(exceeded) and _GRANTABLE.issuperset(exceeded)


# Where a session lives and how long, by runtime: AgentCore's own defaults, and 30 days in a Durable Object.
DEFAULT_IDLE: Final = 900
DEFAULT_LIFETIME: Final = 28_800
_CLOUDFLARE_IDLE: Final = 30 * 24 * 3600


def session_life(runtime: str, lifecycle: Mapping[str, Any]) -> tuple[int, int | None]:
    """Return after how many idle seconds a session ends, and how many after its start at the latest (None: never)."""
    if runtime != Runtime.AGENTCORE:
        return _CLOUDFLARE_IDLE, None
    lifetime = int(lifecycle.get("maxLifetimeSeconds", DEFAULT_LIFETIME))
    return int(lifecycle.get("idleTimeoutSeconds", min(DEFAULT_IDLE, lifetime))), lifetime


def tool_evidence(kind: str, remote_id: str, deployment_id: UUID, invocation_id: UUID, code_ms: int) -> str:
    """Return what the control plane signs of a tool session that it saw, in one line."""
    return f"tool/v1|{kind}|{remote_id}|{deployment_id.hex}|{invocation_id.hex}|{code_ms}"


def code_ms_of(kind: str, started_at: datetime, ended_at: datetime | None, now: datetime) -> int:
    """Return how long a session of the code interpreter ran, or runs, in milliseconds; a browser executes none."""
    if kind != Capability.CODE_INTERPRETER:
        return 0
    return max(round(((ended_at or now) - started_at).total_seconds() * 1000), 0)


def estimate_tokens(*texts: str) -> int:
    """Count tokens where nobody reports any: a quarter of the UTF-8 bytes in and out, rounded up.

    Deterministic, and the same rule as the platform Worker's (shims/platform.mjs), so that both observers
    arrive at the same figure.
    """
    return -(-sum(len(text.encode("utf-8", "surrogatepass")) for text in texts) // 4)


def remaining_after(row: Mapping[str, Any]) -> dict[str, int | None]:
    """Return what is left of each budget just after an admission; None is unlimited."""

    def left(measure: str) -> int | None:
        limit = row[f"limit_{measure}"]
        return None if limit is None else max(int(limit) - int(row[f"then_{measure}"]), 0)

    return {
        LimitType.REQUESTS.value: left("requests"),
        LimitType.TOKENS.value: left("tokens"),
        LimitType.COMPUTE_MS.value: left("compute_ms"),
    }


def rate_limit_headers(
    row: Mapping[str, Any], remaining: Mapping[str, int | None], seconds_left: int
) -> dict[str, str]:
    """Return the RateLimit and RateLimit-Policy fields (IETF draft-ietf-httpapi-ratelimit-headers)."""
    limits = {
        LimitType.REQUESTS.value: row["limit_requests"],
        LimitType.TOKENS.value: row["limit_tokens"],
        LimitType.COMPUTE_MS.value: row["limit_compute_ms"],
    }
    policy = [f'"{name}";q={limit}' for name, limit in limits.items() if limit is not None]
    left = [f'"{name}";r={value};t={seconds_left}' for name, value in remaining.items() if value is not None]
    return {"RateLimit-Policy": ", ".join(policy), "RateLimit": ", ".join(left)} if policy else {}


def valid_secret_name(name: str) -> bool:
    """Say whether a secret may be called that: a letter or _, then letters, digits and _, at most 64."""
    return _SECRET_NAME.fullmatch(name) is not None
