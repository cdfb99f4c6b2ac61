"""What this app says on an account's page: would the calls of its agents pass, and is there room for one more."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from django.utils import timezone

from entitlements.actions.standing import read_standing
from entitlements.blocked import Verdict, Weight
from entitlements.enums import Capability, LimitType, Runtime
from entitlements.errors import LimitExceededError
from entitlements.models import Account
from runtimes.actions.check import check_invocation
from runtimes.actions.standing import verdicts_now
from runtimes.models import Agent, Grant, RuntimeSwitch
from tests.entitlements.admin_pages import Staff, said
from tests.factories import make_account, make_agent, make_deployment, make_tier
from webhost.errors import ConflictError

pytestmark = pytest.mark.usefixtures("live_db")

CORE = {
    "agentcore_enabled": True, "browser_enabled": True, "max_tool_calls_per_period": 10,
    "max_browser_sessions_per_period": 10,
}  # fmt: skip


def verdicts_on(account: Account) -> list[Verdict]:
    return verdicts_now(read_standing(account.pk))


def call(account: Account, runtime: Runtime) -> Verdict:
    (verdict,) = [v for v in verdicts_on(account) if v.runtime == runtime]
    return verdict


def about(account: Account, words: str) -> Verdict:
    (verdict,) = [v for v in verdicts_on(account) if words in v.what]
    return verdict


def browsing(account: Account) -> Agent:
    agent = make_agent(account, runtime=Runtime.AGENTCORE)
    make_deployment(agent, capabilities=[Capability.BROWSER.value])
    return agent


@pytest.fixture
def switched_off() -> Iterator[RuntimeSwitch]:
    switch, _ = RuntimeSwitch.objects.update_or_create(
        runtime=Runtime.CLOUDFLARE, defaults={"invocations": False, "deploys": False, "message": "Back at noon."}
    )
    yield switch
    RuntimeSwitch.objects.filter(pk=switch.pk).update(invocations=True, deploys=True, message="")


class TestACall:
    @pytest.mark.parametrize("requests", [0, 5])
    def test_it_is_answered_as_the_api_answers_whether_it_would_pass(self, requests: int) -> None:
        account = make_account("alice", make_tier(max_requests_per_period=requests))
        agent = make_agent(account)
        make_deployment(agent)
        refusal = check_invocation(account.pk, agent.public_id, {})
        verdict = call(account, Runtime.CLOUDFLARE)
        assert verdict.note == f"1 agent: {agent.name}"
        assert [o.said for o in verdict.obstacles] == ([refusal.message] if refusal else [])
        assert verdict.passes is (requests > 0)

    def test_what_it_is_estimated_to_need_counts_as_it_does_for_the_gateway(self) -> None:
        account = make_account("alice", make_tier(**CORE, max_compute_ms_per_period=1_000))
        agent = browsing(account)
        refusal = check_invocation(account.pk, agent.public_id, {})
        assert isinstance(refusal, LimitExceededError)
        verdict = call(account, Runtime.AGENTCORE)
        assert "with Browser" in verdict.what
        assert [o.limit for o in verdict.obstacles] == [LimitType(t) for t in refusal.details["exceeded"]]
        assert verdict.obstacles[0].said == refusal.message

    def test_a_capability_that_the_tier_lost_blocks_and_says_that_it_is_being_withdrawn(self) -> None:
        account = make_account("alice", make_tier(**CORE))
        browsing(account)
        account.billing_tier = make_tier(agentcore_enabled=True)
        account.save(update_fields=["billing_tier"])
        verdict = call(account, Runtime.AGENTCORE)
        assert (verdict.weight, [o.limit for o in verdict.obstacles]) == (Weight.BLOCKS, [LimitType.BROWSER_ENABLED])
        assert "being withdrawn" in verdict.note

    def test_what_was_withdrawn_is_not_asked_about(self) -> None:
        account = make_account("alice", make_tier(agentcore_enabled=True))
        browsing(account)
        Grant.objects.filter(account_id=account.pk).update(withdrawn_at=timezone.now())
        assert call(account, Runtime.AGENTCORE).passes

    def test_a_runtime_that_is_switched_off_refuses_before_any_limit_with_the_operators_words(
        self, switched_off: RuntimeSwitch
    ) -> None:
        account = make_account("alice", make_tier())
        agent = make_agent(account)
        make_deployment(agent)
        refusal = check_invocation(account.pk, agent.public_id, {})
        assert isinstance(refusal, ConflictError)
        verdict = call(account, Runtime.CLOUDFLARE)
        assert [o.said for o in verdict.obstacles] == [refusal.message] == [switched_off.message]
        assert about(account, "A deployment to Cloudflare Workers").weight == Weight.REFUSES

    def test_agents_that_are_alike_are_one_answer(self) -> None:
        account = make_account("alice", make_tier())
        for n in range(5):
            make_deployment(make_agent(account, f"bot-{n}"))
        note = call(account, Runtime.CLOUDFLARE).note
        assert note.startswith("5 agents: bot-")
        assert note.endswith("and 2 more")


class TestWhatElseIsRefused:
    def test_a_full_cap_on_agents_and_one_on_deployments(self) -> None:
        account = make_account("alice", make_tier(max_agents=1, max_deployments_per_agent=2))
        agent = make_agent(account)
        make_deployment(agent)
        assert about(account, "One more deployment").passes
        make_deployment(agent)
        for words, limit in (("One more agent", LimitType.AGENTS), ("One more deployment", LimitType.DEPLOYMENTS)):
            verdict = about(account, words)
            assert [o.limit for o in verdict.obstacles] == [limit]
        text = said(Staff().client.get(Staff.url(account)))
        assert "Calls pass. Refused now: one more agent, one more deployment of" in text
        assert "Raise it to 2 until the period ends" in text

    def test_an_agent_that_its_owner_disabled_and_one_whose_deployment_failed(self) -> None:
        account = make_account("alice", make_tier())
        Agent.objects.filter(pk=make_agent(account, "asleep").pk).update(disabled_at=timezone.now())
        Agent.objects.filter(pk=make_agent(account, "broken").pk).update(last_error="It does not parse.")
        assert about(account, "A call of asleep").obstacles[0].said == "This agent is disabled."
        assert "It does not parse." in about(account, "A call of broken").obstacles[0].remedy

    def test_what_was_deleted_is_not_spoken_of(self) -> None:
        account = make_account("alice", make_tier(max_agents=1))
        Agent.objects.filter(pk=make_agent(account, "gone").pk).update(deleted_at=timezone.now())
        assert about(account, "One more agent").passes
        assert not [v for v in verdicts_on(account) if "gone" in v.what]
