"""An agent's secrets in Secrets Manager: a master that no role may read, and a copy for each deployment.

A deployment's copy holds the keys that it declared, so that its role can read no more. Values pass through
here and are kept by Secrets Manager alone: no error, log or environment variable holds one.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from runtimes.errors import DeploymentFailedError
from runtimes.providers.agentcore_clients import AgentCoreError, Clients, call, gone_is_none, pages
from runtimes.providers.agentcore_names import master_secret_name, secret_name, secrets_prefix, tags_of
from runtimes.providers.base import AgentRef, Target
from webhost.errors import InvalidRequestError

# What Secrets Manager takes as one secret.
_LARGEST_BYTES: Final = 65_536
_ATTEMPTS: Final = 6
_CURRENT: Final = "AWSCURRENT"
_PREVIOUS: Final = "AWSPREVIOUS"
_NEXT: Final = "WHSNEXT"


@dataclass(frozen=True)
class _Kept:
    """One secret as it was read: its version, and what is in it."""

    version: str
    content: Mapping[str, Any]

    @property
    def values(self) -> dict[str, str]:
        return dict(self.content.get("values", {}))


def merged(values: Mapping[str, str], changes: Mapping[str, str | None]) -> dict[str, str]:
    """Return values with changes made to them; None deletes."""
    return {name: value for name, value in ({**values, **changes}).items() if value is not None}


def copy_of(keys: Iterable[str], values: Mapping[str, str]) -> str:
    """Return what a deployment may read: the keys that it declared, and the values of those that are set."""
    declared = sorted(keys)
    return _text({"keys": declared, "values": {key: values[key] for key in declared if key in values}})


def _text(content: Mapping[str, Any]) -> str:
    return json.dumps(content, sort_keys=True, ensure_ascii=False)


def put_agent_secrets(clients: Clients, agent: AgentRef, changes: Mapping[str, str | None]) -> None:
    """Change an agent's secrets, then the copies of every deployment that is kept.

    Two at once lose nothing: the master is changed on the condition that nobody changed it meanwhile. Raises
    InvalidRequestError where they are too large together.
    """
    for _ in range(_ATTEMPTS):
        kept = _read(clients, master_secret_name(agent))
        values = merged(kept.values if kept else {}, changes)
        text = _text({"values": values})
        if len(text.encode()) > _LARGEST_BYTES:
            raise InvalidRequestError(
                f"All secrets of an agent on AgentCore together are at most {_LARGEST_BYTES // 1024} KB.",
                path="secrets",
            )
        # Also where there is no master: deleting from nothing makes nothing.
        if values == (kept.values if kept else {}):
            break
        if _replaced(clients, agent, kept, text):
            break
    else:
        raise DeploymentFailedError(
            "The secrets were being changed by somebody else.", error_class="SecretsBusy", retryable=True
        )
    _refresh_copies(clients, agent)


def _read(clients: Clients, name: str) -> _Kept | None:
    found = gone_is_none(clients.secrets.get_secret_value, SecretId=name, VersionStage=_CURRENT)
    return None if found is None else _Kept(found["VersionId"], json.loads(found["SecretString"]))


def _replaced(clients: Clients, agent: AgentRef, kept: _Kept | None, text: str) -> bool:
    """Write the master unless somebody else did since it was read; say whether it was written."""
    name = master_secret_name(agent)
    if kept is None:
        return _created(clients, name, text, tags_of(agent)) is not None
    # Beside the current version first; moving the label fails if the current one is not the one that was read.
    token = secrets.token_hex(32)
    made = call(
        clients.secrets.put_secret_value,
        SecretId=name,
        SecretString=text,
        ClientRequestToken=token,
        VersionStages=[_NEXT],
    )
    try:
        call(
            clients.secrets.update_secret_version_stage,
            SecretId=name,
            VersionStage=_CURRENT,
            MoveToVersionId=made["VersionId"],
            RemoveFromVersionId=kept.version,
        )
    except AgentCoreError as error:
        if not error.is_invalid:
            raise
        return False
    _forget(clients, name, kept.version)
    return True


def _forget(clients: Clients, name: str, version: str) -> None:
    """Take the label from what was just replaced: with it, what was deleted could be read as the previous version."""
    try:
        gone_is_none(
            clients.secrets.update_secret_version_stage,
            SecretId=name,
            VersionStage=_PREVIOUS,
            RemoveFromVersionId=version,
        )
    except AgentCoreError as error:
        if not error.is_invalid:  # somebody else replaced it again meanwhile, and the label moved on
            raise


def _created(clients: Clients, name: str, text: str, tags: Mapping[str, str]) -> str | None:
    """Make a secret and return its ARN; None where there is one already."""
    try:
        made = call(
            clients.secrets.create_secret,
            Name=name,
            SecretString=text,
            Tags=[{"Key": key, "Value": value} for key, value in tags.items()],
        )
    except AgentCoreError as error:
        if not error.is_conflict:
            raise
        return None
    return str(made["ARN"])


def _refresh_copies(clients: Clients, agent: AgentRef) -> None:
    """Bring every copy to what the master says, and again if the master changed meanwhile."""
    names = [
        item["Name"]
        for item in pages(
            clients.secrets.list_secrets,
            "SecretList",
            MaxResults=100,
            Filters=[{"Key": "name", "Values": [secrets_prefix(agent)]}],
        )
    ]
    copies = [name for name in names if name != master_secret_name(agent)]
    for _ in range(_ATTEMPTS):
        master = _read(clients, master_secret_name(agent))
        for name in copies:
            _refresh(clients, name, master.values if master else {})
        if _unchanged(clients, agent, master):
            return
    raise DeploymentFailedError(
        "The secrets were being changed by somebody else.", error_class="SecretsBusy", retryable=True
    )


def _refresh(clients: Clients, name: str, values: Mapping[str, str]) -> None:
    kept = _read(clients, name)
    if kept is None:  # its deployment was removed since the list was made
        return
    text = copy_of(kept.content["keys"], values)
    if text != _text(kept.content):
        gone_is_none(clients.secrets.put_secret_value, SecretId=name, SecretString=text)
        _forget(clients, name, kept.version)


def _unchanged(clients: Clients, agent: AgentRef, seen: _Kept | None) -> bool:
    now = _read(clients, master_secret_name(agent))
    return (now.version if now else None) == (seen.version if seen else None)


def ensure_copy(clients: Clients, target: Target, keys: Iterable[str]) -> str | None:
    """Give a deployment its own copy of the secrets that it declared; return its ARN, None where it declared none."""
    declared = sorted(keys)
    if not declared:
        return None
    agent = AgentRef(target.account_id, target.agent_id)
    master = _read(clients, master_secret_name(agent))
    text = copy_of(declared, master.values if master else {})
    arn = _created(clients, secret_name(target), text, tags_of(target))
    if arn is None:
        arn = str(call(clients.secrets.put_secret_value, SecretId=secret_name(target), SecretString=text)["ARN"])
    if not _unchanged(clients, agent, master):
        # Who changed the master may have listed the copies before this one was there.
        _refresh_copies(clients, agent)
    return arn


def remove_copy(clients: Clients, target: Target) -> None:
    """Remove a deployment's copy, for good; gone already is success."""
    _delete(clients, secret_name(target))


def remove_master(clients: Clients, agent: AgentRef) -> None:
    """Remove an agent's secrets, for good; gone already is success."""
    _delete(clients, master_secret_name(agent))


def _delete(clients: Clients, name: str) -> None:
    gone_is_none(clients.secrets.delete_secret, SecretId=name, ForceDeleteWithoutRecovery=True)
