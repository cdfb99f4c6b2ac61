"""Who calls, and whether they may: signatures first, then policies."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from webhost.local.agentcore.errors import AwsError, Kind
from webhost.local.agentcore.model import Request
from webhost.local.agentcore.moto import Moto
from webhost.local.agentcore.policies import Roles
from webhost.local.agentcore.signatures import fits, read_signature
from webhost.local.agentcore.state import Store
from webhost.local.agentcore.tools import ABOUT
from webhost.local.agentcore.vms import RoleCredentials, Vms

_USER: Final = "x-amzn-bedrock-agentcore-runtime-user-id"


@dataclass(frozen=True)
class Wire:
    """A request as it came; names of headers in lower case."""

    method: str
    target: str
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True)
class Caller:
    """Who signed a request: a role, or the control plane."""

    role: RoleCredentials | None

    @property
    def name(self) -> str:
        """What the list of calls says of it."""
        return "control" if self.role is None else f"role/{self.role.role}"


class Access:
    """The control plane's credentials and those of all roles, and what each may do at this moment."""

    def __init__(self, access_key: str, secret: str, vms: Vms, store: Store, moto: Moto) -> None:
        self._access_key = access_key
        self._secret = secret
        self._vms = vms
        self._store = store
        self._moto = moto
        self._roles = Roles(moto.iam)

    def caller(self, wire: Wire) -> Caller | None:
        """Return who signed a request; None where nobody did whose signature fits."""
        signature = read_signature(wire.headers.get("authorization"))
        if signature is None:
            return None
        role, secret = None, self._secret
        if signature.access_key != self._access_key:
            role = self._vms.credentials(signature.access_key)
            if role is None or wire.headers.get("x-amz-security-token") != role.token:
                return None
            secret = role.secret
        signed = fits(signature, secret, method=wire.method, target=wire.target, headers=wire.headers, body=wire.body)
        return Caller(role) if signed else None

    def require(self, caller: Caller | None, wire: Wire, service: str, operation: str, request: Request | None) -> None:
        """Raise AccessDeniedException unless the caller may do this."""
        if caller is None:
            raise AwsError(Kind.ACCESS_DENIED, "The request signature does not fit.")
        if caller.role is None:
            # Naming a user is a permission of its own, InvokeAgentRuntimeForUser; the platform's account denies both.
            if operation.startswith("InvokeAgentRuntimeCommand") or _USER in wire.headers:
                raise AwsError(Kind.ACCESS_DENIED, "The control plane may not.")
            return
        resource, context = "*", {"aws:TokenIssueTime": f"{caller.role.issued_at:%Y-%m-%dT%H:%M:%SZ}"}
        if request is not None and operation in ABOUT:
            sort, name = ABOUT[operation]
            resource = self._store.get(sort, request[name]).arn
            context |= {f"{service}:{key}": request[key] for key in ("actorId", "sessionId") if request.get(key)}
        elif service == "secretsmanager":
            resource = self._moto.secret_arn(str(json.loads(wire.body).get("SecretId") or "*"))
        if not self._roles.may(caller.role.role, f"{service}:{operation}", resource, context):
            message = f"{caller.name} is not authorized to perform {service}:{operation} on {resource}."
            raise AwsError(Kind.ACCESS_DENIED, message)
