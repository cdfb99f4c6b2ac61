"""What AgentCore lends: a deployment's own interpreter and browser, an agent's memory, and their sessions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from entitlements.enums import Capability
from runtimes.errors import DeploymentFailedError
from runtimes.providers.agentcore_clients import AgentCoreError, Clients, Deadline, call, gone_is_none, pages
from runtimes.providers.agentcore_names import memory_name, tags_of, token_of, tool_name
from runtimes.providers.base import AgentRef, Target, ToolSession

# What an agent said stays in its memory for so long.
_EVENT_DAYS: Final = 90
_PAGE: Final = 100
_ENDED: Final = "TERMINATED"


@dataclass(frozen=True)
class _Kind:
    """How boto3 speaks of one kind of tool."""

    create: str
    get: str
    list: str
    delete: str
    items: str
    id: str
    remote: str
    wrapped: str = ""
    list_sessions: str = ""
    stop_session: str = ""
    identifier: str = ""


_KINDS: Final[Mapping[str, _Kind]] = {
    Capability.CODE_INTERPRETER: _Kind(
        create="create_code_interpreter",
        get="get_code_interpreter",
        list="list_code_interpreters",
        delete="delete_code_interpreter",
        items="codeInterpreterSummaries",
        id="codeInterpreterId",
        remote="codeInterpreterId",
        list_sessions="list_code_interpreter_sessions",
        stop_session="stop_code_interpreter_session",
        identifier="codeInterpreterIdentifier",
    ),
    Capability.BROWSER: _Kind(
        create="create_browser",
        get="get_browser",
        list="list_browsers",
        delete="delete_browser",
        items="browserSummaries",
        id="browserId",
        remote="browserId",
        list_sessions="list_browser_sessions",
        stop_session="stop_browser_session",
        identifier="browserIdentifier",
    ),
    Capability.MEMORY: _Kind(
        create="create_memory",
        get="get_memory",
        list="list_memories",
        delete="delete_memory",
        items="memories",
        id="memoryId",
        remote="memoryId",
        wrapped="memory",
    ),
}
_WITH_SESSIONS: Final = (Capability.CODE_INTERPRETER, Capability.BROWSER)
_READY: Final = frozenset({"READY", "ACTIVE"})
_FAILED: Final = frozenset({"CREATE_FAILED", "FAILED", "DELETE_FAILED"})
_LEAVING: Final = frozenset({"DELETING", "DELETED"})


def remote_key(capability: str) -> str:
    """Return under which name `remote` keeps what serves a capability."""
    return _KINDS[capability].remote


def ensure_tool(clients: Clients, target: Target, capability: str) -> str:
    """Make what serves a capability, or adopt it, without waiting until it is ready; return its id."""
    kind, name = _KINDS[capability], tool_name(capability, target)
    owner = AgentRef(target.account_id, target.agent_id) if capability == Capability.MEMORY else target
    shape: dict[str, Any] = {"eventExpiryDuration": _EVENT_DAYS}
    if capability != Capability.MEMORY:
        # No role of its own: what it runs has no credentials of ours. An interpreter needs no network for its work.
        mode = "SANDBOX" if capability == Capability.CODE_INTERPRETER else "PUBLIC"
        shape = {"networkConfiguration": {"networkMode": mode}}
        shape["clientToken"] = token_of(kind.create, name)
    try:
        made = call(getattr(clients.control, kind.create), name=name, tags=tags_of(owner), **shape)
    except AgentCoreError as error:
        if not error.is_conflict and not error.is_invalid:
            raise
        found = find_tool(clients, capability, name)  # its clientToken was forgotten, but its name was not
        if found is None:
            raise
        return found
    return _id_of(kind, made[kind.wrapped] if kind.wrapped else made)


def _id_of(kind: _Kind, item: Mapping[str, Any]) -> str:
    return str(item["id"] if kind.wrapped else item[kind.id])


def find_tool(clients: Clients, capability: str, name: str) -> str | None:
    """Find what serves a capability by its name, which begins its id; None where there is none, or it is leaving."""
    kind = _KINDS[capability]
    custom = {} if kind.wrapped else {"type": "CUSTOM"}
    for item in pages(getattr(clients.control, kind.list), kind.items, maxResults=_PAGE, **custom):
        if _id_of(kind, item).rpartition("-")[0] == name and item["status"] not in _LEAVING:
            return _id_of(kind, item)
    return None


def known_tool(clients: Clients, target: Target, capability: str) -> str | None:
    """Return the id of what serves a capability, as deploying kept it or as it is found."""
    return target.remote.get(remote_key(capability)) or find_tool(clients, capability, tool_name(capability, target))


def wait_for_tools(clients: Clients, ids: Mapping[str, str], deadline: Deadline) -> None:
    """Wait until everything lent is ready; raises DeploymentFailedError, retryably when the time is up."""
    waiting = dict(ids)
    for _ in deadline.pauses():
        for capability in list(waiting):
            status = _status(clients, capability, waiting[capability])
            if status in _FAILED or status in _LEAVING:
                # An agent's memory would stay failed for all its versions; the rest is removed with the deployment.
                if capability == Capability.MEMORY:
                    _remove(clients, capability, waiting[capability])
                raise DeploymentFailedError(f"AgentCore could not make the {capability}.", error_class="ToolFailed")
            if status in _READY:
                del waiting[capability]
        if not waiting:
            return
    raise DeploymentFailedError("AgentCore is still at work.", error_class="StillCreating", retryable=True)


def list_sessions(clients: Clients, capability: str, remote_id: str, *statuses: str) -> list[ToolSession]:
    """List the sessions of an interpreter or a browser in these states; one that is gone has none."""
    kind = _KINDS[capability]
    operation = getattr(clients.tools, kind.list_sessions)
    found: dict[str, ToolSession] = {}
    # Running ones first: one that ends in between is then seen twice, and not missed; its end is kept.
    for status in statuses:
        try:
            arguments = {kind.identifier: remote_id, "status": status, "maxResults": _PAGE}
            for item in pages(operation, "items", **arguments):
                found[item["sessionId"]] = _read_session(capability, item)
        except AgentCoreError as error:
            if not error.is_not_found:
                raise
    return list(found.values())


def _read_session(capability: str, item: Mapping[str, Any]) -> ToolSession:
    started = item["createdAt"]
    return ToolSession(
        kind=Capability(capability),
        remote_id=item["sessionId"],
        name=item.get("name", ""),
        started_at=started,
        ended_at=item.get("lastUpdatedAt", started) if item["status"] == _ENDED else None,
    )


def all_sessions(clients: Clients, target: Target) -> list[ToolSession]:
    """Return every session of a deployment's own tools, as far as AgentCore lists them."""
    return [
        session
        for capability in _WITH_SESSIONS
        if (remote_id := target.remote.get(remote_key(capability)))
        for session in list_sessions(clients, capability, remote_id, "READY", _ENDED)
    ]


def stop_sessions(clients: Clients, target: Target, capabilities: Iterable[str], deadline: Deadline) -> None:
    """End what runs of these tools and see that it ended; raises DeploymentFailedError where it did not in time."""
    for capability in _WITH_SESSIONS:
        if capability not in capabilities or (remote_id := known_tool(clients, target, capability)) is None:
            continue
        kind = _KINDS[capability]
        for _ in deadline.pauses():
            running = list_sessions(clients, capability, remote_id, "READY")
            if not running:
                break
            for session in running:
                _stop(getattr(clients.tools, kind.stop_session), kind, remote_id, session.remote_id)
        else:
            raise DeploymentFailedError(
                f"Sessions of the {capability} are still running.", error_class="StillRunning", retryable=True
            )


def _stop(operation: Any, kind: _Kind, remote_id: str, session_id: str) -> None:
    try:
        call(operation, **{kind.identifier: remote_id, "sessionId": session_id})
    except AgentCoreError as error:
        # A conflict: it is on its way out already.
        if not error.is_not_found and not error.is_conflict:
            raise


def remove_tools(clients: Clients, target: Target, deadline: Deadline) -> None:
    """Remove a deployment's interpreter and browser with their sessions; gone already is success."""
    stop_sessions(clients, target, _WITH_SESSIONS, deadline)
    for capability in _WITH_SESSIONS:
        _remove(clients, capability, known_tool(clients, target, capability))


def remove_memory(clients: Clients, agent: AgentRef) -> None:
    """Remove an agent's memory; gone already is success."""
    _remove(clients, Capability.MEMORY, find_tool(clients, Capability.MEMORY, memory_name(agent)))


def _remove(clients: Clients, capability: str, remote_id: str | None) -> None:
    kind = _KINDS[capability]
    if remote_id is None:
        return
    try:
        gone_is_none(getattr(clients.control, kind.delete), **{kind.id: remote_id})
    except AgentCoreError as error:
        if not error.is_conflict or _status(clients, capability, remote_id) not in _LEAVING:
            raise


def _status(clients: Clients, capability: str, remote_id: str) -> str:
    kind = _KINDS[capability]
    answer = gone_is_none(getattr(clients.control, kind.get), **{kind.id: remote_id})
    if answer is None:
        return "DELETED"
    return str((answer[kind.wrapped] if kind.wrapped else answer)["status"])
