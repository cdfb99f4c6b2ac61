"""Three layers keep a gate: the page, the API's actions, the adapter. Any of them may fail; the others still refuse."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from django.test import Client

import entitlements.actions.admit
import runtimes.actions.agents
import runtimes.actions.deployments
import runtimes.actions.invoke
from entitlements import ledger
from entitlements.enums import Runtime
from entitlements.errors import LimitExceededError
from entitlements.models import Account, Admission, PeriodCounter
from runtimes import providers
from runtimes.actions import invoke
from runtimes.actions.targets import target_of
from runtimes.bundle import Bundle
from runtimes.models import Agent, Deployment
from runtimes.pages import offers
from runtimes.providers.base import AgentRef, Answer, Final, Invocation, Provider, Stream, Target, Usage
from tests.factories import make_account, make_agent, make_deployment, make_tier, make_token
from webhost.ids import new_id

pytestmark = pytest.mark.usefixtures("live_db")


class Counting(Provider):
    """An AgentCore that counts what reaches it."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    runtime = Runtime.AGENTCORE

    def _deploy(self, target: Target, bundle: Bundle) -> Mapping[str, str]:
        self.calls.append("deploy")
        return {}

    def _activate(self, target: Target) -> None:
        self.calls.append("activate")

    def _invoke(self, target: Target, invocation: Invocation) -> Answer:
        self.calls.append("invoke")
        return Answer("hello", Usage(tokens=1, compute_ms=1))

    def _stream(self, target: Target, invocation: Invocation) -> Stream:
        self.calls.append("stream")
        return OneEvent()

    def _put_secrets(self, agent: AgentRef, values: Mapping[str, str | None]) -> None: ...

    def _remove(self, target: Target) -> None: ...

    def _remove_agent(self, agent: AgentRef) -> None: ...

    def _health(self) -> bool:
        return True


class OneEvent:
    """A stream that is over at once."""

    def __init__(self) -> None:
        self._events = iter([Final(Usage(tokens=1, compute_ms=1))])

    def __iter__(self) -> OneEvent:
        return self

    def __next__(self) -> Final:
        return next(self._events)

    def close(self) -> None: ...


@pytest.fixture
def agentcore(monkeypatch: pytest.MonkeyPatch) -> Counting:
    """An AgentCore behind the real base class."""
    counting = Counting()
    everywhere = {**providers.PROVIDERS, Runtime.AGENTCORE: counting}
    monkeypatch.setattr(invoke, "PROVIDERS", everywhere)
    monkeypatch.setattr(runtimes.actions.deployments, "PROVIDERS", everywhere)
    return counting


@pytest.fixture
def alice() -> Account:
    """alice, whose tier has no AgentCore."""
    return make_account("alice", make_tier())


@pytest.fixture
def downgraded(alice: Account) -> Deployment:
    """What alice deployed to AgentCore before her tier lost it."""
    return make_deployment(make_agent(alice, runtime=Runtime.AGENTCORE))


def page_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the page offer everything to everybody."""
    monkeypatch.setattr(offers, "page_offers", lambda entitlements: list(Runtime))


def api_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the API's actions ask nobody about gates; admission judges as if the runtime were Cloudflare."""
    for module in (runtimes.actions.agents, runtimes.actions.deployments):
        monkeypatch.setattr(module, "require_runtime", lambda *args, **more: None)
    judge = ledger.judge

    def ungated(admission_id: Any, subject: ledger.Subject, **more: Any) -> Any:
        return judge(admission_id, ledger.Subject(**vars(subject) | {"runtime": Runtime.CLOUDFLARE}), **more)

    monkeypatch.setattr(entitlements.actions.admit.ledger, "judge", ungated)


def adapter_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the adapters' base class ask nobody."""
    monkeypatch.setattr(Provider, "_ask", staticmethod(lambda target: None))


def on_the_page(alice: Account) -> Any:
    """Ask for an AgentCore agent with the overview's form."""
    client = Client()
    client.force_login(alice)
    return client.post("/agents/", {"name": "premium", "runtimeProvider": "agentcore"})


def by_the_api(alice: Account) -> Any:
    """Ask for an AgentCore agent with a token."""
    headers = {"Authorization": f"Bearer {make_token(alice)}"}
    body = {"name": "premium", "runtimeProvider": "agentcore"}
    return Client().post("/v1/agents", body, content_type="application/json", headers=headers)


def invoked(deployment: Deployment, *, stream: bool = False) -> Any:
    """Invoke by the API with a token."""
    owner = Account.objects.get(pk=deployment.account_id)
    headers = {"Authorization": f"Bearer {make_token(owner)}"}
    path = f"/v1/invoke/{deployment.agent.public_id}" + ("/stream" if stream else "")
    return Client().post(path, {"input": {"prompt": "hi"}}, content_type="application/json", headers=headers)


class TestCreating:
    def test_with_all_layers_the_page_refuses(self, alice: Account) -> None:
        answer = on_the_page(alice)
        assert answer.status_code == 402
        assert not Agent.objects.filter(account=alice).exists()

    def test_with_the_page_off_the_api_refuses_what_the_page_sends(
        self, alice: Account, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        page_off(monkeypatch)
        answer = on_the_page(alice)
        assert answer.status_code == 402
        assert "AgentCore is not included" in answer.content.decode()
        assert not Agent.objects.filter(account=alice).exists()

    def test_with_the_api_off_the_page_still_refuses(self, alice: Account, monkeypatch: pytest.MonkeyPatch) -> None:
        api_off(monkeypatch)
        assert on_the_page(alice).status_code == 402
        assert not Agent.objects.filter(account=alice).exists()

    def test_with_the_adapter_off_page_and_api_still_refuse(
        self, alice: Account, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        adapter_off(monkeypatch)
        assert on_the_page(alice).status_code == 402
        assert by_the_api(alice).json()["error"]["details"]["limitType"] == "runtimeGated"
        assert not Agent.objects.filter(account=alice).exists()


class TestInvoking:
    @pytest.mark.parametrize("stream", [False, True], ids=["json", "stream"])
    def test_with_all_layers_the_api_refuses_and_nothing_reaches_the_provider(
        self, downgraded: Deployment, agentcore: Counting, stream: bool
    ) -> None:
        answer = invoked(downgraded, stream=stream)
        assert (answer.status_code, answer.json()["error"]["details"]["limitType"]) == (402, "runtimeGated")
        assert agentcore.calls == []

    @pytest.mark.parametrize("stream", [False, True], ids=["json", "stream"])
    def test_with_the_adapter_off_the_api_still_refuses(
        self, downgraded: Deployment, agentcore: Counting, monkeypatch: pytest.MonkeyPatch, stream: bool
    ) -> None:
        adapter_off(monkeypatch)
        assert invoked(downgraded, stream=stream).status_code == 402
        assert agentcore.calls == []

    @pytest.mark.parametrize("stream", [False, True], ids=["json", "stream"])
    def test_with_the_api_off_the_adapter_still_refuses_and_the_request_is_given_back(
        self, downgraded: Deployment, agentcore: Counting, monkeypatch: pytest.MonkeyPatch, stream: bool
    ) -> None:
        api_off(monkeypatch)
        answer = invoked(downgraded, stream=stream)
        assert (answer.status_code, answer.json()["error"]["details"]["limitType"]) == (402, "runtimeGated")
        assert agentcore.calls == []
        account = downgraded.account_id
        assert [a.outcome for a in Admission.objects.filter(account_id=account)] == ["voided"]
        assert PeriodCounter.objects.get(account_id=account).used_requests == 0

    def test_only_with_all_of_them_off_something_reaches_the_provider(
        self, downgraded: Deployment, agentcore: Counting, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        api_off(monkeypatch)
        adapter_off(monkeypatch)
        assert invoked(downgraded).status_code == 200
        assert agentcore.calls == ["invoke"]


class TestDeploying:
    def test_the_adapter_asks_by_itself_for_every_call_that_may_cost_money(
        self, downgraded: Deployment, agentcore: Counting
    ) -> None:
        target, invocation = target_of(downgraded), Invocation(new_id(), "", b"{}")
        for call in (
            lambda: agentcore.deploy(target, None),  # type: ignore[arg-type]  # never looked at
            lambda: agentcore.activate(target),
            lambda: agentcore.invoke(target, invocation),
            lambda: agentcore.stream(target, invocation),
        ):
            with pytest.raises(LimitExceededError):
                call()
        assert agentcore.calls == []

    def test_taking_away_never_asks(self, downgraded: Deployment, agentcore: Counting) -> None:
        agentcore.remove(target_of(downgraded))
        assert agentcore.health()
