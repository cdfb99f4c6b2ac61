"""The AgentCore adapter's management: what it makes, adopts, grants, withdraws and removes, through real boto3."""

import io
import json
import logging
import os
import stat
import threading
import zipfile
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from botocore.exceptions import ClientError

from entitlements.actions import gates
from entitlements.enums import Capability
from entitlements.errors import LimitExceededError
from runtimes.errors import DeploymentFailedError
from runtimes.providers import agentcore_deploying
from runtimes.providers.agentcore import AgentCoreProvider
from runtimes.providers.agentcore_clients import Deadline, read_error
from runtimes.providers.agentcore_names import (
    master_secret_name,
    object_key,
    place,
    role_name,
    runtime_name,
    secret_name,
    token_of,
)
from runtimes.providers.agentcore_packing import pack
from runtimes.providers.base import AgentRef
from tests.runtimes.aws import ACCOUNT, BUCKET, Answer, Aws
from tests.runtimes.cloud import agent_zip, built, new_target
from webhost.errors import InvalidRequestError

HELLO = 'export default () => "hello"'
TOOLS = frozenset({"codeInterpreter", "browser", "memory"})


@pytest.fixture(scope="module")
def running():
    with Aws().running() as aws:
        yield aws


@pytest.fixture
def aws(running, monkeypatch):
    """AWS, and entitlements that allow everything."""
    running.reset()
    running.answer = lambda payload: Answer({"ok": True} if payload.get("probe") else Answer().body)
    monkeypatch.setattr(gates, "require_runtime", lambda *_, **__: None)
    return running


@pytest.fixture(scope="module")
def hello():
    return built(agent_zip(HELLO, runtime="agentcore"))


def target_for(bundle, **changes):
    return replace(new_target(bundle), runtime="agentcore", **changes)


def deployed(aws, bundle, **changes):
    target = target_for(bundle, **changes)
    return replace(target, remote=aws.provider.deploy(target, bundle))


def agent_of(target):
    return AgentRef(target.account_id, target.agent_id)


def failure_of(call):
    with pytest.raises(DeploymentFailedError) as failure:
        call()
    return failure.value


def secret(aws, name, stage="AWSCURRENT"):
    client = aws.provider._clients.secrets
    return json.loads(client.get_secret_value(SecretId=name, VersionStage=stage)["SecretString"])


def gone(aws, name):
    client = aws.client("secretsmanager")
    with pytest.raises(client.exceptions.ResourceNotFoundException):
        client.get_secret_value(SecretId=name)
    return True


def policies(aws, target):
    return set(aws.client("iam").list_role_policies(RoleName=role_name(target))["PolicyNames"])


class TestZip:
    def test_equal_bundles_make_equal_bytes_whatever_the_clock_says(self, hello, monkeypatch):
        first = pack(hello)
        monkeypatch.setattr("time.time", lambda: 2_000_000_000)
        assert pack(hello) == first

    def test_everybody_may_read_every_file_and_the_agents_code_has_a_folder_of_its_own(self, hello):
        with zipfile.ZipFile(io.BytesIO(pack(hello))) as archive:
            entries = archive.infolist()
        assert {stat.S_IMODE(entry.external_attr >> 16) for entry in entries} == {0o644}
        names = {entry.filename for entry in entries}
        assert {"main.js", "bundle/agent.js"} <= names
        assert not any(name.endswith((".pyc", ".py")) for name in names)


class TestCreate:
    def test_one_runtime_is_made_with_everything_that_it_needs(self, aws, hello):
        target = deployed(aws, hello)
        given = aws.seen("CreateAgentRuntime")
        assert given["agentRuntimeName"] == f"d{target.deployment_id.hex}"
        code = given["agentRuntimeArtifact"]["codeConfiguration"]
        assert (code["runtime"], code["entryPoint"]) == ("NODE_22", ["main.js"])
        stored = aws.client("s3").get_object(
            Bucket=BUCKET, Key=object_key(target), VersionId=code["code"]["s3"]["versionId"]
        )
        assert stored["Body"].read() == pack(hello)
        assert code["code"]["s3"]["prefix"] == object_key(target)
        assert given["networkConfiguration"] == {"networkMode": "PUBLIC"}
        assert given["protocolConfiguration"] == {"serverProtocol": "HTTP"}
        assert given["lifecycleConfiguration"] == {"idleRuntimeSessionTimeout": 900, "maxLifetime": 28800}
        assert 33 <= len(given["clientToken"]) <= 256
        assert given["tags"] == {
            "whs:account": f"acc_{target.account_id.hex}",
            "whs:agent": f"agt_{target.agent_id.hex}",
            "whs:deployment": f"dep_{target.deployment_id.hex}",
            "whs:version": "1",
        }
        assert given["environmentVariables"] == {
            "WHS_DEPLOYMENT": target.public_deployment_id, "WHS_ENTRYPOINT": "agent.js",
        }  # fmt: skip
        assert set(target.remote) == {"runtimeArn", "runtimeId", "roleArn"}

    def test_the_bundle_says_how_long_a_session_lives(self, aws):
        lifecycle = {"lifecycle": {"idleTimeoutSeconds": 120, "maxLifetimeSeconds": 600}}
        deployed(aws, built(agent_zip(HELLO, runtime="agentcore", agentcore=lifecycle)))
        given = aws.seen("CreateAgentRuntime")["lifecycleConfiguration"]
        assert given == {"idleRuntimeSessionTimeout": 120, "maxLifetime": 600}

    @pytest.mark.case("AGC-04")
    def test_a_repeat_adopts_runtime_zip_role_and_tools_and_makes_nothing_twice(self, aws, hello):
        target = target_for(hello, capabilities=TOOLS)
        first = aws.provider.deploy(target, hello)
        assert aws.provider.deploy(target, hello) == first
        assert aws.count("s3.PUT") == 1
        named = [thing for thing in aws.things.values() if thing["name"] == runtime_name(target)]
        assert len(named) == 1
        versions = aws.client("s3").list_object_versions(Bucket=BUCKET, Prefix=object_key(target))["Versions"]
        assert len(versions) == 1

    @pytest.mark.case("AGC-04")
    def test_after_a_conflict_it_adopts_its_own_earlier_runtime_by_name(self, aws, hello):
        for _ in range(3):  # more than a page of others
            deployed(aws, hello)
        target = target_for(hello)
        first = aws.provider.deploy(target, hello)
        aws.tokens.clear()  # AWS forgets a clientToken after a while
        assert aws.provider.deploy(target, hello) == first

    @pytest.mark.case("AGC-04")
    def test_one_that_was_removed_behind_our_back_is_made_anew_and_the_new_id_is_kept(self, aws, hello):
        target = target_for(hello)
        first = aws.provider.deploy(target, hello)
        del aws.things[first["runtimeId"]]
        second = aws.provider.deploy(replace(target, remote=first), hello)
        assert second["runtimeId"] != first["runtimeId"]
        assert second["runtimeId"] in aws.things

    @pytest.mark.case("AGC-04")
    def test_one_that_was_made_of_other_bytes_is_replaced_never_updated(self, aws, hello):
        target = target_for(hello)
        old = aws.provider.deploy(target, built(agent_zip('export default () => "old"', runtime="agentcore")))
        new = aws.provider.deploy(target, hello)
        assert new["runtimeId"] != old["runtimeId"]
        assert old["runtimeId"] not in aws.things

    @pytest.mark.case("AGC-04")
    def test_names_are_made_of_ids_so_they_are_allowed_and_never_meet(self, hello):
        one, other = target_for(hello), target_for(hello)
        assert runtime_name(one) != runtime_name(other)
        assert len(runtime_name(one)) <= 48
        assert runtime_name(one).isalnum()
        assert len(role_name(one)) <= 64

    def test_a_role_that_is_seconds_old_is_waited_for(self, aws, hello):
        aws.fail("CreateAgentRuntime", 400, "ValidationException", times=3)
        deployed(aws, hello)
        assert aws.count("CreateAgentRuntime") == 4

    def test_the_same_refusal_of_a_role_that_is_old_is_believed_at_once(self, aws, hello):
        target = target_for(hello)
        aws.fail("CreateAgentRuntime", 400, "ValidationException")
        wanted = {
            "agentRuntimeName": runtime_name(target), "roleArn": f"arn:aws:iam::{ACCOUNT}:role/x",
            "agentRuntimeArtifact": {"codeConfiguration": {
                "code": {"s3": {"bucket": BUCKET, "prefix": "x", "versionId": "abc"}},
                "runtime": "NODE_22", "entryPoint": ["main.js"],
            }},
        }  # fmt: skip
        old = datetime.now(UTC) - timedelta(minutes=2)
        call = lambda: agentcore_deploying.ensure_runtime(  # noqa: E731
            aws.provider._clients, target, wanted, old, Deadline.after(5)
        )
        error = failure_of(call)
        assert (error.error_class, error.retryable) == ("ValidationException", False)

    def test_one_that_could_not_be_made_is_removed_and_told_in_our_own_words(self, aws, hello):
        aws.becomes, aws.reason = "CREATE_FAILED", f"ELF not arm64 in arn:aws:s3:::{BUCKET}/x"
        target = target_for(hello)
        error = failure_of(lambda: aws.provider.deploy(target, hello))
        assert (error.error_class, error.retryable) == ("CreateFailed", False)
        assert error.message == "The bundle holds binaries that are not built for Linux on arm64."
        assert runtime_name(target) not in {thing["name"] for thing in aws.things.values()}

    def test_one_that_takes_too_long_fails_retryably_and_a_repeat_goes_on_with_it(self, aws, hello, settings):
        settings.DEPLOY_LEASE_SECONDS = 2
        aws.becomes = "CREATING"
        target = target_for(hello)
        error = failure_of(lambda: aws.provider.deploy(target, hello))
        assert (error.error_class, error.retryable) == ("StillCreating", True)
        [thing] = [thing for thing in aws.things.values() if thing["name"] == runtime_name(target)]
        thing["status"] = "READY"
        assert aws.provider.deploy(target, hello)["runtimeId"] == thing["id"]

    def test_one_whose_metadata_anybody_may_read_is_not_kept(self, aws, hello):
        aws.safe = False
        target = target_for(hello)
        assert failure_of(lambda: aws.provider.deploy(target, hello)).error_class == "MetadataV1"
        assert runtime_name(target) not in {thing["name"] for thing in aws.things.values()}

    @pytest.mark.parametrize("status", [500, 503])
    def test_a_passing_trouble_is_waited_out(self, aws, hello, status):
        aws.fail("CreateAgentRuntime", status, "InternalServerException", times=2)
        assert deployed(aws, hello).remote["runtimeId"] in aws.things

    @pytest.mark.parametrize(
        ("code", "status", "retryable"),
        [
            ("ThrottlingException", 429, True),
            ("ThrottledException", 400, True),
            ("InternalServerException", 500, True),
            ("ConflictException", 409, True),
            ("AccessDeniedException", 403, False),
            ("ValidationException", 400, False),
            ("ServiceQuotaExceededException", 402, False),
            ("ResourceNotFoundException", 404, False),
        ],
    )
    def test_auth_and_validation_stay_and_throttling_and_5xx_pass(self, code, status, retryable):
        answer = {"Error": {"Code": code, "Message": "arn:x"}, "ResponseMetadata": {"HTTPStatusCode": status}}
        error = read_error(answer)
        assert (error.error_class, error.retryable, error.status) == (code, retryable, 502)
        assert "arn" not in error.message

    def test_where_nothing_is_set_up_nothing_is_asked(self, aws, hello, settings):
        settings.AGENTCORE_BUCKET = ""
        assert failure_of(lambda: aws.provider.deploy(target_for(hello), hello)).error_class == "NotConfigured"
        assert not aws.provider.health()
        assert aws.calls == []

    def test_an_address_where_nobody_listens_is_a_retryable_failure(self, aws, hello, monkeypatch):
        monkeypatch.setitem(os.environ, "AWS_ENDPOINT_URL", "http://127.0.0.1:9")
        error = failure_of(lambda: AgentCoreProvider().deploy(target_for(hello), hello))
        assert (error.error_class, error.retryable) == ("EndpointConnectionError", True)
        assert "127.0.0.1" not in error.message


class TestActivate:
    def test_it_asks_the_shim_to_load_in_a_session_of_its_own_and_stops_that(self, aws, hello):
        target = deployed(aws, hello)
        aws.provider.activate(target)
        invoked, stopped = aws.seen("InvokeAgentRuntime"), aws.seen("StopRuntimeSession")
        assert invoked["probe"] is True
        assert invoked["session"] == stopped["session"]
        assert len(invoked["session"]) == 65

    def test_an_agent_that_does_not_load_is_told_with_its_own_words(self, aws, hello):
        target = deployed(aws, hello)
        line = "TypeError: f is not a function\n  at file:///var/task/bundle/agent.js:1:2"
        aws.answer = lambda _: Answer({"error": {"errorClass": "LoadError"}, "logs": [line]})
        error = failure_of(lambda: aws.provider.activate(target))
        assert (error.error_class, error.retryable) == ("LoadError", False)
        assert error.message == "The agent does not start: TypeError: f is not a function"
        assert aws.count("StopRuntimeSession") == 1

    def test_a_machine_that_cannot_start_is_not_tried_for_ever_and_a_busy_service_is(self, aws, hello):
        target = deployed(aws, hello)
        aws.fail("InvokeAgentRuntime", 424, "RuntimeClientError")
        assert not failure_of(lambda: aws.provider.activate(target)).retryable
        aws.fail("InvokeAgentRuntime", 500, "InternalServerException")
        assert failure_of(lambda: aws.provider.activate(target)).retryable


class TestRole:
    def test_it_is_the_deployments_own_bounded_and_taken_by_agentcore_alone(self, aws, hello):
        target = deployed(aws, hello)
        role = aws.client("iam").get_role(RoleName=role_name(target))["Role"]
        assert role["Path"] == "/agents/"
        assert role["PermissionsBoundary"]["PermissionsBoundaryArn"].endswith(":policy/whs-boundary")
        [statement] = role["AssumeRolePolicyDocument"]["Statement"]
        assert statement["Principal"] == {"Service": "bedrock-agentcore.amazonaws.com"}
        assert statement["Condition"]["StringEquals"] == {"aws:SourceAccount": ACCOUNT}
        assert ACCOUNT in statement["Condition"]["ArnLike"]["aws:SourceArn"]
        assert policies(aws, target) == {"base"}

    def test_a_grant_names_this_deployments_own_tools_and_lists_nothing(self, aws, hello):
        target = deployed(aws, hello, capabilities=TOOLS)
        assert policies(aws, target) == {"base", "cap-codeInterpreter", "cap-browser", "cap-memory"}
        text = ""
        for name in policies(aws, target):
            found = aws.client("iam").get_role_policy(RoleName=role_name(target), PolicyName=name)
            for statement in found["PolicyDocument"]["Statement"]:
                text += json.dumps(statement)
                wide = statement["Resource"] == "*"
                assert not wide or statement["Action"] == ["bedrock-agentcore:ConnectBrowserAutomationStream"]
        assert "Sessions" not in text
        assert "Get*" not in text
        for key in ("codeInterpreterId", "browserId", "memoryId"):
            assert target.remote[key] in text

    def test_memory_is_the_agents_and_the_rest_is_the_deployments(self, aws, hello):
        one = deployed(aws, hello, capabilities=TOOLS)
        two = deployed(aws, hello, capabilities=TOOLS, agent_id=one.agent_id, version=2)
        assert one.remote["memoryId"] == two.remote["memoryId"]
        assert one.remote["browserId"] != two.remote["browserId"]

    def test_an_adopted_role_gets_its_boundary_back(self, aws, hello):
        target = deployed(aws, hello)
        aws.client("iam").delete_role_permissions_boundary(RoleName=role_name(target))
        aws.provider.deploy(target, hello)
        role = aws.client("iam").get_role(RoleName=role_name(target))["Role"]
        assert role["PermissionsBoundary"]["PermissionsBoundaryArn"] == place().boundary_arn

    def test_withdrawing_deletes_the_grant_ends_its_sessions_and_leaves_the_rest(self, aws, hello):
        target = deployed(aws, hello, capabilities=TOOLS)
        mine = [aws.start_session(target.remote["browserId"], "inv_1") for _ in range(3)]
        other = aws.start_session(target.remote["codeInterpreterId"], "inv_1")
        aws.provider.withdraw(target, frozenset({"browser"}))
        aws.provider.withdraw(target, frozenset({"browser"}))
        assert policies(aws, target) == {"base", "cap-codeInterpreter", "cap-memory"}
        assert {aws.sessions[s]["status"] for s in mine} == {"TERMINATED"}
        assert aws.sessions[other]["status"] == "READY"

    def test_what_was_withdrawn_can_be_granted_again_also_where_nobody_kept_the_ids(self, aws, hello):
        target = replace(deployed(aws, hello, capabilities=TOOLS), remote={})
        aws.provider.withdraw(target, TOOLS)
        assert policies(aws, target) == {"base"}
        aws.provider.grant(target, TOOLS)
        assert policies(aws, target) == {"base", "cap-codeInterpreter", "cap-browser", "cap-memory"}

    @pytest.mark.parametrize("operation", ["iam.DeleteRolePolicy", "iam.GetRolePolicy", "ListBrowserSessions"])
    def test_a_withdrawal_that_cannot_be_done_or_seen_says_so(self, aws, hello, operation):
        target = deployed(aws, hello, capabilities=frozenset({"browser"}))
        aws.fail(operation, 500, "InternalServerException", times=9)
        failure_of(lambda: aws.provider.withdraw(target, frozenset({"browser"})))

    def test_no_grant_reaches_the_tools_of_another_deployment(self, aws, hello):
        one, other = (deployed(aws, hello, capabilities=TOOLS) for _ in range(2))
        iam = aws.client("iam")
        documents = [
            json.dumps(iam.get_role_policy(RoleName=role_name(one), PolicyName=name)["PolicyDocument"])
            for name in policies(aws, one)
        ]
        foreign = [other.deployment_id.hex, *(other.remote[k] for k in ("codeInterpreterId", "browserId", "memoryId"))]
        assert not [name for name in foreign if name in "".join(documents)]


class TestToolSessions:
    def test_every_page_and_both_states_are_read(self, aws, hello):
        target = deployed(aws, hello, capabilities=TOOLS)
        names = {f"inv_{n}" for n in range(5)}
        for name in names:
            aws.start_session(target.remote["codeInterpreterId"], name)
        aws.start_session(target.remote["browserId"], "inv_9", "TERMINATED")
        found = aws.provider.tool_sessions(target)
        assert {s.name for s in found if s.kind == Capability.CODE_INTERPRETER} == names
        [ended] = [s for s in found if s.kind == Capability.BROWSER]
        assert ended.ended_at is not None
        assert all(s.ended_at is None for s in found if s.kind == Capability.CODE_INTERPRETER)

    def test_a_deployment_without_tools_asks_nothing(self, aws, hello):
        target = deployed(aws, hello)
        aws.calls.clear()
        assert aws.provider.tool_sessions(target) == []
        assert aws.calls == []

    def test_what_cannot_be_seen_is_an_error_and_not_none(self, aws, hello):
        target = deployed(aws, hello, capabilities=frozenset({"browser"}))
        aws.fail("ListBrowserSessions", 403, "AccessDeniedException")
        failure_of(lambda: aws.provider.tool_sessions(target))


class TestSecrets:
    @pytest.fixture(scope="class")
    def bundle(self):
        return built(agent_zip(HELLO, runtime="agentcore", env={"requiredKeys": ["A"], "optionalKeys": ["B"]}))

    def test_a_deployment_may_read_what_it_declared_and_no_more(self, aws, bundle):
        target = target_for(bundle)
        aws.provider.put_secrets(agent_of(target), {"A": "1", "B": "2", "C": "3"})
        target = replace(target, remote=aws.provider.deploy(target, bundle))
        assert secret(aws, secret_name(target)) == {"keys": ["A", "B"], "values": {"A": "1", "B": "2"}}
        document = aws.client("iam").get_role_policy(RoleName=role_name(target), PolicyName="base")["PolicyDocument"]
        read = [s for s in document["Statement"] if s["Action"] == ["secretsmanager:GetSecretValue"]]
        assert [s["Resource"] for s in read] == [target.remote["secretArn"]]

    def test_a_new_value_reaches_every_kept_deployment_and_a_deleted_one_leaves_them(self, aws, bundle):
        one = deployed(aws, bundle)
        two = deployed(aws, bundle, agent_id=one.agent_id, version=2)
        stranger = deployed(aws, bundle)
        aws.provider.put_secrets(agent_of(one), {"A": "new", "B": "b"})
        aws.provider.put_secrets(agent_of(one), {"B": None})
        for target in (one, two):
            assert secret(aws, secret_name(target))["values"] == {"A": "new"}
        assert secret(aws, master_secret_name(one)) == {"values": {"A": "new"}}
        for name in (secret_name(one), master_secret_name(one)):
            with pytest.raises(ClientError):
                secret(aws, name, "AWSPREVIOUS")
        assert secret(aws, secret_name(stranger))["values"] == {}

    def test_two_that_write_at_once_lose_nothing(self, aws, bundle):
        target = deployed(aws, bundle)
        writers = [
            threading.Thread(target=aws.provider.put_secrets, args=(agent_of(target), {name: "1"})) for name in "AB"
        ]
        for writer in writers:
            writer.start()
        for writer in writers:
            writer.join()
        assert secret(aws, master_secret_name(target))["values"] == {"A": "1", "B": "1"}
        assert secret(aws, secret_name(target))["values"] == {"A": "1", "B": "1"}

    def test_no_environment_log_or_error_holds_a_value(self, aws, bundle, caplog):
        caplog.set_level(logging.DEBUG)
        value = "sk-very-secret"
        target = target_for(bundle)
        aws.provider.put_secrets(agent_of(target), {"A": value})
        aws.provider.deploy(target, bundle)
        assert value not in json.dumps(aws.seen("CreateAgentRuntime"))
        for code in ("InternalServiceError", "AccessDeniedException", "InvalidParameterException"):
            aws.fail("secretsmanager.PutSecretValue", 500, code, times=9)
            error = failure_of(lambda: aws.provider.put_secrets(agent_of(target), {"A": value + "2"}))
            assert value not in repr(error) + str(error.details)
            aws.faults.clear()
        assert value not in caplog.text

    def test_more_than_secrets_manager_takes_is_refused_with_a_reason(self, aws, bundle):
        target = target_for(bundle)
        with pytest.raises(InvalidRequestError) as refused:
            aws.provider.put_secrets(agent_of(target), {f"K{n}": "x" * 5000 for n in range(14)})
        assert "64 KB" in refused.value.message


class TestRemove:
    @pytest.mark.parametrize("keep_ids", [True, False])
    def test_everything_of_a_deployment_goes_and_again_is_success(self, aws, keep_ids):
        bundle = built(agent_zip(HELLO, runtime="agentcore", env={"optionalKeys": ["A"]}))
        target = deployed(aws, bundle, capabilities=TOOLS)
        aws.start_session(target.remote["browserId"], "inv_1")
        if not keep_ids:  # as after a deploy that was interrupted
            target = replace(target, remote={})
        aws.provider.remove(target)
        aws.provider.remove(target)
        left = {thing["name"] for thing in aws.things.values() if target.deployment_id.hex in thing["name"]}
        assert left == set()
        assert gone(aws, secret_name(target))
        iam = aws.client("iam")
        with pytest.raises(iam.exceptions.NoSuchEntityException):
            iam.get_role(RoleName=role_name(target))
        assert "Versions" not in aws.client("s3").list_object_versions(Bucket=BUCKET, Prefix=object_key(target))

    def test_secrets_and_memory_stay_with_the_agent_and_go_with_it(self, aws, hello):
        target = deployed(aws, hello, capabilities=frozenset({"memory"}))
        aws.provider.put_secrets(agent_of(target), {"A": "1"})
        aws.provider.remove(target)
        assert secret(aws, master_secret_name(target))["values"] == {"A": "1"}
        assert target.remote["memoryId"] in aws.things
        aws.provider.remove_agent(agent_of(target))
        aws.provider.remove_agent(agent_of(target))
        assert gone(aws, master_secret_name(target))
        assert target.remote["memoryId"] not in aws.things

    def test_a_removal_that_fails_says_so(self, aws, hello):
        target = deployed(aws, hello)
        aws.fail("DeleteAgentRuntime", 500, "InternalServerException", times=9)
        failure_of(lambda: aws.provider.remove(target))

    def test_one_that_is_on_its_way_out_already_counts_as_removed(self, aws, hello):
        target = deployed(aws, hello)
        aws.things[target.remote["runtimeId"]]["status"] = "DELETING"
        aws.fail("DeleteAgentRuntime", 409, "ConflictException")
        aws.provider.remove(target)


class TestLastDoor:
    def test_what_costs_money_is_refused_with_nothing_on_the_wire(self, aws, hello, monkeypatch):
        target = deployed(aws, hello)
        aws.calls.clear()

        def refuse(*_, **__):
            raise LimitExceededError("The gate is closed.")

        monkeypatch.setattr(gates, "require_runtime", refuse)
        for call in (
            lambda: aws.provider.deploy(target_for(hello), hello),
            lambda: aws.provider.activate(target),
            lambda: aws.provider.grant(target, frozenset({"browser"})),
            lambda: aws.provider.put_secrets(agent_of(target), {"A": "1"}),
        ):
            with pytest.raises(LimitExceededError):
                call()
        assert aws.calls == []
        aws.provider.withdraw(target, frozenset({"browser"}))
        aws.provider.remove(target)
        aws.provider.remove_agent(agent_of(target))
        assert aws.provider.health()


def test_tokens_of_different_intentions_differ_and_of_the_same_are_the_same():
    assert token_of("a", "bc") == token_of("a", "bc") != token_of("ab", "c")
