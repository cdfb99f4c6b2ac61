"""A workload that reports what it used, for tests: an account, an agent, a deployment and its real key."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from entitlements.enums import Runtime
from entitlements.models import Account
from telemetry.actions.process import process_reports
from telemetry.actions.receive import Kept, receive_reports
from telemetry.actions.roll_up import roll_up
from telemetry.models import Report
from tests.api import Answer, Api
from tests.entitlements.callers import Caller
from tests.factories import make_account, make_agent, make_deployment, make_tier
from webhost.ids import Prefix, new_id, public_id
from webhost.signing import Purpose, deployment_key, signature_header

URL = "/v1/telemetry/report"


class Workload:
    """One deployment of somebody, and what its runtime sends."""

    def __init__(self, account: Account | None = None, *, runtime: Runtime = Runtime.CLOUDFLARE, **tier: Any) -> None:
        self.account = account or make_account("alice", make_tier(**tier))
        self.agent = make_agent(self.account, runtime=runtime)
        self.deployment = make_deployment(self.agent)
        self.caller = Caller(self.account.id, self.agent.id, self.deployment.id, runtime=runtime)
        key = deployment_key(self.deployment.root_key_id, Purpose.TELEMETRY, self.deployment.public_id)
        assert key is not None
        self.key = key

    def event(self, invocation: UUID | None = None, **fields: Any) -> dict[str, Any]:
        """Return an event as the runtime writes one; `...` leaves a field out."""
        event = {
            "eventId": f"evt-{new_id().hex}",
            "invocationId": public_id(Prefix.INVOCATION, invocation or new_id()),
            "accountId": self.account.public_id,
            "agentId": self.agent.public_id,
            "deploymentId": self.deployment.public_id,
            "runtimeProvider": self.agent.runtime_provider,
            "timestamp": datetime.now(UTC).isoformat().replace("+00:00", "Z"),
            "requests": 1,
            "tokens": 0,
            "computeMs": 0,
            "toolCalls": 0,
            "codeExecutionMs": 0,
            "browserSessions": 0,
            "errors": 0,
            "errorClass": None,
            "provider": {},
            "traceId": None,
        } | fields
        return {name: value for name, value in event.items() if value is not ...}

    def signed(self, body: bytes) -> dict[str, str]:
        """Return the two headers for a body."""
        return {
            "x_telemetry_deployment_id": self.deployment.public_id,
            "x_telemetry_signature": signature_header(self.key, body),
        }

    def post(self, body: Any, **headers: str) -> Answer:
        """Send a body, signed unless the headers say otherwise, and compare the answer with the document."""
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        return Api().post(URL, raw, **self.signed(raw) | headers)

    def report(self, invocation: UUID | None = None, **fields: Any) -> Answer:
        """Send one event."""
        return self.post(self.event(invocation, **fields))

    def keep(self, body: Any, at: datetime) -> Kept:
        """Have a body kept as if it had arrived at another time."""
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        headers = self.signed(raw)
        return receive_reports(
            deployment_header=headers["x_telemetry_deployment_id"],
            signature=headers["x_telemetry_signature"],
            body=raw,
            at=at,
        )

    def judged(self) -> list[tuple[str, str]]:
        """Wait until everything of this deployment is judged; return each status and reason, in order."""
        settle_down(self)
        rows = Report.objects.filter(deployment_id=self.deployment.id).order_by("id")
        return [(r.status, r.reason) for r in rows]

    def statuses(self) -> list[str]:
        """Wait until everything of this deployment is judged; return what became of each report."""
        return [status for status, _ in self.judged()]

    def used(self, period: Any = None) -> dict[str, int]:
        """Return what the ledger counts of this account."""
        counter = self.caller.counter(period)
        return {
            m: getattr(counter, f"used_{m}")
            for m in ("requests", "tokens", "compute_ms", "tool_calls", "code_ms", "browser_sessions")
        }

    @property
    def kept(self) -> int:
        """How many reports of this deployment are in the table."""
        return Report.objects.filter(deployment_id=self.deployment.id).count()


def settle_down(*workloads: Workload) -> None:
    """Judge and roll up; another process may be at it, which is waited for."""
    ids = [w.deployment.id for w in workloads]
    for _ in range(200):
        process_reports()
        if not Report.objects.filter(deployment_id__in=ids, status="pending", attempts=0).exists():
            break
        time.sleep(0.05)
    roll_up()
