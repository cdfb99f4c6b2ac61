"""What workerd is told to run, in its own configuration language (Cap'n Proto text)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

REPOSITORY = Path(__file__).resolve().parents[3]
SHIMS = REPOSITORY / "runtimes" / "shims"
HERE = Path(__file__).parent
COMPATIBILITY_DATE = "2026-11-01"
# A secret's value travels in the environment of the process, so that no file holds it twice.
SECRET_VARIABLE = "SECRET_{}"

_KINDS = {
    "application/javascript+module": "esModule",
    "application/json": "json",
    "text/plain": "text",
    "application/octet-stream": "data",
    "application/wasm": "wasm",
}
MODULE_TYPES = frozenset(_KINDS)


@dataclass(frozen=True)
class Part:
    """One module of a script, as it was uploaded."""

    name: str
    content_type: str
    path: Path


@dataclass(frozen=True)
class Source:
    """A script with all that runs with it: its modules, in order, and its bindings."""

    name: str
    modules: tuple[Part, ...]
    bindings: tuple[Mapping[str, Any], ...]
    compatibility_date: str = COMPATIBILITY_DATE
    compatibility_flags: tuple[str, ...] = ()


def text(value: str) -> str:
    """Quote a text for Cap'n Proto: as in JSON, but control characters as bytes in hex."""
    quoted = value.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + "".join(c if c.isprintable() else "".join(f"\\x{b:02x}" for b in c.encode()) for c in quoted) + '"'


def _embed(path: Path) -> str:
    return f"embed {text(str(path.resolve()))}"


def _module(name: str, path: Path, kind: str = "esModule") -> str:
    return f"(name = {text(name)}, {kind} = {_embed(path)})"


def _shim_modules(first: Path) -> str:
    shared = sorted((SHIMS / "platform").glob("*.mjs"))
    names = [_module(first.name, first)]
    names += [_module("platform.mjs", SHIMS / "platform.mjs")]
    names += [_module(f"platform/{path.name}", path) for path in shared]
    return ", ".join(names)


def _variable(name: str) -> str:
    return f"(name = {text(name)}, fromEnvironment = {text(name)})"


def _service_of(binding: Mapping[str, Any]) -> str:
    props = f", props = (json = {text(json.dumps(binding['props']))})" if binding.get("props") else ""
    entrypoint = f", entrypoint = {text(binding['entrypoint'])}" if binding.get("entrypoint") else ""
    return f'(name = "platform"{entrypoint}{props})'


def _binding(binding: Mapping[str, Any]) -> str:
    name = binding["name"]
    if binding["type"] == "plain_text":
        return f"(name = {text(name)}, text = {text(binding['text'])})"
    if binding["type"] == "secret_text":
        return f"(name = {text(name)}, fromEnvironment = {text(SECRET_VARIABLE.format(name))})"
    return f"(name = {text(name)}, service = {_service_of(binding)})"


def _script(source: Source) -> str:
    modules = ", ".join(_module(part.name, part.path, _KINDS[part.content_type]) for part in source.modules)
    return (
        f"(name = {text('script ' + source.name)}, worker = (modules = [{modules}],"
        f" compatibilityDate = {text(source.compatibility_date)},"
        f" compatibilityFlags = [{', '.join(map(text, source.compatibility_flags))}],"
        f" bindings = [{', '.join(map(_binding, source.bindings))}],"
        ' globalOutbound = (name = "platform", entrypoint = "Egress")))'
    )


def _platform(scripts: Iterable[Source], public_url: str, state: str) -> str:
    found = [f'(name = "STATE", service = {text(state)})', _variable("ROOT_KEYS"), _variable("PUBLIC_URL")]
    if urlsplit(public_url).scheme == "http":
        found.append('(name = "REPORTS", service = "reports")')
    for source in scripts:
        label = text(f"script {source.name}")
        found.append(f"(name = {label}, service = {label})")
    return (
        f'(name = "platform", worker = (modules = [{_shim_modules(HERE / "platform_local.mjs")}],'
        f" compatibilityDate = {text(COMPATIBILITY_DATE)},"
        ' compatibilityFlags = ["enable_request_signal"],'
        f' bindings = [{", ".join(found)}], globalOutbound = "internet"))'
    )


def _common(public_url: str) -> list[str]:
    # Names that resolve to private addresses are refused here, whatever the egress check let pass.
    services = ['(name = "internet", network = (allow = ["public"], tlsOptions = (trustBrowserCas = true)))']
    if urlsplit(public_url).scheme == "http":
        services.append(f'(name = "reports", external = (address = {text(urlsplit(public_url).netloc)}, http = ()))')
    return services


def _whole(services: Iterable[str], sockets: Mapping[str, tuple[Path, str]]) -> str:
    listening = [
        f"(name = {text(name)}, address = {text(f'unix:{path}')}, http = (), service = {text(service)})"
        for name, (path, service) in sockets.items()
    ]
    inside = ",\n    ".join(services)
    return (
        'using Workerd = import "/workerd/workerd.capnp";\n'
        "const config :Workerd.Config = (\n"
        f"  services = [\n    {inside}\n  ],\n  sockets = [{', '.join(listening)}]\n);\n"
    )


def script_config(scripts: tuple[Source, ...], public_url: str, socket: Path, state_socket: Path) -> str:
    """Return the configuration of a process that serves one script (and its vault) behind the platform Worker."""
    services = [*_common(public_url), _platform(scripts, public_url, "state"), *map(_script, scripts)]
    services.append(f'(name = "state", external = (address = {text(f"unix:{state_socket}")}, http = ()))')
    return _whole(services, {"http": (socket, "platform")})


def state_config(public_url: str, socket: Path, state_socket: Path, directory: Path) -> str:
    """Return the configuration of the process that keeps sessions, and answers for scripts that are not there."""
    objects = [
        (
            f'(className = "{name}", uniqueKey = "whs-{name.lower()}", enableSql = true)',
            f'(name = "{binding}", durableObjectNamespace = "{name}")',
        )
        for name, binding in [("Session", "SESSIONS"), ("Replay", "REPLAY")]
    ]
    modules = f"{_module('state.mjs', HERE / 'state.mjs')}, " + _module(
        "platform/objects.mjs", SHIMS / "platform" / "objects.mjs"
    )
    state = (
        f'(name = "state", worker = (modules = [{modules}],'
        f" compatibilityDate = {text(COMPATIBILITY_DATE)},"
        f" bindings = [{', '.join(binding for _, binding in objects)}],"
        f" durableObjectNamespaces = [{', '.join(namespace for namespace, _ in objects)}],"
        ' durableObjectStorage = (localDisk = "disk")))'
    )
    disk = f'(name = "disk", disk = (path = {text(str(directory))}, writable = true))'
    services = [*_common(public_url), _platform((), public_url, "state"), state, disk]
    return _whole(services, {"http": (socket, "platform"), "state": (state_socket, "state")})
