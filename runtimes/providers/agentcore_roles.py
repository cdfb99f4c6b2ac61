"""A deployment's role: what its virtual machine may do at AWS. A grant is one inline policy, and no more.

Whatever runs in the machine can take the role's credentials, so a policy names this deployment's own things
only. AWS asks the policies at every call: what is deleted here is denied there, also to sessions that run.
"""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any, Final

from entitlements.enums import Capability
from runtimes.providers.agentcore_clients import AgentCoreError, Clients, call, gone_is_none
from runtimes.providers.agentcore_names import (
    BASE_POLICY,
    ROLE_PATH,
    Place,
    place,
    policy_name,
    role_name,
    runtime_name,
    tags_of,
)
from runtimes.providers.base import Target

_VERSION: Final = "2012-10-17"


def _document(*statements: dict[str, Any]) -> str:
    return json.dumps({"Version": _VERSION, "Statement": list(statements)}, separators=(",", ":"))


def _allow(actions: list[str], resource: str | list[str]) -> dict[str, Any]:
    return {"Effect": "Allow", "Action": actions, "Resource": resource}


def trust_policy(where: Place) -> str:
    """Return who may take the role: AgentCore, for what is ours, and nobody who merely asks AgentCore to."""
    return _document({
        "Effect": "Allow",
        "Principal": {"Service": "bedrock-agentcore.amazonaws.com"},
        "Action": "sts:AssumeRole",
        "Condition": {
            "StringEquals": {"aws:SourceAccount": where.account},
            "ArnLike": {"aws:SourceArn": where.arn("bedrock-agentcore", "*")},
        },
    })  # fmt: skip


def base_policy(where: Place, target: Target, secret_arn: str | None) -> str:
    """Return what every deployment may: write its own log and, where it has one, read its own secret."""
    logs = f"log-group:/aws/bedrock-agentcore/runtimes/{runtime_name(target)}-*"
    statements = [
        _allow(
            ["logs:CreateLogGroup", "logs:CreateLogStream", "logs:DescribeLogStreams", "logs:PutLogEvents"],
            [where.arn("logs", logs), where.arn("logs", f"{logs}:log-stream:*")],
        )
    ]
    if secret_arn is not None:
        statements.append(_allow(["secretsmanager:GetSecretValue"], secret_arn))
    return _document(*statements)


def capability_policy(where: Place, capability: str, remote_id: str) -> str:
    """Return the grant of a capability: to use this one interpreter, browser or memory.

    No List and no Get of sessions: they have no condition that would keep one deployment from another's.
    """
    service = "bedrock-agentcore"
    if capability == Capability.CODE_INTERPRETER:
        actions = ["StartCodeInterpreterSession", "InvokeCodeInterpreter", "StopCodeInterpreterSession"]
        return _document(_allow(_named(actions), where.arn(service, f"code-interpreter-custom/{remote_id}")))
    if capability == Capability.BROWSER:
        own = where.arn(service, f"browser-custom/{remote_id}")
        return _document(
            _allow(_named(["StartBrowserSession", "StopBrowserSession"]), own),
            # AWS knows no resource for it; the id of a session is a secret of who started it.
            _allow(_named(["ConnectBrowserAutomationStream"]), "*"),
        )
    actions = ["CreateEvent", "ListEvents", "GetEvent", "RetrieveMemoryRecords"]
    return _document(_allow(_named(actions), where.arn(service, f"memory/{remote_id}")))


def _named(actions: list[str]) -> list[str]:
    return [f"bedrock-agentcore:{action}" for action in actions]


def ensure_role(clients: Clients, target: Target) -> tuple[str, datetime]:
    """Make a deployment's role, or adopt it; return its ARN and since when it is there."""
    where, name = place(), role_name(target)
    try:
        made = call(
            clients.iam.create_role,
            RoleName=name,
            Path=ROLE_PATH,
            AssumeRolePolicyDocument=trust_policy(where),
            PermissionsBoundary=where.boundary_arn,
            Tags=[{"Key": key, "Value": value} for key, value in tags_of(target).items()],
        )
    except AgentCoreError as error:
        if not error.is_conflict:
            raise
        made = call(clients.iam.get_role, RoleName=name)
        boundary = made["Role"].get("PermissionsBoundary", {}).get("PermissionsBoundaryArn")
        if boundary != where.boundary_arn:
            call(clients.iam.put_role_permissions_boundary, RoleName=name, PermissionsBoundary=where.boundary_arn)
    return made["Role"]["Arn"], made["Role"]["CreateDate"]


def put_base(clients: Clients, target: Target, secret_arn: str | None) -> None:
    """Let a deployment do what every deployment may."""
    document = base_policy(place(), target, secret_arn)
    call(clients.iam.put_role_policy, RoleName=role_name(target), PolicyName=BASE_POLICY, PolicyDocument=document)


def put_grant(clients: Clients, target: Target, capability: str, remote_id: str) -> None:
    """Grant a capability; granted already is success."""
    call(
        clients.iam.put_role_policy,
        RoleName=role_name(target),
        PolicyName=policy_name(capability),
        PolicyDocument=capability_policy(place(), capability, remote_id),
    )


def delete_grant(clients: Clients, target: Target, capability: str) -> None:
    """Take a capability away; gone already is success."""
    gone_is_none(clients.iam.delete_role_policy, RoleName=role_name(target), PolicyName=policy_name(capability))


def has_grant(clients: Clients, target: Target, capability: str) -> bool:
    """Say whether AWS still has the grant of a capability."""
    found = gone_is_none(clients.iam.get_role_policy, RoleName=role_name(target), PolicyName=policy_name(capability))
    return found is not None


def remove_role(clients: Clients, target: Target) -> None:
    """Remove a deployment's role with its policies; gone already is success."""
    name = role_name(target)
    kept = gone_is_none(clients.iam.list_role_policies, RoleName=name)
    for policy in (kept or {}).get("PolicyNames", ()):
        gone_is_none(clients.iam.delete_role_policy, RoleName=name, PolicyName=policy)
    gone_is_none(clients.iam.delete_role, RoleName=name)
