"""The way in for an upload: read_bundle checks a zip, prepare_bundle makes what is deployed.

Nothing of a bundle runs here, and nothing is resolved outside of it (docs/adr, provider facts): the server
does not bundle, it strips types and follows relative imports. Python is deployed as it is.
"""

from __future__ import annotations

import hashlib
import json
import os
from http import HTTPStatus
from typing import BinaryIO, Final

from django.conf import settings

from runtimes.bundles.archive import read_archive
from runtimes.bundles.config import (
    CONFIG_NAME,
    LONGEST_TIMEOUT,
    AgentConfig,
    Lifecycle,
    lifecycle_of,
    parse_config,
    timeout_for,
)
from runtimes.bundles.linking import is_code, link, output_name
from runtimes.bundles.model import Bundle, Module, ModuleKind, Source
from runtimes.bundles.python import collect
from runtimes.transform import transform
from webhost.errors import InvalidRequestError

__all__ = [
    "LONGEST_TIMEOUT", "AgentConfig", "Bundle", "Lifecycle", "Module", "ModuleKind", "Source", "lifecycle_of",
    "prepare_bundle", "read_bundle", "timeout_for",
]  # fmt: skip

# What was built by an older recipe has another hash, though its source is the same.
_RECIPE: Final = "1"


def read_bundle(file: BinaryIO) -> Source:
    """Read and check an uploaded zip; raises InvalidRequestError, 413 where it is too large, with every issue.

    Reads at most BUNDLE_LIMIT bytes, once: the bytes that are hashed are the bytes that were checked.
    """
    if file.seek(0, os.SEEK_END) > settings.BUNDLE_LIMIT:
        raise InvalidRequestError(
            f"The bundle is larger than {settings.BUNDLE_LIMIT // 2**20} MB.",
            status=HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
            path="bundle",
        )
    file.seek(0)
    data = file.read(settings.BUNDLE_LIMIT)
    files = read_archive(data)
    if CONFIG_NAME not in files:
        raise InvalidRequestError(
            f"There is no {CONFIG_NAME} at the top of the bundle: zip the content of the folder, not the folder.",
            path=CONFIG_NAME,
        )
    config = parse_config(files[CONFIG_NAME])
    if config.entrypoint not in files:
        raise InvalidRequestError(
            f"The entrypoint {config.entrypoint} is not in the bundle.", path=f"{CONFIG_NAME}/entrypoint"
        )
    return Source(config, files, hashlib.sha256(data).hexdigest())


def prepare_bundle(source: Source) -> Bundle:
    """Make what is deployed; the same source and tools give the same bytes and the same hash.

    Raises InvalidRequestError that names the user's files and lines, UnavailableError when Node is
    away, which only JavaScript needs.
    """
    entrypoint, modules, tools = _python(source) if source.config.is_python else _javascript(source)
    description = {
        "recipe": _RECIPE,
        **tools,
        "config": source.config.as_json(),
        "entrypoint": entrypoint,
        "modules": [[m.name, m.kind, hashlib.sha256(m.content).hexdigest()] for m in modules],
    }
    deployed = hashlib.sha256(json.dumps(description, sort_keys=True).encode()).hexdigest()
    return Bundle(entrypoint, modules, source.config, source.source_sha256, deployed)


def _javascript(source: Source) -> tuple[str, tuple[Module, ...], dict[str, str]]:
    """Return the entrypoint, the modules it reaches, and which tools made them."""
    texts: dict[str, str] = {}
    for name in sorted(filter(is_code, source.files)):
        try:
            texts[name] = source.files[name].decode("utf-8-sig")
        except UnicodeDecodeError:
            raise InvalidRequestError(f"{name} is not valid UTF-8.", path=name) from None
    made = transform(texts)
    modules = tuple(link(source.config.entrypoint, source.files, made.results))
    return output_name(source.config.entrypoint), modules, {"esbuild": made.esbuild}


def _python(source: Source) -> tuple[str, tuple[Module, ...], dict[str, str]]:
    """As _javascript, for files that are deployed as they are."""
    return source.config.entrypoint, tuple(collect(source.config.entrypoint, source.files)), {}
