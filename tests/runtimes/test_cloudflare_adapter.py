"""The Cloudflare adapter against the local Cloudflare: deploys that fail truthfully, calls that are sent once."""

import json
import logging
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import requests

from entitlements.actions import gates
from entitlements.errors import LimitExceededError
from runtimes.errors import DeploymentFailedError, NotReachedError, RuntimeFailedError
from runtimes.providers.base import AgentRef, Delta, Final
from runtimes.providers.cloudflare import CloudflareProvider, _upload, script_name, vault_name
from runtimes.providers.cloudflare_answers import CloudflareStream, read_answer, read_usage
from tests.runtimes.cloud import Deployed, agent_zip, built, new_target, until
from webhost.ids import new_id
from webhost.local.cloudflare.uploads import read_upload

HELLO = 'export default () => "hello"'
TALK = "export default async function* () { for (let i = 0; i < 100; i++) {"
TALK += " yield 'tick '; await new Promise((r) => setTimeout(r, 50)); } }"


@pytest.fixture(scope="module")
def hello():
    """A built bundle, deployed anew for each test."""
    return built(agent_zip(HELLO))


@pytest.fixture(scope="module")
def greeter(cloud, hello):
    """An agent that serves."""
    return cloud.deployed(hello)


def puts(cloud):
    return cloud.calls()["api"]["byKind"].get("PUT script", 0)


def agent_of(target):
    return AgentRef(target.account_id, target.agent_id)


def deploy_failure(cloud, bundle):
    target = new_target(bundle)
    with pytest.raises(DeploymentFailedError) as failure:
        cloud.provider.deploy(target, bundle)
    return failure.value


class TestUpload:
    @pytest.mark.case("CFW-01")
    def test_it_is_one_metadata_part_of_json_and_a_part_for_each_module_byte_for_byte(self):
        files = {"lib/words.ts": "export const words: string = '日';\r\n", "data.txt": "line\r\nline\r--\n"}
        code = "import { words } from './lib/words'; import data from './data.txt'; export default () => words + data"
        bundle = built(agent_zip(code, files))
        request = requests.Request(
            "PUT", "http://example.com", files=_upload(new_target(bundle), bundle, "x")
        ).prepare()
        upload = read_upload(request.headers["content-type"], request.body)
        parts = {part.name: part for part in upload.modules}
        assert upload.metadata["main_module"] in parts
        assert {part.content_type for part in parts.values()} == {"application/javascript+module"}
        for module in bundle.modules:
            assert parts[f"bundle/{module.name}"].content == module.content
        assert all(part.filename == part.name for part in parts.values())

    def test_it_names_account_agent_deployment_and_version_and_holds_no_secret(self, hello):
        target = new_target(hello)
        metadata = json.loads(_upload(target, hello, "made")["metadata"][1])
        assert metadata["tags"] == [
            f"account-{target.account_id.hex}",
            f"agent-{target.agent_id.hex}",
            f"deployment-{target.deployment_id.hex}",
            "version-1",
            "made",
        ]
        assert [binding["type"] for binding in metadata["bindings"]] == ["service"]


class TestDeploy:
    def test_a_repeat_adopts_what_was_made_before(self, cloud, hello):
        deployed = cloud.deployed(hello)
        before = puts(cloud)
        cloud.provider.deploy(deployed.target, hello)
        assert puts(cloud) == before
        assert deployed.invoke().text == "hello"

    def test_a_half_done_deploy_of_another_build_is_replaced(self, cloud, hello):
        deployed = cloud.deployed(built(agent_zip('export default () => "old"')), deployment_id=new_id())
        assert deployed.invoke().text == "old"
        cloud.provider.deploy(deployed.target, hello)
        assert deployed.invoke().text == "hello"

    @pytest.mark.case("CFW-01")
    def test_success_false_fails_with_the_providers_code_and_is_not_repeated(self, cloud, hello):
        secret = f"account {cloud.account} token {cloud.token}"
        cloud.plan(on="api", method="PUT", fault="not-success", code=10021, message=secret, script=None)
        error = deploy_failure(cloud, hello)
        assert (error.error_class, error.retryable, error.status) == ("Cloudflare10021", False, 502)
        assert cloud.account not in error.message
        assert cloud.token not in error.message

    def test_an_agent_that_does_not_start_fails_with_its_own_words_under_its_own_file_names(self, cloud):
        bundle = built(agent_zip("const f: any = undefined; f(); export default () => ''"))
        error = deploy_failure(cloud, bundle)
        assert error.message == "The agent does not start: TypeError: f is not a function"

    def test_a_module_without_a_function_to_call_says_which(self, cloud):
        error = deploy_failure(cloud, built(agent_zip("export default 5")))
        assert "agent.ts must export a function as its default" in error.message

    @pytest.mark.slow
    def test_an_agent_that_never_finishes_loading_fails(self, cloud):
        error = deploy_failure(cloud, built(agent_zip("for (;;); export default () => ''")))
        assert error.error_class == "Cloudflare10021"

    @pytest.mark.case("CFW-01")
    @pytest.mark.parametrize("fault", ["html-522", "http-500", "reset"])
    def test_a_passing_trouble_is_waited_out(self, cloud, hello, fault):
        target = new_target(hello)
        cloud.plan(on="api", method="PUT", script=script_name(target), fault=fault, times=2)
        cloud.provider.deploy(target, hello)
        assert Deployed(cloud, target).invoke().text == "hello"

    @pytest.mark.case("CFW-01")
    @pytest.mark.parametrize(
        ("fault", "error_class"),
        [("html-522", "Cloudflare522"), ("http-500", "Cloudflare500"), ("reset", "ConnectionError")],
    )
    def test_a_lasting_trouble_fails_retryably_after_some_tries(self, cloud, hello, fault, error_class):
        before = puts(cloud)
        cloud.plan(on="api", method="PUT", fault=fault, times=50)
        error = deploy_failure(cloud, hello)
        assert (error.error_class, error.retryable) == (error_class, True)
        assert 2 <= puts(cloud) - before <= 5
        assert len(error.message) < 100
        assert "<" not in error.message

    @pytest.mark.case("CFW-01")
    def test_a_page_of_html_that_refuses_is_believed_at_once(self, cloud, hello):
        before = puts(cloud)
        cloud.plan(on="api", method="PUT", fault="html-403", times=50)
        error = deploy_failure(cloud, hello)
        assert (error.error_class, error.retryable) == ("Cloudflare403", False)
        assert puts(cloud) - before == 1

    @pytest.mark.case("CFW-01")
    def test_too_many_requests_are_repeated_after_the_wait_that_was_asked_for(self, cloud, hello):
        target = new_target(hello)
        cloud.plan(on="api", method="PUT", script=script_name(target), fault="429", seconds=2)
        began = time.monotonic()
        cloud.provider.deploy(target, hello)
        assert time.monotonic() - began >= 2

    def test_a_wait_that_is_longer_than_a_deploy_may_take_fails_at_once_and_retryably(self, cloud, hello):
        cloud.plan(on="api", method="PUT", fault="429", seconds=300, times=9)
        began = time.monotonic()
        error = deploy_failure(cloud, hello)
        assert (error.error_class, error.retryable) == ("Cloudflare971", True)
        assert time.monotonic() - began < 5

    @pytest.mark.case("CFW-01")
    @pytest.mark.parametrize("fault", ["reset-after", "truncated"])
    def test_after_an_answer_that_got_lost_it_looks_before_it_sends_again(self, cloud, hello, fault):
        deployed = cloud.deployed(hello)  # its vault and namespace are there
        target = replace(deployed.target, deployment_id=new_id(), version=2)
        before = puts(cloud)
        cloud.plan(on="api", method="PUT", script=script_name(target), fault=fault)
        cloud.provider.deploy(target, hello)
        assert puts(cloud) - before == 1
        cloud.provider.activate(target)

    def test_deploys_of_several_agents_at_once_all_succeed(self, cloud, hello):
        with ThreadPoolExecutor(4) as workers:
            deployed = list(workers.map(lambda _: cloud.deployed(hello), range(4)))
        assert {d.invoke().text for d in deployed} == {"hello"}

    def test_an_address_where_nobody_listens_is_a_retryable_failure(self, hello, settings):
        settings.CLOUDFLARE_API_URL = "http://127.0.0.1:9/client/v4"
        with pytest.raises(DeploymentFailedError) as failure:
            CloudflareProvider().deploy(new_target(hello), hello)
        assert (failure.value.error_class, failure.value.retryable) == ("ConnectionError", True)
        assert "127.0.0.1" not in failure.value.message

    def test_a_wrong_token_is_not_retryable_and_not_told(self, cloud, hello, settings):
        settings.CLOUDFLARE_API_TOKEN = "wrong-token"
        error = deploy_failure(cloud, hello)
        assert (error.error_class, error.retryable) == ("Cloudflare10000", False)
        assert "wrong-token" not in error.message

    def test_activation_of_what_is_not_there_fails_for_good(self, cloud, hello):
        with pytest.raises(DeploymentFailedError) as failure:
            cloud.provider.activate(new_target(hello))
        assert (failure.value.error_class, failure.value.retryable) == ("Probe404", False)


class TestRemoval:
    def test_a_removed_deployment_is_gone_and_removing_it_again_is_success(self, cloud, hello):
        deployed = cloud.deployed(hello)
        cloud.provider.remove(deployed.target)
        cloud.provider.remove(deployed.target)
        with pytest.raises(NotReachedError):
            deployed.invoke()

    def test_an_agents_secrets_go_with_the_agent_and_not_with_a_version(self, cloud):
        code = "export default (_, { env }) => env.A ?? 'none'"
        deployed = cloud.agent(code, env={"optionalKeys": ["A"]})
        cloud.provider.put_secrets(agent_of(deployed.target), {"A": "1"})
        other = deployed.version(agent_zip(code, env={"optionalKeys": ["A"]}))
        cloud.provider.remove(deployed.target)
        assert other.invoke().text == "1"
        cloud.provider.remove_agent(agent_of(deployed.target))
        cloud.provider.remove_agent(agent_of(deployed.target))
        assert other.invoke().text == "none"

    def test_a_removal_that_fails_says_so(self, cloud, hello):
        deployed = cloud.deployed(hello)
        cloud.plan(on="api", method="DELETE", fault="html-522", times=50)
        with pytest.raises(DeploymentFailedError):
            cloud.provider.remove(deployed.target)


class TestSecrets:
    def test_a_value_is_in_no_error_and_no_log(self, cloud, greeter, caplog):
        caplog.set_level(logging.DEBUG)
        value = "sk-very-secret"
        for fault in ("not-success", "http-500", "reset", "truncated"):
            cloud.plan(on="api", method="PATCH", fault=fault, times=9, code=10055, message=value)
            with pytest.raises(DeploymentFailedError) as failure:
                cloud.provider.put_secrets(agent_of(greeter.target), {"A": value})
            assert value not in repr(failure.value) + str(failure.value.details)
            cloud.forget_faults()
        assert value not in caplog.text

    def test_the_provider_never_gives_a_value_back(self, cloud, greeter):
        cloud.provider.put_secrets(agent_of(greeter.target), {"A": "sk-very-secret"})
        base = f"{cloud.url}/client/v4/accounts/{cloud.account}/workers/dispatch/namespaces/whs/scripts"
        for what in ("", "/settings", "/bindings", "/secrets"):
            answer = requests.get(
                f"{base}/{vault_name(greeter.target)}{what}",
                headers={"Authorization": f"Bearer {cloud.token}"},
                timeout=5,
            )
            assert answer.ok
            assert "sk-very-secret" not in answer.text


class TestLastDoor:
    @pytest.fixture
    def closed(self, monkeypatch):
        """Entitlements that refuse, whatever the caller thought."""

        def refuse(*_, **__):
            raise LimitExceededError("The gate is closed.")

        monkeypatch.setattr(gates, "require_runtime", refuse)

    def test_what_costs_money_is_refused_before_the_provider_is_called(self, cloud, greeter, hello, closed):
        before = cloud.calls()
        for call in (
            lambda: cloud.provider.deploy(new_target(hello), hello),
            lambda: cloud.provider.activate(greeter.target),
            lambda: cloud.provider.invoke(greeter.target, greeter.invocation()),
            lambda: cloud.provider.stream(greeter.target, greeter.invocation()),
        ):
            with pytest.raises(LimitExceededError):
                call()
        assert cloud.calls()["api"] == before["api"]
        assert cloud.calls()["invocations"] == before["invocations"]

    def test_what_takes_away_is_never_refused(self, cloud, hello, monkeypatch):
        deployed = cloud.deployed(hello)

        def refuse(*_, **__):
            raise LimitExceededError("The gate is closed.")

        monkeypatch.setattr(gates, "require_runtime", refuse)
        cloud.provider.remove(deployed.target)
        cloud.provider.remove_agent(agent_of(deployed.target))
        assert cloud.provider.health()

    def test_the_question_names_account_runtime_capabilities_and_agent(self, cloud, greeter, monkeypatch):
        asked = []
        monkeypatch.setattr(gates, "require_runtime", lambda *a, **k: asked.append((*a, k)))
        greeter.invoke()
        target = greeter.target
        assert asked == [(target.account_id, "cloudflare", frozenset(), {"agent_id": target.agent_id})]


def kind_of(call):
    """Return the class of a call's failure, or None."""
    try:
        call()
    except (NotReachedError, RuntimeFailedError) as error:
        return error.error_class
    return None


class TestInvocation:
    @pytest.mark.parametrize(
        ("fault", "error_class", "retryable"),
        [
            ("reset", "Broken", True),
            ("reset-after", "Broken", True),
            ("http-500", "Runtime500", True),
            ("html-522", "Runtime522", True),
            ("html-403", "Runtime403", False),
            ("truncated", "Runtime200", False),
        ],
    )
    def test_whatever_goes_wrong_it_was_sent_once_and_counts(self, cloud, greeter, fault, error_class, retryable):
        before = cloud.invocations(greeter.target)
        cloud.plan(on="invoke", script=greeter.script, fault=fault, times=9)
        with pytest.raises(RuntimeFailedError) as failure:
            greeter.invoke()
        assert (failure.value.error_class, failure.value.retryable) == (error_class, retryable)
        assert failure.value.usage is None
        assert "<" not in failure.value.message
        assert cloud.invocations(greeter.target) - before == 1

    def test_an_answer_that_never_comes_is_a_timeout_and_was_sent_once(self, cloud, hello):
        deployed = cloud.deployed(hello, timeout_seconds=1)
        cloud.plan(on="invoke", script=deployed.script, fault="slow", seconds=20, times=9)
        with pytest.raises(RuntimeFailedError) as failure:
            deployed.invoke()
        assert (failure.value.error_class, failure.value.status) == ("Timeout", 504)
        assert cloud.invocations(deployed.target) == 1

    def test_too_many_requests_at_the_edge_prove_that_nothing_ran(self, cloud, greeter):
        cloud.plan(on="invoke", script=greeter.script, fault="429")
        with pytest.raises(NotReachedError) as failure:
            greeter.invoke()
        assert failure.value.retryable

    def test_where_nobody_listens_nothing_ran(self, cloud, greeter):
        cloud.plan(on="invoke", script=greeter.script, fault="refuse", seconds=2)
        with pytest.raises(RuntimeFailedError):  # its connection was open already: nobody knows
            greeter.invoke()
        until(lambda: kind_of(greeter.invoke) == "NotReached", 2)
        until(lambda: kind_of(greeter.invoke) is None)

    def test_forty_calls_at_once_are_forty_answers(self, cloud, greeter):
        before = cloud.invocations(greeter.target)
        with ThreadPoolExecutor(40) as callers:
            texts = list(callers.map(lambda _: greeter.invoke().text, range(40)))
        assert texts == ["hello"] * 40
        assert cloud.invocations(greeter.target) - before == 40

    def test_a_connection_that_was_closed_while_it_was_idle_is_not_used_again(self, cloud, greeter):
        greeter.invoke()
        cloud.child.stop()
        cloud.start()
        assert greeter.invoke().text == "hello"


class TestStream:
    @pytest.fixture(scope="class")
    def talker(self, cloud):
        """An agent that talks for five seconds."""
        return cloud.agent(TALK)

    @pytest.mark.case("API-02")
    def test_the_first_piece_arrives_while_the_agent_still_talks_plain_and_uncompressed(self, cloud, talker):
        began = time.monotonic()
        stream = cloud.provider.stream(talker.target, talker.invocation())
        assert next(stream) == Delta("tick ")
        assert time.monotonic() - began < 1.5
        assert "content-encoding" not in stream._answer.headers
        stream.close()

    @pytest.mark.case("API-02")
    def test_closing_it_stops_the_agent_and_what_was_used_is_reported(self, cloud, talker):
        invocation = talker.invocation("hello")
        stream = cloud.provider.stream(talker.target, invocation)
        assert [next(stream), next(stream)] == [Delta("tick "), Delta("tick ")]
        stream.close()
        event = cloud.reports.of(invocation, seconds=3)
        assert (event["errorClass"], event["requests"]) == ("ClientClosed", 1)
        assert event["tokens"] >= 4  # 5 bytes in, at least 10 out
        assert event["computeMs"] < 4000

    def test_a_plain_call_whose_caller_hangs_up_is_stopped_and_reported(self, cloud, talker):
        invocation = talker.invocation("hello")
        with pytest.raises(RuntimeFailedError):
            cloud.provider._send(talker.target, invocation, "invoke", stream=False, seconds=0.5)
        event = cloud.reports.of(invocation, seconds=3)
        assert event["errorClass"] == "ClientClosed"

    def test_a_hang_up_before_the_first_piece_is_noticed_too(self, cloud):
        deployed = cloud.agent("export default async function* () { await new Promise((r) => setTimeout(r, 30_000)); }")
        invocation = deployed.invocation()
        with pytest.raises(RuntimeFailedError):
            cloud.provider._send(deployed.target, invocation, "stream", stream=True, seconds=0.5)
        assert cloud.reports.of(invocation, seconds=3)["errorClass"] == "ClientClosed"

    @pytest.mark.case("API-02")
    def test_a_stream_that_breaks_off_is_never_taken_for_a_normal_end(self, cloud, talker):
        import os
        import signal

        stream = cloud.provider.stream(talker.target, talker.invocation())
        next(stream)
        os.kill(talker.pid, signal.SIGKILL)
        with pytest.raises(RuntimeFailedError) as failure:
            list(stream)
        assert failure.value.error_class == "Truncated"
        assert list(stream) == []

    def test_a_cut_off_body_is_a_failure(self, cloud, talker):
        cloud.plan(on="invoke", script=talker.script, fault="truncated")
        with pytest.raises(RuntimeFailedError) as failure:
            list(cloud.provider.stream(talker.target, talker.invocation()))
        assert failure.value.error_class == "Truncated"

    def test_a_connection_whose_stream_was_closed_half_way_poisons_no_later_call(self, cloud, talker, greeter):
        for _ in range(5):
            stream = cloud.provider.stream(talker.target, talker.invocation())
            next(stream)
            stream.close()
            assert greeter.invoke().text == "hello"

    def test_closing_from_another_thread_ends_the_reader(self, cloud, talker):
        stream = cloud.provider.stream(talker.target, talker.invocation())
        next(stream)
        threading.Timer(0.3, stream.close).start()
        began = time.monotonic()
        with pytest.raises(RuntimeFailedError):
            list(stream)
        assert time.monotonic() - began < 4


class Bytes:
    """An upstream that gives its bytes one at a time."""

    def __init__(self, data):
        self.data = data

    def read1(self):
        piece, self.data = self.data[:1], self.data[1:]
        return piece

    def drain_conn(self):
        self.data = b""


def sse(*events):
    return "".join(f"event: {k}\ndata: {json.dumps(v, ensure_ascii=False)}\n\n" for k, v in events).encode()


USAGE = {"tokens": 0, "computeMs": 5, "toolCalls": 0, "codeExecutionMs": 0, "browserSessions": 0}


class TestReading:
    @pytest.mark.case("API-02")
    def test_text_survives_chunks_that_end_in_the_middle_of_a_character(self):
        stream = CloudflareStream(Bytes(sse(("delta", {"text": "日本 🎈"}), ("final", {"usage": USAGE}))))
        first, last = list(stream)
        assert first == Delta("日本 🎈")
        assert isinstance(last, Final)
        assert (last.usage.tokens, last.usage.tokens_estimated) == (0, False)

    @pytest.mark.parametrize(
        "data",
        [
            b"", b"event: delta\n", sse(("delta", {"text": "a"})), b"event: final\ndata: {}\n\n",
            b"event: final\ndata: nonsense\n\n", sse(("final", {"usage": {"tokens": -1}})), sse(("done", {})),
            sse(("final", [])), b"\xff\xfe\n\n", sse(("delta", {"text": 5})),
        ],
    )  # fmt: skip
    def test_a_stream_without_its_true_end_is_a_failure(self, data):
        with pytest.raises(RuntimeFailedError) as failure:
            list(CloudflareStream(Bytes(data)))
        assert failure.value.error_class == "Truncated"

    @pytest.mark.parametrize("value", [-1, 1.5, True, "5", None, 10**13, []])
    def test_a_figure_that_is_no_whole_number_in_range_makes_no_usage(self, value):
        assert read_usage(USAGE | {"tokens": value}) is None

    @pytest.mark.parametrize("data", [b"", b"[]", b"null", b"{}", b'{"text": 5}', b'{"text": "a"}', b"<html>", b"\xff"])
    @pytest.mark.parametrize("status", [200, 201, 302, 500, 502])
    def test_an_answer_that_says_nothing_certain_counts(self, status, data):
        with pytest.raises(RuntimeFailedError):
            read_answer(status, data)
