"""The load generator (load.mjs), from Python: what to send, and what came back."""

from __future__ import annotations

import hashlib
import json
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

from bench.cast import Caller
from entitlements.enums import Runtime
from webhost.ids import Prefix, public_id
from webhost.signing import Purpose, current_root_key_id, deployment_key, signature_header

_PROMPT = "Say in a few words what the fox does, and why nobody in particular looks on. " * 3
_REPORT_PATH = "/v1/telemetry/report"


@dataclass(frozen=True)
class Request:
    """One prepared POST."""

    path: str
    headers: dict[str, str]
    body: str


@dataclass(frozen=True)
class Load:
    """So many calls by so many callers at once."""

    requests: Sequence[Request]
    calls: int
    callers: int
    ending: str = "}"
    expected: int = 200
    seconds: float = 60


@dataclass(frozen=True)
class Answers:
    """What came back; times in milliseconds."""

    calls: int
    per_second: float
    p50: float
    p99: float
    first_byte_p50: float
    statuses: dict[int, int] = field(default_factory=dict)
    errors: dict[str, int] = field(default_factory=dict)


class BenchError(Exception):
    """Something answered as it should not, so nothing it took can be compared."""


def invocation(caller: Caller, *, stream: bool = False, prompt: str = _PROMPT) -> Request:
    """Return an invocation of the caller's agent."""
    return Request(
        caller.path + ("/stream" if stream else ""),
        {"authorization": f"Bearer {caller.token}"},
        json.dumps({"input": {"prompt": prompt}}),
    )


def reports(caller: Caller, invocations: Sequence[UUID], *, batch: int = 1) -> list[Request]:
    """Return signed usage reports, one per invocation, as its deployment sends them; `batch` in each delivery."""
    deployment = public_id(Prefix.DEPLOYMENT, caller.deployment_id)
    key = deployment_key(current_root_key_id(), Purpose.TELEMETRY, deployment)
    if key is None:
        raise BenchError("There is no root key.")
    events = [_event(caller, invocation_id) for invocation_id in invocations]
    bodies = [
        json.dumps(events[n] if batch == 1 else {"events": events[n : n + batch]}) for n in range(0, len(events), batch)
    ]
    return [
        Request(
            _REPORT_PATH,
            {
                "x-telemetry-deployment-id": deployment,
                "x-telemetry-signature": signature_header(key, body.encode()),
            },
            body,
        )
        for body in bodies
    ]


def _event(caller: Caller, invocation_id: UUID) -> dict[str, Any]:
    return {
        "eventId": uuid4().hex,
        "invocationId": public_id(Prefix.INVOCATION, invocation_id),
        "accountId": public_id(Prefix.ACCOUNT, caller.account_id),
        "agentId": public_id(Prefix.AGENT, caller.agent_id),
        "deploymentId": public_id(Prefix.DEPLOYMENT, caller.deployment_id),
        "runtimeProvider": Runtime.CLOUDFLARE.value,
        "timestamp": datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "requests": 1,
        "tokens": 130,
        "computeMs": 9,
        "toolCalls": 0,
        "codeExecutionMs": 0,
        "browserSessions": 0,
        "errors": 0,
        "errorClass": None,
        "provider": {},
        "traceId": f"trc_{hashlib.md5(invocation_id.bytes, usedforsecurity=False).hexdigest()}",
    }


def run(node: str, url: str, load: Load) -> Answers:
    """Make the calls. Raises BenchError when any is answered otherwise than expected."""
    spec = {
        "url": url,
        "callers": load.callers,
        "calls": load.calls,
        "seconds": load.seconds,
        "ending": load.ending,
        "requests": [vars(request) for request in load.requests],
    }
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(spec, file)
        file.flush()
        script = str(Path(__file__).with_name("load.mjs"))
        said = subprocess.run(
            [node, script, file.name], capture_output=True, text=True, check=True, timeout=load.seconds + 30
        )
    found = json.loads(said.stdout)
    answers = Answers(
        found["calls"],
        found["perSecond"],
        found["p50"] or 0.0,
        found["p99"] or 0.0,
        found["firstByteP50"] or 0.0,
        {int(status): count for status, count in found["statuses"].items()},
        found["errors"],
    )
    if answers.errors or answers.statuses != {load.expected: load.calls}:
        raise BenchError(f"{load.calls} calls to {load.requests[0].path}: {answers.statuses}, errors {answers.errors}.")
    return answers
