"""The one address of the local AWS: signatures, the model's rules, what tests look at, and what outlives a restart."""

from __future__ import annotations

import json
import secrets
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import requests
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from botocore.exceptions import ClientError, ConnectionClosedError, EndpointConnectionError

from tests.local.aws import BUCKET, PYTHON, LocalAws, zipped
from webhost.local.processes import wait_for_port


def signed(aws: LocalAws, method: str, path: str, body: Any = None, **headers: str) -> requests.Response:
    """Send what boto3 itself would refuse to send, with a true signature."""
    data = b"" if body is None else json.dumps(body).encode()
    request = AWSRequest(method, aws.url + path, headers=headers, data=data)
    SigV4Auth(Credentials(aws.key, aws.secret), "bedrock-agentcore", "us-east-1").add_auth(request)
    return requests.request(method, aws.url + path, data=data, headers=dict(request.headers.items()), timeout=5)


class TestSignatures:
    @pytest.mark.parametrize("service", ["s3", "iam", "secretsmanager", "bedrock-agentcore-control"])
    def test_a_wrong_secret_is_refused_by_every_service(self, aws: LocalAws, service: str) -> None:
        listing = {
            "s3": "list_buckets", "iam": "list_roles", "secretsmanager": "list_secrets",
            "bedrock-agentcore-control": "list_browsers",
        }  # fmt: skip
        getattr(aws.client(service), listing[service])()
        client = aws.client(service, {"AccessKeyId": aws.key, "SecretAccessKey": "guessed"})
        with pytest.raises(ClientError, match="signature"):
            getattr(client, listing[service])()

    def test_a_request_without_a_signature_does_nothing(self, aws: LocalAws) -> None:
        answer = requests.put(f"{aws.url}/code-interpreters", json={"name": "c1"}, timeout=5)
        assert answer.status_code == 403
        assert aws.calls()["calls"][-1]["principal"] == "nobody"

    def test_a_body_that_was_changed_on_the_way_is_refused(self, aws: LocalAws) -> None:
        request = AWSRequest("POST", f"{aws.url}/browsers", data=b"{}")
        SigV4Auth(Credentials(aws.key, aws.secret), "bedrock-agentcore", "us-east-1").add_auth(request)
        headers = dict(request.headers.items())
        assert requests.post(f"{aws.url}/browsers", data=b"{}", headers=headers, timeout=5).ok
        assert requests.post(f"{aws.url}/browsers", data=b"{ }", headers=headers, timeout=5).status_code == 403

    def test_an_old_signature_is_refused(self, aws: LocalAws, monkeypatch: pytest.MonkeyPatch) -> None:
        from datetime import UTC, datetime, timedelta

        monkeypatch.setattr(
            "botocore.auth.get_current_datetime", lambda *_, **__: datetime.now(UTC) - timedelta(hours=1)
        )
        assert signed(aws, "POST", "/browsers", {}).status_code == 403


class TestTheModelsRules:
    good = {"name": "c1", "networkConfiguration": {"networkMode": "SANDBOX"}}  # noqa: RUF012

    @pytest.mark.parametrize(
        ("change", "said"),
        [
            ({"name": "with-hyphen"}, "does not match"),
            ({"name": "c" * 49}, "does not match"),
            ({"networkConfiguration": {"networkMode": "OPEN"}}, "not one of"),
            ({"networkConfiguration": {}}, "networkMode: missing"),
            ({"networkConfiguration": "SANDBOX"}, "not a structure"),
            ({"clientToken": "t" * 32}, "not within 33"),
            ({"tags": {"whs:agent": "a" * 257}}, "not within"),
            ({"nmae": "c1"}, "unknown"),
        ],
    )
    def test_what_the_service_would_refuse_is_refused(self, aws: LocalAws, change: dict[str, Any], said: str) -> None:
        answer = signed(aws, "PUT", "/code-interpreters", self.good | change)
        assert (answer.status_code, answer.headers["x-amzn-ErrorType"]) == (400, "ValidationException")
        assert said in answer.json()["message"]

    def test_a_session_id_of_32_characters_is_too_short(self, aws: LocalAws, runtime: dict[str, Any]) -> None:
        path = f"/runtimes/{runtime['agentRuntimeArn'].replace(':', '%3A').replace('/', '%2F')}/invocations"
        header = "X-Amzn-Bedrock-AgentCore-Runtime-Session-Id"
        assert signed(aws, "POST", path, {}, **{header: "s" * 32}).status_code == 400
        assert signed(aws, "POST", path, {}, **{header: "s" * 33}).status_code == 200

    def test_what_is_not_implemented_says_so(self, aws: LocalAws) -> None:
        with pytest.raises(ClientError):
            aws.client("bedrock-agentcore-control").list_gateways()


class TestCalls:
    def test_every_call_is_counted_and_names_our_ids_without_their_letters(self, aws: LocalAws) -> None:
        agent, deployment = secrets.token_hex(16), secrets.token_hex(16)
        before = aws.calls()["counts"]
        aws.client("s3").put_object(Bucket=BUCKET, Key=f"whs/{agent}/{deployment}.zip", Body=b"x")
        aws.client("bedrock-agentcore-control").create_code_interpreter(
            name=f"c{deployment}", networkConfiguration={"networkMode": "SANDBOX"}, tags={"whs:agent": f"agt_{agent}"}
        )
        with pytest.raises(ClientError):
            aws.client("iam").get_role(RoleName=f"whs-{deployment}")
        seen = aws.calls()
        expected = {"s3.PutObject", "bedrock-agentcore.CreateCodeInterpreter", "iam.GetRole"}
        assert {name for name, n in seen["counts"].items() if n > before.get(name, 0)} == expected
        both = sorted([agent, deployment])
        assert [call["ids"] for call in seen["calls"][-3:]] == [both, both, [deployment]]
        assert [(call["principal"], call["status"]) for call in seen["calls"][-3:]] == [
            ("control", 200), ("control", 200), ("control", 404),
        ]  # fmt: skip


def test_a_fault_that_makes_no_sense_is_refused(aws: LocalAws) -> None:
    for fault in [{"operation": "GetRole", "fault": "sabotage"}, {"fault": "reset"}, {"operation": "GetRole"}]:
        assert requests.post(f"{aws.url}/local/faults", json=fault, timeout=5).status_code == 400


class TestARestart:
    @pytest.fixture(scope="class")
    def own(self) -> Iterator[LocalAws]:
        with tempfile.TemporaryDirectory(prefix="webhost-test-") as folder:
            cloud = LocalAws(Path(folder))
            cloud.start()
            yield cloud
            cloud.child.stop()

    def test_nobody_listens_for_a_while_and_then_all_is_as_before(self, own: LocalAws) -> None:
        own.plan(operation="ListRoles", fault="refuse", seconds=1)
        with pytest.raises(ConnectionClosedError):
            own.client("iam").list_roles()
        with pytest.raises(EndpointConnectionError):
            own.client("iam").list_roles()
        wait_for_port(own.port, "the local AWS", 10)
        assert own.client("iam").list_roles()["Roles"] == []

    def test_runtimes_roles_secrets_tools_and_events_outlive_a_kill_and_sessions_do_not(self, own: LocalAws) -> None:
        role = own.role()
        secret = own.client("secretsmanager").create_secret(Name="whs/a/d", SecretString="s3cret")["ARN"]
        own.allow(role, "secretsmanager:GetSecretValue", secret)
        runtime = own.runtime(role, own.artifact(zipped(main_py=PYTHON)))
        control = own.client("bedrock-agentcore-control")
        code = control.create_code_interpreter(name="c1", networkConfiguration={"networkMode": "SANDBOX"})
        listed = {"codeInterpreterIdentifier": code["codeInterpreterId"]}
        own.client("bedrock-agentcore").start_code_interpreter_session(**listed, name="inv_1")
        pid = own.invoke(runtime)["pid"]
        own.child.kill()
        own.start()
        assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
        again = own.invoke(runtime)
        assert again["turns"] == 1
        credentials = own.invoke(runtime, do="credentials")
        client = own.client("secretsmanager", credentials)
        assert client.get_secret_value(SecretId=secret)["SecretString"] == "s3cret"
        assert own.client("secretsmanager").describe_secret(SecretId="whs/a/d")["ARN"] == secret
        (session,) = own.client("bedrock-agentcore").list_code_interpreter_sessions(**listed)["items"]
        assert (session["name"], session["status"]) == ("inv_1", "READY")
