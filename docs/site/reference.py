"""The API's reference as Markdown, out of docs/openapi.yaml: one section per operation."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

_TITLES = {
    "invoke": "Invoke", "invocations": "Invocations and limits", "agents": "Agents", "deployments": "Deployments",
    "secrets": "Secrets", "sessions": "Sessions", "billing": "Billing and usage", "alerts": "Alerts",
    "account": "Account and tiers", "tokens": "Tokens", "telemetry": "Telemetry",
}  # fmt: skip
_DEEPEST = 4
_NULL = "#/components/schemas/NullEnum"
_Row = tuple[str, str, bool, str]  # name, type, whether it is required, what it says
_CALLERS = {
    "delegated": "A trusted backend's signature (docs/delegated.md).",
    None: "Nobody in particular: no token is asked for.",
}


def operations(document: Path) -> str:
    """Return the sections of every operation, grouped by subject, those of most use first."""
    api = yaml.safe_load(document.read_text())
    groups: dict[str, list[str]] = {}
    for path, methods in api["paths"].items():
        for method, operation in methods.items():
            tag = operation["tags"][0]
            groups.setdefault(tag, []).append("\n".join(_operation(api, method, path, operation)))
    order = [*(tag for tag in _TITLES if tag in groups), *sorted(groups.keys() - _TITLES.keys())]
    return "\n\n".join(f"## {_TITLES.get(tag, tag.capitalize())}\n\n" + "\n\n".join(groups[tag]) for tag in order)


def _operation(api: Mapping[str, Any], method: str, path: str, operation: Mapping[str, Any]) -> Iterator[str]:
    yield f"### {method.upper()} {path}\n"
    yield f"{operation.get('description', '').strip()}\n"
    yield f"Who: {_caller(operation)} Operation: `{operation['operationId']}`.\n"
    given = [p for p in operation.get("parameters", []) if p["name"] != "X-Trace-Id"]
    if given:
        yield "| parameter | in | type | |\n|---|---|---|---|"
        for one in given:
            needed = "required. " if one.get("required") and one["in"] != "path" else ""
            kind = _kind(api, one["schema"])
            yield f"| `{one['name']}` | {one['in']} | {kind} | {needed}{_cell(one.get('description', ''))} |"
        yield ""
    for kind, media in operation.get("requestBody", {}).get("content", {}).items():
        yield from _body(api, f"Body, `{kind}`:", media.get("schema", {}), "request")
    for status, answer in operation["responses"].items():
        if status == "default":
            continue
        content = answer.get("content", {})
        yield f"Answer {status}" + (":" if content else f": {answer.get('description') or 'no body'}.") + "\n"
        for kind, media in content.items():
            yield from _body(api, f"`{kind}`", media.get("schema", {}), "answer")
    yield "Otherwise an error in the [envelope](errors.md).\n"


def _caller(operation: Mapping[str, Any]) -> str:
    scope = operation.get("x-required-scope")
    if scope:
        return f"a token with the scope `{scope}`, or a signed-in person."
    schemes = [name for one in operation.get("security") or [] for name in one]
    return _CALLERS.get(schemes[0] if schemes else None, "see below.")


def _body(api: Mapping[str, Any], said: str, schema: Mapping[str, Any], use: str) -> Iterator[str]:
    rows = list(_rows(api, schema, "", 0))
    yield f"{said}\n"
    if not rows:
        yield f"{_kind(api, schema)}.\n"
        return
    yield "| field | type | |\n|---|---|---|"
    for name, kind, needed, words in rows:
        yield f"| `{name}` | {kind} | {'required. ' if needed and use == 'request' else ''}{_cell(words)} |"
    yield ""


def _rows(api: Mapping[str, Any], schema: Mapping[str, Any], prefix: str, deep: int) -> Iterator[_Row]:
    schema = _resolved(api, schema)
    if schema.get("type") == "array":
        yield from _rows(api, schema["items"], f"{prefix}[]", deep)
        return
    for name, field in schema.get("properties", {}).items():
        full = f"{prefix}.{name}" if prefix else name
        needed = name in schema.get("required", [])
        yield full, _kind(api, field), needed, field.get("description") or ""
        if deep < _DEEPEST:
            yield from _rows(api, field, full, deep + 1)


def _resolved(api: Mapping[str, Any], schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """Follow references, and what a schema consists of."""
    if "$ref" in schema:
        return _resolved(api, api["components"]["schemas"][schema["$ref"].rpartition("/")[2]])
    for key in ("allOf", "oneOf", "anyOf"):
        if key in schema:
            return _resolved(api, next((one for one in schema[key] if one.get("$ref") != _NULL), {}))
    return schema


def _kind(api: Mapping[str, Any], schema: Mapping[str, Any]) -> str:
    nullable = schema.get("nullable", False)
    schema = _resolved(api, schema)
    if "enum" in schema:
        kind = ", ".join(f"`{json.dumps(v)}`" if not isinstance(v, str) else f"`{v}`" for v in schema["enum"])
    elif schema.get("type") == "array":
        kind = f"list of {_kind(api, schema['items'])}"
    else:
        kind = schema.get("format") or schema.get("type") or "any"
    bounds = [f"{word} {schema[key]:,}" for key, word in (("minimum", "from"), ("maximum", "to")) if key in schema]
    if "maxLength" in schema:
        bounds.append(f"at most {schema['maxLength']:,} characters")
    return " ".join([kind, *bounds]) + (" or null" if nullable or schema.get("nullable") else "")


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
