"""What both shims of AgentCore do at AWS: credentials, secrets, tools and memory, each call signed as botocore would."""

import json
import time
from datetime import timedelta
from pathlib import Path

import pytest

from tests.runtimes.cloud import until
from tests.runtimes.shims import IDS, SECRET_ARN, SESSION, FakeAws, call, event, result, running, signature_is_right

PUPPETS = Path(__file__).with_name("puppets")
ENTRYPOINTS = {"node": "agent.js", "python": "agent.py"}
INTERPRETER, BROWSER, MEMORY = IDS.values()
DENIED = {"__type": "AccessDeniedException", "message": "no"}


@pytest.fixture(scope="module")
def listening():
    with FakeAws().listening() as aws:
        yield aws


@pytest.fixture
def aws(listening):
    listening.reset()
    return listening


@pytest.fixture(scope="module", params=ENTRYPOINTS)
def language(request):
    return request.param


@pytest.fixture(scope="module")
def shim(language, listening, tmp_path_factory):
    with started(language, listening, tmp_path_factory.mktemp("shim")) as up:
        yield up


def started(language, aws, folder, **environment):
    entrypoint = ENTRYPOINTS[language]
    files = {entrypoint: (PUPPETS / entrypoint).read_bytes()}
    return running(language, files, entrypoint, folder, aws, **environment)


class TestSecrets:
    def with_keys(self, language, aws, folder, required="", optional=""):
        keys = {"WHS_SECRET_ARN": SECRET_ARN, "WHS_REQUIRED_KEYS": required, "WHS_OPTIONAL_KEYS": optional}
        return started(language, aws, folder, **keys)

    def test_declared_ones_are_read_once_and_are_in_no_environment_variable(self, language, aws, tmp_path):
        aws.secret = {"API_KEY": 's3"cret\\日\n', "OTHER": "hidden"}
        with self.with_keys(language, aws, tmp_path, "API_KEY", "MODE,REGION") as shim:
            assert aws.calls == []  # not before the first call
            for _ in range(2):
                assert json.loads(shim.invoke("see")["text"])["env"] == {"API_KEY": 's3"cret\\日\n'}
            assert aws.paths() == ["/"]
            seen = json.loads(shim.invoke("process")["text"])
            assert seen["WHS_SECRET_ARN"] == SECRET_ARN
            assert not any("cret" in value and name != "WHS_SECRET_ARN" for name, value in seen.items())

    def test_missing_ones_are_named_before_the_agent_runs_and_seen_once_they_are_set(self, language, aws, tmp_path):
        with self.with_keys(language, aws, tmp_path, "A,B", "C") as shim:
            answer = shim.invoke("say hi")
            assert (answer["error"]["errorClass"], answer["usage"]["tokens"]) == ("MissingSecrets", 0)
            assert answer["logs"] == ["These secrets are required and not set: A, B."]
            aws.secret = {"A": "1", "B": "2"}
            assert shim.invoke("say hi")["text"] == "hi"

    def test_ones_that_cannot_be_read_are_told_so_and_read_by_the_next_call(self, language, aws, tmp_path):
        aws.secret = {"A": "1"}
        with self.with_keys(language, aws, tmp_path, "A") as shim:
            aws.answer_once("/", 403, DENIED)
            answer = shim.invoke("say hi")
            assert (answer["error"]["errorClass"], answer["usage"]["tokens"]) == ("SecretsUnavailable", 0)
            assert answer["logs"] == ["The secrets could not be read: AccessDeniedException."]
            assert shim.invoke("say hi")["text"] == "hi"

    def test_an_agent_that_declares_none_asks_for_none(self, aws, shim):
        assert shim.invoke("say hi")["text"] == "hi"
        assert aws.calls == []


class TestCredentials:
    def test_they_are_kept_until_shortly_before_they_end(self, language, aws, tmp_path):
        with started(language, aws, tmp_path) as shim:
            before = aws.credentials_given
            for _ in range(2):
                shim.invoke("code 1")
            assert aws.credentials_given == before + 1

    def test_ones_that_end_soon_are_taken_anew(self, language, aws, tmp_path):
        aws.lifetime = timedelta(minutes=4)
        with started(language, aws, tmp_path) as shim:
            before = aws.credentials_given
            shim.invoke("code 1")
            assert aws.credentials_given >= before + 2


class TestCodeInterpreter:
    def test_code_runs_in_one_session_of_the_invocation_that_is_stopped_at_its_end(self, aws, shim):
        sent = call("twice print(42)", timeout=20)
        answer = json.loads(shim.post(sent).read())
        assert answer["text"] == "42,42"
        base = f"/code-interpreters/{INTERPRETER}"
        assert aws.paths() == [
            f"{base}/sessions/start", f"{base}/tools/invoke", f"{base}/tools/invoke", f"{base}/sessions/stop",
        ]  # fmt: skip
        start, run, _, stop = aws.calls
        assert start.value == {"name": sent["requestId"], "sessionTimeoutSeconds": 80}
        assert run.value == {"name": "executeCode", "arguments": {"code": "print(42)", "language": "python"}}
        assert stop.query["sessionId"] == [run.headers["x-amzn-code-interpreter-session-id"]]
        assert answer["usage"]["toolCalls"] == 2
        assert answer["usage"]["browserSessions"] == 0

    def test_the_time_that_code_takes_is_counted(self, aws, shim):
        aws.answer_once("/tools/invoke", 200, result(content=[{"type": "text", "text": "ok"}]), seconds=0.2)
        assert 200 <= shim.invoke("code 1")["usage"]["codeExecutionMs"] < 2000

    def test_an_error_of_the_code_is_an_answer(self, aws, shim):
        aws.answer_once("/tools/invoke", 200, result(content=[{"type": "text", "text": "Boom"}], isError=True))
        assert json.loads(shim.invoke("code 1/0")["text"]) == ["Boom", True]

    def test_output_without_content_is_read_from_what_the_program_wrote(self, aws, shim):
        aws.answer_once("/tools/invoke", 200, result(content=[], structuredContent={"stdout": "out", "exitCode": 0}))
        assert json.loads(shim.invoke("code 1")["text"]) == ["out", False]

    def test_an_exception_in_the_stream_is_a_tool_error_that_the_agent_can_catch(self, aws, shim):
        headers = {":message-type": "exception", ":exception-type": "throttlingException"}
        aws.answer_once("/tools/invoke", 200, event(headers, {"message": "slow down"}))
        assert shim.invoke("code 1")["error"]["errorClass"] == "AgentError"
        aws.answer_once("/tools/invoke", 200, event(headers, {"message": "slow down"}))
        assert shim.invoke("try code 1")["text"] == "ToolError: The code interpreter failed: slow down"

    @pytest.mark.parametrize("length", [4, 13, 60])
    def test_a_stream_that_breaks_off_is_no_answer(self, aws, shim, length):
        aws.answer_once("/tools/invoke", 200, result(content=[{"type": "text", "text": "x" * 100}])[:length])
        assert "broke off" in shim.invoke("code 1")["logs"][0]

    def test_a_refusal_of_the_service_says_which_and_the_next_call_may_succeed(self, aws, shim):
        aws.answer_once("/sessions/start", 402, {"__type": "ServiceQuotaExceededException", "message": "too many"})
        assert shim.invoke("try code 1")["text"].endswith("failed: ServiceQuotaExceededException: too many")
        assert json.loads(shim.invoke("code 1")["text"]) == ["42", False]

    def test_a_timeout_stops_the_session_that_is_still_running_code(self, aws, shim):
        aws.answer_once("/tools/invoke", 200, result(content=[]), seconds=2)
        answer = shim.invoke("code 1", timeout=0.5)
        assert answer["error"]["errorClass"] == "Timeout"
        assert aws.paths()[-1].endswith("/sessions/stop")

    def test_a_session_that_was_just_being_started_when_time_was_up_is_stopped(self, aws, shim):
        aws.answer_once("/sessions/start", 200, {"sessionId": "01late"}, seconds=1)
        assert shim.invoke("code 1", timeout=0.4)["error"]["errorClass"] == "Timeout"
        until(lambda: aws.calls[-1].query.get("sessionId") == ["01late"], 5)


class TestBrowser:
    def test_its_address_comes_with_headers_that_open_it(self, aws, shim):
        answer = shim.invoke("browse close")
        browser = json.loads(answer["text"])
        assert browser["url"].startswith("wss://")
        assert signature_is_right("GET", browser["url"].replace("wss", "https"), browser["headers"], b"")
        base = f"/browsers/{BROWSER}/sessions"
        assert aws.paths() == [f"{base}/start", f"{base}/stop"]
        assert aws.calls[-1].query == {"sessionId": [browser["sessionId"]]}
        assert (answer["usage"]["browserSessions"], answer["usage"]["toolCalls"]) == (1, 1)

    def test_one_that_is_left_open_is_stopped_at_the_end_of_the_invocation(self, aws, shim):
        shim.invoke("browse")
        assert aws.paths()[-1] == f"/browsers/{BROWSER}/sessions/stop"
        assert len(aws.calls) == 2


class TestMemory:
    def test_what_is_remembered_is_recalled_in_order_over_all_pages(self, aws, shim):
        for n in range(5):
            assert shim.invoke(f"remember text {n}")["text"] == "kept"
        told = json.loads(shim.invoke("recall 3")["text"])
        assert told == [{"text": f"text {n}", "role": "assistant"} for n in (2, 3, 4)]
        made = aws.calls[0]
        assert made.path == f"/memories/{MEMORY}/events"
        assert (made.value["actorId"], made.value["sessionId"]) == ("agent", SESSION)
        assert abs(made.value["eventTimestamp"] - time.time()) < 60
        assert aws.paths()[-1] == f"/memories/{MEMORY}/actor/agent/sessions/{SESSION}"
        assert len(aws.calls) == 5 + 3

    def test_a_session_name_that_the_service_would_not_take_becomes_one_that_it_does(self, aws, shim):
        shim.post(call("remember hi"), session="not a name/").read()
        assert len(aws.calls[0].value["sessionId"]) == 65

    @pytest.mark.parametrize("prompt", ["recall 0", "recall 101", "remember "])
    def test_what_is_out_of_range_is_an_error_without_a_call(self, aws, shim, prompt):
        assert shim.invoke(f"try {prompt}")["text"].startswith("ToolError: ")
        assert aws.calls == []


class TestNotAllowed:
    WORDS = {"codeInterpreter": "code 1", "browser": "browse", "memory": "recall 1"}  # noqa: RUF012

    @pytest.mark.parametrize("capability", WORDS)
    def test_a_tool_that_is_not_allowed_now_is_refused_without_a_call(self, aws, shim, capability):
        allowed = dict.fromkeys(self.WORDS, True) | {capability: False}
        answer = shim.invoke(f"try {self.WORDS[capability]}", capabilities=allowed)
        assert answer["text"].startswith("ToolUnavailableError: The ")
        assert {"codeInterpreter": "code interpreter"}.get(capability, capability) in answer["text"]
        assert answer["usage"]["toolCalls"] == 0
        assert aws.calls == []

    @pytest.mark.parametrize("capability", WORDS)
    def test_a_tool_that_was_not_deployed_is_refused_whatever_the_request_says(
        self, language, aws, tmp_path, capability
    ):
        names = dict(zip(("codeInterpreter", "browser", "memory"), IDS, strict=True))
        with started(language, aws, tmp_path, **{names[capability]: ""}) as shim:
            assert "ToolUnavailableError" in shim.invoke(f"try {self.WORDS[capability]}")["text"]
            assert aws.calls == []

    def test_tools_off_is_off_for_tools_and_not_for_the_memory(self, aws, shim):
        options = {"tools": "off"}
        for word in ("code 1", "browse"):
            assert "ToolUnavailableError" in shim.invoke(f"try {word}", options=options)["text"]
        assert aws.calls == []
        assert shim.invoke("recall 1", options=options)["text"] == "[]"

    @pytest.mark.parametrize(("prompt", "part"), [("code 1", "/sessions/start"), ("code 1", "/tools/invoke"), ("browse", "/sessions/start"), ("recall 1", "/actor/")])  # fmt: skip
    def test_a_tool_that_is_withdrawn_meanwhile_is_unavailable(self, aws, shim, prompt, part):
        aws.answer_once(part, 403, DENIED)
        answer = shim.invoke(f"try {prompt}")
        assert answer["text"].startswith("ToolUnavailableError: ")
        assert answer["text"].endswith("access is denied.")
