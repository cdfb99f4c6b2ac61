"""What a role may do: its inline policies and its boundary, as moto keeps them at this moment."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final
from urllib.parse import unquote

from botocore.exceptions import ClientError

_NOTHING: Final[Mapping[str, str]] = MappingProxyType({})


def allows(
    policies: Iterable[Mapping[str, Any]], action: str, resource: str, context: Mapping[str, str] = _NOTHING
) -> bool:
    """Say whether policies allow an action on a resource: some statement must, and none may deny it.

    `context` is what conditions speak of. A condition that is not understood denies, and never allows.
    """
    allowed = False
    for policy in policies:
        for statement in _listed(policy.get("Statement", [])):
            if not (_matches(statement.get("Action"), action) and _matches(statement.get("Resource"), resource)):
                continue
            holds = _holds(statement.get("Condition", {}), context)
            if statement.get("Effect") == "Deny" and holds is not False:
                return False
            allowed |= statement.get("Effect") == "Allow" and holds is True
    return allowed


def trusts(policy: Mapping[str, Any], service: str, context: Mapping[str, str]) -> bool:
    """Say whether a role's trust policy lets a service of AWS assume it."""
    return any(
        statement.get("Effect") == "Allow"
        and service in _listed(statement.get("Principal", {}).get("Service"))
        and _matches(statement.get("Action"), "sts:AssumeRole")
        and _holds(statement.get("Condition", {}), context) is True
        for statement in _listed(policy.get("Statement", []))
    )


def _holds(condition: Mapping[str, Mapping[str, Any]], context: Mapping[str, str]) -> bool | None:
    """Say whether a condition holds; None where an operator is not among the known ones."""
    if not set(condition) <= set(_OPERATORS):
        return None
    # What is not known of a request fulfils no condition.
    return all(
        key in context and any(_OPERATORS[operator](str(wanted), context[key]) for wanted in _listed(values))
        for operator, tests in condition.items()
        for key, values in tests.items()
    )


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _matches(patterns: Any, value: str) -> bool:
    return any(_is_like(pattern, value) for pattern in _listed(patterns or []))


def _is_like(pattern: str, value: str, flags: int = re.IGNORECASE) -> bool:
    return bool(re.fullmatch(re.escape(pattern).replace(r"\*", ".*").replace(r"\?", "."), value, flags))


_OPERATORS: Final[Mapping[str, Callable[[str, str], bool]]] = {
    "StringEquals": lambda wanted, given: wanted == given,
    "StringLike": lambda wanted, given: _is_like(wanted, given, 0),
    "ArnEquals": lambda wanted, given: _is_like(wanted, given, 0),
    "ArnLike": lambda wanted, given: _is_like(wanted, given, 0),
    # Both sides in the one form that IAM documents, which sorts by time.
    "DateLessThan": lambda wanted, given: given < wanted,
    "DateGreaterThan": lambda wanted, given: given > wanted,
}


class Roles:
    """Roles as IAM has them, asked anew each time: a policy that was deleted a moment ago allows nothing."""

    def __init__(self, iam: Any) -> None:
        self._iam = iam

    def may(self, role: str, action: str, resource: str, context: Mapping[str, str]) -> bool:
        """Say whether a role may do something, by its own policies and by its boundary; one that is gone may not."""
        try:
            own = [self._inline(role, name) for name in self._iam.list_role_policies(RoleName=role)["PolicyNames"]]
            boundary = self._iam.get_role(RoleName=role)["Role"].get("PermissionsBoundary")
            limits = [] if boundary is None else [self._managed(boundary["PermissionsBoundaryArn"])]
        except ClientError:
            return False
        return allows(own, action, resource, context) and (
            boundary is None or allows(limits, action, resource, context)
        )

    def _inline(self, role: str, name: str) -> Mapping[str, Any]:
        return document_of(self._iam.get_role_policy(RoleName=role, PolicyName=name)["PolicyDocument"])

    def _managed(self, arn: str) -> Mapping[str, Any]:
        version = self._iam.get_policy(PolicyArn=arn)["Policy"]["DefaultVersionId"]
        return document_of(self._iam.get_policy_version(PolicyArn=arn, VersionId=version)["PolicyVersion"]["Document"])


def document_of(given: Any) -> Mapping[str, Any]:
    """Return a policy as boto3 or moto give it: decoded already, or not."""
    found: Mapping[str, Any] = json.loads(unquote(given)) if isinstance(given, str) else given
    return found
