"""What every provider promises. Runs for each entry of PROVIDERS; a new one needs a stand here, and nothing else."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from entitlements.actions import gates
from entitlements.enums import Runtime
from entitlements.errors import LimitExceededError
from runtimes.bundle import Bundle
from runtimes.errors import DeploymentFailedError, NotReachedError, RuntimeFailedError
from runtimes.providers import PROVIDERS
from runtimes.providers.base import AgentRef, Delta, Final, Invocation, Provider, Target
from tests.factories import make_account
from tests.runtimes.aws import LocalAgentCore
from tests.runtimes.cloud import Cloud, Reports, agent_zip, built, new_target
from webhost.ids import Prefix, new_id, public_id

pytestmark = pytest.mark.usefixtures("live_db")


@dataclass
class Stand:
    """A provider whose cloud runs on this machine."""

    runtime: str
    provider: Provider
    reached: Callable[[], Any]  # equal as long as nothing reaches the provider
    invocations: Callable[[Target], int]  # how many calls of a deployment reached the provider
    cut_off: Callable[[Target], None]  # break the answer of a deployment's next call off half-way


@contextmanager
def cloudflare(folder: Path) -> Iterator[Stand]:
    reports = Reports()
    with reports.listening(), Cloud(folder, reports).running() as cloud:
        yield Stand(
            Runtime.CLOUDFLARE,
            cloud.provider,
            reached=lambda: [cloud.calls()[side] for side in ("api", "invocations")],
            invocations=cloud.invocations,
            cut_off=lambda target: cloud.plan(on="invoke", script=f"d-{target.deployment_id.hex}", fault="truncated"),
        )


@contextmanager
def agentcore(folder: Path) -> Iterator[Stand]:
    with LocalAgentCore(folder).running() as cloud:

        def invocations(target: Target) -> int:
            return sum(
                call["operation"] == "InvokeAgentRuntime" and target.deployment_id.hex in call["ids"]
                for call in cloud.calls()["calls"]
            )

        yield Stand(
            Runtime.AGENTCORE,
            cloud.provider,
            reached=lambda: cloud.calls()["counts"],
            invocations=invocations,
            cut_off=lambda _: cloud.plan(operation="InvokeAgentRuntime", fault="truncated"),
        )


STANDS = {Runtime.CLOUDFLARE: cloudflare, Runtime.AGENTCORE: agentcore}


@pytest.fixture(scope="module", params=sorted(PROVIDERS))
def stand(request):
    """Each provider in turn. One without a stand fails here: it would be untested."""
    with tempfile.TemporaryDirectory(prefix="webhost-contract-") as folder, STANDS[request.param](Path(folder)) as made:
        yield made


@dataclass
class Agent:
    """A deployed agent of alice's."""

    stand: Stand
    target: Target
    bundle: Bundle

    @property
    def provider(self) -> Provider:
        return self.stand.provider

    @property
    def ref(self) -> AgentRef:
        return AgentRef(self.target.account_id, self.target.agent_id)

    def invocation(self, prompt="hello", session="s1"):
        body = {
            "input": {"messages": [{"role": "user", "content": prompt}]}, "sessionId": session, "options": {},
            "metadata": {}, "capabilities": {"memory": False, "codeInterpreter": False, "browser": False},
            "limits": {"remaining": {"requests": 7}},
        }  # fmt: skip
        return Invocation(new_id(), public_id(Prefix.TRACE, new_id()), json.dumps(body).encode(), session)

    def invoke(self, prompt="hello", session="s1"):
        return self.provider.invoke(self.target, self.invocation(prompt, session))

    def stream(self):
        return self.provider.stream(self.target, self.invocation())


def target_of(stand, account, bundle):
    return replace(new_target(bundle), account_id=account.pk, runtime=stand.runtime)


def make(stand, code, **config):
    """Deploy an agent for an account that may have everything."""
    bundle = built(agent_zip(code, runtime=stand.runtime, **config))
    target = target_of(stand, make_account("alice", tier="enterprise"), bundle)
    target = replace(target, remote=stand.provider.deploy(target, bundle))
    stand.provider.activate(target)
    return Agent(stand, target, bundle)


ECHO = "export default (request) => ({ text: request.input.messages[0].content, usage: { tokens: 12 } })"


def test_a_provider_is_listed_under_the_runtime_that_it_serves():
    assert {runtime: provider.runtime for runtime, provider in PROVIDERS.items()} == {r: r for r in PROVIDERS}


def test_an_answer_carries_text_figures_and_what_was_printed(stand):
    agent = make(stand, f"{ECHO.replace('=> (', '=> { console.log(`printed`); return ')[:-1]} }}")
    answer = agent.invoke("日本 🎈")
    assert answer.text == "日本 🎈"
    assert (answer.usage.tokens, answer.usage.tokens_estimated) == (12, False)
    assert "printed" in "".join(answer.logs)


def test_tokens_that_the_agent_does_not_report_are_estimated_alike_everywhere(stand):
    answer = make(stand, 'export default () => "hello"').invoke("hello")
    assert (answer.usage.tokens, answer.usage.tokens_estimated) == (3, True)


def test_a_repeated_deploy_adopts_what_it_made(stand):
    agent = make(stand, ECHO)
    agent.invoke()
    again = replace(agent.target, remote={})
    assert stand.provider.deploy(again, agent.bundle) == agent.target.remote
    stand.provider.activate(again)
    assert agent.invoke("still there").text == "still there"


def test_an_agent_that_does_not_load_is_not_deployed(stand):
    with pytest.raises(DeploymentFailedError) as failure:
        make(stand, "const f: any = undefined; f(); export default () => ''")
    assert not failure.value.retryable
    assert "TypeError" in failure.value.message


def test_a_stream_comes_in_pieces_and_ends_with_its_figures(stand):
    agent = make(stand, "export default async function* () { yield 'a'; yield '日'; return { usage: { tokens: 5 } }; }")
    *pieces, last = list(agent.stream())
    assert "".join(piece.text for piece in pieces if isinstance(piece, Delta)) == "a日"
    assert isinstance(last, Final)
    assert last.usage.compute_ms >= 0


def test_a_stream_that_breaks_off_is_a_failure(stand):
    agent = make(stand, "export default async function* () { for (let i = 0; i < 50; i++) yield 'tick '; }")
    stand.cut_off(agent.target)
    with pytest.raises(RuntimeFailedError) as failure:
        list(agent.stream())
    assert failure.value.error_class == "Truncated"


def test_an_agent_that_throws_has_failed_and_its_own_words_stay_in_its_log(stand):
    agent = make(stand, "export default () => { throw new Error('my password is 12345') }")
    with pytest.raises(RuntimeFailedError) as failure:
        agent.invoke()
    assert (failure.value.error_class, failure.value.retryable) == ("AgentError", False)
    assert "12345" not in failure.value.message
    assert "12345" in "".join(failure.value.logs)


def test_a_timeout_is_sent_once_and_counts(stand):
    agent = make(stand, "export default () => new Promise((r) => setTimeout(r, 60_000))", timeoutSeconds=1)
    before = stand.invocations(agent.target)
    with pytest.raises(RuntimeFailedError) as failure:
        agent.invoke()
    assert (failure.value.error_class, failure.value.status) == ("Timeout", 504)
    assert stand.invocations(agent.target) - before == 1


def test_secrets_reach_the_agent_stay_over_versions_and_go_when_they_are_deleted(stand):
    code = "export default (_, { env }) => JSON.stringify(env)"
    agent = make(stand, code, env={"optionalKeys": ["A"]})
    stand.provider.put_secrets(agent.ref, {"A": "sk-1", "UNDECLARED": "sk-2"})
    assert json.loads(agent.invoke(session="with").text) == {"A": "sk-1"}
    newer = replace(agent.target, deployment_id=new_id(), version=2, remote={})
    newer = Agent(stand, replace(newer, remote=stand.provider.deploy(newer, agent.bundle)), agent.bundle)
    assert json.loads(newer.invoke().text) == {"A": "sk-1"}
    assert "sk-1" not in json.dumps(dict(newer.target.remote))
    stand.provider.put_secrets(agent.ref, {"A": None})
    assert json.loads(agent.invoke(session="without").text) == {}


def test_a_session_remembers_until_it_is_stopped_and_others_do_not(stand):
    code = "export default async (_, { session }) => { const n = ((await session.get('n')) ?? 0) + 1;"
    agent = make(stand, code + " await session.put('n', n); return `${n}`; }")
    assert [agent.invoke(session=s).text for s in ("1", "1", "10")] == ["1", "2", "1"]
    stand.provider.stop_session(agent.target, "1")
    stand.provider.stop_session(agent.target, "1")
    stand.provider.stop_session(agent.target, "never was")
    assert agent.invoke(session="1").text == "1"
    assert agent.invoke(session="10").text == "2"


def test_what_was_removed_is_gone_and_removing_it_again_is_success(stand):
    agent = make(stand, ECHO)
    for target in (agent.target, agent.target, replace(agent.target, remote={})):
        stand.provider.remove(target)
    stand.provider.remove_agent(agent.ref)
    stand.provider.remove_agent(agent.ref)
    with pytest.raises(NotReachedError) as failure:
        agent.invoke()
    assert not failure.value.retryable


def test_an_account_without_the_entitlement_reaches_nothing_through_any_door(stand):
    charlie = make_account("charlie", tier="free")
    bundle = built(agent_zip(ECHO, runtime=stand.runtime))
    target = target_of(stand, charlie, bundle)
    try:
        gates.require_runtime(charlie.pk, stand.runtime)
    except LimitExceededError:
        pass
    else:
        pytest.skip(f"{stand.runtime} is open to every tier")
    provider, call = stand.provider, Agent(stand, target, bundle).invocation()
    before = stand.reached()
    for door in (
        lambda: provider.deploy(target, bundle),
        lambda: provider.activate(target),
        lambda: provider.invoke(target, call),
        lambda: provider.stream(target, call),
        lambda: provider.put_secrets(AgentRef(charlie.pk, target.agent_id), {"A": "1"}),
        lambda: provider.grant(target, frozenset()),
    ):
        with pytest.raises(LimitExceededError):
            door()
    assert stand.reached() == before


def test_a_healthy_provider_says_so(stand):
    assert stand.provider.health()
