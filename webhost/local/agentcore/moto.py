"""moto behind our address: S3, Secrets Manager, IAM and STS, as far as the product uses them.

It keeps everything in memory. What names roles and secrets is written to a journal and told to it again after
a restart; zips are not: runtimes keep their code unpacked on disk.
"""

from __future__ import annotations

import base64
import http.client
import json
import logging
import re
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qs

import boto3
from botocore.config import Config
from botocore.exceptions import ClientError
from moto.secretsmanager.models import secretsmanager_backends
from moto.server import ThreadedMotoServer

from webhost.local.processes import free_port

# It writes a line for each request; the calls say what was called.
logging.getLogger("werkzeug").setLevel(logging.ERROR)
_READING: Final = ("Get", "List", "Describe", "Head")
_JOURNALLED: Final = frozenset({"iam", "secretsmanager"})
_HOP: Final = frozenset({"connection", "transfer-encoding", "keep-alive", "expect"})
# The most that any deployment may ever do; a grant only ever adds within it.
BOUNDARY: Final = {
    "Version": "2012-10-17",
    "Statement": [
        {
            "Effect": "Allow",
            "Action": [
                "secretsmanager:GetSecretValue", "logs:*", "bedrock-agentcore:StartCodeInterpreterSession",
                "bedrock-agentcore:InvokeCodeInterpreter", "bedrock-agentcore:StopCodeInterpreterSession",
                "bedrock-agentcore:StartBrowserSession", "bedrock-agentcore:StopBrowserSession",
                "bedrock-agentcore:ConnectBrowserAutomationStream", "bedrock-agentcore:CreateEvent",
                "bedrock-agentcore:ListEvents", "bedrock-agentcore:GetEvent",
                "bedrock-agentcore:RetrieveMemoryRecords",
            ],
            "Resource": "*",
        },
        # The shared interpreter and browser belong to everybody in the account.
        {"Effect": "Deny", "Action": "*", "Resource": ["arn:aws:bedrock-agentcore:*:aws:*"]},
    ],
}  # fmt: skip


class Moto:
    """The server, and clients of it for our own use."""

    def __init__(self, directory: Path, *, region: str) -> None:
        self._journal = directory / "journal.jsonl"
        self._lock = threading.Lock()
        self._port = free_port()
        self._server = ThreadedMotoServer(ip_address="127.0.0.1", port=self._port, verbose=False)
        self._server.start()
        common = {
            "region_name": region, "endpoint_url": f"http://127.0.0.1:{self._port}",
            "aws_access_key_id": "local", "aws_secret_access_key": "local",
            "config": Config(retries={"total_max_attempts": 1, "mode": "standard"}),
        }  # fmt: skip
        self.s3: Any = boto3.client("s3", **common)
        self.iam: Any = boto3.client("iam", **common)
        self._secrets: Any = boto3.client("secretsmanager", **common)
        self._replay()

    def prepare(self, bucket: str, boundary_arn: str) -> None:
        """Make what an operator would have made: the versioned bucket, the permissions boundary."""
        self.s3.create_bucket(Bucket=bucket)
        self.s3.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
        try:
            self.iam.get_policy(PolicyArn=boundary_arn)
        except ClientError:
            name, path = boundary_arn.rsplit("/", 1)[-1], boundary_arn.split(":policy", 1)[-1].rsplit("/", 1)[0] + "/"
            self.iam.create_policy(PolicyName=name, Path=path, PolicyDocument=json.dumps(BOUNDARY))

    def stop(self) -> None:
        """End the server."""
        self._server.stop()

    def send(
        self, method: str, target: str, headers: Mapping[str, str], body: bytes
    ) -> tuple[int, list[tuple[str, str]], bytes]:
        """Pass a request on; return status, headers and body."""
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=60)
        try:
            kept = {name: value for name, value in headers.items() if name.lower() not in _HOP}
            connection.request(method, target, body, kept)
            answer = connection.getresponse()
            data = answer.read()
            passed = [(k, v) for k, v in answer.getheaders() if k.lower() not in {*_HOP, "content-length"}]
            if method == "HEAD":
                passed += [(k, v) for k, v in answer.getheaders() if k.lower() == "content-length"]
            return answer.status, passed, data
        finally:
            connection.close()

    def secret_arn(self, name: str) -> str:
        """Return the whole ARN of a secret, which is what policies speak of, by its name or ARN."""
        try:
            return str(self._secrets.describe_secret(SecretId=name)["ARN"])
        except ClientError:
            return name

    def remember(self, service: str, operation: str, request: Mapping[str, Any], body: bytes, answer: bytes) -> None:
        """Write down what changed something that must outlive this process."""
        if service not in _JOURNALLED or operation.startswith(_READING):
            return
        entry = {**request, "body": base64.b64encode(body).decode()}
        if operation == "CreateSecret":
            entry["made"] = json.loads(answer)
        line = json.dumps(entry)
        with self._lock:
            self._journal.touch(mode=0o600)
            with self._journal.open("a") as journal:
                journal.write(line + "\n")

    def _replay(self) -> None:
        if not self._journal.exists():
            return
        for line in self._journal.read_text().splitlines():
            said = json.loads(line)
            self.send(said["method"], said["target"], said["headers"], base64.b64decode(said["body"]))
            if "made" in said:
                # moto ends each ARN with new random letters; runtimes and policies know the first ones.
                arn = said["made"]["ARN"]
                _, _, _, region, account, _ = arn.split(":", 5)
                secretsmanager_backends[account][region].secrets[said["made"]["Name"]].arn = arn


def operation_of(service: str, method: str, target: str, headers: Mapping[str, str], body: bytes) -> str:
    """Return what a request to one of moto's services does, in AWS's words."""
    if service in ("iam", "sts"):
        return parse_qs(body.decode("utf-8", "replace")).get("Action", ["Unknown"])[0]
    if service == "secretsmanager":
        return headers.get("x-amz-target", "Unknown").rsplit(".", 1)[-1]
    path, _, query = target.partition("?")
    what = "Object" if re.fullmatch(r"/[^/]+/.+", path) else "Bucket"
    if query.startswith(("delete", "versioning", "versions", "tagging", "location")):
        what += query.split("=", 1)[0].split("&", 1)[0].title()
    return {"GET": "Get", "PUT": "Put", "HEAD": "Head", "DELETE": "Delete", "POST": "Post"}.get(method, method) + what
