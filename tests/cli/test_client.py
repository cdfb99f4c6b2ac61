"""HTTP: what is sent again and what never, who is believed, and how each failure ends the program."""

from __future__ import annotations

import json
import re
import signal

import pytest

from tests.cli.stub import Reply, envelope
from tests.e2e.customers import until
from whs.errors import Exit

ANSWER = {
    "output": {"text": "hi"}, "sessionId": "ses_1", "invocationId": "inv_1", "traceId": "trc_1",
    "usage": {"tokens": 1, "computeMs": 2, "toolCalls": 0},
}  # fmt: skip
SSE = {"Content-Type": "text/event-stream"}
META = b'event: meta\ndata: {"traceId":"trc_1","invocationId":"inv_1","sessionId":"ses_1"}\n\n'
DELTA = b'event: delta\ndata: {"text":"piece"}\n\n'
END = b'event: usage\ndata: {"tokens":1,"computeMs":2,"toolCalls":0}\n\nevent: done\ndata: {}\n\n'


@pytest.mark.parametrize("first", [Reply(hang_up=True), Reply(503, envelope("INTERNAL"), {"Retry-After": "0"})])
def test_a_lost_call_is_sent_again_under_the_same_key_with_the_same_body(stubbed, stub, first):
    stub.will(first, Reply(body=ANSWER))
    ended = stubbed("invoke", "hello", "hi", "--no-stream", "--json")
    assert (ended.code, ended.json) == (Exit.OK, ANSWER)
    one, other = stub.asked
    assert one.headers["Idempotency-Key"] == other.headers["Idempotency-Key"]
    assert one.body == other.body


def test_two_calls_have_two_keys(stubbed, stub):
    for _ in range(2):
        stub.will(Reply(body=ANSWER))
        stubbed("invoke", "hello", "hi", "--no-stream")
    one, other = (asked.headers["Idempotency-Key"] for asked in stub.asked)
    assert one != other


def test_what_has_no_key_is_sent_once(stubbed, stub):
    agent = {"id": "agt_" + "0" * 32, "name": "hello", "activeVersion": 2}
    version = {"id": "dep_1", "version": 1, "status": "rolled_back"}
    stub.will(Reply(body={"items": [agent], "nextCursor": None}), Reply(body={"items": [version], "nextCursor": None}))
    stub.will(Reply(hang_up=True))
    assert stubbed("activate", "hello", "1").code == Exit.UNREACHABLE
    assert [asked.method for asked in stub.asked] == ["GET", "GET", "POST"]


def test_it_gives_up_after_three(stubbed, stub):
    stub.will(*[Reply(503, envelope("INTERNAL", retryable=True), {"Retry-After": "0"})] * 5)
    assert stubbed("agents", "list").code == Exit.BUSY
    assert len(stub.asked) == 3


@pytest.mark.parametrize(
    ("status", "refusal", "ended"),
    [
        (401, envelope("UNAUTHENTICATED"), Exit.NOT_SIGNED_IN),
        (402, envelope("LIMIT_EXCEEDED"), Exit.LIMIT),
        (429, envelope("RATE_LIMITED", retryable=True), Exit.BUSY),
        (404, envelope("NOT_FOUND"), Exit.FAILED),
        (504, envelope("RUNTIME_ERROR"), Exit.FAILED),
    ],
)
def test_a_refusal_is_not_sent_again_and_programs_get_the_envelope(stubbed, stub, status, refusal, ended):
    stub.will(Reply(status, refusal, {"Retry-After": "1"}))
    done = stubbed("invoke", "hello", "hi", "--json")
    assert (done.code, done.json) == (ended, refusal)
    assert len(stub.asked) == 1


def test_a_redirect_is_not_followed_with_the_token(stubbed, stub):
    stub.will(Reply(302, {}, {"Location": f"{stub.url}/elsewhere"}))
    assert stubbed("whoami").code == Exit.FAILED
    assert [asked.path for asked in stub.asked] == ["/v1/me"]


def test_a_netrc_does_not_take_the_tokens_place(stubbed, stub):
    netrc = stubbed.folder / "home" / ".netrc"
    stubbed.write({"home/.netrc": "machine 127.0.0.1 login eve password secret\n"})
    netrc.chmod(0o600)
    stub.will(Reply(body={"items": [], "nextCursor": None}))
    assert stubbed("agents", "list").code == Exit.OK
    assert stub.asked[0].headers["Authorization"] == "Bearer whs_" + "0" * 64


def test_somebody_elses_page_is_told_as_such(stubbed, stub):
    stub.will(Reply(502, b"<html>Bad gateway</html>"))
    ended = stubbed("whoami")
    assert ended.code == Exit.FAILED
    assert "not the service's own" in ended.err
    stub.will(Reply(200, b"<html>Please sign in to this Wi-Fi</html>"))
    assert stubbed("whoami", "--json").json["error"]["code"] == "STRANGE_ANSWER"


def test_nobody_there_is_told_with_the_address(whs):
    ended = whs("whoami", WHS_URL="http://127.0.0.1:1", WHS_TOKEN="whs_1")
    assert ended.code == Exit.UNREACHABLE
    assert ended.err.startswith("Error: http://127.0.0.1:1 cannot be reached: Connection refused.\n")


def test_a_list_is_read_to_its_end(stubbed, stub):
    agent = {"id": "agt_1", "runtimeProvider": "cloudflare", "status": "active", "activeVersion": 1}
    agent["createdAt"] = "2026-11-30T09:41:00Z"
    stub.will(Reply(body={"items": [agent | {"name": "one"}], "nextCursor": "c+/="}))
    stub.will(Reply(body={"items": [agent | {"name": "two"}], "nextCursor": None}))
    assert [one["name"] for one in stubbed("agents", "list", "--json").json["items"]] == ["one", "two"]
    assert stub.asked[1].path == "/v1/agents?limit=100&cursor=c%2B%2F%3D"


def test_a_name_is_one_part_of_the_path_whatever_it_holds(stubbed, stub):
    stub.will(Reply(404, envelope("NOT_FOUND")))
    stubbed("invoke", "../billing/portal?x", "hi", "--json")
    assert stub.asked[0].path == "/v1/invoke/..%2Fbilling%2Fportal%3Fx"


# --- Streams ---


def test_a_stream_is_printed_and_its_figures_stand_beside_it(stubbed, stub):
    stub.will(Reply(200, META + DELTA + DELTA + END, SSE))
    ended = stubbed("invoke", "hello", "hi", "--session", "mine")
    assert (ended.code, ended.out) == (Exit.OK, "piecepiece\n")
    assert re.fullmatch(r"\[1 tokens, 2 ms, 0 tool calls; session ses_1; inv_1\]\n", ended.err)
    (asked,) = stub.asked
    assert asked.path == "/v1/invoke/hello/stream"
    assert json.loads(asked.body) == {"input": {"prompt": "hi"}, "sessionId": "mine"}


def test_quiet_says_only_what_the_agent_says(stubbed, stub):
    stub.will(Reply(200, META + DELTA + END, SSE))
    ended = stubbed("invoke", "hello", "-q", given="from a pipe")
    assert (ended.out, ended.err) == ("piece\n", "")
    assert json.loads(stub.asked[0].body)["input"]["prompt"] == "from a pipe"


def test_an_error_at_the_end_of_a_stream_is_an_error(stubbed, stub):
    failure = envelope("RUNTIME_ERROR", "The agent failed.")
    stub.will(Reply(200, META + DELTA + b"event: error\ndata: " + json.dumps(failure).encode() + b"\n\n", SSE))
    ended = stubbed("invoke", "hello", "hi")
    assert (ended.code, ended.out) == (Exit.FAILED, "piece\n")
    assert "Error: The agent failed." in ended.err


@pytest.mark.parametrize("is_cut", [True, False])
def test_a_stream_that_breaks_off_is_no_success_and_not_sent_again(stubbed, stub, is_cut):
    stub.will(Reply(200, META + DELTA, SSE, cut=is_cut))
    ended = stubbed("invoke", "hello", "hi")
    assert (ended.code, ended.out) == (Exit.UNREACHABLE, "piece")
    assert "inv_1" in ended.err
    assert len(stub.asked) == 1


def test_a_page_in_place_of_a_stream_is_somebody_elses(stubbed, stub):
    stub.will(Reply(200, b"<html>Please sign in to this Wi-Fi</html>", {"Content-Type": "text/html"}))
    ended = stubbed("invoke", "hello", "hi")
    assert (ended.code, ended.out) == (Exit.FAILED, "")
    assert "not the service's own" in ended.err


def test_nothing_to_say_is_nothing_to_send(stubbed, stub):
    assert stubbed("invoke", "hello", given=" \n").code == Exit.USAGE
    assert stubbed("invoke", "hello", given=b"\xff\xfe").code == Exit.USAGE
    assert stub.asked == []


# --- Deployments ---

AGENT = {"id": "agt_" + "0" * 32, "name": "hello", "runtimeProvider": "cloudflare"}
MADE = {
    "id": "dep_1", "version": 1, "status": "deploying", "agentId": AGENT["id"], "runtimeProvider": "cloudflare",
}  # fmt: skip
ACTIVE = MADE | {"status": "active"}


@pytest.fixture
def deploying(stubbed, stub):
    """A folder to deploy, and a service that has its agent."""
    stubbed.write({
        "hello/agent.config.json": '{"name": "hello", "entrypoint": "agent.ts", "runtime": "cloudflare"}',
        "hello/agent.ts": "export default () => 'hi';",
    })  # fmt: skip
    stub.will(Reply(body={"items": [AGENT], "nextCursor": None}))
    return stubbed


def test_a_lost_upload_is_sent_again_under_the_same_key_byte_for_byte(deploying, stub):
    stub.will(Reply(hang_up=True), Reply(202, MADE), Reply(body=ACTIVE))
    assert deploying("deploy", "hello", "--json").json == ACTIVE
    one, other = (asked for asked in stub.asked if asked.method == "POST")
    assert one.headers["Idempotency-Key"] == other.headers["Idempotency-Key"]
    assert one.body == other.body
    assert b"PK" in one.body


def test_a_service_that_is_away_for_a_moment_does_not_end_the_wait_for_a_deployment(deploying, stub):
    busy = Reply(429, envelope("RATE_LIMITED", retryable=True), {"Retry-After": "30"})
    stub.will(Reply(202, MADE), Reply(body=MADE), busy, *[Reply(hang_up=True)] * 3, Reply(body=ACTIVE))
    ended = deploying("deploy", "hello", "--json")
    assert (ended.code, ended.json) == (Exit.OK, ACTIVE)


def test_a_wait_has_an_end(deploying, stub):
    stub.will(Reply(202, MADE), *[Reply(body=MADE)] * 20)
    ended = deploying("deploy", "hello", "--json", "--timeout", "1")
    assert (ended.code, ended.json["error"]["code"]) == (Exit.FAILED, "TIMED_OUT")


def test_who_does_not_wait_is_told_what_was_accepted(deploying, stub):
    stub.will(Reply(202, MADE))
    assert deploying("deploy", "hello", "--no-wait", "--json").json == MADE


def test_ctrl_c_while_waiting_says_that_the_deployment_goes_on(deploying, stub):
    stub.will(Reply(202, MADE), *[Reply(body=MADE)] * 100)
    running = deploying.start("deploy", "hello", "--json")
    assert until(lambda: len(stub.asked) > 3)
    running.send_signal(signal.SIGINT)
    _, told = running.communicate(timeout=10)
    assert running.returncode == Exit.INTERRUPTED
    assert "The deployment goes on" in told


# --- Secrets ---


def test_a_secret_comes_from_standard_input_and_is_shown_nowhere(stubbed, stub):
    agent = {"id": "agt_" + "0" * 32, "name": "hello"}
    stub.will(Reply(body={"items": [agent], "nextCursor": None}), Reply(body={"items": []}))
    ended = stubbed("secrets", "set", "hello", "API_KEY", given="s3cret with space \n")
    assert ended.code == Exit.OK
    assert "s3cret" not in ended.out + ended.err
    assert json.loads(stub.asked[1].body) == {"secrets": {"API_KEY": "s3cret with space "}}


def test_a_secret_that_is_typed_is_not_echoed(stubbed, stub):
    agent = {"id": "agt_" + "0" * 32, "name": "hello"}
    stub.will(Reply(body={"items": [agent], "nextCursor": None}), Reply(body={"items": []}))
    shown = stubbed.at_terminal("secrets", "set", "hello", "API_KEY", asked="not shown", typed="s3cret")
    assert "Set API_KEY of hello." in shown
    assert "s3cret" not in shown
    assert json.loads(stub.asked[1].body) == {"secrets": {"API_KEY": "s3cret"}}


def test_what_an_agent_says_does_not_drive_the_terminal(stubbed, stub):
    stub.will(Reply(200, META + rb"event: delta" + b"\n" + rb'data: {"text":"a\u001b[2Jb"}' + b"\n\n" + END, SSE))
    stub.will(Reply(200, META + rb"event: delta" + b"\n" + rb'data: {"text":"a\u001b[2Jb"}' + b"\n\n" + END, SSE))
    shown = stubbed.at_terminal("invoke", "hello", "hi")
    assert "a[2Jb" in shown
    assert "\x1b" not in shown
    assert stubbed("invoke", "hello", "hi").out == "a\x1b[2Jb\n"  # a file gets what was said


def test_a_secret_is_never_an_argument(stubbed, stub):
    assert stubbed("secrets", "set", "hello", "API_KEY", "s3cret").code == Exit.USAGE
    assert stub.asked == []
