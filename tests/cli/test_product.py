"""The command line against the running product: a developer's day, and each refusal with its exit code."""

from __future__ import annotations

import json
import re
import signal
from dataclasses import replace

import pytest

from entitlements.enums import Scope
from tests.cli.program import Program
from tests.e2e.customers import PUPPET, until
from tests.factories import EXAMPLES, make_account, make_token, override
from whs.errors import Exit

CONFIG = {"name": "puppet", "entrypoint": "agent.ts", "runtimes": ["cloudflare"], "protocol": "invoke/v1"}


@pytest.fixture
def puppet(alice) -> Program:
    """Alice, whose agent does what its prompt says."""
    alice.write({"puppet/agent.config.json": json.dumps(CONFIG), "puppet/agent.ts": PUPPET})
    deployed = alice("deploy", "puppet", "--json")
    assert deployed.code == Exit.OK, deployed.out
    return alice


def test_from_an_empty_folder_to_an_answer(alice):
    assert alice("init", "hello").code == Exit.OK
    deployed = alice("deploy", "hello")
    assert deployed.code == Exit.OK
    assert "Created hello on cloudflare." in deployed.out
    assert "  Version 1 is active." in deployed.out
    said = alice("invoke", "hello", "good morning")
    assert (said.code, said.out) == (Exit.OK, "You said: good morning\n")
    (receipt,) = alice("usage", "--by", "agent", "--json").json["items"]
    assert (receipt["agent"], receipt["requests"], receipt["tokens"]) == ("hello", 1, 2)
    (day,) = alice("usage", "--by", "day", "--json").json["items"]
    assert day["tokens"] == 2
    assert alice("usage", "--json").json["totals"]["tokens"] == 2
    assert re.search(r"^total +1 +2 ", alice("usage").out, re.MULTILINE)


@pytest.mark.parametrize(
    ("name", "call", "said"),
    [
        ("echo", ["hello"], "hello\n"),
        ("streaming", ["one two three"], "one two three\n"),
        ("session", ["hi", "--session", "mine"], "turn 1\n"),
        ("python", ["one two three"], "one two three\n"),
    ],
)
def test_the_examples_are_deployed_and_answer_as_their_readme_says(alice, name, call, said):
    assert alice("deploy", str(EXAMPLES / name)).code == Exit.OK
    assert alice("invoke", name, *call).out == said


def test_a_session_is_gone_on_with(alice):
    alice("init", "hello")
    alice("deploy", "hello")
    answers = [alice("invoke", "hello", "hi", "--session", "mine", "--json").json for _ in range(2)]
    assert [answer["sessionId"] for answer in answers] == ["mine", "mine"]


def test_what_the_agent_says_comes_before_it_has_ended(puppet):
    running = puppet.start("invoke", "puppet", json.dumps({"events": 3, "pause": 1500}))
    began = running.stdout.read(len("piece 0 "))
    assert (began, running.poll()) == ("piece 0 ", None)
    rest, _ = running.communicate(timeout=30)
    assert (rest, running.returncode) == ("piece 1 piece 2 \n", Exit.OK)


def test_ctrl_c_ends_it_cleanly_and_stops_the_agent(puppet):
    running = puppet.start("invoke", "puppet", json.dumps({"events": 100, "pause": 300}))
    running.stdout.read(len("piece 0 "))
    running.send_signal(signal.SIGINT)
    _, told = running.communicate(timeout=10)
    assert running.returncode == Exit.INTERRUPTED
    assert "Traceback" not in told
    assert "What was used until now counts." in told
    assert until(lambda: puppet("limits", "--json").json["usage"]["inFlight"] == 0, 10)


def test_versions_are_listed_rolled_back_and_activated(puppet):
    assert puppet("deploy", "puppet").code == Exit.OK
    assert [one["version"] for one in puppet("deployments", "puppet", "--json").json["items"]] == [2, 1]
    assert puppet("rollback", "puppet", "--reason", "2 is wrong").out == "Version 1 of puppet serves.\n"
    assert puppet("rollback", "puppet").code == Exit.FAILED
    assert puppet("activate", "puppet", "2", "--json").json["version"] == 2
    assert puppet("activate", "puppet", "9").code == Exit.FAILED
    assert "2 is wrong" in puppet("logs", "puppet", "1", "--deploy").out


def test_what_the_agent_prints_is_its_log(alice):
    agent = "export default async () => { console.log('first\\nsecond \\x1b[2J'); return 'hi'; };\n"
    alice.write({"p/agent.config.json": json.dumps(CONFIG | {"name": "printer"}), "p/agent.ts": agent})
    alice("deploy", "p")
    answer = alice("invoke", "printer", "hi", "--json").json
    found = until(lambda: alice("logs", "printer", "--json").out)
    assert json.loads(found.splitlines()[0])["invocationId"] == answer["invocationId"]
    shown = alice("logs", "printer").out
    assert "first\nsecond [2J" in shown
    assert "\x1b" not in shown


def test_following_a_log_prints_what_comes(alice):
    agent = "export default async (r) => { console.log(r.input.messages.at(-1).content); return 'hi'; };\n"
    alice.write({"p/agent.config.json": json.dumps(CONFIG | {"name": "printer"}), "p/agent.ts": agent})
    alice("deploy", "p")
    following = alice.start("logs", "printer", "--follow", "--json")
    for word in ("one", "two"):
        alice("invoke", "printer", word)
        assert json.loads(following.stdout.readline())["text"] == word
    following.send_signal(signal.SIGINT)
    following.communicate(timeout=10)
    assert following.returncode == Exit.INTERRUPTED


def test_secrets_are_set_listed_and_removed_without_their_values(puppet):
    assert puppet("secrets", "set", "puppet", "API_KEY", given="s3cret\n").code == Exit.OK
    listed = puppet("secrets", "list", "puppet", "--json")
    assert [(one["name"], one["isSet"]) for one in listed.json["items"]] == [("API_KEY", True)]
    assert "s3cret" not in listed.out
    assert puppet("secrets", "remove", "puppet", "API_KEY").code == Exit.OK
    assert puppet("secrets", "list", "puppet").out == "No secrets.\n"


def test_an_agent_is_created_listed_and_deleted(alice):
    made = alice("agents", "create", "mine", "--runtime", "agentcore", "--json").json
    assert [one["id"] for one in alice("agents", "list", "--json").json["items"]] == [made["id"]]
    assert alice("agents", "delete", "mine", given="n\n").code == Exit.INTERRUPTED
    assert len(alice("agents", "list", "--json").json["items"]) == 1
    assert alice("agents", "delete", "mine", "--yes").code == Exit.OK
    assert alice("agents", "list", "--json").json["items"] == []


# --- Refusals ---


def test_a_deployment_that_fails_ends_with_the_providers_words(alice):
    alice.write(
        {"p/agent.config.json": json.dumps(CONFIG), "p/agent.ts": "throw new Error('no'); export default () => 1;"}
    )
    failed = alice("deploy", "p", "--json")
    assert failed.code == Exit.FAILED
    assert failed.json["error"]["code"] == "DEPLOYMENT_FAILED"
    assert "Version 1 failed: " in failed.json["error"]["message"]
    shown = alice("deploy", "p")
    assert shown.code == Exit.FAILED
    assert shown.err.startswith("Error: Version 2 failed: ")


def test_a_bundle_that_the_service_refuses_names_file_and_line(alice):
    alice.write({"p/agent.config.json": json.dumps(CONFIG), "p/agent.ts": "const a = ;\nexport default () => 'x';\n"})
    refused = alice("deploy", "p")
    assert refused.code == Exit.FAILED
    assert refused.err.startswith("Error: agent.ts:1: ")


def test_a_limit_says_how_much_until_when_and_what_to_do(puppet, account):
    override(account, "max_requests_per_period", 1)
    assert puppet("invoke", "puppet", "{}").code == Exit.OK
    refused = puppet("invoke", "puppet", "{}")
    assert refused.code == Exit.LIMIT
    assert "  requests: 1 of 1\n" in refused.err
    assert re.search(r"  Resets on 1 \w+ \d{4} at 00:00 UTC \(in ", refused.err)
    assert "  What to do: " in refused.err
    assert re.search(r"  Trace id: trc_[0-9a-f]{32}\n", refused.err)
    shown = puppet("invoke", "puppet", "{}", "--json")
    assert (shown.code, shown.json["error"]["code"]) == (Exit.LIMIT, "LIMIT_EXCEEDED")
    assert re.search(r"^requests +1 +0 +1 +100 %$", puppet("limits").out, re.MULTILINE)


def test_a_rate_is_busy(puppet, account):
    override(account, "requests_per_minute", 0)
    assert puppet("invoke", "puppet", "{}").code == Exit.BUSY


def test_a_runtime_that_is_not_included_is_refused_before_anything_is_made(product, live_db, tmp_path):
    charlie = Program(tmp_path, {"WHS_URL": product.url, "WHS_TOKEN": make_token(make_account("charlie", "free"))})
    charlie("init", "hello")
    refused = charlie("deploy", "hello", "--runtime", "agentcore")
    assert refused.code == Exit.LIMIT
    assert f"{product.url}/billing/?tier=" in refused.err
    assert charlie("agents", "list", "--json").json["items"] == []


def test_a_token_that_may_not_is_refused(alice, account):
    token = make_token(account, scopes=[Scope.READ])
    refused = replace(alice, variables={**alice.variables, "WHS_TOKEN": token})("agents", "create", "mine")
    assert refused.code == Exit.NOT_SIGNED_IN
    unknown = alice("whoami", WHS_TOKEN="whs_" + "0" * 64)
    assert unknown.code == Exit.NOT_SIGNED_IN
    assert "whs login" in unknown.err


def test_an_agent_that_is_not_there_is_told_how_to_find_those_that_are(alice):
    for command in (["invoke", "nobody", "hi"], ["logs", "nobody"], ["secrets", "list", "nobody"]):
        ended = alice(*command)
        assert ended.code == Exit.FAILED
        assert "whs agents list" in ended.err


def test_usage_by_agent_and_day_is_the_whole_month_and_says_what_deleted_agents_used(alice):
    for name in ("first", "second"):
        alice("init", name)
        alice("deploy", name)
        alice("invoke", name, "good morning")
    assert alice("agents", "delete", "second", "--yes").code == Exit.OK
    said = alice("usage", "--by", "agent", "--json").json
    assert ([row["agent"] for row in said["items"]], said["isComplete"]) == (["first"], False)
    shown = alice("usage", "--by", "day").out
    assert re.search(r"^deleted agents +1 +2 ", shown, re.MULTILINE)
    assert re.search(r"^total +2 +4 ", shown, re.MULTILINE)
