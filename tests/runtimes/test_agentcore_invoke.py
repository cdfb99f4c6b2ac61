"""The AgentCore adapter's invocations: sent once, timed by our clock, streamed as they come, told truthfully."""

import json
import threading
import time
from dataclasses import replace
from uuid import UUID

import botocore.session
import pytest
from botocore.validate import validate_parameters

from entitlements.actions import gates
from runtimes.errors import NotReachedError, RuntimeFailedError
from runtimes.providers import agentcore_invoking
from runtimes.providers.agentcore import AgentCoreProvider
from runtimes.providers.agentcore_names import probe_session_id, runtime_session_id
from runtimes.providers.base import Delta, Failure, Final, Invocation, Target
from runtimes.rules import estimate_tokens
from tests.runtimes.aws import ACCOUNT, USAGE, Answer, Aws, event
from webhost.ids import Prefix, new_id, public_id

ARN = f"arn:aws:bedrock-agentcore:us-east-1:{ACCOUNT}:runtime/d{'0' * 32}-abcdefghij"
FINAL = event("final", {"usage": USAGE, "logs": ["bye"]})


@pytest.fixture(scope="module")
def running():
    with Aws().running() as aws:
        yield aws


@pytest.fixture
def aws(running, monkeypatch):
    running.reset()
    monkeypatch.setattr(gates, "require_runtime", lambda *_, **__: None)
    return running


@pytest.fixture
def impatient(monkeypatch):
    """A grace that a test can wait for."""
    monkeypatch.setattr(agentcore_invoking, "READ_GRACE_SECONDS", 0)


def target(**changes):
    values = {
        "account_id": UUID(int=1), "agent_id": UUID(int=2), "deployment_id": UUID(int=3), "version": 1,
        "runtime": "agentcore", "root_key_id": "k1", "capabilities": frozenset(), "timeout_seconds": 1,
        "remote": {"runtimeArn": ARN},
    }  # fmt: skip
    return Target(**values | changes)


def invocation(prompt="hello", session="s1"):
    body = {"input": {"messages": [{"role": "user", "content": prompt}]}}
    return Invocation(new_id(), public_id(Prefix.TRACE, new_id()), json.dumps(body).encode(), session)


def failure_of(call, kind=RuntimeFailedError):
    with pytest.raises(kind) as failure:
        call()
    return failure.value


class TestSessionIds:
    @pytest.mark.case("AGC-01")
    @pytest.mark.parametrize(
        "given",
        ["42", "user-7", "0" * 32, "0" * 33, "0" * 36, "x" * 256, "x" * 257, "", "sess/ü 1", "\ud800", "日" * 256],
    )
    def test_whatever_a_caller_names_a_session_agentcore_takes_it(self, given):
        session = runtime_session_id(target(), given)
        model = botocore.session.get_session().get_service_model("bedrock-agentcore")
        arguments = {"agentRuntimeArn": ARN, "payload": b"{}", "runtimeSessionId": session}
        validate_parameters(arguments, model.operation_model("InvokeAgentRuntime").input_shape)
        assert 33 <= len(session) <= 100
        assert session.isalnum()

    @pytest.mark.case("AGC-01")
    def test_the_same_id_is_the_same_session_and_different_ones_never_meet(self):
        one, other = target(), target(account_id=UUID(int=9))
        elsewhere = target(agent_id=UUID(int=9))
        ids = [runtime_session_id(t, s) for t in (one, other, elsewhere) for s in ("1", "10", "01", "1 ", "")]
        assert len(set(ids)) == len(ids)
        assert runtime_session_id(one, "1") == runtime_session_id(replace(one, version=2), "1")
        assert probe_session_id(one, "1") not in ids

    @pytest.mark.case("AGC-01")
    def test_two_calls_of_one_short_session_reach_one_machine(self, aws):
        for session in ("7", "7", "8"):
            aws.provider.invoke(target(), invocation(session=session))
        sent = [given["session"] for name, given in aws.calls if name == "InvokeAgentRuntime"]
        assert sent[0] == sent[1] != sent[2]


class TestOnce:
    @pytest.mark.case("AGC-03")
    def test_a_timeout_is_sent_once_and_counts(self, aws, impatient):
        def slow(_):
            time.sleep(1.5)
            return Answer()

        aws.answer = slow
        error = failure_of(lambda: aws.provider.invoke(target(), invocation()))
        assert (error.error_class, error.status, error.retryable) == ("Timeout", 504, False)
        assert aws.count("InvokeAgentRuntime") == 1

    @pytest.mark.case("AGC-03")
    @pytest.mark.parametrize(
        ("status", "code", "error_class"),
        [
            (500, "InternalServerException", "Runtime500"),
            (502, "", "Runtime502"),
            (503, "ServiceUnavailable", "Runtime503"),
            (504, "GatewayTimeout", "Runtime504"),
            (0, "reset", "Broken"),
        ],
    )
    @pytest.mark.parametrize("how", ["invoke", "stream"])
    def test_where_nobody_knows_what_ran_it_was_sent_once_and_counts(self, aws, status, code, error_class, how):
        aws.fail("InvokeAgentRuntime", status, code, times=9)
        error = failure_of(lambda: getattr(aws.provider, how)(target(), invocation()))
        assert (error.error_class, error.retryable, error.status) == (error_class, True, 502)
        assert aws.count("InvokeAgentRuntime") == 1
        assert "arn" not in error.message

    @pytest.mark.case("AGC-03")
    @pytest.mark.parametrize(("status", "code"), [(429, "ThrottlingException"), (409, "RetryableConflictException")])
    def test_what_was_turned_away_at_the_door_is_tried_again_for_a_moment(self, aws, status, code):
        aws.fail("InvokeAgentRuntime", status, code, times=2)
        assert aws.provider.invoke(target(), invocation()).text == "hello"
        assert aws.count("InvokeAgentRuntime") == 3

    @pytest.mark.case("AGC-03")
    def test_a_service_that_stays_busy_gives_the_call_back_with_a_time_to_come_again(self, aws):
        aws.fail("InvokeAgentRuntime", 429, "ThrottlingException", times=99)
        began = time.monotonic()
        error = failure_of(lambda: aws.provider.invoke(target(), invocation()), NotReachedError)
        assert (error.error_class, error.status, error.retryable) == ("Throttled", 503, True)
        assert error.retry_after >= 1
        assert time.monotonic() - began < 3
        assert aws.count("InvokeAgentRuntime") <= 4

    @pytest.mark.parametrize(
        ("status", "code", "error_class", "retryable"),
        [
            (402, "ServiceQuotaExceededException", "NoRoom", True),
            (403, "AccessDeniedException", "AccessDenied", False),
            (403, "UnrecognizedClientException", "Refused", False),
            (400, "ValidationException", "Invalid", False),
            (404, "ResourceNotFoundException", "NotFound", False),
            (409, "ConflictException", "Busy", True),
        ],
    )
    def test_a_refusal_proves_that_nothing_ran(self, aws, status, code, error_class, retryable):
        aws.fail("InvokeAgentRuntime", status, code, times=9)
        error = failure_of(lambda: aws.provider.invoke(target(), invocation()), NotReachedError)
        assert (error.error_class, error.retryable) == (error_class, retryable)
        assert aws.count("InvokeAgentRuntime") == 1
        assert "arn" not in error.message

    def test_an_agent_that_answers_with_a_status_of_its_own_failed_itself(self, aws):
        aws.fail("InvokeAgentRuntime", 424, "RuntimeClientError", times=9)
        error = failure_of(lambda: aws.provider.invoke(target(), invocation()))
        assert (error.error_class, error.retryable) == ("AgentError", False)
        assert aws.count("InvokeAgentRuntime") == 1

    def test_where_nobody_listens_or_nothing_is_set_up_nothing_ran(self, aws, monkeypatch):
        monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
        error = failure_of(lambda: AgentCoreProvider().invoke(target(), invocation()), NotReachedError)
        assert (error.error_class, error.retryable) == ("NotReached", True)
        error = failure_of(lambda: aws.provider.invoke(target(remote={}), invocation()), NotReachedError)
        assert (error.error_class, error.retryable) == ("NotFound", False)

    def test_a_client_is_made_once_for_each_timeout(self, aws):
        clients = aws.provider._clients
        assert clients.once(25) is clients.once(25)
        assert clients.once(25) is not clients.once(26)
        config = clients.once(25).meta.config
        assert (config.connect_timeout, config.read_timeout, config.retries["total_max_attempts"]) == (5, 25, 1)


class TestAnswers:
    def test_the_shim_gets_what_it_needs_around_the_request_as_it_was_given(self, aws):
        seen = []

        def note(payload):
            seen.append(payload)
            return Answer()

        aws.answer = note
        call = invocation("日本")
        aws.provider.invoke(target(timeout_seconds=60), call)
        assert seen == [
            {
                "requestId": public_id(Prefix.INVOCATION, call.invocation_id),
                "traceId": call.trace_id,
                "timeoutSeconds": 60,
                "request": json.loads(call.body),
            }
        ]
        assert aws.seen("InvokeAgentRuntime")["accept"] == "application/json"

    @pytest.mark.parametrize(("claimed", "tokens", "estimated"), [(None, 3, True), (0, 0, False), (12, 12, False)])
    def test_tokens_that_nobody_reported_are_estimated_and_a_reported_0_stays_0(self, aws, claimed, tokens, estimated):
        aws.answer = lambda _: Answer({"text": "hello", "usage": USAGE | {"tokens": claimed}, "logs": ["a"]})
        answer = aws.provider.invoke(target(), invocation("hello"))
        assert (answer.usage.tokens, answer.usage.tokens_estimated) == (tokens, estimated)
        assert estimate_tokens("hello", "hello") == 3
        assert answer.logs == ("a",)

    def test_our_own_clock_says_how_long_it_took(self, aws):
        def slow(_):
            time.sleep(0.2)
            return Answer({"text": "", "usage": USAGE | {"computeMs": 0}, "logs": []})

        aws.answer = slow
        assert 200 <= aws.provider.invoke(target(), invocation()).usage.compute_ms < 1000

    def test_a_failure_is_told_in_our_own_words_with_what_was_used(self, aws):
        failure = {"errorClass": "AgentError", "message": "secret inner text"}
        aws.answer = lambda _: Answer({"error": failure, "usage": USAGE | {"toolCalls": 2}, "logs": ["x"]})
        error = failure_of(lambda: aws.provider.invoke(target(), invocation()))
        assert (error.error_class, error.usage.tool_calls, error.logs) == ("AgentError", 2, ("x",))
        assert "secret" not in error.message

    @pytest.mark.parametrize(
        "body",
        [
            [], {}, {"text": 5}, {"text": "a"}, {"text": "a", "usage": {"tokens": -1}},
            {"text": "a", "usage": USAGE | {"toolCalls": True}}, {"error": "no"},
        ],
    )  # fmt: skip
    def test_nonsense_is_a_failure_and_never_an_answer(self, aws, body):
        aws.answer = lambda _: Answer(body)
        assert failure_of(lambda: aws.provider.invoke(target(), invocation())).error_class == "BadAnswer"

    def test_an_answer_that_is_too_large_is_cut_off(self, aws, monkeypatch):
        monkeypatch.setattr(agentcore_invoking, "MOST_BYTES", 1000)
        aws.answer = lambda _: Answer({"text": "x" * 2000, "usage": USAGE, "logs": []})
        assert failure_of(lambda: aws.provider.invoke(target(), invocation())).error_class == "AnswerTooLarge"


class TestStream:
    @pytest.mark.case("AGC-03")
    def test_each_piece_arrives_before_the_next_is_made(self, aws):
        go = [threading.Event() for _ in range(3)]
        pieces = [event("delta", {"text": text}) for text in ("日本", "b")] + [FINAL]
        aws.answer = lambda _: Answer(events=pieces, between=lambda n: n and go[n - 1].wait(5))
        began = time.monotonic()
        stream = aws.provider.stream(target(timeout_seconds=5), invocation())
        assert next(stream) == Delta("日本")
        go[0].set()
        assert next(stream) == Delta("b")
        go[1].set()
        go[2].set()
        assert isinstance(next(stream), Final)
        assert list(stream) == []
        assert time.monotonic() - began < 3
        assert aws.seen("InvokeAgentRuntime")["accept"] == "text/event-stream"

    def test_tokens_of_a_stream_are_estimated_from_all_its_pieces(self, aws):
        end = event("final", {"usage": USAGE | {"tokens": None}, "logs": []})
        aws.answer = lambda _: Answer(events=[event("delta", {"text": "hello"})] * 3 + [end])
        last = list(aws.provider.stream(target(), invocation("hello")))[-1]
        assert (last.usage.tokens, last.usage.tokens_estimated) == (5, True)

    def test_a_failure_event_is_the_bad_end(self, aws):
        end = event("failure", {"errorClass": "Timeout", "usage": USAGE, "logs": []})
        aws.answer = lambda _: Answer(events=[end])
        [last] = list(aws.provider.stream(target(), invocation()))
        assert isinstance(last, Failure)
        assert last.error_class == "Timeout"

    @pytest.mark.parametrize("break_off", [True, False])
    def test_one_that_ends_without_its_last_event_is_a_failure(self, aws, break_off):
        aws.answer = lambda _: Answer(events=[event("delta", {"text": "a"})], break_off=break_off)
        stream = aws.provider.stream(target(), invocation())
        assert next(stream) == Delta("a")
        assert failure_of(lambda: next(stream)).error_class == "Truncated"

    def test_one_that_stalls_is_a_timeout(self, aws, impatient):
        aws.answer = lambda _: Answer(events=[event("delta", {"text": "a"})], between=lambda n: n and time.sleep(1.5))
        stream = aws.provider.stream(target(), invocation())
        next(stream)
        assert failure_of(lambda: next(stream)).error_class == "Timeout"

    def test_one_that_never_stalls_and_never_ends_is_a_timeout_too(self, aws, impatient):
        pieces = [event("delta", {"text": "a"})] * 100
        aws.answer = lambda _: Answer(events=pieces, between=lambda n: time.sleep(0.05))
        began = time.monotonic()
        assert failure_of(lambda: list(aws.provider.stream(target(), invocation()))).error_class == "Timeout"
        assert time.monotonic() - began < 2

    def test_an_answer_in_one_piece_is_not_a_stream(self, aws):
        assert failure_of(lambda: aws.provider.stream(target(), invocation())).error_class == "NoStream"

    def test_closing_it_closes_the_connection(self, aws):
        broken = threading.Event()

        def between(n):
            time.sleep(0.02)
            if n == 400:
                return
            broken.n = n

        aws.answer = lambda _: Answer(events=[event("delta", {"text": "x" * 2000})] * 400, between=between)
        stream = aws.provider.stream(target(timeout_seconds=30), invocation())
        next(stream)
        stream.close()
        time.sleep(0.5)
        stopped_at = broken.n
        time.sleep(0.3)
        assert broken.n == stopped_at
        aws.answer = lambda _: Answer()
        assert aws.provider.invoke(target(timeout_seconds=30), invocation()).text == "hello"


class TestStopSession:
    def test_it_stops_the_session_that_the_caller_named(self, aws):
        aws.provider.invoke(target(), invocation(session="mine"))
        aws.provider.stop_session(target(), "mine")
        assert aws.seen("StopRuntimeSession")["session"] == aws.seen("InvokeAgentRuntime")["session"]

    def test_one_that_is_gone_or_never_was_is_success(self, aws):
        aws.fail("StopRuntimeSession", 404, "ResourceNotFoundException")
        aws.provider.stop_session(target(), "gone")
        aws.provider.stop_session(target(remote={}), "never")
        assert aws.count("StopRuntimeSession") == 1

    def test_one_that_cannot_be_stopped_says_so(self, aws):
        aws.fail("StopRuntimeSession", 500, "InternalServerException")
        failure_of(lambda: aws.provider.stop_session(target(), "s"))
