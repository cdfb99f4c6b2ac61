"""Cloudflare: Workers for Platforms. One script per deployment, one vault per agent, one platform Worker.

Facts and their sources: shared design, provider facts A. Management calls go through `requests`; an
invocation is one signed POST through urllib3, sent once, whatever happens.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final, Self

import urllib3
from django.conf import settings
from urllib3.exceptions import ConnectTimeoutError, HTTPError, NewConnectionError, ReadTimeoutError

from runtimes.bundle import Bundle, ModuleKind
from runtimes.errors import DeploymentFailedError, NotReachedError, RuntimeFailedError
from runtimes.providers.base import (
    AgentRef,
    Answer,
    Delta,
    Failure,
    Invocation,
    Provider,
    Stream,
    StreamEvent,
    Target,
    Usage,
)
from runtimes.providers.base import Final as FinalEvent
from runtimes.providers.cloudflare_api import NOT_FOUND, CloudflareError, call
from webhost.ids import Prefix, new_id, public_id
from webhost.signing import Purpose, deployment_key, sign

SHIMS: Final = Path(__file__).resolve().parent.parent / "shims"
MAIN_MODULE: Final = "_whs_main.js"
COMPATIBILITY_DATE: Final = "2026-11-01"
_CONTENT_TYPES: Final[Mapping[ModuleKind, str]] = {
    ModuleKind.ESM: "application/javascript+module",
    ModuleKind.TEXT: "text/plain",
    ModuleKind.DATA: "application/octet-stream",
}
# The platform Worker's own time limit is the deployment's; ours only catches one that never answers.
_READ_GRACE_SECONDS: Final = 5
_MOST_ANSWER_BYTES: Final = 16 * 1024 * 1024
# Answers that prove that nothing ran: the platform Worker refused, or the edge did not take the call.
_PROOF_OF_NOTHING: Final = frozenset({401, 404, 405, 429})


def script_name(target: Target) -> str:
    """Return the name of a deployment's script."""
    return f"d-{target.deployment_id.hex}"


def vault_name(agent: AgentRef | Target) -> str:
    """Return the name of the script that holds an agent's secrets (docs/adr/0005)."""
    return f"s-{agent.agent_id.hex}"


@cache
def _shim(name: str) -> str:
    return (SHIMS / name).read_text(encoding="utf-8")


class CloudflareProvider(Provider):
    """Workers for Platforms behind our platform Worker."""

    def __init__(self) -> None:
        self._pool: urllib3.HTTPConnectionPool | None = None
        self._lock = threading.Lock()

    # ------------------------------------------------------------ management

    @property
    def _namespace(self) -> str:
        return f"/workers/dispatch/namespaces/{settings.CLOUDFLARE_NAMESPACE}"

    def _deploy(self, target: Target, bundle: Bundle) -> None:
        self._ensure_namespace()
        self._ensure_vault(target)
        main = _shim("user.mjs").replace("__ENTRYPOINT__", f"./{bundle.entrypoint}")
        declared = sorted({*bundle.config.required_keys, *bundle.config.optional_keys})
        main = main.replace("__DECLARED_KEYS__", json.dumps(declared))
        metadata = {
            "main_module": MAIN_MODULE,
            "compatibility_date": COMPATIBILITY_DATE,
            "compatibility_flags": ["nodejs_compat"],
            "tags": [*_tags(target), f"deployment-{target.deployment_id.hex}", f"version-{target.version}"],
            "limits": {"cpu_ms": min(target.timeout_seconds * 1000, 300_000)},
            "bindings": [
                {
                    "type": "service",
                    "name": "PLATFORM",
                    "service": "platform",
                    "entrypoint": "Host",
                    "props": {"agent": public_id(Prefix.AGENT, target.agent_id)},
                }
            ],
        }
        files: dict[str, tuple[str | None, bytes | str, str]] = {
            "metadata": (None, json.dumps(metadata), "application/json"),
            MAIN_MODULE: (MAIN_MODULE, main, _CONTENT_TYPES[ModuleKind.ESM]),
        }
        for module in bundle.modules:
            files[module.name] = (module.name, module.content, _CONTENT_TYPES[module.kind])
        call("PUT", f"{self._namespace}/scripts/{script_name(target)}?bindings_inherit=strict", files=files)

    def _ensure_namespace(self) -> None:
        try:
            call("GET", self._namespace)
        except CloudflareError as error:
            if error.provider_code != NOT_FOUND:
                raise
            call("POST", "/workers/dispatch/namespaces", json={"name": settings.CLOUDFLARE_NAMESPACE})

    def _ensure_vault(self, agent: AgentRef | Target) -> None:
        path = f"{self._namespace}/scripts/{vault_name(agent)}"
        try:
            call("GET", path)
        except CloudflareError as error:
            if error.provider_code != NOT_FOUND:
                raise
            metadata = {
                "main_module": "vault.js",
                "compatibility_date": COMPATIBILITY_DATE,
                "tags": _tags(agent),
                "bindings": [],
            }
            call(
                "PUT",
                path,
                files={
                    "metadata": (None, json.dumps(metadata), "application/json"),
                    "vault.js": ("vault.js", _shim("vault.mjs"), _CONTENT_TYPES[ModuleKind.ESM]),
                },
            )

    def _activate(self, target: Target) -> None:
        """Ask the platform Worker whether the script loads; runs no handler of the user's, costs next to nothing."""
        probe = Invocation(new_id(), public_id(Prefix.TRACE, new_id()), b"{}")
        try:
            answer = self._send(target, probe, "/probe", b"{}", stream=False, read_timeout=20)
        except (NotReachedError, RuntimeFailedError) as error:
            raise DeploymentFailedError(
                "The deployment could not be probed.", error_class=error.error_class, retryable=True
            ) from error
        if answer.status != 200:
            raise DeploymentFailedError(
                "The agent does not start: is its default export a function?",
                error_class=f"Probe{answer.status}",
                retryable=answer.status in (429, 502, 503),
            )

    def _put_secrets(self, agent: AgentRef, values: Mapping[str, str | None]) -> None:
        self._ensure_namespace()
        self._ensure_vault(agent)
        secrets = {
            name: None if value is None else {"name": name, "text": value, "type": "secret_text"}
            for name, value in values.items()
        }
        call("PATCH", f"{self._namespace}/scripts/{vault_name(agent)}/secrets-bulk", json={"secrets": secrets})

    def _remove(self, target: Target) -> None:
        self._delete_script(script_name(target))

    def _remove_agent(self, agent: AgentRef) -> None:
        self._delete_script(vault_name(agent))

    def _delete_script(self, name: str) -> None:
        try:
            call("DELETE", f"{self._namespace}/scripts/{name}?force=true")
        except CloudflareError as error:
            if error.provider_code != NOT_FOUND:
                raise

    def _health(self) -> bool:
        try:
            self._ensure_namespace()
        except DeploymentFailedError:
            return False
        return True

    # ------------------------------------------------------------ invocations

    def _invoke(self, target: Target, invocation: Invocation) -> Answer:
        answer = self._send(target, invocation, "", self._wrap(target, invocation), stream=False)
        return read_answer(answer.status, answer.data)

    def _stream(self, target: Target, invocation: Invocation) -> Stream:
        answer = self._send(target, invocation, "/stream", self._wrap(target, invocation), stream=True)
        if answer.status != 200:
            try:
                data = answer.read(_MOST_ANSWER_BYTES)
            except HTTPError:
                data = b""
            finally:
                answer.close()
            read_answer(answer.status, data)  # raises
            raise RuntimeFailedError("The agent did not stream.", error_class="NoStream")
        return CloudflareStream(answer)

    @staticmethod
    def _wrap(target: Target, invocation: Invocation) -> bytes:
        """Put what the platform Worker must be able to trust beside the request, under the signature."""
        head = json.dumps(
            {
                "accountId": public_id(Prefix.ACCOUNT, target.account_id),
                "agentId": public_id(Prefix.AGENT, target.agent_id),
                "timeoutMs": target.timeout_seconds * 1000,
            },
            separators=(",", ":"),
        )
        return head[:-1].encode() + b',"request":' + invocation.body + b"}"

    def _http(self) -> urllib3.HTTPConnectionPool:
        if self._pool is None:
            with self._lock:
                if self._pool is None:
                    self._pool = urllib3.connection_from_url(
                        settings.CLOUDFLARE_DISPATCH_URL, maxsize=128, block=False, retries=False
                    )
        return self._pool

    def _send(
        self,
        target: Target,
        invocation: Invocation,
        path: str,
        body: bytes,
        *,
        stream: bool,
        read_timeout: float | None = None,
    ) -> urllib3.BaseHTTPResponse:
        """Sign and send, once. What is certain not to have arrived is NotReachedError; all else counts."""
        deployment, timestamp = target.public_deployment_id, str(int(time.time()))
        invocation_id = public_id(Prefix.INVOCATION, invocation.invocation_id)
        key = deployment_key(target.root_key_id, Purpose.INVOKE, deployment)
        if key is None:
            raise NotReachedError(
                "This deployment's key was retired. Please deploy again.", error_class="KeyRetired", retryable=False
            )
        signed = f"{timestamp}.{deployment}.{invocation_id}.".encode() + body
        headers = {
            "Content-Type": "application/json",
            "X-Whs-Deployment": deployment,
            "X-Whs-Key": target.root_key_id,
            "X-Whs-Timestamp": timestamp,
            "X-Whs-Invocation": invocation_id,
            "X-Whs-Trace": invocation.trace_id,
            "X-Whs-Signature": f"v1={sign(key, signed)}",
        }
        seconds = read_timeout or target.timeout_seconds + _READ_GRACE_SECONDS
        try:
            return self._http().urlopen(
                "POST",
                f"{_path_of(settings.CLOUDFLARE_DISPATCH_URL)}{path}",
                body=body,
                headers=headers,
                preload_content=not stream,
                redirect=False,
                retries=False,
                timeout=urllib3.Timeout(connect=5, read=seconds),
            )
        except (NewConnectionError, ConnectTimeoutError) as error:
            raise NotReachedError("The runtime could not be reached.", error_class="NotReached") from error
        except ReadTimeoutError as error:
            raise RuntimeFailedError("The agent did not answer in time.", error_class="Timeout") from error
        except HTTPError as error:
            raise RuntimeFailedError("The runtime broke the connection.", error_class="Broken") from error


def _tags(agent: AgentRef | Target) -> list[str]:
    return [f"account-{agent.account_id.hex}", f"agent-{agent.agent_id.hex}"]


@cache
def _path_of(url: str) -> str:
    return urllib3.util.parse_url(url).path or ""


def read_usage(given: Any) -> Usage | None:
    """Read the platform Worker's figures; anything but whole numbers in range is no figure at all."""
    if not isinstance(given, dict):
        return None
    numbers = {}
    for name in ("tokens", "computeMs", "toolCalls", "codeExecutionMs", "browserSessions"):
        value = given.get(name, 0)
        if type(value) is not int or not 0 <= value <= 10**12:
            return None
        numbers[name] = value
    return Usage(
        tokens=numbers["tokens"],
        compute_ms=numbers["computeMs"],
        tool_calls=numbers["toolCalls"],
        code_ms=numbers["codeExecutionMs"],
        browser_sessions=numbers["browserSessions"],
        tokens_estimated=given.get("tokensEstimated") is True,
    )


def _logs(given: Any) -> tuple[str, ...]:
    return tuple(str(line) for line in given) if isinstance(given, list) else ()


def read_answer(status: int, data: bytes) -> Answer:
    """Read the platform Worker's answer. Raises NotReachedError where it proves that nothing ran."""
    try:
        body = json.loads(data)
    except ValueError:
        body = None
    ours = isinstance(body, dict)
    if status == 200 and ours and isinstance(body.get("text"), str):
        usage = read_usage(body.get("usage"))
        if usage is not None:
            return Answer(body["text"], usage, _logs(body.get("logs")))
    if status in _PROOF_OF_NOTHING:
        retryable = status == 429
        raise NotReachedError("The runtime did not take the call.", error_class=f"Runtime{status}", retryable=retryable)
    error = body.get("error") if ours else None
    if not isinstance(error, dict):
        # Somebody between us and the agent answered: nobody knows whether it ran.
        raise RuntimeFailedError(
            "The runtime answered something unexpected.", error_class=f"Runtime{status}", retryable=status >= 500
        )
    error_class = str(error.get("errorClass") or "Error")[:60]
    message = "The agent did not answer in time." if error_class == "Timeout" else f"The agent failed ({error_class})."
    raise RuntimeFailedError(
        message, error_class=error_class, usage=read_usage(body.get("usage")), logs=_logs(body.get("logs"))
    )


class CloudflareStream:
    """Server-sent events of the platform Worker, as they come. Broken off without its end: a failure."""

    def __init__(self, answer: urllib3.BaseHTTPResponse) -> None:
        self._answer = answer
        self._events = self._read()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> StreamEvent:
        try:
            return next(self._events)
        except ReadTimeoutError as error:
            raise RuntimeFailedError("The agent did not go on in time.", error_class="Timeout") from error
        except (HTTPError, OSError, ValueError) as error:
            # ValueError: http.client's word for reading what was closed under it.
            raise RuntimeFailedError("The agent's answer broke off.", error_class="Truncated") from error

    def _read(self) -> Iterator[StreamEvent]:
        kind = ""
        for line in self._lines():
            if line.startswith(b"event: "):
                kind = line[7:].decode()
            elif line.startswith(b"data: "):
                event = _event(kind, json.loads(line[6:]))
                if event is None:
                    continue
                if not isinstance(event, Delta):
                    self._answer.drain_conn()  # read to its end, the connection may serve the next call
                    self._answer.release_conn()
                    yield event
                    return
                yield event

    def _lines(self) -> Iterator[bytes]:
        rest = b""
        while chunk := self._answer.read1():
            rest += chunk
            if len(rest) > _MOST_ANSWER_BYTES:
                raise RuntimeFailedError("The agent's answer has a line without end.", error_class="TooLarge")
            *whole, rest = rest.split(b"\n")
            yield from whole

    def close(self) -> None:
        """Stop the upstream. A half-read connection is closed, never given back to the pool."""
        self._answer.close()


def _event(kind: str, data: Any) -> StreamEvent | None:
    if kind == "delta" and isinstance(data.get("text"), str):
        return Delta(data["text"])
    if kind == "final":
        usage = read_usage(data.get("usage"))
        if usage is not None:
            return FinalEvent(usage, _logs(data.get("logs")))
    if kind == "failure":
        error_class = str(data.get("errorClass") or "Error")[:60]
        message = (
            "The agent did not finish in time." if error_class == "Timeout" else f"The agent failed ({error_class})."
        )
        return Failure(error_class, message, read_usage(data.get("usage")), _logs(data.get("logs")))
    return None
