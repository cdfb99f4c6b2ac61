"""A local AWS of the tests' own, spoken to with real boto3, and agents that answer what AgentCore expects."""

from __future__ import annotations

import io
import json
import secrets
import sys
import time
import zipfile
from pathlib import Path
from typing import Any

import boto3
import requests
from botocore.config import Config

from webhost.local import environment
from webhost.local.processes import Child, free_port, wait_for_port

ACCOUNT = environment.AWS_ACCOUNT
REGION = "us-east-1"
BUCKET = "whs-bundles"
BOUNDARY = f"arn:aws:iam::{ACCOUNT}:policy/whs-boundary"
PLACE = f"arn:aws:bedrock-agentcore:{REGION}:{ACCOUNT}"

# Does what the payload says. What it knows of its surroundings a test may ask for.
PYTHON = """
import json, os, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.request import Request, urlopen

busy = 0
turns = 0
METADATA = os.environ["AWS_EC2_METADATA_SERVICE_ENDPOINT"] + "/latest/"

def credentials():
    ttl = {"X-aws-ec2-metadata-token-ttl-seconds": "60"}
    token = urlopen(Request(METADATA + "api/token", method="PUT", headers=ttl)).read().decode()
    path, header = METADATA + "meta-data/iam/security-credentials/", {"X-aws-ec2-metadata-token": token}
    role = urlopen(Request(path, headers=header)).read().decode()
    return json.load(urlopen(Request(path + role, headers=header)))

class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *arguments): pass

    def say(self, status, value):
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        self.say(200, {"status": "HealthyBusy" if busy else "Healthy"})

    def do_POST(self):
        global busy, turns
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        turns += 1
        busy += asked.get("busy", 0)
        do = asked.get("do")
        if do == "stream":
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for n in range(3):
                data = b"data: %d\\n\\n" % n
                self.wfile.write(b"%x\\r\\n%b\\r\\n" % (len(data), data))
                time.sleep(asked.get("pause", 0))
                if n == asked.get("dies"):
                    os._exit(1)
            self.wfile.write(b"0\\r\\n\\r\\n")
        elif do == "fail":
            self.say(asked["status"], {"secret": "never shown"})
        elif do == "credentials":
            self.say(200, credentials())
        elif do == "write":
            open("mark", "w").write("here")
            self.say(200, {})
        else:
            time.sleep(asked.get("pause", 0))
            self.say(200, {
                "turns": turns, "environment": dict(os.environ), "headers": dict(self.headers), "pid": os.getpid(),
                "files": sorted(os.listdir(".")),
            })

ThreadingHTTPServer((os.environ["HOST"], int(os.environ["PORT"])), Handler).serve_forever()
"""

NODE = """
require("http").createServer((request, response) => {
  response.setHeader("content-type", "application/json");
  response.end(JSON.stringify(request.url === "/ping" ? { status: "Healthy" } : { node: process.version }));
}).listen(Number(process.env.PORT), process.env.HOST);
"""


def zipped(mode: int = 0o644, **files: str | bytes) -> bytes:
    """Zip files as AgentCore wants them; `main_py` is main.py."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for name, text in files.items():
            entry = zipfile.ZipInfo(name.replace("_", "."))
            entry.external_attr = mode << 16
            archive.writestr(entry, text)
    return content.getvalue()


class LocalAws:
    def __init__(self, directory: Path, *, hurry: float = 1.0) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.key, self.secret = f"AKIA{secrets.token_hex(8).upper()}", secrets.token_urlsafe(30)
        settings = {
            "AWS_REGION": REGION, "AWS_ACCESS_KEY_ID": self.key, "AWS_SECRET_ACCESS_KEY": self.secret,
            "AGENTCORE_BUCKET": BUCKET, "AGENTCORE_BOUNDARY_ARN": BOUNDARY, "AGENTCORE_PREFIX": "whs",
            "PYTHONPATH": str(environment.REPOSITORY),
        }  # fmt: skip
        command = [sys.executable, "-m", "webhost.local.agentcore", "--port", str(self.port)]
        command += ["--directory", str(directory / "agentcore"), "--hurry", str(hurry)]
        self.child = Child("agentcore", command, directory / "agentcore.log", environment=settings)

    def start(self) -> None:
        self.child.start()
        wait_for_port(self.port, "the local AWS", 30, self.child)

    def client(self, service: str, credentials: dict[str, str] | None = None, **options: Any) -> Any:
        """Return a client with the control plane's credentials, or with a role's as the metadata service gave them."""
        given = credentials or {"AccessKeyId": self.key, "SecretAccessKey": self.secret}
        return boto3.client(
            service, region_name=REGION, endpoint_url=self.url, aws_access_key_id=given["AccessKeyId"],
            aws_secret_access_key=given["SecretAccessKey"], aws_session_token=given.get("Token"),
            config=Config(retries={"total_max_attempts": 1, "mode": "standard"}, **options),
        )  # fmt: skip

    # --- what an adapter does -----------------------------------------------------------------------

    def role(self, *, settled: bool = True, service: str = "bedrock-agentcore.amazonaws.com") -> str:
        trust = {
            "Effect": "Allow", "Principal": {"Service": service}, "Action": "sts:AssumeRole",
            "Condition": {"StringEquals": {"aws:SourceAccount": ACCOUNT}, "ArnLike": {"aws:SourceArn": f"{PLACE}:*"}},
        }  # fmt: skip
        made = self.client("iam").create_role(
            RoleName=f"whs-{secrets.token_hex(16)}", Path="/agents/", PermissionsBoundary=BOUNDARY,
            AssumeRolePolicyDocument=json.dumps({"Version": "2012-10-17", "Statement": [trust]}),
        )  # fmt: skip
        if settled:
            time.sleep(1.1)
        return str(made["Role"]["Arn"])

    def allow(self, role: str, action: str | list[str], resource: str, policy: str = "base", **more: Any) -> None:
        statement = {"Effect": "Allow", "Action": action, "Resource": resource, **more}
        document = json.dumps({"Version": "2012-10-17", "Statement": [statement]})
        self.client("iam").put_role_policy(
            RoleName=role.rsplit("/", maxsplit=1)[-1], PolicyName=policy, PolicyDocument=document
        )

    def artifact(self, content: bytes, runtime: str = "PYTHON_3_13", entry: str = "main.py") -> dict[str, Any]:
        key = f"whs/{secrets.token_hex(16)}.zip"
        version = self.client("s3").put_object(Bucket=BUCKET, Key=key, Body=content)["VersionId"]
        place = {"bucket": BUCKET, "prefix": key, "versionId": version}
        return {"codeConfiguration": {"code": {"s3": place}, "runtime": runtime, "entryPoint": [entry]}}

    def runtime(self, role: str, artifact: dict[str, Any], **more: Any) -> dict[str, Any]:
        """Create a runtime and wait until it is something."""
        control = self.client("bedrock-agentcore-control")
        wanted = {"agentRuntimeName": f"d{secrets.token_hex(16)}", "networkConfiguration": {"networkMode": "PUBLIC"}}
        made = control.create_agent_runtime(**wanted | {"agentRuntimeArtifact": artifact, "roleArn": role} | more)
        while True:
            found: dict[str, Any] = control.get_agent_runtime(agentRuntimeId=made["agentRuntimeId"])
            if found["status"] != "CREATING":
                return found
            time.sleep(0.05)

    def invoke(self, runtime: dict[str, Any], session: str = "s" * 33, **asked: Any) -> Any:
        answer = self.client("bedrock-agentcore").invoke_agent_runtime(
            agentRuntimeArn=runtime["agentRuntimeArn"], runtimeSessionId=session, payload=json.dumps(asked).encode()
        )
        return json.loads(answer["response"].read())

    # --- what tests look at and ask for -------------------------------------------------------------

    def calls(self) -> dict[str, Any]:
        seen: dict[str, Any] = requests.get(f"{self.url}/local/calls", timeout=5).json()
        return seen

    def plan(self, **fault: Any) -> None:
        answer = requests.post(f"{self.url}/local/faults", json=fault, timeout=5)
        assert answer.ok, answer.text
