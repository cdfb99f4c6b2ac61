"""The management calls: the part of Cloudflare's API that an adapter for dispatch namespaces needs."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from webhost.local.cloudflare.fleet import Fleet, Settings
from webhost.local.cloudflare.replies import ApiError, Code, Reply, succeeded
from webhost.local.cloudflare.scripts import Scripts
from webhost.local.cloudflare.uploads import read_upload
from webhost.local.cloudflare.workerd import ScriptError

_NAMESPACES = "/workers/dispatch/namespaces"
_PATH = re.compile(
    r"/client/v4/accounts/(?P<account>[0-9a-f]{32})/workers/dispatch/namespaces"
    r"(?:/(?P<namespace>[^/]+)(?:/scripts(?:/(?P<script>[^/]+)(?:/(?P<what>[a-z-]+)(?:/(?P<secret>[^/]+))?)?)?)?)?"
)
_SCRIPT_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")


@dataclass(frozen=True)
class Call:
    """A management call, its path taken apart."""

    method: str
    path: str
    query: Mapping[str, list[str]]
    content_type: str
    body: bytes
    namespace: str | None
    script: str | None
    what: str | None
    secret: str | None

    @property
    def kind(self) -> str:
        """What it is about, for counting: `PUT script`, `PATCH secrets-bulk`, `GET namespace`."""
        noun = self.what or ("script" if self.script else None)
        if noun is None:
            noun = "namespace" if self.namespace and not self.path.endswith("/scripts") else "list"
        return f"{self.method} {noun}"

    def json(self) -> Any:
        """Return the body as JSON; raises ApiError 10026."""
        try:
            return json.loads(self.body)
        except ValueError:
            raise ApiError(Code.BAD_BODY, "The body is not valid JSON.") from None


def parse_call(method: str, target: str, content_type: str, body: bytes) -> Call:
    """Take a request apart; raises ApiError 7003 for a path that is not among the known ones."""
    parts = urlsplit(target)
    match = _PATH.fullmatch(parts.path)
    if match is None:
        raise ApiError(Code.NO_ROUTE, "Could not route to this path.", HTTPStatus.NOT_FOUND)
    script = match["script"]
    if script is not None and not _SCRIPT_NAME.fullmatch(script):
        raise ApiError(Code.BAD_NAME, "This is no valid script name.")
    return Call(
        method, parts.path, parse_qs(parts.query), content_type, body,
        match["namespace"], script, match["what"], match["secret"],
    )  # fmt: skip


class Namespaces:
    """Dispatch namespaces by name: the scripts of each, and the processes that serve them."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._folder: Path = settings.directory / "namespaces"
        self._folder.mkdir(parents=True, exist_ok=True)
        self._found: dict[str, tuple[Scripts, Fleet]] = {}
        for path in self._folder.iterdir():
            self._open(path.name)

    def _open(self, name: str) -> tuple[Scripts, Fleet]:
        scripts = Scripts(self._folder / name)
        fleet = Fleet(self._settings, scripts)
        fleet.start()
        self._found[name] = (scripts, fleet)
        return self._found[name]

    def create(self, name: Any) -> dict[str, str]:
        """Create a namespace; raises ApiError when it exists already."""
        if not isinstance(name, str) or not _SCRIPT_NAME.fullmatch(name):
            raise ApiError(Code.BAD_NAME, "This is no valid name of a namespace.")
        with self._lock:
            if name in self._found:
                raise ApiError(Code.NAMESPACE_EXISTS, "This namespace exists already.", HTTPStatus.CONFLICT)
            self._open(name)
        return {"namespace_name": name}

    def get(self, name: str) -> tuple[Scripts, Fleet]:
        """Return a namespace's scripts and processes; raises ApiError."""
        with self._lock:
            if name not in self._found:
                raise ApiError(Code.NAMESPACE_NOT_FOUND, "This namespace does not exist.", HTTPStatus.NOT_FOUND)
            return self._found[name]

    def default(self) -> tuple[Scripts, Fleet] | None:
        """Return the namespace that the platform Worker is bound to: the only one there is, locally."""
        with self._lock:
            return next(iter(self._found.values()), None)

    def stop(self) -> None:
        """Stop all processes."""
        for _, fleet in self._found.values():
            fleet.stop()


class Api:
    """Answers management calls."""

    def __init__(self, namespaces: Namespaces) -> None:
        self._namespaces = namespaces
        # As at Cloudflare, one change of a script at a time.
        self._writing = threading.Lock()
        self._kinds: dict[str, Callable[[Call, Scripts, Fleet], Any]] = {
            "GET namespace": lambda call, _scripts, _fleet: {"namespace_name": call.namespace},
            "GET list": self._list,
            "PUT script": self._put,
            "GET script": lambda call, scripts, _fleet: {"script": scripts.get(str(call.script)).public()},
            "DELETE script": self._delete,
            "GET settings": lambda call, scripts, _fleet: scripts.get(str(call.script)).settings(),
            "GET bindings": lambda call, scripts, _fleet: scripts.get(str(call.script)).settings()["bindings"],
            "PUT tags": self._tags,
            "PATCH secrets-bulk": self._secrets,
            "GET secrets": self._secret_names,
            "DELETE secrets": self._delete_secret,
        }

    def answer(self, call: Call) -> Reply:
        """Return what Cloudflare would; raises ApiError."""
        if call.kind == "POST list" and call.namespace is None:
            return succeeded(self._namespaces.create(call.json().get("name")))
        work = self._kinds.get(call.kind)
        if work is None or call.namespace is None:
            raise ApiError(Code.NO_ROUTE, "Could not route to this path.", HTTPStatus.NOT_FOUND)
        scripts, fleet = self._namespaces.get(call.namespace)
        if call.method == "GET":
            return succeeded(work(call, scripts, fleet))
        with self._writing:
            return succeeded(work(call, scripts, fleet))

    def _list(self, call: Call, scripts: Scripts, _fleet: Fleet) -> list[dict[str, Any]]:
        wanted = {tag.removesuffix(":yes") for tags in call.query.get("tags", []) for tag in tags.split(",")}
        return [script.public() for script in scripts.all() if wanted <= set(script.tags)]

    def _put(self, call: Call, scripts: Scripts, fleet: Fleet) -> dict[str, Any]:
        upload = read_upload(call.content_type, call.body)
        strict = call.query.get("bindings_inherit") == ["strict"]
        script = scripts.prepare(str(call.script), upload, strict=strict)
        for binding in script.bindings:
            if binding["type"] == "service" and binding.get("service") != f"{call.namespace}-platform":
                raise ApiError(Code.BINDING_MISSING, f"There is no service {binding.get('service')}.")
        try:
            fleet.publish(script)
        except ScriptError as error:
            raise ApiError(Code.INVALID_SCRIPT, str(error)) from error
        return script.public() | {"startup_time_ms": 0}

    def _delete(self, call: Call, scripts: Scripts, fleet: Fleet) -> dict[str, str]:
        scripts.delete(str(call.script))
        fleet.forget(str(call.script))
        return {"id": str(call.script)}

    def _tags(self, call: Call, scripts: Scripts, _fleet: Fleet) -> list[str]:
        tags = call.json()
        scripts.tag(str(call.script), tags)
        return list(tags)

    def _secrets(self, call: Call, scripts: Scripts, fleet: Fleet) -> list[dict[str, str]]:
        if call.content_type != "application/merge-patch+json":
            raise ApiError(
                Code.BAD_BODY, "The body must be application/merge-patch+json.", HTTPStatus.UNSUPPORTED_MEDIA_TYPE
            )
        changes = call.json().get("secrets")
        if not isinstance(changes, dict):
            raise ApiError(Code.BAD_BODY, "The body must have an object `secrets`.")
        scripts.change_secrets(str(call.script), changes)
        return self._secret_names(call, scripts, fleet)

    def _secret_names(self, call: Call, scripts: Scripts, _fleet: Fleet) -> list[dict[str, str]]:
        bindings = scripts.get(str(call.script)).bindings
        return [{"name": b["name"], "type": b["type"]} for b in bindings if b["type"] == "secret_text"]

    def _delete_secret(self, call: Call, scripts: Scripts, _fleet: Fleet) -> None:
        names = {b["name"] for b in scripts.get(str(call.script)).bindings if b["type"] == "secret_text"}
        if call.secret not in names:
            raise ApiError(Code.BINDING_MISSING, "There is no such secret.", HTTPStatus.NOT_FOUND)
        scripts.change_secrets(str(call.script), {str(call.secret): None})
