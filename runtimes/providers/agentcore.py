"""AWS Bedrock AgentCore: one runtime, one role and one zip per deployment, through boto3.

Named from ids (agentcore_names), made and adopted (agentcore_deploying, _roles, _secrets, _tools), called
(agentcore_invoking). What runs in the virtual machines is in `runtimes/shims/agentcore/`.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from django.conf import settings

from entitlements.enums import Runtime
from runtimes.bundle import Bundle
from runtimes.errors import DeploymentFailedError, NotReachedError, RuntimeFailedError
from runtimes.providers import agentcore_deploying as deploying
from runtimes.providers import agentcore_invoking as invoking
from runtimes.providers import agentcore_roles as roles
from runtimes.providers import agentcore_secrets as vault
from runtimes.providers import agentcore_tools as tools
from runtimes.providers.agentcore_clients import Clients, Deadline, call
from runtimes.providers.agentcore_names import place, probe_session_id, runtime_session_id
from runtimes.providers.answers import read_json, read_logs
from runtimes.providers.base import AgentRef, Answer, Invocation, Provider, Stream, Target, ToolSession
from webhost.ids import new_id

# Of the lease that a worker has: together with building less than the whole, or a second worker joins in.
_DEPLOY_SHARE: Final = 0.5
_PROBE_SHARE: Final = 0.35
_PROBE: Final = b'{"probe":true}'
_STOP_SECONDS: Final = 20
_REMOVE_SECONDS: Final = 10
_LONGEST_LINE: Final = 200


class AgentCoreProvider(Provider):
    """Bedrock AgentCore in the platform's own AWS account."""

    runtime = Runtime.AGENTCORE
    keeps = 5
    has_machines = True

    def __init__(self) -> None:
        self._clients = Clients()

    # --- management -------------------------------------------------------------------------------

    def _deploy(self, target: Target, bundle: Bundle) -> Mapping[str, str]:
        place()  # said before anything is made
        deadline = Deadline.after(settings.DEPLOY_LEASE_SECONDS * _DEPLOY_SHARE)
        return deploying.deploy(self._clients, target, bundle, deadline)

    def _activate(self, target: Target) -> None:
        """Have the shim load the agent, in a session that no caller can name; runs no invocation."""
        arn = target.remote.get("runtimeArn") or self._found_arn(target)
        session = probe_session_id(target, new_id().hex)
        seconds = settings.DEPLOY_LEASE_SECONDS * _PROBE_SHARE
        ends_at = time.monotonic() + seconds
        try:
            _, answer = invoking.open_answer(self._clients, arn, session, _PROBE, accept=invoking.JSON, seconds=seconds)
            body = read_json(invoking.read_whole(answer, ends_at))
        except (NotReachedError, RuntimeFailedError) as error:
            raise DeploymentFailedError(
                "The deployment could not be probed.",
                error_class=error.error_class,
                # One that fails while it starts does so every time; all else may pass.
                retryable=error.retryable or error.error_class == "Timeout",
            ) from None
        finally:
            self._end_probe(arn, session)
        if body.get("ok") is not True:
            lines = read_logs(body.get("logs"))
            why = f": {_told(lines[0])}" if lines else "."
            raise DeploymentFailedError(f"The agent does not start{why}", error_class="LoadError")

    def _found_arn(self, target: Target) -> str:
        runtime_id = deploying.find_runtime(self._clients, target)
        if runtime_id is None:
            raise DeploymentFailedError("AgentCore does not have this deployment.", error_class="NotFound")
        return str(call(self._clients.control.get_agent_runtime, agentRuntimeId=runtime_id)["agentRuntimeArn"])

    def _end_probe(self, arn: str, session: str) -> None:
        """Free the machine of a probe; one that stays is stopped by its idle time."""
        try:
            self._stop(arn, session)
        except (NotReachedError, RuntimeFailedError):
            return

    def _put_secrets(self, agent: AgentRef, values: Mapping[str, str | None]) -> None:
        place()
        vault.put_agent_secrets(self._clients, agent, values)

    def _grant(self, target: Target, capabilities: frozenset[str]) -> None:
        for capability in sorted(capabilities):
            remote_id = tools.known_tool(self._clients, target, capability)
            if remote_id is None:
                raise DeploymentFailedError(f"This deployment has no {capability}.", error_class="NotFound")
            roles.put_grant(self._clients, target, capability, remote_id)

    def _withdraw(self, target: Target, capabilities: frozenset[str]) -> None:
        for capability in sorted(capabilities):
            roles.delete_grant(self._clients, target, capability)
        tools.stop_sessions(self._clients, target, capabilities, Deadline.after(_REMOVE_SECONDS))
        for capability in sorted(capabilities):
            if roles.has_grant(self._clients, target, capability):
                raise DeploymentFailedError(
                    f"AgentCore still grants the {capability}.", error_class="StillGranted", retryable=True
                )

    def _tool_sessions(self, target: Target) -> Sequence[ToolSession]:
        return tools.all_sessions(self._clients, target)

    def _remove(self, target: Target) -> None:
        deploying.remove_runtime(self._clients, target)
        tools.remove_tools(self._clients, target, Deadline.after(_REMOVE_SECONDS))
        vault.remove_copy(self._clients, target)
        roles.remove_role(self._clients, target)
        deploying.remove_objects(self._clients, target)

    def _remove_agent(self, agent: AgentRef) -> None:
        vault.remove_master(self._clients, agent)
        tools.remove_memory(self._clients, agent)

    def _health(self) -> bool:
        try:
            call(self._clients.s3.head_bucket, Bucket=place().bucket)
            call(self._clients.control.list_agent_runtimes, maxResults=1)
        except DeploymentFailedError:
            return False
        return True

    # --- invocations ------------------------------------------------------------------------------

    def _invoke(self, target: Target, invocation: Invocation) -> Answer:
        return invoking.invoke(self._clients, target, _arn_of(target), invocation)

    def _stream(self, target: Target, invocation: Invocation) -> Stream:
        return invoking.stream(self._clients, target, _arn_of(target), invocation)

    def _stop_session(self, target: Target, session_id: str) -> None:
        if arn := target.remote.get("runtimeArn"):
            self._stop(arn, runtime_session_id(target, session_id))

    def _stop(self, arn: str, session: str) -> None:
        """End a session's machine; one that is gone, or never was, is success."""
        operation: Any = self._clients.once(_STOP_SECONDS).stop_runtime_session
        try:
            invoking.send(operation, agentRuntimeArn=arn, runtimeSessionId=session)
        except NotReachedError as error:
            if error.error_class != "NotFound":
                raise


def _arn_of(target: Target) -> str:
    arn = target.remote.get("runtimeArn")
    if not arn:
        raise NotReachedError(
            "This deployment is not at its runtime. Please deploy again.", error_class="NotFound", retryable=False
        )
    return arn


def _told(line: str) -> str:
    """Return what an agent's code said while it was loaded, under its author's own file names."""
    first = line.strip().partition("\n")[0].replace("/var/task/", "").replace("bundle/", "")
    return "".join(c for c in first if c.isprintable())[:_LONGEST_LINE]
