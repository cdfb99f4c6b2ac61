"""Cloudflare: Workers for Platforms. One script per deployment, one vault per agent, one platform Worker.

Management calls go through `requests`; an invocation is one signed POST through urllib3, sent once,
whatever happens. What runs at Cloudflare is in `runtimes/shims/`.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping
from functools import cache
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

import urllib3
from django.conf import settings
from urllib3.exceptions import ConnectTimeoutError, HTTPError, NewConnectionError, ReadTimeoutError

from entitlements.enums import Runtime
from runtimes.bundle import Bundle, ModuleKind
from runtimes.errors import DeploymentFailedError, NotReachedError, RuntimeFailedError
from runtimes.providers.answers import MOST_BYTES
from runtimes.providers.base import AgentRef, Answer, Invocation, Provider, Stream, Target
from runtimes.providers.cloudflare_answers import CloudflareStream, read_answer
from runtimes.providers.cloudflare_api import CloudflareError, call
from webhost.ids import Prefix, new_id, public_id
from webhost.signing import Purpose, deployment_key, sign

SHIMS: Final = Path(__file__).resolve().parent.parent / "shims"
COMPATIBILITY_DATE: Final = "2026-11-01"
_ESM: Final = "application/javascript+module"
_CONTENT_TYPES: Final[Mapping[ModuleKind, str]] = {
    ModuleKind.ESM: _ESM,
    ModuleKind.JSON: "application/json",
    ModuleKind.TEXT: "text/plain",
    ModuleKind.DATA: "application/octet-stream",
}
_MAIN: Final = """\
import {{ serve }} from "./shim.mjs";
import * as agent from {module};
export default serve(agent, {options});
"""
_MOST_CPU_MS: Final = 30_000
# The platform Worker's own time limit is the deployment's; ours only catches one that never answers.
_READ_GRACE_SECONDS: Final = 5
_PROBE_SECONDS: Final = 20

Files = dict[str, tuple[str | None, bytes | str, str]]


def script_name(target: Target) -> str:
    """Return the name of a deployment's script."""
    return f"d-{target.deployment_id.hex}"


def vault_name(agent: AgentRef | Target) -> str:
    """Return the name of the script that holds an agent's secrets."""
    return f"s-{agent.agent_id.hex}"


@cache
def _shim(name: str) -> str:
    return (SHIMS / name).read_text(encoding="utf-8")


class CloudflareProvider(Provider):
    """Workers for Platforms behind our platform Worker."""

    runtime = Runtime.CLOUDFLARE

    def __init__(self) -> None:
        self._pool: urllib3.HTTPConnectionPool | None = None
        self._lock = threading.Lock()

    # --- management -------------------------------------------------------------------------------

    @property
    def _namespace(self) -> str:
        return f"/workers/dispatch/namespaces/{settings.CLOUDFLARE_NAMESPACE}"

    def _deploy(self, target: Target, bundle: Bundle) -> Mapping[str, str]:
        self._ensure_namespace()
        self._ensure_vault(target)
        path = f"{self._namespace}/scripts/{script_name(target)}"
        made = f"bundle-{bundle.deployed_sha256[:32]}"

        def is_there() -> bool:
            return made in self._tags_of(path)

        if not is_there():
            call("PUT", f"{path}?bindings_inherit=strict", done=is_there, files=_upload(target, bundle, made))
        return {}

    def _tags_of(self, path: str) -> list[str]:
        try:
            return list(call("GET", path)["script"]["tags"])
        except CloudflareError as error:
            if error.is_not_found:
                return []
            raise

    def _ensure_namespace(self) -> None:
        try:
            call("GET", self._namespace)
        except CloudflareError as error:
            if not error.is_not_found:
                raise
            try:
                call("POST", "/workers/dispatch/namespaces", json={"name": settings.CLOUDFLARE_NAMESPACE})
            except CloudflareError:
                call("GET", self._namespace)  # somebody else made it meanwhile, or the first error stands

    def _ensure_vault(self, agent: AgentRef | Target) -> None:
        path = f"{self._namespace}/scripts/{vault_name(agent)}"
        if self._tags_of(path):
            return
        metadata = {
            "main_module": "vault.mjs",
            "compatibility_date": COMPATIBILITY_DATE,
            "tags": _tags(agent),
            "bindings": [],
            # Another worker may have made it, and somebody put a secret into it, since we looked.
            "keep_bindings": ["secret_text"],
        }
        files: Files = {
            "metadata": (None, json.dumps(metadata), "application/json"),
            "vault.mjs": ("vault.mjs", _shim("vault.mjs"), _ESM),
        }
        call("PUT", path, files=files)

    def _activate(self, target: Target) -> None:
        """Ask the platform Worker whether the script loads; calls no function of the user's, counts as nothing."""
        probe = Invocation(new_id(), public_id(Prefix.TRACE, new_id()), b"null")
        try:
            answer = self._send(target, probe, "health", stream=False, seconds=_PROBE_SECONDS)
        except (NotReachedError, RuntimeFailedError) as error:
            raise DeploymentFailedError(
                "The deployment could not be probed.", error_class=error.error_class, retryable=True
            ) from error
        if answer.status != HTTPStatus.OK:
            raise DeploymentFailedError(
                "The deployment does not answer its probe.",
                error_class=f"Probe{answer.status}",
                # Not there, or refused: asking again would be answered alike.
                retryable=answer.status == HTTPStatus.TOO_MANY_REQUESTS
                or answer.status >= HTTPStatus.INTERNAL_SERVER_ERROR,
            )

    def _put_secrets(self, agent: AgentRef, values: Mapping[str, str | None]) -> None:
        self._ensure_namespace()
        self._ensure_vault(agent)
        secrets = {
            name: None if value is None else {"name": name, "text": value, "type": "secret_text"}
            for name, value in values.items()
        }
        call(
            "PATCH",
            f"{self._namespace}/scripts/{vault_name(agent)}/secrets-bulk",
            data=json.dumps({"secrets": secrets}),
            headers={"Content-Type": "application/merge-patch+json"},
        )

    def _remove(self, target: Target) -> None:
        self._delete_script(script_name(target))

    def _remove_agent(self, agent: AgentRef) -> None:
        self._delete_script(vault_name(agent))

    def _delete_script(self, name: str) -> None:
        try:
            call("DELETE", f"{self._namespace}/scripts/{name}?force=true")
        except CloudflareError as error:
            if not error.is_not_found:
                raise

    def _health(self) -> bool:
        try:
            self._ensure_namespace()
        except DeploymentFailedError:
            return False
        return True

    # --- invocations ------------------------------------------------------------------------------

    def _invoke(self, target: Target, invocation: Invocation) -> Answer:
        answer = self._send(target, invocation, "invoke", stream=False)
        return read_answer(answer.status, answer.data)

    def _stream(self, target: Target, invocation: Invocation) -> Stream:
        answer = self._send(target, invocation, "stream", stream=True)
        if answer.status == HTTPStatus.OK and answer.headers.get("content-type") == "text/event-stream":
            return CloudflareStream(answer)
        try:
            data = answer.read(MOST_BYTES)
        except HTTPError:
            data = b""
        finally:
            answer.close()
        read_answer(answer.status, data)  # raises, but for an answer in one piece, which nobody asked for
        raise RuntimeFailedError("The agent did not stream.", error_class="NoStream")

    def _stop_session(self, target: Target, session_id: str) -> None:
        wanted = json.dumps({"sessionId": session_id}).encode()
        call_of_its_own = Invocation(new_id(), public_id(Prefix.TRACE, new_id()), wanted)
        answer = self._send(target, call_of_its_own, "stopSession", stream=False, seconds=_PROBE_SECONDS)
        if answer.status != HTTPStatus.OK:
            read_answer(answer.status, answer.data)

    def _http(self) -> urllib3.HTTPConnectionPool:
        if self._pool is None:
            with self._lock:
                if self._pool is None:
                    self._pool = urllib3.connection_from_url(
                        settings.CLOUDFLARE_DISPATCH_URL, maxsize=1024, block=False, retries=False
                    )
        return self._pool

    def _send(
        self, target: Target, invocation: Invocation, do: str, *, stream: bool, seconds: float | None = None
    ) -> urllib3.BaseHTTPResponse:
        """Sign and send, once. What is certain not to have arrived is NotReachedError; all else counts."""
        body = _envelope(target, invocation, do)
        path = _path_of(settings.CLOUDFLARE_DISPATCH_URL)
        try:
            answer = self._http().urlopen(
                "POST",
                path if do == "invoke" else f"{path}/{do}",
                body=body,
                headers=_signed(target, invocation, body),
                preload_content=not stream,
                redirect=False,
                retries=False,
                timeout=urllib3.Timeout(connect=5, read=seconds or target.timeout_seconds + _READ_GRACE_SECONDS),
            )
        except (NewConnectionError, ConnectTimeoutError) as error:
            raise NotReachedError("The runtime could not be reached.", error_class="NotReached") from error
        except ReadTimeoutError as error:
            raise RuntimeFailedError("The agent did not finish in time.", error_class="Timeout") from error
        except HTTPError as error:
            raise RuntimeFailedError(
                "The runtime broke the connection.", error_class="Broken", retryable=True
            ) from error
        return answer


def _upload(target: Target, bundle: Bundle, made: str) -> Files:
    """Return the parts of an upload: the metadata, our two modules, and the agent's in a folder of their own."""
    config = bundle.config
    props = {
        "agent": public_id(Prefix.AGENT, target.agent_id),
        "rootKey": target.root_key_id,
        "requiredKeys": list(config.required_keys),
        "optionalKeys": list(config.optional_keys),
    }
    metadata = {
        "main_module": "main.mjs",
        "compatibility_date": COMPATIBILITY_DATE,
        "tags": [*_tags(target), f"deployment-{target.deployment_id.hex}", f"version-{target.version}", made],
        "limits": {"cpu_ms": min(target.timeout_seconds * 1000, _MOST_CPU_MS)},
        "bindings": [
            {
                "type": "service",
                "name": "PLATFORM",
                "service": f"{settings.CLOUDFLARE_NAMESPACE}-platform",
                "entrypoint": "AgentServices",
                "props": props,
            }
        ],
    }
    options = {"entrypoint": config.entrypoint, "environment": bool(config.required_keys or config.optional_keys)}
    main = _MAIN.format(module=json.dumps(f"./bundle/{bundle.entrypoint}"), options=json.dumps(options))
    files: Files = {
        "metadata": (None, json.dumps(metadata), "application/json"),
        "main.mjs": ("main.mjs", main, _ESM),
        "shim.mjs": ("shim.mjs", _shim("user.mjs"), _ESM),
    }
    for module in bundle.modules:
        name = f"bundle/{module.name}"
        files[name] = (name, module.content, _CONTENT_TYPES[module.kind])
    return files


def _envelope(target: Target, invocation: Invocation, do: str) -> bytes:
    """Put what the platform Worker must be able to trust around the request, under one signature."""
    trusted: dict[str, Any] = {
        "do": do,
        "target": {
            "account": public_id(Prefix.ACCOUNT, target.account_id),
            "agent": public_id(Prefix.AGENT, target.agent_id),
            "timeoutSeconds": target.timeout_seconds,
        },
    }
    return json.dumps(trusted, separators=(",", ":"))[:-1].encode() + b',"request":' + invocation.body + b"}"


def _signed(target: Target, invocation: Invocation, body: bytes) -> dict[str, str]:
    """Return the headers of a call; raises NotReachedError when the deployment's root key is gone."""
    deployment, timestamp = target.public_deployment_id, str(int(time.time()))
    invocation_id = public_id(Prefix.INVOCATION, invocation.invocation_id)
    key = deployment_key(target.root_key_id, Purpose.INVOKE, deployment)
    if key is None:
        raise NotReachedError(
            "This deployment's key was retired. Please deploy again.", error_class="KeyRetired", retryable=False
        )
    signature = sign(key, f"{timestamp}.{deployment}.{invocation_id}.".encode() + body)
    return {
        "Content-Type": "application/json",
        "X-Whs-Deployment": deployment,
        "X-Whs-Key": target.root_key_id,
        "X-Whs-Timestamp": timestamp,
        "X-Whs-Invocation": invocation_id,
        "X-Whs-Trace": invocation.trace_id,
        "X-Whs-Signature": f"v1={signature}",
    }


def _tags(agent: AgentRef | Target) -> list[str]:
    return [f"account-{agent.account_id.hex}", f"agent-{agent.agent_id.hex}"]


@cache
def _path_of(url: str) -> str:
    return urllib3.util.parse_url(url).path or ""
