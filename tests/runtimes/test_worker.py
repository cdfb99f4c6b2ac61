"""What an agent can do on the Workers runtime, and what its caller and its owner get to see of it."""

import time

import pytest

from runtimes.errors import RuntimeFailedError
from runtimes.providers.base import AgentRef, Delta, Failure, Final
from tests.runtimes.cloud import example, until

USER = "const said = (request) => request.input.messages.at(-1).content;\n"


def texts(events):
    return [event.text for event in events if isinstance(event, Delta)]


def failed(deployed, **call):
    with pytest.raises(RuntimeFailedError) as failure:
        deployed.invoke(**call)
    return failure.value


class TestExamples:
    def test_echo_says_what_was_said_and_its_tokens_are_estimated_and_marked(self, cloud):
        answer = cloud.deployed(example("echo")).invoke("日本語")
        assert answer.text == "日本語"
        assert answer.usage.tokens == 5  # a quarter of 9 bytes in and 9 out, rounded up
        assert answer.usage.tokens_estimated

    def test_tokens_reports_its_own_usage(self, cloud):
        answer = cloud.deployed(example("tokens")).invoke("What is a quota?")
        assert (answer.text, answer.usage.tokens, answer.usage.tokens_estimated) == ("What is a quota?", 4, False)

    def test_session_counts_the_turns_of_each_session_and_goes_on_in_the_next_version(self, cloud):
        first = cloud.deployed(example("session"))
        assert [first.invoke(session=s).text for s in ("a", "a", "b")] == ["turn 1", "turn 2", "turn 1"]
        assert first.version(example("session")).invoke(session="a").text == "turn 3"

    def test_sessions_of_another_agent_are_others_even_under_the_same_id(self, cloud):
        cloud.deployed(example("session")).invoke(session="mine")
        assert cloud.deployed(example("session")).invoke(session="mine").text == "turn 1"

    def test_streaming_comes_word_by_word(self, cloud):
        deployed = cloud.deployed(example("streaming"))
        began = time.monotonic()
        events = cloud.provider.stream(deployed.target, deployed.invocation("one two three"))
        seen = [(time.monotonic() - began, event) for event in events]
        assert texts(event for _, event in seen) == ["one ", "two ", "three"]
        assert isinstance(seen[-1][1], Final)
        assert seen[-1][0] - seen[0][0] > 0.1  # 50 ms between words: it was not held back
        assert deployed.invoke("one two three").text == "one two three"


class TestAnswers:
    def test_a_plain_text_is_an_answer(self, cloud):
        assert cloud.agent('export default () => "hi"').invoke().text == "hi"

    def test_an_empty_text_is_an_answer(self, cloud):
        assert cloud.agent('export default async () => ({ text: "" })').invoke().text == ""

    def test_a_generator_may_return_its_usage(self, cloud):
        code = 'export default async function* () { yield "a"; yield "b"; return { usage: { tokens: 7 } }; }'
        deployed = cloud.agent(code)
        assert deployed.invoke().usage.tokens == 7
        events = deployed.stream()
        assert texts(events) == ["a", "b"]
        assert events[-1].usage.tokens == 7

    def test_a_generator_need_not_be_async(self, cloud):
        assert cloud.agent('export default function* () { yield "a"; yield "b"; }').invoke().text == "ab"

    def test_an_agent_that_does_not_stream_is_streamed_in_one_piece(self, cloud):
        events = cloud.agent('export default () => "whole"').stream()
        assert texts(events) == ["whole"]
        assert isinstance(events[-1], Final)

    @pytest.mark.parametrize("value", ["undefined", "null", "5", "{}", "{ text: 5 }", "[]"])
    def test_anything_else_is_the_agents_failure(self, cloud, value):
        assert failed(cloud.agent(f"export default async (): Promise<any> => ({value})")).error_class == "AgentError"

    @pytest.mark.parametrize("value", ["{ type: 'end', usage: { tokens: 0 } }", "5", "null", "new Uint8Array(3)"])
    def test_a_generator_cannot_forge_events(self, cloud, value):
        code = f'export default async function* (): any {{ yield "a"; yield {value}; yield "b"; }}'
        events = cloud.agent(code).stream()
        assert texts(events) == ["a"]
        assert isinstance(events[-1], Failure)
        assert events[-1].error_class == "AgentError"

    def test_text_that_looks_like_an_event_stays_text(self, cloud):
        forged = r"\n\nevent: final\ndata: {\"usage\":{\"tokens\":0}}\n\n"
        events = cloud.agent(f'export default async function* () {{ yield "{forged}"; yield "日"; }}').stream()
        assert "".join(texts(events)) == '\n\nevent: final\ndata: {"usage":{"tokens":0}}\n\n日'
        assert events[-1].usage.tokens > 0

    def test_the_request_and_the_context_hold_what_the_contract_says(self, cloud):
        code = (
            "export default (request, context) => JSON.stringify({ request, keys: Object.keys(context).sort(),"
            " trace: context.traceId, left: context.limits.remaining.requests, session: context.session.id,"
            " memory: context.capabilities.memory })"
        )
        deployed = cloud.agent(code)
        invocation = deployed.invocation("hi")
        import json

        seen = json.loads(cloud.provider.invoke(deployed.target, invocation).text)
        assert seen["request"] == json.loads(invocation.body)
        assert seen["keys"] == ["capabilities", "env", "limits", "session", "traceId"]
        assert (seen["trace"], seen["left"], seen["session"], seen["memory"]) == (invocation.trace_id, 7, "s1", False)

    def test_an_answer_of_a_megabyte_arrives_whole(self, cloud):
        assert len(cloud.agent('export default () => "日".repeat(1_000_000)').invoke().text) == 1_000_000

    def test_an_answer_without_end_is_cut_off_as_a_failure(self, cloud):
        code = 'export default async function* () { for (;;) yield "x".repeat(100_000); }'
        assert failed(cloud.agent(code)).error_class == "AnswerTooLarge"


class TestUsage:
    @pytest.mark.parametrize(("claim", "tokens"), [("0", 0), ("12", 12), ("1_000_000_000", 1_000_000_000)])
    def test_a_claim_in_range_stands_and_zero_stays_zero(self, cloud, claim, tokens):
        answer = cloud.agent(f'export default () => ({{ text: "hi", usage: {{ tokens: {claim} }} }})').invoke()
        assert (answer.usage.tokens, answer.usage.tokens_estimated) == (tokens, False)

    @pytest.mark.parametrize("claim", ["-1", "1.5", "NaN", "Infinity", "1e12", "true", "'5'", "null", "{}", "5n"])
    def test_a_claim_that_is_no_number_of_tokens_is_ignored_and_estimated(self, cloud, claim):
        code = f'export default (): any => ({{ text: "hi", usage: {{ tokens: {claim} }} }})'
        if claim == "5n":  # JSON cannot say it: the agent fails
            assert failed(cloud.agent(code)).error_class == "AgentError"
            return
        answer = cloud.agent(code).invoke("hello")
        assert (answer.usage.tokens, answer.usage.tokens_estimated) == (2, True)

    def test_milliseconds_are_measured_by_the_platform_whatever_the_agent_says(self, cloud):
        code = (
            "export default async () => { await new Promise((r) => setTimeout(r, 300));"
            ' return { text: "", usage: { tokens: 1, computeMs: 1, browserSessions: -5 } }; }'
        )
        usage = cloud.agent(code).invoke().usage
        assert 300 <= usage.compute_ms < 5000
        assert (usage.browser_sessions, usage.code_ms) == (0, 0)

    def test_the_report_is_signed_and_says_the_same_as_the_answer(self, cloud):
        deployed = cloud.deployed(example("tokens"))
        invocation = deployed.invocation("a b c")
        usage = cloud.provider.invoke(deployed.target, invocation).usage
        event = cloud.reports.of(invocation)
        assert (event["tokens"], event["computeMs"], event["requests"]) == (3, usage.compute_ms, 1)
        assert (event["errors"], event["errorClass"], event["provider"]) == (0, None, {})
        assert event["agentId"] == f"agt_{deployed.target.agent_id.hex}"
        assert event["accountId"] == f"acc_{deployed.target.account_id.hex}"
        assert event["traceId"] == invocation.trace_id

    def test_a_report_that_nobody_takes_is_sent_again(self, cloud):
        deployed = cloud.deployed(example("echo"))
        invocation = deployed.invocation()
        cloud.reports.refuse_next = 2
        cloud.provider.invoke(deployed.target, invocation)
        assert cloud.reports.of(invocation)["provider"] == {"tokensEstimated": True}
        assert cloud.reports.count(invocation) == 1

    def test_a_failed_run_is_reported_with_its_class(self, cloud):
        deployed = cloud.agent('export default () => { throw new Error("no") }')
        invocation = deployed.invocation("hello")
        with pytest.raises(RuntimeFailedError):
            cloud.provider.invoke(deployed.target, invocation)
        event = cloud.reports.of(invocation)
        assert (event["errors"], event["errorClass"], event["tokens"]) == (1, "AgentError", 2)


class TestFailures:
    def test_an_agents_error_is_its_owners_to_read_and_not_its_callers(self, cloud):
        code = 'export default async () => { throw new TypeError("key sk-123 refused") }'
        error = failed(cloud.agent(code))
        assert (error.error_class, error.status, error.retryable) == ("AgentError", 502, False)
        assert "sk-123" not in error.message
        assert error.logs[0].startswith("TypeError: key sk-123 refused")
        assert "agent.js:2" in error.logs[0]
        assert error.logs[0].count("\n") == 1  # none of our own lines

    @pytest.mark.case("API-02")
    def test_a_stream_that_fails_midway_says_so_and_what_was_used_until_then(self, cloud):
        code = 'export default async function* () { yield "abcd"; yield "efgh"; throw new Error("no"); }'
        events = cloud.agent(code).stream("hello")
        assert texts(events) == ["abcd", "efgh"]
        assert isinstance(events[-1], Failure)
        assert (events[-1].error_class, events[-1].usage.tokens) == ("AgentError", 4)

    @pytest.mark.case("API-02")
    def test_a_stream_that_fails_before_its_first_piece_is_a_plain_error(self, cloud):
        deployed = cloud.agent('export default async function* () { throw new Error("no"); yield ""; }')
        with pytest.raises(RuntimeFailedError) as failure:
            cloud.provider.stream(deployed.target, deployed.invocation())
        assert failure.value.error_class == "AgentError"
        assert failure.value.usage is not None

    def test_an_agent_that_never_answers_is_stopped_at_its_timeout(self, cloud):
        code = "export default async () => { await new Promise((r) => setTimeout(r, 60_000)); return ''; }"
        began = time.monotonic()
        error = failed(cloud.agent(code, timeoutSeconds=1))
        assert (error.error_class, error.status, error.retryable) == ("Timeout", 504, False)
        assert 1 <= time.monotonic() - began < 5
        assert error.usage.compute_ms >= 1000

    def test_a_stream_is_stopped_at_its_timeout_though_it_goes_on_talking(self, cloud):
        code = (
            "export default async function* () { for (;;) {"
            ' yield "x"; await new Promise((r) => setTimeout(r, 100)); } }'
        )
        events = cloud.agent(code, timeoutSeconds=1).stream()
        assert isinstance(events[-1], Failure)
        assert events[-1].error_class == "Timeout"
        assert len(texts(events)) >= 3

    def test_a_promise_that_can_never_be_kept_is_a_failure_at_once(self, cloud):
        assert failed(cloud.agent("export default () => new Promise(() => {})", timeoutSeconds=20)).error_class in {
            "AgentError",
            "AgentCrashed",
            "Truncated",
        }

    @pytest.mark.slow
    def test_an_endless_loop_ends_in_a_timeout_and_does_not_hold_the_agent_for_ever(self, cloud):
        code = USER + 'export default async (request) => { while (said(request) === "loop"); return "free"; }'
        deployed = cloud.agent(code, timeoutSeconds=1)
        assert deployed.invoke("go").text == "free"
        assert failed(deployed, prompt="loop").error_class in {"Timeout", "Runtime503"}
        until(lambda: deployed.script not in cloud.calls()["processes"], 15)
        assert deployed.invoke("go").text == "free"

    def test_a_process_that_is_killed_midway_is_an_unknown_outcome_and_the_next_call_starts_another(self, cloud):
        import os
        import signal
        import threading

        code = USER + (
            'export default async (request) => { if (said(request) === "wait")'
            ' await new Promise((r) => setTimeout(r, 20_000)); return "done"; }'
        )
        deployed = cloud.agent(code)
        pid = deployed.pid
        threading.Timer(0.5, lambda: os.kill(pid, signal.SIGKILL)).start()
        error = failed(deployed, prompt="wait")
        assert error.error_class == "Runtime503"
        assert error.usage is None
        assert deployed.invoke("go").text == "done"
        assert deployed.pid != pid


class TestLogs:
    def test_what_an_agent_prints_is_kept_in_order_with_its_own_invocation(self, cloud):
        code = USER + (
            "export default async (request) => { console.log('first', said(request), { a: 1 });"
            " await new Promise((r) => setTimeout(r, 50)); console.error('second', said(request)); return ''; }"
        )
        from concurrent.futures import ThreadPoolExecutor

        deployed = cloud.agent(code)
        with ThreadPoolExecutor(4) as callers:
            logs = list(callers.map(lambda n: deployed.invoke(str(n)).logs, range(4)))
        assert logs == [(f"first {n} {{ a: 1 }}", f"second {n}") for n in range(4)]

    def test_a_console_that_was_kept_aside_while_loading_is_heard_too(self, cloud):
        code = "const { log } = console; log('loading'); export default () => { log('running'); return ''; }"
        assert cloud.agent(code).invoke().logs == ("running",)

    def test_logs_are_bounded(self, cloud):
        code = "export default () => { for (let i = 0; i < 5000; i++) console.log('x'.repeat(50_000)); return 'ok'; }"
        answer = cloud.agent(code).invoke()
        assert answer.text == "ok"
        assert sum(map(len, answer.logs)) < 70_000
        assert answer.logs[-1] == "(the rest is not kept)"


class TestSessions:
    def test_a_value_is_any_json_and_undefined_forgets_it(self, cloud):
        code = (
            "export default async (_, { session }) => { const before = await session.get('v');"
            " await session.put('v', before ? undefined : { list: [1, '日', null] });"
            " return JSON.stringify([before ?? 'none', await session.get('never') ?? 'none']); }"
        )
        deployed = cloud.agent(code)
        seen = [deployed.invoke(session="values").text for _ in range(3)]
        assert seen == ['["none","none"]', '[{"list":[1,"日",null]},"none"]', '["none","none"]']

    @pytest.mark.parametrize("call", ["put('v', 'x'.repeat(200_000))", "put('k'.repeat(200), 1)", "put('', 1)"])
    def test_too_much_for_a_session_is_an_error_that_the_agent_can_catch(self, cloud, call):
        code = f"export default async (_, {{ session }}) => {{ await session.{call}; return ''; }}"
        error = failed(cloud.agent(code))
        assert error.error_class == "AgentError"
        assert "session" in error.logs[0]

    def test_a_stopped_session_is_forgotten_and_no_other(self, cloud):
        deployed = cloud.deployed(example("session"))
        for session in ("gone", "kept"):
            deployed.invoke(session=session)
        cloud.provider.stop_session(deployed.target, "gone")
        cloud.provider.stop_session(deployed.target, "never was")
        assert [deployed.invoke(session=s).text for s in ("gone", "kept")] == ["turn 1", "turn 2"]

    def test_a_session_survives_the_death_of_every_process(self, cloud):
        deployed = cloud.deployed(example("session"))
        assert deployed.invoke(session="kept").text == "turn 1"
        cloud.kill_processes()
        assert deployed.invoke(session="kept").text == "turn 2"


class TestSecrets:
    CODE = "export default (_, { env }) => JSON.stringify(Object.entries(env).sort())"

    def put(self, cloud, deployed, **values):
        cloud.provider.put_secrets(AgentRef(deployed.target.account_id, deployed.target.agent_id), values)

    def test_an_agent_sees_the_secrets_it_declares_and_no_others(self, cloud):
        deployed = cloud.agent(self.CODE, env={"requiredKeys": ["API_KEY"], "optionalKeys": ["MODE"]})
        self.put(cloud, deployed, API_KEY='s3"cret\\日\n', OTHER="hidden")
        assert deployed.invoke().text == r'[["API_KEY","s3\"cret\\日\n"]]'

    def test_a_missing_secret_is_told_before_the_agent_runs(self, cloud):
        deployed = cloud.agent("export default () => { console.log('ran'); return ''; }", env={"requiredKeys": ["A"]})
        error = failed(deployed)
        assert (error.error_class, error.usage.tokens) == ("MissingSecrets", 0)
        assert error.logs == ("These secrets are required and not set: A.",)

    def test_a_rotated_secret_is_seen_by_the_next_call_and_a_deleted_one_is_gone(self, cloud):
        deployed = cloud.agent(self.CODE, env={"optionalKeys": ["A", "B"]})
        self.put(cloud, deployed, A="1", B="2")
        assert deployed.invoke().text == '[["A","1"],["B","2"]]'
        self.put(cloud, deployed, A="3", B=None)
        assert deployed.invoke().text == '[["A","3"]]'

    @pytest.mark.case("CFW-02")
    def test_a_redeploy_or_a_rollback_neither_loses_a_secret_nor_revives_one(self, cloud):
        first = cloud.agent(self.CODE, env={"optionalKeys": ["A", "B"]})
        self.put(cloud, first, A="1", B="2")
        from tests.runtimes.cloud import agent_zip

        second = first.version(agent_zip(self.CODE, env={"optionalKeys": ["A", "B"]}))
        assert second.invoke().text == '[["A","1"],["B","2"]]'
        self.put(cloud, second, B=None)
        third = second.version(agent_zip(self.CODE, env={"optionalKeys": ["B"]}))
        assert third.invoke().text == "[]"
        cloud.provider.activate(first.target)
        assert first.invoke().text == '[["A","1"]]'
