"""Runtimes and sessions of the local AgentCore: what AgentCore does, as far as the product relies on it."""

from __future__ import annotations

import json
import secrets
import time
from typing import Any

import psutil
import pytest
from botocore.exceptions import ClientError, ConnectionClosedError, ReadTimeoutError, ResponseStreamingError

from tests.local.aws import BUCKET, NODE, PLACE, PYTHON, LocalAws, zipped

PY = ("PYTHON_3_13", "main.py")
X86_ELF = b"\x7fELF" + b"\0" * 14 + b"\x3e\0"


def session_id() -> str:
    return "s" + secrets.token_hex(32)


def code_of(error: pytest.ExceptionInfo[ClientError]) -> str:
    return str(error.value.response["Error"]["Code"])


class TestCreating:
    def test_a_runtime_becomes_ready_and_shows_what_it_was_made_of(self, aws: LocalAws, role: str) -> None:
        artifact = aws.artifact(zipped(main_py=PYTHON))
        control = aws.client("bedrock-agentcore-control")
        made = control.create_agent_runtime(
            agentRuntimeName=f"d{secrets.token_hex(16)}", agentRuntimeArtifact=artifact, roleArn=role,
            networkConfiguration={"networkMode": "PUBLIC"},
        )  # fmt: skip
        assert made["status"] == "CREATING"
        assert made["agentRuntimeArn"] == f"{PLACE}:runtime/{made['agentRuntimeId']}"
        time.sleep(0.5)
        found = control.get_agent_runtime(agentRuntimeId=made["agentRuntimeId"])
        assert (found["status"], found["roleArn"]) == ("READY", role)
        endpoint = control.get_agent_runtime_endpoint(agentRuntimeId=made["agentRuntimeId"], endpointName="DEFAULT")
        assert (endpoint["status"], endpoint["liveVersion"]) == ("READY", "1")

    def test_the_same_client_token_answers_the_same_runtime_and_another_request_is_refused(
        self, aws: LocalAws, role: str
    ) -> None:
        wanted = {
            "agentRuntimeName": f"d{secrets.token_hex(16)}", "agentRuntimeArtifact": aws.artifact(zipped(main_py=PYTHON)),
            "roleArn": role, "networkConfiguration": {"networkMode": "PUBLIC"}, "clientToken": "t" * 40,
        }  # fmt: skip
        control = aws.client("bedrock-agentcore-control")
        first, second = control.create_agent_runtime(**wanted), control.create_agent_runtime(**wanted)
        assert first["agentRuntimeId"] == second["agentRuntimeId"]
        with pytest.raises(control.exceptions.ConflictException):
            control.create_agent_runtime(**wanted | {"description": "another"})

    def test_a_name_is_taken_once_until_its_runtime_is_gone(self, aws: LocalAws, role: str) -> None:
        artifact, name = aws.artifact(zipped(main_py=PYTHON)), f"d{secrets.token_hex(16)}"
        control = aws.client("bedrock-agentcore-control")
        first = aws.runtime(role, artifact, agentRuntimeName=name)
        with pytest.raises(control.exceptions.ConflictException):
            aws.runtime(role, artifact, agentRuntimeName=name)
        assert control.delete_agent_runtime(agentRuntimeId=first["agentRuntimeId"])["status"] == "DELETING"
        with pytest.raises(control.exceptions.ConflictException):
            aws.runtime(role, artifact, agentRuntimeName=name)
        time.sleep(0.4)
        with pytest.raises(control.exceptions.ResourceNotFoundException):
            control.get_agent_runtime(agentRuntimeId=first["agentRuntimeId"])
        assert aws.runtime(role, artifact, agentRuntimeName=name)["status"] == "READY"

    @pytest.mark.parametrize(
        ("content", "language", "reason"),
        [
            (b"no zip", PY, "not a zip"),
            (zipped(other_py=PYTHON), PY, "entry point main.py is not in"),
            (zipped(main_mjs=NODE), ("NODE_22", "main.mjs"), "must be a .js"),
            (zipped(main_js=NODE, addon_node=X86_ELF), ("NODE_22", "main.js"), "addon.node is not built for arm64"),
            (zipped(0o600, main_py=PYTHON), PY, "neither mode 644 nor 755"),
        ],
    )  # fmt: skip
    def test_what_cannot_run_there_fails_and_says_why(
        self, aws: LocalAws, role: str, content: bytes, language: tuple[str, str], reason: str
    ) -> None:
        made = aws.runtime(role, aws.artifact(content, *language))
        assert made["status"] == "CREATE_FAILED"
        assert reason in made["failureReason"]

    def test_a_new_role_is_not_trusted_for_a_moment(self, aws: LocalAws) -> None:
        artifact, young = aws.artifact(zipped(main_py=PYTHON)), aws.role(settled=False)
        with pytest.raises(ClientError, match="cannot be assumed") as refused:
            aws.runtime(young, artifact)
        assert code_of(refused) == "ValidationException"
        time.sleep(1.1)
        assert aws.runtime(young, artifact)["status"] == "READY"

    def test_a_role_that_trusts_another_service_is_refused(self, aws: LocalAws) -> None:
        with pytest.raises(ClientError, match="cannot be assumed"):
            aws.runtime(aws.role(service="lambda.amazonaws.com"), aws.artifact(zipped(main_py=PYTHON)))

    def test_the_version_of_the_object_is_what_is_deployed(self, aws: LocalAws, role: str) -> None:
        artifact = aws.artifact(zipped(main_py=PYTHON))
        place = artifact["codeConfiguration"]["code"]["s3"]
        aws.client("s3").put_object(Bucket=BUCKET, Key=place["prefix"], Body=b"replaced")
        assert aws.runtime(role, artifact)["status"] == "READY"
        with pytest.raises(ClientError, match="versionId"):
            aws.runtime(role, artifact | {"codeConfiguration": artifact["codeConfiguration"] | {
                "code": {"s3": {key: place[key] for key in ("bucket", "prefix")}}}})  # fmt: skip

    def test_lists_come_in_pages(self, aws: LocalAws, runtime: dict[str, Any], role: str) -> None:
        aws.runtime(role, aws.artifact(zipped(main_py=PYTHON)))
        control = aws.client("bedrock-agentcore-control")
        first = control.list_agent_runtimes(maxResults=1)
        assert len(first["agentRuntimes"]) == 1
        rest = control.list_agent_runtimes(maxResults=100, nextToken=first["nextToken"])
        found = [one["agentRuntimeId"] for one in first["agentRuntimes"] + rest["agentRuntimes"]]
        assert runtime["agentRuntimeId"] in found
        assert len(found) == len(set(found)) > 1


class TestSessions:
    def test_a_session_is_one_process_in_a_folder_of_its_own(self, aws: LocalAws, runtime: dict[str, Any]) -> None:
        one, two = session_id(), session_id()
        first, again = aws.invoke(runtime, one), aws.invoke(runtime, one)
        assert (first["pid"], first["turns"], again["turns"]) == (again["pid"], 1, 2)
        aws.invoke(runtime, one, do="write")
        other = aws.invoke(runtime, two)
        assert other["pid"] != first["pid"]
        assert other["files"] == ["main.py"]
        processes = aws.calls()["processes"]
        assert (processes[one], processes[two]) == (first["pid"], other["pid"])

    def test_its_environment_is_the_runtimes_and_nothing_of_ours(self, aws: LocalAws, runtime: dict[str, Any]) -> None:
        environment = aws.invoke(runtime, session_id())["environment"]
        assert environment.pop("WHS_DEPLOYMENT") == "dep_1"
        environment.pop("LC_CTYPE", None)  # Python's own
        assert set(environment) == {
            "HOST", "PORT", "AWS_REGION", "AWS_EC2_METADATA_SERVICE_ENDPOINT",
            "AWS_ENDPOINT_URL_SECRETS_MANAGER", "AWS_ENDPOINT_URL_BEDROCK_AGENTCORE",
        }  # fmt: skip

    def test_the_signature_stays_outside_and_a_workload_token_comes_along(
        self, aws: LocalAws, runtime: dict[str, Any]
    ) -> None:
        session = session_id()
        headers = {name.lower(): value for name, value in aws.invoke(runtime, session)["headers"].items()}
        assert not {name for name in headers if name.startswith("authorization") or "amz-security" in name}
        assert headers["x-amzn-bedrock-agentcore-runtime-session-id"] == session
        assert headers["workloadaccesstoken"]

    def test_the_same_javascript_runs_in_node(self, aws: LocalAws, role: str) -> None:
        made = aws.runtime(role, aws.artifact(zipped(main_js=NODE), "NODE_22", "main.js"))
        assert aws.invoke(made, session_id())["node"].startswith("v")

    def test_a_stopped_session_begins_anew_and_a_second_stop_finds_nothing(
        self, aws: LocalAws, runtime: dict[str, Any]
    ) -> None:
        session, client = session_id(), aws.client("bedrock-agentcore")
        before = aws.invoke(runtime, session)
        client.stop_runtime_session(agentRuntimeArn=runtime["agentRuntimeArn"], runtimeSessionId=session)
        assert not psutil.pid_exists(before["pid"])
        with pytest.raises(client.exceptions.ResourceNotFoundException):
            client.stop_runtime_session(agentRuntimeArn=runtime["agentRuntimeArn"], runtimeSessionId=session)
        assert aws.invoke(runtime, session)["turns"] == 1

    def test_deleting_a_runtime_ends_its_sessions(self, aws: LocalAws, role: str) -> None:
        made = aws.runtime(role, aws.artifact(zipped(main_py=PYTHON)))
        pid = aws.invoke(made, session_id())["pid"]
        aws.client("bedrock-agentcore-control").delete_agent_runtime(agentRuntimeId=made["agentRuntimeId"])
        assert not psutil.pid_exists(pid)

    def test_an_idle_session_ends_unless_it_says_that_it_is_busy(self, aws: LocalAws, role: str) -> None:
        life = {"idleRuntimeSessionTimeout": 60, "maxLifetime": 28_800}
        made = aws.runtime(role, aws.artifact(zipped(main_py=PYTHON)), lifecycleConfiguration=life)
        idle, busy = session_id(), session_id()
        aws.invoke(made, idle)
        aws.invoke(made, busy, busy=1)
        time.sleep(2.8)
        assert idle not in aws.calls()["processes"]
        assert busy in aws.calls()["processes"]

    def test_even_a_busy_session_ends_when_it_is_too_old(self, aws: LocalAws, role: str) -> None:
        life = {"idleRuntimeSessionTimeout": 60, "maxLifetime": 60}
        made = aws.runtime(role, aws.artifact(zipped(main_py=PYTHON)), lifecycleConfiguration=life)
        session = session_id()
        aws.invoke(made, session, busy=1)
        time.sleep(2.8)
        assert session not in aws.calls()["processes"]


class TestAnswers:
    @pytest.mark.parametrize("status", [400, 429, 500, 503])
    def test_an_agents_errors_become_424_without_its_body(
        self, aws: LocalAws, runtime: dict[str, Any], status: int
    ) -> None:
        with pytest.raises(ClientError) as refused:
            aws.invoke(runtime, session_id(), do="fail", status=status)
        assert code_of(refused) == "RuntimeClientError"
        assert refused.value.response["ResponseMetadata"]["HTTPStatusCode"] == 424
        assert "never shown" not in str(refused.value)

    def test_code_that_does_not_start_is_a_424(self, aws: LocalAws, role: str) -> None:
        made = aws.runtime(role, aws.artifact(zipped(main_py="raise SystemExit(1)")))
        with pytest.raises(ClientError) as refused:
            aws.invoke(made, session_id())
        assert code_of(refused) == "RuntimeClientError"

    def stream(self, aws: LocalAws, runtime: dict[str, Any], **asked: Any) -> Any:
        payload = json.dumps({"do": "stream"} | asked).encode()
        answer = aws.client("bedrock-agentcore").invoke_agent_runtime(
            agentRuntimeArn=runtime["agentRuntimeArn"], runtimeSessionId=session_id(), payload=payload,
            accept="text/event-stream",
        )  # fmt: skip
        assert answer["contentType"] == "text/event-stream"
        return answer["response"]

    def test_a_stream_passes_as_it_comes(self, aws: LocalAws, runtime: dict[str, Any]) -> None:
        lines = self.stream(aws, runtime, pause=0.2).iter_lines(chunk_size=1)
        arrived = [(line, time.monotonic()) for line in lines if line]
        assert [line for line, _ in arrived] == [b"data: 0", b"data: 1", b"data: 2"]
        assert arrived[-1][1] - arrived[0][1] > 0.3

    def test_where_a_process_breaks_off_so_does_its_stream(self, aws: LocalAws, runtime: dict[str, Any]) -> None:
        with pytest.raises(ResponseStreamingError):
            list(self.stream(aws, runtime, dies=1).iter_lines(chunk_size=1))

    def test_a_caller_that_gives_up_was_heard_once(self, aws: LocalAws, runtime: dict[str, Any]) -> None:
        session = session_id()
        aws.invoke(runtime, session)
        client = aws.client("bedrock-agentcore", read_timeout=0.3)
        with pytest.raises(ReadTimeoutError):
            client.invoke_agent_runtime(
                agentRuntimeArn=runtime["agentRuntimeArn"], runtimeSessionId=session, payload=b'{"pause": 1}'
            )
        assert aws.invoke(runtime, session)["turns"] == 3


class TestFaults:
    @pytest.mark.parametrize(
        ("fault", "code", "status"),
        [
            ("throttled", "ThrottlingException", 429), ("server-error", "InternalServerException", 500),
            ("access-denied", "AccessDeniedException", 403), ("validation", "ValidationException", 400),
            ("not-found", "ResourceNotFoundException", 404), ("conflict", "ConflictException", 409),
            ("retryable-conflict", "RetryableConflictException", 409), ("quota", "ServiceQuotaExceededException", 402),
        ],
    )  # fmt: skip
    def test_a_refusal_happens_once_and_runs_nothing(
        self, aws: LocalAws, runtime: dict[str, Any], fault: str, code: str, status: int
    ) -> None:
        session = session_id()
        aws.plan(operation="InvokeAgentRuntime", fault=fault)
        with pytest.raises(ClientError) as refused:
            aws.invoke(runtime, session)
        assert (code_of(refused), refused.value.response["ResponseMetadata"]["HTTPStatusCode"]) == (code, status)
        assert aws.invoke(runtime, session)["turns"] == 1

    @pytest.mark.parametrize(("fault", "turns"), [("reset", 1), ("reset-after", 2)])
    def test_a_broken_connection_says_nothing_about_what_ran(
        self, aws: LocalAws, runtime: dict[str, Any], fault: str, turns: int
    ) -> None:
        session = session_id()
        aws.plan(operation="InvokeAgentRuntime", fault=fault)
        with pytest.raises(ConnectionClosedError):
            aws.invoke(runtime, session)
        assert aws.invoke(runtime, session)["turns"] == turns

    def test_half_an_answer_is_noticed(self, aws: LocalAws, runtime: dict[str, Any]) -> None:
        aws.plan(operation="InvokeAgentRuntime", fault="truncated")
        with pytest.raises(ResponseStreamingError):
            aws.invoke(runtime, session_id())

    def test_a_slow_call_is_answered_truly(self, aws: LocalAws, runtime: dict[str, Any]) -> None:
        aws.plan(operation="InvokeAgentRuntime", fault="slow", seconds=0.4)
        began = time.monotonic()
        assert aws.invoke(runtime, session_id())["turns"] == 1
        assert time.monotonic() - began > 0.4

    def test_other_services_refuse_in_their_own_words(self, aws: LocalAws) -> None:
        iam = aws.client("iam")
        aws.plan(operation="GetRole", fault="not-found")
        with pytest.raises(iam.exceptions.NoSuchEntityException):
            iam.get_role(RoleName="any")
        aws.plan(operation="GetSecretValue", fault="throttled")
        with pytest.raises(ClientError) as refused:
            aws.client("secretsmanager").get_secret_value(SecretId="any")
        assert code_of(refused) == "ThrottlingException"
