"""What the local AgentCore keeps on disk: runtimes, interpreters, browsers, memories."""

from __future__ import annotations

import json
import secrets
import string
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, TypeVar

from webhost.local.agentcore.errors import AwsError, Kind
from webhost.local.agentcore.model import Request

_ALPHABET: Final = string.ascii_letters + string.digits
# How long things take here; at AWS seconds to minutes.
READY_AFTER: Final = 0.3
GONE_AFTER: Final = 0.3
# Short, so that who does not ask for the rest notices.
PAGE: Final = 10
_T = TypeVar("_T")


class Sort(StrEnum):
    """What can be made, by the name that its ARN has for it."""

    RUNTIME = "runtime"
    CODE_INTERPRETER = "code-interpreter-custom"
    BROWSER = "browser-custom"
    MEMORY = "memory"


@dataclass
class Thing:
    """One of them. `wanted` is what it was made of, `failure` why it could not be."""

    sort: str
    name: str
    id: str
    arn: str
    wanted: dict[str, Any]
    token: str
    made_at: float
    failure: str = ""
    deleted_at: float | None = None
    events: list[dict[str, Any]] = field(default_factory=list)

    @property
    def status(self) -> str:
        """Where it stands now."""
        if self.deleted_at is not None:
            return "DELETING"
        if time.time() < self.made_at + READY_AFTER:
            return "CREATING"
        good = "ACTIVE" if self.sort == Sort.MEMORY else "READY"
        bad = "FAILED" if self.sort == Sort.MEMORY else "CREATE_FAILED"
        return bad if self.failure else good

    @property
    def made(self) -> str:
        """When it was made, as the API writes it."""
        return datetime.fromtimestamp(self.made_at, UTC).isoformat().replace("+00:00", "Z")


def write_whole(path: Path, text: str) -> None:
    """Write a file so that a kill leaves the old one or the new one."""
    whole = path.with_suffix(".new")
    whole.touch(mode=0o600)
    whole.write_text(text)
    whole.replace(path)


def page(found: list[_T], request: Request) -> tuple[list[_T], dict[str, Any]]:
    """Return the page that a list operation asks for, and the token of the next one."""
    try:
        start = int(request.get("nextToken") or 0)
    except ValueError:
        raise AwsError(Kind.VALIDATION, "The nextToken is not ours.") from None
    most = request.get("maxResults") or PAGE
    rest = {"nextToken": str(start + most)} if start + most < len(found) else {}
    return found[start : start + most], rest


class Store:
    """All things, behind one lock, written to one file after each change."""

    def __init__(self, directory: Path, region: str, account: str) -> None:
        self._file = directory / "things.json"
        self._prefix = f"arn:aws:bedrock-agentcore:{region}:{account}"
        self.lock = threading.RLock()
        self._things: dict[str, Thing] = {}
        if self._file.exists():
            self._things = {found["id"]: Thing(**found) for found in json.loads(self._file.read_text())}

    def keep(self) -> None:
        """Write everything down."""
        with self.lock:
            write_whole(self._file, json.dumps([asdict(thing) for thing in self._things.values()]))

    def _present(self) -> Iterator[Thing]:
        now = time.time()
        for thing in list(self._things.values()):
            if thing.deleted_at is not None and thing.deleted_at + GONE_AFTER <= now:
                del self._things[thing.id]
            else:
                yield thing

    def all(self, sort: Sort) -> list[Thing]:
        """Return all of a sort."""
        with self.lock:
            return [thing for thing in self._present() if thing.sort == sort]

    def get(self, sort: Sort, name: str) -> Thing:
        """Find one by its id or ARN; raises ResourceNotFoundException."""
        wanted = name.rsplit("/", 1)[-1]
        for thing in self.all(sort):
            if thing.id == wanted:
                return thing
        raise AwsError(Kind.NOT_FOUND, f"There is no {sort.value} {wanted}.")

    def arn_of(self, sort: Sort, thing_id: str) -> str:
        """Return the ARN of one."""
        return f"{self._prefix}:{sort.value}/{thing_id}"

    def make(
        self, sort: Sort, name: str, wanted: dict[str, Any], token: str, check: Callable[[str], str] = lambda _: ""
    ) -> Thing:
        """Make one, once per clientToken; `check` prepares it by its id and says what is wrong with it.

        Raises ConflictException where the name is taken, or the token was used for something else.
        """
        with self.lock:
            present = list(self._present())
            for thing in present:
                if token and thing.token == token and thing.sort == sort and thing.deleted_at is None:
                    if thing.wanted != wanted:
                        raise AwsError(Kind.CONFLICT, "The clientToken was used with other parameters.")
                    return thing
            if any(thing.sort == sort and thing.name == name for thing in present):
                raise AwsError(Kind.CONFLICT, f"There is one named {name} already.")
            new_id = f"{name}-{''.join(secrets.choice(_ALPHABET) for _ in range(10))}"
            failure = check(new_id)
            thing = Thing(sort.value, name, new_id, self.arn_of(sort, new_id), wanted, token, time.time(), failure)
            self._things[new_id] = thing
            self.keep()
            return thing

    def delete(self, sort: Sort, name: str) -> Thing:
        """Begin to delete one."""
        with self.lock:
            thing = self.get(sort, name)
            if thing.deleted_at is not None:
                raise AwsError(Kind.CONFLICT, f"{thing.id} is being deleted.")
            thing.deleted_at = time.time()
            self.keep()
            return thing
