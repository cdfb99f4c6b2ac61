"""From a bundle to a runtime that is ready: zip, role, secrets, tools, runtime. Every step adopts what is there.

One runtime per deployment, never updated: an update would reset what it leaves out, and sessions that run keep
the old code anyway.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import urlencode

from entitlements.enums import Capability
from runtimes.bundle import Bundle
from runtimes.bundles.config import lifecycle_of
from runtimes.errors import DeploymentFailedError
from runtimes.providers import agentcore_roles as roles
from runtimes.providers import agentcore_secrets as vault
from runtimes.providers import agentcore_tools as tools
from runtimes.providers.agentcore_clients import AgentCoreError, Clients, Deadline, call, gone_is_none, pages
from runtimes.providers.agentcore_names import object_key, place, runtime_name, tags_of, token_of
from runtimes.providers.agentcore_packing import language_of, pack
from runtimes.providers.base import Target

# AgentCore cannot take on a role that is only some seconds old, and calls the request invalid.
_ROLE_SETTLES_SECONDS: Final = 60
_PAGE: Final = 100
_READY: Final = "READY"
_FAILED: Final = frozenset({"CREATE_FAILED", "UPDATE_FAILED", "DELETE_FAILED"})
_LEAVING: Final = "DELETING"
# What the owner of a bundle can mend, by a word in AgentCore's reason, which itself is never shown.
_REASONS: Final[Mapping[str, str]] = {
    "arm64": "The bundle holds binaries that are not built for Linux on arm64.",
    "aarch64": "The bundle holds binaries that are not built for Linux on arm64.",
    "size": "The bundle is too large for AgentCore.",
}


def environment_of(
    target: Target, bundle: Bundle, secret_arn: str | None, tool_ids: Mapping[str, str]
) -> dict[str, str]:
    """Return the environment of a deployment's machines. Anybody who may look at the runtime reads it: no secret."""
    named = {
        "WHS_DEPLOYMENT": target.public_deployment_id,
        "WHS_ENTRYPOINT": bundle.entrypoint,
        "WHS_SECRET_ARN": secret_arn,
        "WHS_REQUIRED_KEYS": ",".join(bundle.config.required_keys) or None,
        "WHS_OPTIONAL_KEYS": ",".join(bundle.config.optional_keys) or None,
        "WHS_CODE_INTERPRETER_ID": tool_ids.get(Capability.CODE_INTERPRETER),
        "WHS_BROWSER_ID": tool_ids.get(Capability.BROWSER),
        "WHS_MEMORY_ID": tool_ids.get(Capability.MEMORY),
    }
    return {name: value for name, value in named.items() if value is not None}


def reason_of(failure: str) -> str:
    """Say in our own words why AgentCore could not make a runtime."""
    words = failure.lower()
    known = (ours for word, ours in _REASONS.items() if word in words)
    return next(known, "AgentCore could not make a runtime of this bundle.")


def deploy(clients: Clients, target: Target, bundle: Bundle, deadline: Deadline) -> dict[str, str]:
    """Make everything of a deployment, or adopt it, and wait until it is ready; return what AWS calls the parts.

    Raises DeploymentFailedError, retryably where only the time was up: a repeat goes on where this one ended.
    """
    role_arn, role_since = roles.ensure_role(clients, target)
    keys = (*bundle.config.required_keys, *bundle.config.optional_keys)
    secret_arn = vault.ensure_copy(clients, target, keys)
    roles.put_base(clients, target, secret_arn)
    ids = {c: tools.ensure_tool(clients, target, c) for c in sorted(target.capabilities)}
    for capability, remote_id in ids.items():
        roles.put_grant(clients, target, capability, remote_id)
    content = pack(bundle)
    lifecycle = lifecycle_of(bundle.config)
    wanted = {
        "agentRuntimeName": runtime_name(target),
        "agentRuntimeArtifact": _artifact(bundle, upload(clients, target, content), object_key(target)),
        "roleArn": role_arn,
        "networkConfiguration": {"networkMode": "PUBLIC"},
        "protocolConfiguration": {"serverProtocol": "HTTP"},
        "lifecycleConfiguration": {
            "idleRuntimeSessionTimeout": lifecycle.idle_seconds,
            "maxLifetime": lifecycle.lifetime_seconds,
        },
        "environmentVariables": environment_of(target, bundle, secret_arn, ids),
        "tags": tags_of(target),
    }
    runtime_id = ensure_runtime(clients, target, wanted, role_since, deadline)
    tools.wait_for_tools(clients, ids, deadline)
    arn = wait_until_ready(clients, runtime_id, deadline)
    remote = {"runtimeArn": arn, "runtimeId": runtime_id, "roleArn": role_arn}
    if secret_arn is not None:
        remote["secretArn"] = secret_arn
    return remote | {tools.remote_key(capability): remote_id for capability, remote_id in ids.items()}


def _artifact(bundle: Bundle, version_id: str, key: str) -> dict[str, Any]:
    language = language_of(bundle)
    return {
        "codeConfiguration": {
            "code": {"s3": {"bucket": place().bucket, "prefix": key, "versionId": version_id}},
            "runtime": language.value,
            "entryPoint": [language.entry_point],
        }
    }


def upload(clients: Clients, target: Target, content: bytes) -> str:
    """Bring a zip to the bucket, unless the very same one lies there; return its version."""
    where, key = place(), object_key(target)
    digest = hashlib.sha256(content).hexdigest()
    there = gone_is_none(clients.s3.head_object, Bucket=where.bucket, Key=key)
    if there is not None and there.get("Metadata", {}).get("sha256") == digest:
        return _version(there)
    return _version(
        call(
            clients.s3.put_object,
            Bucket=where.bucket,
            Key=key,
            Body=content,
            ContentType="application/zip",
            ChecksumSHA256=base64.b64encode(bytes.fromhex(digest)).decode(),
            Metadata={"sha256": digest},
            Tagging=urlencode(tags_of(target)),
        )
    )


def _version(answer: Mapping[str, Any]) -> str:
    version = answer.get("VersionId")
    if not version or version == "null":
        raise DeploymentFailedError("The bucket for bundles keeps no versions.", error_class="NotConfigured")
    return str(version)


def ensure_runtime(
    clients: Clients, target: Target, wanted: Mapping[str, Any], role_since: datetime, deadline: Deadline
) -> str:
    """Make a deployment's runtime, or adopt the one that it has; return its id.

    One of the same name that was made of other bytes, by an older release of ours, is removed first.
    """
    operation = clients.control.create_agent_runtime
    members = operation.__self__.meta.service_model.operation_model("CreateAgentRuntime").input_shape.members
    # Otherwise code that an agent was tricked to fetch could read the role's credentials with a plain GET.
    safe = {"metadataConfiguration": {"requireMMDSV2": True}} if "metadataConfiguration" in members else {}
    version = wanted["agentRuntimeArtifact"]["codeConfiguration"]["code"]["s3"]["versionId"]
    token = token_of(wanted["agentRuntimeName"], version)
    for _ in deadline.pauses():
        try:
            runtime_id = str(call(operation, **wanted, **safe, clientToken=token)["agentRuntimeId"])
        except AgentCoreError as error:
            if error.is_invalid and _age(role_since) < _ROLE_SETTLES_SECONDS:
                continue
            if not error.is_conflict:
                raise
            found = find_runtime(clients, target)
            if found is None:
                continue
            runtime_id = found
        kept = gone_is_none(clients.control.get_agent_runtime, agentRuntimeId=runtime_id)
        if kept is None:  # removed behind our back, but its clientToken is still known
            token = token_of(wanted["agentRuntimeName"], version, runtime_id)
        elif kept["status"] == _LEAVING:
            continue
        elif _is_of(kept, version):
            return runtime_id
        else:
            gone_is_none(clients.control.delete_agent_runtime, agentRuntimeId=runtime_id)
    raise DeploymentFailedError("AgentCore is still at work.", error_class="StillCreating", retryable=True)


def _is_of(runtime: Mapping[str, Any], version: str) -> bool:
    code = runtime.get("agentRuntimeArtifact", {}).get("codeConfiguration", {}).get("code", {})
    return bool(code.get("s3", {}).get("versionId") == version)


def _age(since: datetime) -> float:
    return (datetime.now(UTC) - since).total_seconds()


def find_runtime(clients: Clients, target: Target) -> str | None:
    """Find a deployment's runtime by its name; None where there is none."""
    for item in pages(clients.control.list_agent_runtimes, "agentRuntimes", maxResults=_PAGE):
        if item["agentRuntimeName"] == runtime_name(target):
            return str(item["agentRuntimeId"])
    return None


def wait_until_ready(clients: Clients, runtime_id: str, deadline: Deadline) -> str:
    """Wait until a runtime is ready and return its ARN; one that failed is removed, and told in our own words."""
    for _ in deadline.pauses():
        runtime = call(clients.control.get_agent_runtime, agentRuntimeId=runtime_id)
        if runtime["status"] == _READY:
            if runtime.get("metadataConfiguration", {}).get("requireMMDSV2") is False:
                gone_is_none(clients.control.delete_agent_runtime, agentRuntimeId=runtime_id)
                raise DeploymentFailedError("AgentCore made a runtime that is not safe.", error_class="MetadataV1")
            return str(runtime["agentRuntimeArn"])
        if runtime["status"] in _FAILED:
            gone_is_none(clients.control.delete_agent_runtime, agentRuntimeId=runtime_id)
            raise DeploymentFailedError(reason_of(runtime.get("failureReason", "")), error_class="CreateFailed")
    raise DeploymentFailedError("AgentCore is still at work.", error_class="StillCreating", retryable=True)


def remove_runtime(clients: Clients, target: Target) -> None:
    """Remove a deployment's runtime, also one whose id nobody kept; gone or on its way out is success."""
    runtime_id = target.remote.get("runtimeId") or find_runtime(clients, target)
    if runtime_id is None:
        return
    try:
        gone_is_none(clients.control.delete_agent_runtime, agentRuntimeId=runtime_id)
    except AgentCoreError as error:
        if not error.is_conflict:
            raise
        kept = gone_is_none(clients.control.get_agent_runtime, agentRuntimeId=runtime_id)
        if kept is not None and kept["status"] != _LEAVING:
            raise


def remove_objects(clients: Clients, target: Target) -> None:
    """Remove every version of a deployment's zip; gone already is success."""
    where, key = place(), object_key(target)
    listed = call(clients.s3.list_object_versions, Bucket=where.bucket, Prefix=key)
    versions = [*listed.get("Versions", ()), *listed.get("DeleteMarkers", ())]
    if versions:
        objects = [{"Key": item["Key"], "VersionId": item["VersionId"]} for item in versions]
        call(clients.s3.delete_objects, Bucket=where.bucket, Delete={"Objects": objects, "Quiet": True})
