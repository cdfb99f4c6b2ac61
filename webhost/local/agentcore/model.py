"""Requests read by botocore's own model: which operation it is, and whether the service would take its parameters."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Final
from urllib.parse import parse_qsl, unquote, urlsplit

import botocore.session
from botocore.model import OperationModel, Shape

from webhost.local.agentcore.errors import AwsError, Kind

SERVICES: Final = ("bedrock-agentcore-control", "bedrock-agentcore")


@dataclass(frozen=True)
class Request:
    """An operation with its parameters under the model's names."""

    service: str
    operation: str
    parameters: Mapping[str, Any]

    def __getitem__(self, name: str) -> Any:
        return self.parameters[name]

    def get(self, name: str, default: Any = None) -> Any:
        """Return a parameter, or what stands for it."""
        return self.parameters.get(name, default)


@cache
def _operations() -> list[tuple[str, re.Pattern[str], str, OperationModel]]:
    session = botocore.session.get_session()
    found = []
    for service in SERVICES:
        model = session.get_service_model(service)
        for name in model.operation_names:
            operation = model.operation_model(name)
            path = operation.http["requestUri"].split("?")[0].rstrip("/")
            pattern = re.sub(r"\\\{(\w+)\\\}", r"(?P<\1>[^/]+)", re.escape(path)) + "/?"
            found.append((operation.http["method"], re.compile(pattern), service, operation))
    # The more of a path is fixed, the better it fits.
    found.sort(key=lambda entry: entry[1].pattern.count("(?P<"))
    return found


def read_request(method: str, target: str, headers: Mapping[str, str], body: bytes) -> Request:
    """Return the operation that a request means, with checked parameters; raises AwsError as the service would."""
    url = urlsplit(target)
    for verb, pattern, service, operation in _operations():
        match = pattern.fullmatch(url.path) if verb == method else None
        if match:
            values = {name: unquote(value) for name, value in match.groupdict().items()}
            parameters = _parameters(operation, values, dict(parse_qsl(url.query)), headers, body)
            problems = list(_problems(operation.input_shape, parameters, ""))
            if problems:
                raise AwsError(Kind.VALIDATION, "; ".join(problems)[:1000])
            return Request(service, operation.name, parameters)
    raise AwsError(Kind.NOT_FOUND, "There is no such operation.")


def _parameters(
    operation: OperationModel,
    path: Mapping[str, str],
    query: Mapping[str, str],
    headers: Mapping[str, str],
    body: bytes,
) -> dict[str, Any]:
    shape = operation.input_shape
    given = _body_of(shape, body)
    payload = shape.serialization.get("payload")
    members = shape.members[payload].members if payload and given else shape.members
    if unknown := set(given) - {member.serialization.get("name", name) for name, member in members.items()}:
        raise AwsError(Kind.VALIDATION, f"{', '.join(sorted(unknown))}: unknown")
    found: dict[str, Any] = {}
    for name, member in shape.members.items():
        where, key = member.serialization.get("location"), member.serialization.get("name", name)
        if where == "uri":
            found[name] = path[key]
        elif where == "querystring" and key in query:
            found[name] = _converted(member, query[key])
        elif where == "header" and key.lower() in headers:
            found[name] = _converted(member, headers[key.lower()])
        elif where is None and name == shape.serialization.get("payload"):
            found[name] = body if member.type_name == "blob" else given
        elif where is None and given.get(key) is not None:
            found[name] = given[key]
    return found


def _body_of(shape: Shape, body: bytes) -> dict[str, Any]:
    payload = shape.serialization.get("payload")
    if not body or (payload and shape.members[payload].type_name == "blob"):
        return {}
    try:
        given = json.loads(body)
    except ValueError:
        raise AwsError(Kind.VALIDATION, "The body is not JSON.") from None
    if not isinstance(given, dict):
        raise AwsError(Kind.VALIDATION, "The body is not a JSON object.")
    return given


def _converted(shape: Shape, text: str) -> Any:
    if shape.type_name in ("integer", "long"):
        try:
            return int(text)
        except ValueError:
            return text
    return {"true": True, "false": False}.get(text, text) if shape.type_name == "boolean" else text


_TYPES: Final[Mapping[str, type | tuple[type, ...]]] = {
    "string": str, "integer": int, "long": int, "boolean": bool, "structure": dict, "map": dict, "list": list,
    "blob": (bytes, str), "timestamp": (str, int, float), "double": (int, float), "float": (int, float),
}  # fmt: skip


def _problems(shape: Shape, value: Any, path: str) -> Iterator[str]:
    """Yield what the service would refuse about a value."""
    wanted = _TYPES.get(shape.type_name, object)
    if not isinstance(value, wanted) or (shape.type_name in ("integer", "long") and isinstance(value, bool)):
        yield f"{path or 'request'}: not a {shape.type_name}"
        return
    yield from _PROBLEMS.get(shape.type_name, _no_problems)(shape, value, path)


def _no_problems(_shape: Any, _value: Any, _path: str) -> Iterator[str]:
    yield from ()


def _list_problems(shape: Any, value: list[Any], path: str) -> Iterator[str]:
    yield from _out_of_range(shape, len(value), path)
    for n, item in enumerate(value):
        yield from _problems(shape.member, item, f"{path}[{n}]")


def _map_problems(shape: Any, value: Mapping[str, Any], path: str) -> Iterator[str]:
    yield from _out_of_range(shape, len(value), path)
    for key, item in value.items():
        yield from _problems(shape.key, key, f"{path}.{key} (key)")
        yield from _problems(shape.value, item, f"{path}.{key}")


def _string_problems(shape: Any, value: str, path: str) -> Iterator[str]:
    yield from _out_of_range(shape, len(value), path)
    pattern, enum = shape.metadata.get("pattern"), shape.metadata.get("enum")
    if pattern and not re.fullmatch(pattern, value, re.DOTALL):
        yield f"{path}: does not match {pattern}"
    if enum and value not in enum:
        yield f"{path}: not one of {', '.join(enum)}"


def _structure_problems(shape: Any, value: Mapping[str, Any], path: str) -> Iterator[str]:
    names = {member.serialization.get("name", name): name for name, member in shape.members.items()}
    for name in shape.required_members:
        if name not in value:
            yield f"{path}.{name}: missing"
    for key, item in value.items():
        name = key if key in shape.members else names.get(key)
        if name is None:
            yield f"{path}.{key}: unknown"
        elif item is not None:
            yield from _problems(shape.members[name], item, f"{path}.{key}")
    if shape.is_tagged_union and len(value) != 1:
        yield f"{path}: exactly one of {', '.join(shape.members)}"


def _out_of_range(shape: Shape, size: int, path: str) -> Iterator[str]:
    least, most = shape.metadata.get("min"), shape.metadata.get("max")
    if (least is not None and size < least) or (most is not None and size > most):
        yield f"{path}: {size} is not within {least} and {most}"


_PROBLEMS: Final[Mapping[str, Callable[[Any, Any, str], Iterator[str]]]] = {
    "structure": _structure_problems,
    "list": _list_problems,
    "map": _map_problems,
    "string": _string_problems,
    "integer": _out_of_range,
    "long": _out_of_range,
}
