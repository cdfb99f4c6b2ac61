"""Reads and checks an upload as Cloudflare does: one metadata part, and a part per module."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from http import HTTPStatus
from typing import Any

from webhost.local.cloudflare.config import COMPATIBILITY_DATE, MODULE_TYPES
from webhost.local.cloudflare.replies import ApiError, Code

_DISPOSITION = re.compile(r'form-data; name="([^"]*)"(?:; filename="([^"]*)")?')
_KNOWN_BINDINGS = frozenset({"plain_text", "secret_text", "service", "inherit"})
_LARGEST = 64 * 1024 * 1024
_MOST_TAGS = 8
_MOST_VARIABLES = 128
_LONGEST_VARIABLE = 5 * 1024


@dataclass(frozen=True)
class UploadedPart:
    """A part of a multipart body, its bytes unchanged."""

    name: str
    filename: str | None
    content_type: str
    content: bytes


@dataclass(frozen=True)
class Upload:
    """What a script is to become."""

    metadata: Mapping[str, Any]
    modules: Sequence[UploadedPart]


def read_upload(content_type: str, body: bytes) -> Upload:
    """Read a multipart upload; raises ApiError with the code that Cloudflare answers with."""
    parts = _split(content_type, body)
    metadata = [part for part in parts if part.name == "metadata"]
    if len(metadata) != 1 or metadata[0].content_type != "application/json":
        raise ApiError(Code.BAD_BODY, "There must be exactly one metadata part, of type application/json.")
    try:
        values = json.loads(metadata[0].content)
    except ValueError:
        raise ApiError(Code.BAD_BODY, "The metadata part is not valid JSON.") from None
    modules = [part for part in parts if part.name != "metadata"]
    _check_modules(values, modules)
    _check_settings(values)
    check_bindings(values.get("bindings", []))
    return Upload(values, modules)


def _split(content_type: str, body: bytes) -> list[UploadedPart]:
    match = re.fullmatch(r'multipart/form-data; boundary="?([^";]+)"?', content_type)
    if match is None:
        raise ApiError(Code.BAD_BODY, "The body must be multipart/form-data.", HTTPStatus.UNSUPPORTED_MEDIA_TYPE)
    pieces = (b"\r\n" + body).split(b"\r\n--" + match[1].encode())
    if len(pieces) < 3 or pieces[-1].strip() != b"--":
        raise ApiError(Code.BAD_BODY, "The multipart body is cut off.")
    return [_part(piece) for piece in pieces[1:-1]]


def _part(piece: bytes) -> UploadedPart:
    head, separator, content = piece.partition(b"\r\n\r\n")
    lines = head.decode().strip().split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    match = _DISPOSITION.fullmatch(headers.get("content-disposition", ""))
    if not separator or match is None:
        raise ApiError(Code.BAD_BODY, "A part of the multipart body has no name.")
    return UploadedPart(match[1], match[2], headers.get("content-type", ""), content)


def _check_modules(metadata: Mapping[str, Any], modules: Sequence[UploadedPart]) -> None:
    names = [part.name for part in modules]
    if len(set(names)) != len(names):
        raise ApiError(Code.BAD_BODY, "Two parts have the same name.")
    if metadata.get("main_module") not in names:
        raise ApiError(Code.INVALID_SCRIPT, "main_module names no part of the upload.")
    for part in modules:
        if part.filename != part.name or part.content_type not in MODULE_TYPES:
            raise ApiError(Code.INVALID_SCRIPT, f"{part.name} is no module: its type is {part.content_type}.")
    if sum(len(part.content) for part in modules) > _LARGEST:
        raise ApiError(Code.TOO_LARGE, "The script is too large.", HTTPStatus.REQUEST_ENTITY_TOO_LARGE)


def _check_settings(metadata: Mapping[str, Any]) -> None:
    try:
        given = date.fromisoformat(metadata["compatibility_date"])
    except (KeyError, TypeError, ValueError):
        raise ApiError(Code.INVALID_SCRIPT, "compatibility_date is missing or no date.") from None
    if given > date.fromisoformat(COMPATIBILITY_DATE):
        raise ApiError(Code.INVALID_SCRIPT, "compatibility_date is in the future of this runtime.")
    check_tags(metadata.get("tags", []))


def check_tags(tags: Any) -> None:
    """Refuse more than eight tags, and the characters that queries use."""
    if not isinstance(tags, list) or len(tags) > _MOST_TAGS:
        raise ApiError(Code.BAD_BODY, f"A script has at most {_MOST_TAGS} tags.")
    if not all(isinstance(tag, str) and tag and not set(tag) & set(",&") for tag in tags):
        raise ApiError(Code.BAD_BODY, "A tag must be text without , and &.")


def check_bindings(bindings: Any) -> None:
    """Refuse bindings that are unknown here, unnamed, repeated or too large."""
    names = [binding.get("name") for binding in bindings]
    if not all(isinstance(name, str) and name for name in names) or len(set(names)) != len(names):
        raise ApiError(Code.BAD_BODY, "Bindings need names, each its own.")
    variables = [b for b in bindings if b.get("type") in {"plain_text", "secret_text"}]
    if len(variables) > _MOST_VARIABLES:
        raise ApiError(Code.ENVIRONMENT_TOO_MANY, f"A script has at most {_MOST_VARIABLES} variables.")
    for binding in bindings:
        if binding.get("type") not in _KNOWN_BINDINGS:
            raise ApiError(Code.INVALID_SCRIPT, f"Unknown binding type {binding.get('type')}.")
    for binding in variables:
        if not isinstance(binding.get("text"), str) or "\0" in binding["text"]:
            raise ApiError(Code.BAD_BODY, f"The variable {binding['name']} has no text.")
        if len(binding["text"].encode()) > _LONGEST_VARIABLE:
            raise ApiError(Code.ENVIRONMENT_TOO_LARGE, f"The variable {binding['name']} is larger than 5 KB.")
