"""AgentCore's management: runtimes made of zips from S3, interpreters, browsers, memories."""

from __future__ import annotations

import io
import shutil
import struct
import time
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from botocore.exceptions import ClientError

from webhost.local.agentcore.errors import AwsError, Kind
from webhost.local.agentcore.model import Request
from webhost.local.agentcore.policies import document_of, trusts
from webhost.local.agentcore.state import Sort, Store, Thing, page

# A role that is younger is not trusted yet, as new IAM roles are not.
ROLE_SETTLES: Final = 1.0
_LARGEST_UNPACKED: Final = 750 * 2**20
_ELF_ARM64: Final = 183
_OURSELVES: Final = "bedrock-agentcore.amazonaws.com"
# The modes that AgentCore's documentation asks for; others cannot be read there.
_MODES: Final = frozenset({0o644, 0o755})


class Control:
    """The operations of bedrock-agentcore-control that the product uses."""

    def __init__(self, store: Store, directory: Path, s3: Any, iam: Any) -> None:
        self._store = store
        self._code = directory / "code"
        self._s3 = s3
        self._iam = iam
        self._operations: Mapping[str, Callable[[Request], dict[str, Any]]] = {
            "CreateAgentRuntime": self._create_runtime,
            "GetAgentRuntime": lambda r: runtime_view(self._store.get(Sort.RUNTIME, r["agentRuntimeId"])),
            "ListAgentRuntimes": self._list_runtimes,
            "DeleteAgentRuntime": self._delete_runtime,
            "GetAgentRuntimeEndpoint": self._get_endpoint,
            "CreateCodeInterpreter": lambda r: _made(self._create(Sort.CODE_INTERPRETER, r), "codeInterpreter"),
            "GetCodeInterpreter": lambda r: tool_view(
                self._store.get(Sort.CODE_INTERPRETER, r["codeInterpreterId"]), "codeInterpreter"
            ),
            "ListCodeInterpreters": lambda r: self._list_tools(Sort.CODE_INTERPRETER, "codeInterpreter", r),
            "DeleteCodeInterpreter": lambda r: _gone(
                self._store.delete(Sort.CODE_INTERPRETER, r["codeInterpreterId"]), "codeInterpreter"
            ),
            "CreateBrowser": lambda r: _made(self._create(Sort.BROWSER, r), "browser"),
            "GetBrowser": lambda r: tool_view(self._store.get(Sort.BROWSER, r["browserId"]), "browser"),
            "ListBrowsers": lambda r: self._list_tools(Sort.BROWSER, "browser", r),
            "DeleteBrowser": lambda r: _gone(self._store.delete(Sort.BROWSER, r["browserId"]), "browser"),
            "CreateMemory": lambda r: {"memory": memory_view(self._create(Sort.MEMORY, r))},
            "GetMemory": lambda r: {"memory": memory_view(self._store.get(Sort.MEMORY, r["memoryId"]))},
            "ListMemories": self._list_memories,
            "DeleteMemory": self._delete_memory,
        }

    def knows(self, operation: str) -> bool:
        """Say whether an operation is here."""
        return operation in self._operations

    def answer(self, request: Request) -> dict[str, Any]:
        """Carry an operation out; raises AwsError."""
        return self._operations[request.operation](request)

    def code_of(self, runtime: Thing) -> Path:
        """Return the folder with a runtime's unpacked code."""
        return self._code / runtime.id

    def _create(self, sort: Sort, request: Request, check: Callable[[str], str] = lambda _: "") -> Thing:
        wanted = {key: value for key, value in request.parameters.items() if key != "clientToken"}
        name = request.get("agentRuntimeName") or request["name"]
        return self._store.make(sort, name, wanted, request.get("clientToken", ""), check)

    def _create_runtime(self, request: Request) -> dict[str, Any]:
        self._require_trusted_role(request["roleArn"])
        code = request["agentRuntimeArtifact"].get("codeConfiguration")
        if code is None:
            raise AwsError(Kind.VALIDATION, "Only codeConfiguration is known here.")
        content = self._fetch(code["code"]["s3"])
        thing = self._create(Sort.RUNTIME, request, lambda made: self._unpack(content, code, self._code / made))
        view = runtime_view(thing)
        return {
            key: view[key]
            for key in ("agentRuntimeArn", "agentRuntimeId", "agentRuntimeVersion", "createdAt", "status")
        }

    def _require_trusted_role(self, arn: str) -> None:
        try:
            role = self._iam.get_role(RoleName=arn.rsplit("/", 1)[-1])["Role"]
        except ClientError:
            raise AwsError(Kind.VALIDATION, "Role validation failed: there is no such role.") from None
        _, _, _, _, account, _ = arn.split(":", 5)
        context = {"aws:SourceAccount": account, "aws:SourceArn": self._store.arn_of(Sort.RUNTIME, "any")}
        trusted = trusts(document_of(role["AssumeRolePolicyDocument"]), _OURSELVES, context)
        young = time.time() - role["CreateDate"].timestamp() < ROLE_SETTLES
        if role["Arn"] != arn or young or not trusted:
            raise AwsError(Kind.VALIDATION, "Role validation failed: the role cannot be assumed.")

    def _fetch(self, where: Mapping[str, Any]) -> bytes:
        if "versionId" not in where:
            raise AwsError(Kind.VALIDATION, "Name the versionId: here, code that may change is not taken.")
        place = {"Bucket": where["bucket"], "Key": where["prefix"], "VersionId": where["versionId"]}
        try:
            found: bytes = self._s3.get_object(**place)["Body"].read()
        except ClientError:
            raise AwsError(Kind.VALIDATION, "The code could not be read from S3.") from None
        return found

    def _unpack(self, content: bytes, code: Mapping[str, Any], folder: Path) -> str:
        """Unpack a zip; return why AgentCore would fail to make a runtime of it, or nothing."""
        entry = code["entryPoint"][-1]
        try:
            with zipfile.ZipFile(io.BytesIO(content)) as archive:
                if sum(info.file_size for info in archive.infolist()) > _LARGEST_UNPACKED:
                    return "The unpacked code is larger than 750 MB."
                names = set(archive.namelist())
                foreign = [name for name in names if _is_foreign(archive, name)]
                sealed = [i.filename for i in archive.infolist() if (i.external_attr >> 16) & 0o777 not in _MODES]
                archive.extractall(folder)
        except (zipfile.BadZipFile, OSError):
            shutil.rmtree(folder, ignore_errors=True)
            return "The code is not a zip archive."
        if entry not in names:
            return f"The entry point {entry} is not in the archive."
        wanted = ".js" if code["runtime"].startswith("NODE") else ".py"
        if not entry.endswith(wanted):
            return f"The entry point must be a {wanted} file."
        if sealed:
            return f"{sealed[0]} has neither mode 644 nor 755."
        return f"{foreign[0]} is not built for arm64." if foreign else ""

    def _list_runtimes(self, request: Request) -> dict[str, Any]:
        keys = (
            "agentRuntimeArn",
            "agentRuntimeId",
            "agentRuntimeVersion",
            "agentRuntimeName",
            "lastUpdatedAt",
            "status",
        )
        found, rest = page(self._store.all(Sort.RUNTIME), request)
        views = [runtime_view(thing) for thing in found]
        return {"agentRuntimes": [{key: view[key] for key in keys} | {"description": "-"} for view in views]} | rest

    def _delete_runtime(self, request: Request) -> dict[str, Any]:
        thing = self._store.delete(Sort.RUNTIME, request["agentRuntimeId"])
        shutil.rmtree(self.code_of(thing), ignore_errors=True)
        return {"status": thing.status, "agentRuntimeId": thing.id}

    def _get_endpoint(self, request: Request) -> dict[str, Any]:
        thing = self._store.get(Sort.RUNTIME, request["agentRuntimeId"])
        if request["endpointName"] != "DEFAULT":
            raise AwsError(Kind.NOT_FOUND, "There is no such endpoint.")
        return {
            "liveVersion": "1", "targetVersion": "1", "agentRuntimeArn": thing.arn, "status": thing.status,
            "agentRuntimeEndpointArn": f"{thing.arn}/runtime-endpoint/DEFAULT", "createdAt": thing.made,
            "lastUpdatedAt": thing.made, "name": "DEFAULT", "id": "DEFAULT",
        }  # fmt: skip

    def _list_tools(self, sort: Sort, noun: str, request: Request) -> dict[str, Any]:
        found, rest = page([] if request.get("type") == "SYSTEM" else self._store.all(sort), request)
        keys = (f"{noun}Id", f"{noun}Arn", "name", "status", "createdAt", "lastUpdatedAt")
        views = [tool_view(thing, noun) for thing in found]
        return {f"{noun}Summaries": [{key: view[key] for key in keys} for view in views]} | rest

    def _list_memories(self, request: Request) -> dict[str, Any]:
        found, rest = page(self._store.all(Sort.MEMORY), request)
        keys = ("arn", "id", "status", "createdAt", "updatedAt")
        views = [memory_view(thing) for thing in found]
        return {"memories": [{key: view[key] for key in keys} for view in views]} | rest

    def _delete_memory(self, request: Request) -> dict[str, Any]:
        thing = self._store.delete(Sort.MEMORY, request["memoryId"])
        return {"memoryId": thing.id, "status": thing.status}


def _is_foreign(archive: zipfile.ZipFile, name: str) -> bool:
    """Say whether a file is compiled for another processor than arm64."""
    if not name.endswith((".node", ".so")) and ".so." not in name:
        return False
    head = archive.open(name).read(20)
    return head[:4] != b"\x7fELF" or struct.unpack("<H", head[18:20])[0] != _ELF_ARM64


def runtime_view(thing: Thing) -> dict[str, Any]:
    """Return a runtime as GetAgentRuntime shows it; environment variables included, as AWS does."""
    shown = {
        "agentRuntimeArn": thing.arn,
        "agentRuntimeName": thing.name,
        "agentRuntimeId": thing.id,
        "agentRuntimeVersion": "1",
        "createdAt": thing.made,
        "lastUpdatedAt": thing.made,
        "status": thing.status,
        "metadataConfiguration": {"requireMMDSV2": True},
        **{key: value for key, value in thing.wanted.items() if key not in ("tags", "agentRuntimeName")},
    }
    return shown | ({"failureReason": thing.failure} if thing.failure and thing.status == "CREATE_FAILED" else {})


def tool_view(thing: Thing, noun: str) -> dict[str, Any]:
    """Return an interpreter or a browser as its Get operation shows it."""
    return {
        f"{noun}Id": thing.id,
        f"{noun}Arn": thing.arn,
        "name": thing.name,
        "networkConfiguration": thing.wanted["networkConfiguration"],
        "status": thing.status,
        "createdAt": thing.made,
        "lastUpdatedAt": thing.made,
    }


def _made(thing: Thing, noun: str) -> dict[str, Any]:
    view = tool_view(thing, noun)
    return {key: view[key] for key in (f"{noun}Id", f"{noun}Arn", "createdAt", "status")}


def _gone(thing: Thing, noun: str) -> dict[str, Any]:
    return {f"{noun}Id": thing.id, "status": thing.status, "lastUpdatedAt": thing.made}


def memory_view(thing: Thing) -> dict[str, Any]:
    """Return a memory as GetMemory shows it."""
    return {
        "arn": thing.arn,
        "id": thing.id,
        "name": thing.name,
        "eventExpiryDuration": thing.wanted["eventExpiryDuration"],
        "status": thing.status,
        "createdAt": thing.made_at,
        "updatedAt": thing.made_at,
    }
