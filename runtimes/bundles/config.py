"""agent.config.json: what an agent says about itself. Everything it may say is here; the rest is refused."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, TypeGuard

from entitlements.enums import Capability, Runtime
from runtimes.rules import DEFAULT_LIFETIME, session_life, valid_secret_name
from webhost.errors import InvalidRequestError, Issue
from webhost.strict_json import StrictJsonError, parse_strict

CONFIG_NAME: Final = "agent.config.json"
PROTOCOL: Final = "invoke/v1"
DEFAULT_TIMEOUT: Final = 60
LONGEST_TIMEOUT: Final[Mapping[str, int]] = MappingProxyType({Runtime.CLOUDFLARE: 300, Runtime.AGENTCORE: 900})
MOST_KEYS: Final = 64
_LARGEST_CONFIG = 64 * 1024
_NAME = re.compile(r"[A-Za-z0-9_-]{3,64}")
_ENTRYPOINTS = (".ts", ".js", ".mts", ".mjs", ".py")
_DECLARATIONS = (".d.ts", ".d.mts")
# Seconds, as AgentCore's lifecycleConfiguration allows them.
_LIFECYCLE = {"idleTimeoutSeconds": (60, 28_800), "maxLifetimeSeconds": (60, 28_800)}
_TOP = frozenset({
    "name", "entrypoint", "runtime", "runtimes", "protocol", "env", "capabilities", "agentcore", "timeoutSeconds",
})  # fmt: skip


@dataclass(frozen=True)
class AgentConfig:
    """A checked agent.config.json. `capabilities` are those of AgentCore that the agent asks for."""

    name: str
    entrypoint: str
    runtimes: frozenset[str]
    protocol: str = PROTOCOL
    required_keys: tuple[str, ...] = ()
    optional_keys: tuple[str, ...] = ()
    streaming: bool = False
    tools: bool = False
    capabilities: frozenset[str] = frozenset()
    lifecycle: Mapping[str, int] = field(default_factory=dict)
    timeout_seconds: int = DEFAULT_TIMEOUT

    @property
    def is_python(self) -> bool:
        """Whether the agent is written in Python."""
        return self.entrypoint.endswith(".py")

    def as_json(self) -> dict[str, Any]:
        """Return the config with every default spelled out, in the words of the file; reads back as itself."""
        return {
            "name": self.name,
            "entrypoint": self.entrypoint,
            "runtimes": sorted(self.runtimes),
            "protocol": self.protocol,
            "env": {"requiredKeys": list(self.required_keys), "optionalKeys": list(self.optional_keys)},
            "capabilities": {"streaming": self.streaming, "tools": self.tools},
            "agentcore": {
                "capabilities": {capability.value: capability in self.capabilities for capability in Capability},
                "lifecycle": dict(self.lifecycle),
            },
            "timeoutSeconds": self.timeout_seconds,
        }


@dataclass(frozen=True)
class Lifecycle:
    """When a session ends, in seconds: after doing nothing, and at the latest."""

    idle_seconds: int
    lifetime_seconds: int


def timeout_for(config: AgentConfig, runtime: str) -> int:
    """Return how many seconds a call may take on a runtime: what the agent asks for, up to what the runtime gives."""
    return min(config.timeout_seconds, LONGEST_TIMEOUT[runtime])


def lifecycle_of(config: AgentConfig) -> Lifecycle:
    """Return when the sessions of an agent end on AgentCore, with the defaults filled in."""
    idle, lifetime = session_life(Runtime.AGENTCORE, config.lifecycle)
    return Lifecycle(idle, lifetime or DEFAULT_LIFETIME)


def parse_config(raw: bytes) -> AgentConfig:
    """Read agent.config.json; raises InvalidRequestError that lists every issue with its path."""
    if len(raw) > _LARGEST_CONFIG:
        raise InvalidRequestError(f"{CONFIG_NAME} is larger than 64 KB.", path=CONFIG_NAME)
    try:
        given = parse_strict(raw)
    except StrictJsonError as error:
        message = str(error).replace("The body", CONFIG_NAME)
        raise InvalidRequestError(message, path=CONFIG_NAME) from error
    if not isinstance(given, dict):
        raise InvalidRequestError(f"{CONFIG_NAME} must hold a JSON object.", path=CONFIG_NAME)
    reader = _Reader()
    config = reader.config(given)
    if reader.issues:
        first = reader.issues[0]
        raise InvalidRequestError(
            f"{CONFIG_NAME} is not valid: {first['path'].removeprefix(CONFIG_NAME).strip('/')}: {first['message']}",
            issues=reader.issues,
        )
    return config


class _Reader:
    """Reads a config and collects what is wrong with it, so that one upload tells all."""

    def __init__(self) -> None:
        self.issues: list[Issue] = []

    def config(self, given: dict[str, Any]) -> AgentConfig:
        self._only(given, _TOP, "")
        name = given.get("name")
        if not (isinstance(name, str) and _NAME.fullmatch(name)):
            self._wrong("name", "3 to 64 letters, digits, - and _.")
        entrypoint = given.get("entrypoint")
        if not (_is_path(entrypoint) and entrypoint.endswith(_ENTRYPOINTS) and not entrypoint.endswith(_DECLARATIONS)):
            self._wrong("entrypoint", "The name of a .ts, .js, .mts, .mjs or .py file of the bundle.")
        if given.get("protocol", PROTOCOL) != PROTOCOL:
            self._wrong("protocol", f"Must be {PROTOCOL}.")
        runtimes = self._runtimes(given)
        if str(entrypoint).endswith(".py") and runtimes - {Runtime.AGENTCORE}:
            self._wrong("entrypoint", "Python runs on agentcore only: name no other runtime.")
        timeout = self._timeout(given, runtimes)
        env = self._object(given, "env", frozenset({"requiredKeys", "optionalKeys"}))
        required, optional = self._keys(env, "requiredKeys"), self._keys(env, "optionalKeys")
        if len(set(required + optional)) < len(required) + len(optional):
            self._wrong("env", "A key is named twice.")
        features = self._object(given, "capabilities", frozenset({"streaming", "tools"}))
        agentcore = self._object(given, "agentcore", frozenset({"capabilities", "lifecycle"}))
        lent = self._object(agentcore, "capabilities", frozenset(Capability), "agentcore/")
        return AgentConfig(
            name=str(name),
            entrypoint=str(entrypoint).removeprefix("./"),
            runtimes=runtimes,
            required_keys=required,
            optional_keys=optional,
            streaming=self._flag(features, "streaming", "capabilities/"),
            tools=self._flag(features, "tools", "capabilities/"),
            capabilities=frozenset(
                capability.value
                for capability in Capability
                if self._flag(lent, capability.value, "agentcore/capabilities/")
            ),
            lifecycle=self._lifecycle(agentcore, timeout),
            timeout_seconds=timeout,
        )

    def _wrong(self, path: str, message: str) -> None:
        self.issues.append({"path": f"{CONFIG_NAME}/{path}", "message": message})

    def _only(self, given: dict[str, Any], known: frozenset[str], prefix: str) -> None:
        for key in sorted(given.keys() - known):
            self._wrong(f"{prefix}{key[:80]}", "Unknown field.")

    def _object(self, given: dict[str, Any], key: str, known: frozenset[str], prefix: str = "") -> dict[str, Any]:
        value = given.get(key, {})
        if not isinstance(value, dict):
            self._wrong(f"{prefix}{key}", "An object.")
            return {}
        self._only(value, known, f"{prefix}{key}/")
        return value

    def _flag(self, given: dict[str, Any], key: str, prefix: str) -> bool:
        value = given.get(key, False)
        if not isinstance(value, bool):
            self._wrong(f"{prefix}{key}", "true or false.")
        return value is True

    def _runtimes(self, given: dict[str, Any]) -> frozenset[str]:
        if ("runtime" in given) == ("runtimes" in given):
            self._wrong("runtime", "Name one `runtime`, or a list of `runtimes`.")
            return frozenset()
        key = "runtime" if "runtime" in given else "runtimes"
        named = [given["runtime"]] if key == "runtime" else given["runtimes"]
        known = {runtime.value for runtime in Runtime}
        if not isinstance(named, list) or not named or any(not isinstance(r, str) or r not in known for r in named):
            self._wrong(key, f"One or more of: {', '.join(sorted(known))}.")
            return frozenset()
        return frozenset(named)

    def _keys(self, env: dict[str, Any], key: str) -> tuple[str, ...]:
        value = env.get(key, [])
        if not isinstance(value, list) or not all(isinstance(name, str) and valid_secret_name(name) for name in value):
            self._wrong(f"env/{key}", "A list of names: a letter or _, then letters, digits and _, at most 64.")
            return ()
        if len(value) > MOST_KEYS:
            self._wrong(f"env/{key}", f"At most {MOST_KEYS} names.")
            return ()
        return tuple(value)

    def _timeout(self, given: dict[str, Any], runtimes: frozenset[str]) -> int:
        value = given.get("timeoutSeconds", DEFAULT_TIMEOUT)
        most = max((LONGEST_TIMEOUT[runtime] for runtime in runtimes), default=DEFAULT_TIMEOUT)
        if type(value) is not int or not 1 <= value <= most:
            self._wrong("timeoutSeconds", f"A whole number from 1 to {most}.")
            return DEFAULT_TIMEOUT
        return value

    def _lifecycle(self, agentcore: dict[str, Any], timeout: int) -> dict[str, int]:
        value = self._object(agentcore, "lifecycle", frozenset(_LIFECYCLE), "agentcore/")
        for key, (least, most) in _LIFECYCLE.items():
            if key not in value:
                continue
            if type(value[key]) is not int or not least <= value[key] <= most:
                self._wrong(f"agentcore/lifecycle/{key}", f"A whole number of seconds from {least} to {most:,}.")
                return {}
            # A session that ends before a call may would end the call.
            if value[key] < timeout:
                self._wrong(f"agentcore/lifecycle/{key}", f"At least the timeoutSeconds of a call, {timeout}.")
        kept = {key: value[key] for key in sorted(_LIFECYCLE) if key in value}
        if kept.get("idleTimeoutSeconds", 0) > kept.get("maxLifetimeSeconds", DEFAULT_LIFETIME):
            self._wrong("agentcore/lifecycle/idleTimeoutSeconds", "At most maxLifetimeSeconds.")
        return kept


def _is_path(value: Any) -> TypeGuard[str]:
    return isinstance(value, str) and 1 <= len(value) <= 200
