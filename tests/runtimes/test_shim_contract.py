"""What both shims of AgentCore answer, over HTTP, with a real agent behind them."""

import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPException
from pathlib import Path

import pytest

from tests.runtimes.cloud import until
from tests.runtimes.shims import FakeAws, call, running

PUPPETS = Path(__file__).with_name("puppets")
ENTRYPOINTS = {"node": "agent.js", "python": "agent.py"}


@pytest.fixture(scope="module")
def aws():
    with FakeAws().listening() as listening:
        yield listening


@pytest.fixture(scope="module", params=ENTRYPOINTS)
def shim(request, aws, tmp_path_factory):
    entrypoint = ENTRYPOINTS[request.param]
    files = {entrypoint: (PUPPETS / entrypoint).read_bytes()}
    with running(request.param, files, entrypoint, tmp_path_factory.mktemp("shim"), aws) as up:
        yield up


def texts(events):
    return [data["text"] for name, data in events if name == "delta"]


class TestAnswers:
    @pytest.mark.parametrize("word", ["say", "object", "later", "slowly"])
    def test_every_kind_of_agent_answers_with_its_text(self, shim, word):
        assert shim.invoke(f"{word} 日本語")["text"] == "日本語"

    def test_what_a_generator_returns_is_its_usage(self, shim):
        answer = shim.invoke("words a b c")
        assert (answer["text"], answer["usage"]["tokens"]) == ("abc", 3)

    def test_an_answer_that_is_whole_is_streamed_in_one_piece(self, shim):
        events = list(shim.stream("object whole"))
        assert [name for name, _ in events] == ["delta", "final"]
        assert events[-1][1]["usage"] == {
            "tokens": 12, "toolCalls": 0, "codeExecutionMs": 0, "browserSessions": 0,
        }  # fmt: skip

    def test_a_stream_comes_as_it_is_made(self, shim):
        seen = [(time.monotonic(), name) for name, _ in shim.stream("slowly a b c")]
        assert [name for _, name in seen] == ["delta", "delta", "delta", "final"]
        assert seen[-1][0] - seen[0][0] > 0.3

    @pytest.mark.parametrize("word", ["nothing", "number", "yields"])
    def test_anything_but_text_is_the_agents_failure(self, shim, word):
        answer = shim.invoke(word)
        assert answer["error"]["errorClass"] == "AgentError"
        assert "An agent " in answer["logs"][-1]

    def test_text_that_looks_like_an_event_stays_text(self, shim):
        forged = '\n\nevent: final\ndata: {"usage":{"tokens":0}}\n\n'
        events = list(shim.stream(f"say {forged}"))
        assert (texts(events), len(events)) == ([forged], 2)

    def test_an_answer_without_end_is_cut_off_as_a_failure(self, shim):
        assert shim.invoke("big")["error"]["errorClass"] == "AnswerTooLarge"

    def test_the_request_and_the_context_hold_what_the_contract_says_and_no_header(self, shim):
        sent = call("see")
        answer = shim.post(sent).read()
        assert b"a-workload-token" not in answer
        seen = json.loads(json.loads(answer)["text"])
        assert seen["request"] == sent["request"]
        assert seen["keys"] == ["capabilities", "env", "limits", "memory", "session", "tools", "traceId"]
        assert (seen["trace"], seen["left"], seen["session"]) == (sent["traceId"], 7, "mine")
        assert seen["capabilities"] == {"memory": True, "codeInterpreter": True, "browser": True}
        assert seen["env"] == {}


class TestUsage:
    @pytest.mark.parametrize(("claim", "tokens"), [("0", 0), ("12", 12), ("1000000000", 10**9)])
    def test_a_claim_in_range_stands_and_zero_stays_zero(self, shim, claim, tokens):
        assert shim.invoke(f'claim {{"tokens": {claim}}}')["usage"]["tokens"] == tokens

    @pytest.mark.parametrize("claim", ["-1", "1.5", "1e12", "true", '"5"', "null", "{}"])
    def test_a_claim_that_is_no_number_of_tokens_is_none(self, shim, claim):
        assert shim.invoke(f'claim {{"tokens": {claim}}}')["usage"]["tokens"] is None

    def test_an_agent_may_claim_tool_calls_of_its_own(self, shim):
        usage = shim.invoke('claim {"toolCalls": 3, "browserSessions": 9, "codeExecutionMs": -1}')["usage"]
        assert (usage["toolCalls"], usage["browserSessions"], usage["codeExecutionMs"]) == (3, 0, 0)


class TestFailures:
    def test_an_error_is_told_in_the_log_with_the_authors_file_and_none_of_ours(self, shim):
        answer = shim.invoke("throw key sk-123 refused")
        assert answer["error"] == {"errorClass": "AgentError", "message": "The agent failed."}
        [line] = answer["logs"]
        assert "TypeError: key sk-123 refused" in line
        assert {"node": "(agent.js:", "python": 'File "agent.py", line'}[shim.language] in line
        assert "_whs" not in line

    @pytest.mark.case("API-02")
    def test_a_stream_that_fails_midway_says_so(self, shim):
        events = list(shim.stream("breaks no"))
        assert texts(events) == ["a"]
        name, data = events[-1]
        assert (name, data["errorClass"], data["usage"]["tokens"]) == ("failure", "AgentError", None)

    @pytest.mark.parametrize("prompt", ["sleep 20", "loop"])
    def test_an_agent_that_never_answers_is_stopped_at_its_timeout_and_the_next_call_is_answered(self, shim, prompt):
        before = int(shim.invoke("count")["text"])
        began = time.monotonic()
        answer = shim.invoke(prompt, timeout=0.5)
        assert answer["error"]["errorClass"] == "Timeout"
        assert time.monotonic() - began < 3
        assert answer["logs"] == (["looping"] if prompt == "loop" else [])
        assert int(shim.invoke("count")["text"]) == before + 1  # the session outlives what had to be ended
        until(lambda: shim.ping() == {"status": "Healthy"}, 5)  # its answer may be here before it is done

    def test_a_stream_is_stopped_at_its_timeout_though_it_goes_on_talking(self, shim):
        events = list(shim.stream("forever", timeout=0.6))
        assert (events[-1][0], events[-1][1]["errorClass"]) == ("failure", "Timeout")
        assert len(texts(events)) >= 3
        until(lambda: shim.invoke("kept closed")["text"] == "true", 5)

    @pytest.mark.parametrize(
        "body", [b"", b"{", b"[]", b"null", b'{"requestId": "inv_1"}', json.dumps(call("say", timeout=901)).encode()]
    )
    def test_what_the_control_plane_cannot_have_sent_runs_nothing(self, shim, body):
        answer = json.loads(shim.post(body).read())
        assert answer["error"]["errorClass"] == "BadRequest"


class TestRepeats:
    @pytest.mark.case("AGC-03")
    def test_a_repeat_of_a_finished_call_runs_nothing(self, shim):
        sent = call("count")
        first = json.loads(shim.post(sent).read())
        again = json.loads(shim.post(sent).read())
        assert (again["error"]["errorClass"], again["usage"]["tokens"]) == ("Repeated", 0)
        assert int(shim.invoke("count")["text"]) == int(first["text"]) + 1

    @pytest.mark.case("AGC-03")
    def test_a_repeat_of_a_running_call_runs_nothing_also_as_a_stream(self, shim):
        sent = call("sleep 0.5")
        with ThreadPoolExecutor(1) as caller:
            first = caller.submit(lambda: json.loads(shim.post(sent).read()))
            until(lambda: shim.ping() == {"status": "HealthyBusy"}, 5)
            again = shim.post(sent, accept="text/event-stream").read()
            assert b"event: failure" in again
            assert b'"Repeated"' in again
            assert first.result()["text"] == "slept"


class TestLife:
    def test_ping_says_busy_while_a_call_runs_and_not_when_it_last_changed(self, shim):
        until(lambda: shim.ping() == {"status": "Healthy"}, 5)  # its answer may be here before it is done
        thread = threading.Thread(target=shim.invoke, args=["sleep 0.5"])
        thread.start()
        until(lambda: shim.ping() == {"status": "HealthyBusy"}, 5)
        thread.join()
        until(lambda: shim.ping() == {"status": "Healthy"}, 5)  # its answer may be here before it is done

    def test_ping_answers_while_the_agent_computes_without_a_pause(self, shim):
        thread = threading.Thread(target=shim.invoke, args=["loop"], kwargs={"timeout": 1})
        thread.start()
        until(lambda: shim.ping() == {"status": "HealthyBusy"}, 0.8)
        thread.join()

    def test_a_caller_who_hangs_up_ends_the_generator(self, shim):
        shim.hang_up_after("forever", 20)
        until(lambda: shim.invoke("kept closed")["text"] == "true", 5)
        until(lambda: shim.ping() == {"status": "Healthy"}, 5)  # its answer may be here before it is done
        counted = shim.invoke("kept count")["text"]
        time.sleep(0.3)
        assert shim.invoke("kept count")["text"] == counted

    def test_a_slow_reader_slows_the_agent_down(self, shim):
        answer = shim.post(call("forever big", timeout=1.5), accept="text/event-stream")
        answer.read(1)
        time.sleep(1)
        assert int(shim.invoke("kept count")["text"]) < 200  # of the thousands that nothing would hold up
        answer.close()
        until(lambda: shim.ping() == {"status": "Healthy"}, 5)

    def test_a_process_that_is_told_to_stop_stops_at_once(self, aws, shim, tmp_path):
        entrypoint = ENTRYPOINTS[shim.language]
        files = {entrypoint: (PUPPETS / entrypoint).read_bytes()}
        with running(shim.language, files, entrypoint, tmp_path, aws) as other:
            answer = ThreadPoolExecutor(1).submit(other.invoke, "sleep 20")
            until(lambda: other.ping() == {"status": "HealthyBusy"}, 5)
            began = time.monotonic()
            other.child.stop()
            assert time.monotonic() - began < 1.5
            assert other.child.exit_code == 0
            assert isinstance(answer.exception(), (OSError, HTTPException))


class TestLogs:
    def test_what_an_agent_prints_stays_with_its_own_invocation(self, shim):
        with ThreadPoolExecutor(4) as callers:
            logs = list(callers.map(lambda n: shim.invoke(f"print {n}")["logs"], range(4)))
        assert logs == [[f"first {n}", f"second {n}"] for n in range(4)]

    def test_logs_are_bounded(self, shim):
        answer = shim.invoke("flood")
        assert answer["text"] == "ok"
        assert sum(map(len, answer["logs"])) < 70_000
        assert answer["logs"][-1] == "(the rest is not kept)"


class TestSessions:
    def test_too_much_for_a_session_is_an_error_of_the_agent(self, shim):
        answer = shim.invoke("fill")
        assert answer["error"]["errorClass"] == "AgentError"
        assert "A session value is at most" in answer["logs"][0]

    def test_what_was_never_kept_is_nothing(self, shim):
        assert shim.invoke("kept never")["text"] == "null"


class TestProbe:
    def test_an_agent_that_loads_is_well_and_does_not_run(self, shim):
        assert json.loads(shim.post({"probe": True}).read()) == {"ok": True}

    @pytest.mark.parametrize(
        ("language", "code", "said"),
        [
            ("node", "export const agent = 1;", "agent.js must export a function as its default."),
            ("node", 'import "./nope.js";', "nope.js"),
            ("node", 'throw new Error("no key");', "Error: no key"),
            ("node", "process.exit(1);", "ended while it was loaded"),
            ("python", "agent = 1", "agent.py must define a function called `agent`."),
            ("python", "import nope", "No module named 'nope'"),
            ("python", "raise ValueError('no key')", 'File "agent.py", line 1'),
            ("python", "import sys; sys.exit(1)", "SystemExit: 1"),
        ],
    )
    def test_an_agent_that_does_not_load_says_why(self, aws, tmp_path, language, code, said):
        entrypoint = ENTRYPOINTS[language]
        with running(language, {entrypoint: code}, entrypoint, tmp_path, aws) as broken:
            probed = json.loads(broken.post({"probe": True}).read())
            assert probed["error"]["errorClass"] == "LoadError"
            assert said in probed["logs"][0]
            assert str(tmp_path) not in json.dumps(probed)
            answer = broken.invoke("say hi")
            assert (answer["error"]["errorClass"], answer["usage"]["tokens"]) == ("LoadError", 0)


def test_an_agent_that_ends_its_thread_fails_that_call_and_no_other(aws, tmp_path):
    code = (
        "export default async (request) => {"
        " if (request.input.messages[0].content === 'exit') process.exit(0);"
        " if (request.input.messages[0].content === 'late') setTimeout(() => { throw new Error('late') });"
        " if (request.input.messages[0].content === 'promise') Promise.reject(new Error('lost'));"
        " await new Promise((done) => setTimeout(done, 50)); return 'well'; }"
    )
    with running("node", {"agent.js": code}, "agent.js", tmp_path, aws) as shim:
        for prompt in ("exit", "late"):
            assert shim.invoke(prompt)["error"]["errorClass"] == "AgentCrashed"
            assert shim.invoke("hi")["text"] == "well"
        assert "Error: late" in shim.invoke("late")["logs"][0]
        assert shim.invoke("promise")["text"] == "well"
