"""What a role may do at the local AWS: secrets and tools, by its policies and its boundary, at that very moment."""

from __future__ import annotations

import json
import secrets
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pytest
import requests
from botocore.exceptions import ClientError

from tests.local.aws import BUCKET, PLACE, PYTHON, LocalAws, zipped
from webhost.local.agentcore.policies import allows, trusts

CODE = ["bedrock-agentcore:StartCodeInterpreterSession", "bedrock-agentcore:InvokeCodeInterpreter"]


@dataclass
class Agent:
    """A role, and the credentials that the code in its session took from the metadata service."""

    aws: LocalAws
    role: str
    credentials: dict[str, str]

    def client(self, service: str) -> Any:
        return self.aws.client(service, self.credentials)

    def may(self, action: str | list[str], resource: str, policy: str = "base", **more: Any) -> None:
        self.aws.allow(self.role, action, resource, policy, **more)


@pytest.fixture(scope="module")
def ready(aws: LocalAws) -> Agent:
    role = aws.role()
    runtime = aws.runtime(role, aws.artifact(zipped(main_py=PYTHON)))
    return Agent(aws, role, aws.invoke(runtime, do="credentials"))


@pytest.fixture
def agent(ready: Agent) -> Agent:
    """The agent with no policy left from another test."""
    iam, name = ready.aws.client("iam"), ready.role.rsplit("/")[-1]
    for policy in iam.list_role_policies(RoleName=name)["PolicyNames"]:
        iam.delete_role_policy(RoleName=name, PolicyName=policy)
    return ready


def interpreter(aws: LocalAws) -> dict[str, Any]:
    made: dict[str, Any] = aws.client("bedrock-agentcore-control").create_code_interpreter(
        name=f"c{secrets.token_hex(16)}", networkConfiguration={"networkMode": "SANDBOX"}
    )
    return made


def denied(error: pytest.ExceptionInfo[ClientError]) -> bool:
    return str(error.value.response["Error"]["Code"]) == "AccessDeniedException"


class TestSecrets:
    def secret(self, aws: LocalAws) -> str:
        made = aws.client("secretsmanager").create_secret(Name=f"whs/{secrets.token_hex(16)}/d", SecretString="s3cret")
        return str(made["ARN"])

    def test_a_role_reads_the_secret_that_its_policy_names_and_no_other(self, aws: LocalAws, agent: Agent) -> None:
        own, other = self.secret(aws), self.secret(aws)
        agent.may("secretsmanager:GetSecretValue", own)
        client = agent.client("secretsmanager")
        assert client.get_secret_value(SecretId=own)["SecretString"] == "s3cret"
        assert client.get_secret_value(SecretId=own.rsplit(":", 1)[-1][:-7])["SecretString"] == "s3cret"
        with pytest.raises(ClientError) as refused:
            client.get_secret_value(SecretId=other)
        assert denied(refused)

    @pytest.mark.parametrize("operation", ["list_secrets", "list_roles", "list_buckets"])
    def test_the_boundary_caps_whatever_a_policy_grants(self, agent: Agent, operation: str) -> None:
        agent.may("*", "*")
        service = {"list_secrets": "secretsmanager", "list_roles": "iam", "list_buckets": "s3"}[operation]
        with pytest.raises(ClientError, match="not authorized"):
            getattr(agent.client(service), operation)()


class TestCodeInterpreter:
    def test_a_role_runs_code_in_its_own_interpreter_and_no_other(self, aws: LocalAws, agent: Agent) -> None:
        own, other = interpreter(aws), interpreter(aws)
        agent.may(CODE, own["codeInterpreterArn"], "cap-codeInterpreter")
        client = agent.client("bedrock-agentcore")
        session = client.start_code_interpreter_session(
            codeInterpreterIdentifier=own["codeInterpreterId"], name="inv_1"
        )
        answer = client.invoke_code_interpreter(
            codeInterpreterIdentifier=own["codeInterpreterId"], sessionId=session["sessionId"], name="executeCode",
            arguments={"language": "python", "code": "print(6 * 7)"},
        )  # fmt: skip
        (event,) = answer["stream"]
        assert event["result"]["isError"] is False
        assert event["result"]["content"] == [{"type": "text", "text": "42\n"}]
        with pytest.raises(ClientError) as refused:
            client.start_code_interpreter_session(codeInterpreterIdentifier=other["codeInterpreterId"])
        assert denied(refused)

    def test_code_that_raises_is_an_error_of_the_code_not_of_the_call(self, aws: LocalAws) -> None:
        made, client = interpreter(aws), aws.client("bedrock-agentcore")
        identifier = made["codeInterpreterId"]
        session = client.start_code_interpreter_session(codeInterpreterIdentifier=identifier)["sessionId"]
        answer = client.invoke_code_interpreter(
            codeInterpreterIdentifier=identifier, sessionId=session, name="executeCode",
            arguments={"language": "python", "code": "1 / 0"},
        )  # fmt: skip
        (event,) = answer["stream"]
        assert event["result"]["isError"] is True
        assert "ZeroDivisionError" in event["result"]["content"][0]["text"]

    def test_a_deleted_policy_denies_the_same_credentials_at_once(self, aws: LocalAws, agent: Agent) -> None:
        made, client = interpreter(aws), agent.client("bedrock-agentcore")
        agent.may(CODE, made["codeInterpreterArn"], "cap-codeInterpreter")
        client.start_code_interpreter_session(codeInterpreterIdentifier=made["codeInterpreterId"])
        aws.client("iam").delete_role_policy(RoleName=agent.role.rsplit("/")[-1], PolicyName="cap-codeInterpreter")
        with pytest.raises(ClientError) as refused:
            client.start_code_interpreter_session(codeInterpreterIdentifier=made["codeInterpreterId"])
        assert denied(refused)
        last = [call for call in aws.calls()["calls"] if call["operation"] == "StartCodeInterpreterSession"][-1]
        assert (last["allowed"], last["status"]) == (False, 403)
        assert last["principal"] == f"role/{agent.role.rsplit('/')[-1]}"

    def test_sessions_are_listed_with_name_and_end_and_begin_once_per_token(self, aws: LocalAws) -> None:
        made, client = interpreter(aws), aws.client("bedrock-agentcore")
        identifier = made["codeInterpreterId"]
        wanted = {"codeInterpreterIdentifier": identifier, "name": "inv_2", "clientToken": secrets.token_hex(20)}
        first, again = client.start_code_interpreter_session(**wanted), client.start_code_interpreter_session(**wanted)
        assert first["sessionId"] == again["sessionId"]
        listed = {"codeInterpreterIdentifier": identifier}
        (running,) = client.list_code_interpreter_sessions(**listed, status="READY")["items"]
        assert running["name"] == "inv_2"
        client.stop_code_interpreter_session(**listed, sessionId=first["sessionId"])
        assert client.list_code_interpreter_sessions(**listed, status="READY")["items"] == []
        (ended,) = client.list_code_interpreter_sessions(**listed)["items"]
        assert ended["status"] == "TERMINATED"
        assert ended["lastUpdatedAt"] >= ended["createdAt"]
        with pytest.raises(ClientError):
            client.stop_code_interpreter_session(**listed, sessionId=first["sessionId"])

    def test_a_session_ends_by_its_time(self, aws: LocalAws) -> None:
        made, client = interpreter(aws), aws.client("bedrock-agentcore")
        listed = {"codeInterpreterIdentifier": made["codeInterpreterId"]}
        session = client.start_code_interpreter_session(**listed, sessionTimeoutSeconds=1)["sessionId"]
        time.sleep(1.1)
        assert client.get_code_interpreter_session(**listed, sessionId=session)["status"] == "TERMINATED"


def test_a_browser_session_has_an_address_and_only_its_owner_starts_one(aws: LocalAws, agent: Agent) -> None:
    control, client = aws.client("bedrock-agentcore-control"), agent.client("bedrock-agentcore")
    wanted = {"name": f"b{secrets.token_hex(16)}", "networkConfiguration": {"networkMode": "PUBLIC"}}
    made = control.create_browser(**wanted)
    with pytest.raises(ClientError) as refused:
        client.start_browser_session(browserIdentifier=made["browserId"])
    assert denied(refused)
    agent.may("bedrock-agentcore:StartBrowserSession", f"{PLACE}:browser-custom/{made['browserId']}", "cap-browser")
    started = client.start_browser_session(browserIdentifier=made["browserId"], name="inv_3")
    assert started["streams"]["automationStream"]["streamEndpoint"].startswith("wss://")
    (listed,) = aws.client("bedrock-agentcore").list_browser_sessions(browserIdentifier=made["browserId"])["items"]
    assert (listed["name"], listed["status"]) == ("inv_3", "READY")


def test_a_memory_gives_back_the_newest_events_of_the_actors_own_session(aws: LocalAws, agent: Agent) -> None:
    made = aws.client("bedrock-agentcore-control").create_memory(
        name=f"m{secrets.token_hex(16)}", eventExpiryDuration=7
    )
    memory, client = made["memory"], agent.client("bedrock-agentcore")
    time.sleep(0.4)
    actions = ["bedrock-agentcore:CreateEvent", "bedrock-agentcore:ListEvents"]
    agent.may(actions, memory["arn"], Condition={"StringEquals": {"bedrock-agentcore:actorId": "alice"}})
    for n in range(3):
        client.create_event(
            memoryId=memory["id"], actorId="alice", sessionId="one", eventTimestamp=datetime.now(UTC),
            payload=[{"conversational": {"content": {"text": f"event {n}"}, "role": "USER"}}],
        )  # fmt: skip
    found = client.list_events(memoryId=memory["id"], actorId="alice", sessionId="one", maxResults=2)
    texts = [event["payload"][0]["conversational"]["content"]["text"] for event in found["events"]]
    assert texts == ["event 2", "event 1"]
    assert client.list_events(memoryId=memory["id"], actorId="alice", sessionId="two")["events"] == []
    with pytest.raises(ClientError) as refused:
        client.list_events(memoryId=memory["id"], actorId="charlie", sessionId="one")
    assert denied(refused)


class TestMetadata:
    def test_without_a_token_it_says_nothing(self, aws: LocalAws, runtime: dict[str, Any]) -> None:
        address = aws.invoke(runtime)["environment"]["AWS_EC2_METADATA_SERVICE_ENDPOINT"]
        path = f"{address}/latest/meta-data/iam/security-credentials/"
        assert requests.get(path, timeout=5).status_code == 401
        token = requests.put(f"{address}/latest/api/token", timeout=5).text
        assert requests.get(path, headers={"X-aws-ec2-metadata-token": token}, timeout=5).ok

    def test_nobody_guesses_another_sessions_address(self, aws: LocalAws) -> None:
        assert requests.put(f"{aws.url}/mmds/{'0' * 32}/latest/api/token", timeout=5).status_code == 404

    def test_credentials_without_their_token_are_nobodys(self, agent: Agent) -> None:
        agent.may("secretsmanager:GetSecretValue", "*")
        stolen = {key: value for key, value in agent.credentials.items() if key != "Token"}
        with pytest.raises(ClientError, match="signature"):
            agent.aws.client("secretsmanager", stolen).get_secret_value(SecretId="any")


class TestPolicies:
    """The decision itself, without a server."""

    def decide(
        self, *statements: dict[str, Any], action: str = "a:Get", resource: str = "arn:one", **context: str
    ) -> bool:
        return allows([{"Statement": list(statements)}], action, resource, context)

    def test_nothing_is_allowed_unless_a_statement_says_so(self) -> None:
        assert not self.decide()
        assert self.decide({"Effect": "Allow", "Action": "a:Get", "Resource": "arn:one"})
        assert not self.decide({"Effect": "Allow", "Action": "a:Get", "Resource": "arn:two"})
        assert not self.decide({"Effect": "Allow", "Action": "a:Put", "Resource": "*"})

    @pytest.mark.parametrize("first", [True, False])
    def test_a_denial_wins_wherever_it_stands(self, first: bool) -> None:
        both = [
            {"Effect": "Allow", "Action": "*", "Resource": "*"},
            {"Effect": "Deny", "Action": "a:*", "Resource": "*"},
        ]
        assert not self.decide(*(both if first else both[::-1]))

    @pytest.mark.parametrize(
        ("pattern", "fits"), [("arn:*", True), ("arn:o?e", True), ("arn:on", False), ("arn.one", False), ("*one", True)]
    )
    def test_a_resource_is_matched_by_wildcards_only(self, pattern: str, fits: bool) -> None:
        assert self.decide({"Effect": "Allow", "Action": "A:GET", "Resource": [pattern]}) is fits

    def test_a_condition_that_is_not_understood_denies_and_never_allows(self) -> None:
        strange = {"Action": "*", "Resource": "*", "Condition": {"IpAddress": {"aws:SourceIp": "10.0.0.0/8"}}}
        plain = {"Effect": "Allow", "Action": "*", "Resource": "*"}
        assert not self.decide({"Effect": "Allow"} | strange)
        assert not self.decide(plain, {"Effect": "Deny"} | strange)

    def test_credentials_issued_before_a_moment_can_be_denied(self) -> None:
        everything = {"Effect": "Allow", "Action": "*", "Resource": "*"}
        before = {"DateLessThan": {"aws:TokenIssueTime": "2026-11-30T12:00:00Z"}}
        denial = {"Effect": "Deny", "Action": "*", "Resource": "*", "Condition": before}
        assert not self.decide(everything, denial, **{"aws:TokenIssueTime": "2026-11-30T11:59:59Z"})
        assert self.decide(everything, denial, **{"aws:TokenIssueTime": "2026-11-30T12:00:01Z"})

    def test_what_is_not_known_of_a_request_fulfils_no_condition(self) -> None:
        mine = {"StringEquals": {"bedrock-agentcore:actorId": "alice"}}
        assert not self.decide({"Effect": "Allow", "Action": "*", "Resource": "*", "Condition": mine})

    def test_a_role_trusts_only_whom_it_names(self) -> None:
        document = {"Statement": {"Effect": "Allow", "Principal": {"Service": "one"}, "Action": "sts:AssumeRole"}}
        assert trusts(document, "one", {})
        assert not trusts(document, "two", {})
        pinned = document["Statement"] | {"Condition": {"StringEquals": {"aws:SourceAccount": "1"}}}
        assert not trusts({"Statement": [pinned]}, "one", {"aws:SourceAccount": "2"})


def test_the_control_plane_may_not_speak_for_a_user_nor_run_commands(aws: LocalAws, runtime: dict[str, Any]) -> None:
    client, arn = aws.client("bedrock-agentcore"), runtime["agentRuntimeArn"]
    with pytest.raises(ClientError) as refused:
        client.invoke_agent_runtime(agentRuntimeArn=arn, runtimeUserId="alice", payload=json.dumps({}).encode())
    assert denied(refused)
    with pytest.raises(ClientError) as refused:
        client.invoke_agent_runtime_command(
            agentRuntimeArn=arn, runtimeSessionId="s" * 33, body={"command": "id", "timeout": 5}
        )
    assert denied(refused)


def test_the_bucket_keeps_versions_and_the_boundary_is_there(aws: LocalAws) -> None:
    assert aws.client("s3").get_bucket_versioning(Bucket=BUCKET)["Status"] == "Enabled"
    assert aws.client("iam").list_policies(Scope="Local")["Policies"][0]["PolicyName"] == "whs-boundary"
