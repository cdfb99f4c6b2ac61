"""Three layers keep the AgentCore gate. Each is switched off in turn, and the others still refuse.

The page's own tests switch the page off (tests/webhost/test_pages.py); here it is the API and the adapter.
What reaches a provider is counted by a provider that would run anything.
"""

import secrets
from collections.abc import Iterator
from types import MappingProxyType

import pytest
from django.test import Client

from entitlements.actions import admit as admit_action
from entitlements.enums import Outcome, Runtime
from entitlements.ledger import Subject
from entitlements.models import Admission
from runtimes.actions import agents, deployments, invoke
from runtimes.enums import DeploymentStatus
from runtimes.models import Deployment
from runtimes.providers import base
from tests.factories import make_account, make_agent, make_deployment, make_token, zip_of

pytestmark = pytest.mark.usefixtures("live_db")

BUNDLE = zip_of(
    {
        "agent.config.json": '{"name": "agent", "entrypoint": "a.ts", "runtimes": ["agentcore"], "protocol": "invoke/v1"}',
        "a.ts": "export default async function agent() { return 'hi' }",
    }
)


class Obliging(base.Provider):
    """A provider that would do anything for anybody, and counts what reached it."""

    def __init__(self) -> None:
        self.reached: list[str] = []

    runtime = Runtime.AGENTCORE

    def _deploy(self, *_):
        self.reached.append("deploy")
        return {}

    def _activate(self, *_):
        self.reached.append("activate")

    def _invoke(self, *_):
        self.reached.append("invoke")
        return base.Answer("hi", base.Usage(tokens=1, compute_ms=1))

    def _stream(self, *_):
        self.reached.append("stream")
        return iter(())

    def _put_secrets(self, *_):
        self.reached.append("secrets")

    def _remove(self, *_):
        pass

    def _remove_agent(self, *_):
        pass

    def _health(self):
        return True


@pytest.fixture
def provider(monkeypatch: pytest.MonkeyPatch) -> Iterator[Obliging]:
    obliging = Obliging()
    table = MappingProxyType({Runtime.AGENTCORE: obliging})
    for module in (deployments, invoke):
        monkeypatch.setattr(module, "PROVIDERS", table)
    return obliging


class Caller:
    """Alice, whose tier may or may not have AgentCore."""

    def __init__(self, **limits):
        self.account = make_account("alice", **limits)
        self.headers = {"authorization": f"Bearer {make_token(self.account)}"}
        self.client = Client()

    def post(self, path, body=None, **more):
        if "files" in more:
            return self.client.post(path, more["files"], headers=self.headers)
        return self.client.post(path, body, content_type="application/json", headers=self.headers)

    def deploy(self, agent):
        from django.core.files.uploadedfile import SimpleUploadedFile

        upload = SimpleUploadedFile("a.zip", BUNDLE, "application/zip")
        return self.post(f"/v1/agents/{agent.public_id}/deployments", files={"bundle": upload})

    def invoke(self, agent, tail=""):
        return self.post(f"/v1/invoke/{agent.public_id}{tail}", {"input": {"prompt": "hi"}})


def limit_of(answer):
    return answer.status_code, answer.json()["error"]["details"]["limitType"]


def switched_off(*_, **__):
    """The layer that is switched off lets everything pass."""


def let_pass_at_admission(monkeypatch):
    def ungated(admission_id, subject, **more):
        open_subject = Subject(subject.account_id, subject.agent_id, subject.deployment_id, "cloudflare", 60)
        return admit_action.admit(admission_id, open_subject, **more)

    monkeypatch.setattr(invoke, "admit", ungated)


def test_with_all_layers_on_nothing_reaches_the_provider_and_no_deployment_row_is_made(provider):
    alice = Caller()
    agent = make_agent(alice.account, runtime=Runtime.AGENTCORE)
    make_deployment(agent)
    assert limit_of(alice.deploy(agent)) == (402, "runtimeGated")
    assert limit_of(alice.invoke(agent)) == (402, "runtimeGated")
    assert limit_of(alice.invoke(agent, "/stream")) == (402, "runtimeGated")
    assert Deployment.objects.filter(agent=agent).count() == 1
    assert provider.reached == []
    assert not Admission.objects.filter(account_id=alice.account.id).exists()


def test_with_the_api_switched_off_the_adapter_refuses_to_deploy(provider, monkeypatch):
    monkeypatch.setattr(deployments, "require_runtime", switched_off)
    alice = Caller()
    agent = make_agent(alice.account, runtime=Runtime.AGENTCORE)
    accepted = alice.deploy(agent)
    assert accepted.status_code == 202
    deployment = Deployment.objects.get(agent=agent)
    deployments.run_deployment(deployment.pk)
    deployment.refresh_from_db()
    assert (deployment.status, deployment.error_code) == (DeploymentStatus.FAILED, "LIMIT_EXCEEDED")
    assert provider.reached == []


def test_with_the_api_switched_off_the_adapter_refuses_to_activate(provider, monkeypatch):
    monkeypatch.setattr(deployments, "require_runtime", switched_off)
    alice = Caller()
    agent = make_agent(alice.account, runtime=Runtime.AGENTCORE)
    make_deployment(agent)
    older = make_deployment(agent, status=DeploymentStatus.ROLLED_BACK)
    path = f"/v1/agents/{agent.public_id}/deployments/{older.public_id}/activate"
    assert limit_of(alice.post(path, {"reason": "back"})) == (402, "runtimeGated")
    assert provider.reached == []


@pytest.mark.parametrize("tail", ["", "/stream"])
def test_with_the_admission_switched_off_the_adapter_refuses_and_the_request_is_given_back(provider, monkeypatch, tail):
    let_pass_at_admission(monkeypatch)
    alice = Caller()
    agent = make_agent(alice.account, runtime=Runtime.AGENTCORE)
    make_deployment(agent)
    assert limit_of(alice.invoke(agent, tail)) == (402, "runtimeGated")
    assert provider.reached == []
    admission = Admission.objects.get(account_id=alice.account.id)
    assert (admission.outcome, admission.charged_requests) == (Outcome.VOIDED, 0)


def test_with_the_adapter_switched_off_the_api_refuses(provider, monkeypatch):
    monkeypatch.setattr(base.Provider, "_ask", staticmethod(switched_off))
    alice = Caller()
    agent = make_agent(alice.account, runtime=Runtime.AGENTCORE)
    make_deployment(agent)
    assert limit_of(alice.deploy(agent)) == (402, "runtimeGated")
    assert limit_of(alice.invoke(agent)) == (402, "runtimeGated")
    created = alice.post("/v1/agents", {"name": f"n-{secrets.token_hex(4)}", "runtimeProvider": "agentcore"})
    assert limit_of(created) == (402, "runtimeGated")
    assert provider.reached == []


def test_with_the_action_switched_off_switching_the_runtime_still_ends_at_the_next_deploy(provider, monkeypatch):
    monkeypatch.setattr(agents, "require_runtime", switched_off)
    alice = Caller()
    agent = make_agent(alice.account)
    patched = alice.client.patch(
        f"/v1/agents/{agent.public_id}", {"runtimeProvider": "agentcore"}, "application/json", headers=alice.headers
    )
    assert patched.status_code == 200
    assert limit_of(alice.deploy(agent)) == (402, "runtimeGated")
    assert provider.reached == []


@pytest.mark.parametrize(
    ("capability", "limit"),
    [("memory", "memoryEnabled"), ("codeInterpreter", "codeInterpreterEnabled"), ("browser", "browserEnabled")],
)
def test_a_capability_that_is_not_in_the_tier_is_refused_at_admission_and_by_the_adapter(
    provider, monkeypatch, capability, limit
):
    alice = Caller(agentcore_enabled=1)
    agent = make_agent(alice.account, runtime=Runtime.AGENTCORE)
    make_deployment(agent, capabilities=[capability])
    assert limit_of(alice.invoke(agent)) == (402, limit)
    let_pass_at_admission(monkeypatch)
    assert limit_of(alice.invoke(agent)) == (402, limit)
    assert provider.reached == []


def test_an_entitled_account_passes_every_layer(provider):
    alice = Caller(agentcore_enabled=1)
    agent = make_agent(alice.account, runtime=Runtime.AGENTCORE)
    make_deployment(agent)
    answer = alice.invoke(agent)
    assert (answer.status_code, answer.json()["output"]["text"]) == (200, "hi")
    assert provider.reached == ["invoke"]
