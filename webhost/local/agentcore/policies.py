"""What a role may do: its inline policies and its boundary, as moto keeps them at this moment."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import unquote


def allows(policies: Iterable[Mapping[str, Any]], action: str, resource: str) -> bool:
    """Say whether policies allow an action on a resource: some statement must, and none may deny it.

    A statement with a condition denies, and never allows: conditions are not evaluated here.
    """
    allowed = False
    for policy in policies:
        for statement in _listed(policy.get("Statement", [])):
            if not (_matches(statement.get("Action"), action) and _matches(statement.get("Resource"), resource)):
                continue
            if statement.get("Effect") == "Deny":
                return False
            allowed |= statement.get("Effect") == "Allow" and "Condition" not in statement
    return allowed


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _matches(patterns: Any, value: str) -> bool:
    return any(
        re.fullmatch(re.escape(p).replace(r"\*", ".*").replace(r"\?", "."), value, re.IGNORECASE)
        for p in _listed(patterns or [])
    )


class Roles:
    """Roles as IAM has them, asked anew each time: a policy that was deleted a moment ago allows nothing."""

    def __init__(self, iam: Any) -> None:
        self._iam = iam

    def may(self, role: str, action: str, resource: str) -> bool:
        """Say whether a role may do something, by its own policies and by its boundary."""
        own = [self._inline(role, name) for name in self._iam.list_role_policies(RoleName=role)["PolicyNames"]]
        if not allows(own, action, resource):
            return False
        boundary = self._iam.get_role(RoleName=role)["Role"].get("PermissionsBoundary")
        return boundary is None or allows([self._managed(boundary["PermissionsBoundaryArn"])], action, resource)

    def _inline(self, role: str, name: str) -> Mapping[str, Any]:
        return _document(self._iam.get_role_policy(RoleName=role, PolicyName=name)["PolicyDocument"])

    def _managed(self, arn: str) -> Mapping[str, Any]:
        version = self._iam.get_policy(PolicyArn=arn)["Policy"]["DefaultVersionId"]
        return _document(self._iam.get_policy_version(PolicyArn=arn, VersionId=version)["PolicyVersion"]["Document"])


def _document(given: Any) -> Mapping[str, Any]:
    found: Mapping[str, Any] = json.loads(unquote(given)) if isinstance(given, str) else given
    return found
