"""Reservation, sessions, grants and tools, behind the API and a provider of the test's own; the ledger is real."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from entitlements import ledger
from entitlements.actions.standing import read_standing
from entitlements.enums import Capability, LimitType, Outcome, Runtime
from entitlements.models import Account, Admission, PeriodCounter
from runtimes.actions import deployments, grants, invoke, removals, sessions, tools
from runtimes.errors import DeploymentFailedError
from runtimes.models import AgentSession, Deployment, Grant, ToolUse
from runtimes.providers.base import ToolSession, Usage
from telemetry.actions.verify import verify_usage
from tests.factories import make_account, make_agent, make_deployment, make_tier, make_token, override
from tests.runtimes.lending import Lender
from webhost.ids import Prefix, new_id, public_id
from webhost.period import period_of

pytestmark = pytest.mark.usefixtures("live_db", "nobody_sweeps")
TOOLS = ["browser", "codeInterpreter"]


@pytest.fixture
def lender(monkeypatch: pytest.MonkeyPatch) -> Iterator[Lender]:
    provider = Lender()
    table = MappingProxyType({Runtime.AGENTCORE: provider})
    for module in (deployments, invoke, grants, removals, sessions, tools):
        monkeypatch.setattr(module, "PROVIDERS", table)
    return provider


class Owner:
    """alice, with an agent on AgentCore that has tools, and a budget of each."""

    def __init__(self, capabilities: list[str] | None = None, **limits: Any) -> None:
        tier = make_tier(
            agentcore_enabled=True, memory_enabled=True, code_interpreter_enabled=True, browser_enabled=True,
            max_tool_calls_per_period=100, max_code_execution_seconds_per_period=1000,
            max_browser_sessions_per_period=50,
        )  # fmt: skip
        self.account = make_account("alice", tier, **limits)
        self.agent = make_agent(self.account, runtime=Runtime.AGENTCORE)
        self.deployment = make_deployment(self.agent, capabilities=TOOLS if capabilities is None else capabilities)
        self.headers = {"authorization": f"Bearer {make_token(self.account)}"}

    def call(self, *, stream: bool = False, **more: Any) -> Any:
        path = f"/v1/invoke/{self.agent.public_id}" + ("/stream" if stream else "")
        body = {"input": {"prompt": "hi"}, **more}
        answer = Client().post(path, body, content_type="application/json", headers=self.headers)
        if stream and answer.status_code == 200:
            b"".join(answer)
            answer.close()
        return answer

    def check(self) -> Any:
        body = {"agentId": self.agent.public_id}
        return Client().post("/v1/limits/check", body, content_type="application/json", headers=self.headers).json()

    def downgrade(self, flag: str = "code_interpreter_enabled") -> None:
        override(self.account, flag, 0)

    def admission(self) -> Admission:
        return Admission.objects.filter(account_id=self.account.pk).latest("admitted_at")

    def counter(self) -> PeriodCounter:
        return PeriodCounter.objects.get(account_id=self.account.pk)

    def holds_nothing_and_is_right(self) -> bool:
        counter = self.counter()
        held = [
            getattr(counter, f"held_{m}") for m in ("tokens", "compute_ms", "tool_calls", "code_ms", "browser_sessions")
        ]
        findings = verify_usage(self.account.pk, period_of(timezone.now())).findings
        return (
            not any(held)
            and counter.in_flight == 0
            and ledger.verify(account_id=self.account.pk) == []
            and not findings
        )


def error_of(answer: Any) -> dict[str, Any]:
    found: dict[str, Any] = answer.json()["error"]
    return found


def seen(
    kind: Capability, name: str = "", *, began: float = 1, lasted: float | None = 1.5, remote: str | None = None
) -> ToolSession:
    start = datetime.now(UTC) - timedelta(seconds=began)
    end = None if lasted is None else start + timedelta(seconds=lasted)
    return ToolSession(kind, remote or new_id().hex, name, start, end)


class TestReservation:
    def test_a_call_whose_estimate_does_not_fit_is_refused_and_says_that_it_is_an_estimate(self, lender):
        alice = Owner([], max_compute_ms_per_period=59_999)
        error = error_of(alice.call())
        assert (error["code"], error["details"]["limitType"]) == ("LIMIT_EXCEEDED", "computeMs")
        assert error["details"]["estimate"] == 60_000
        assert "estimated" in error["message"]
        assert lender.invocations == []
        assert not Admission.objects.filter(account_id=alice.account.pk).exists()

    def test_asking_beforehand_gives_the_same_answer(self, lender):
        alice = Owner([], max_compute_ms_per_period=59_999)
        asked = alice.check()
        assert asked["allowed"] is False
        assert asked["error"]["details"] == error_of(alice.call())["details"]

    def test_one_that_fits_exactly_passes_and_holds_nothing_afterwards(self, lender):
        alice = Owner([], max_compute_ms_per_period=60_000)
        assert alice.call().status_code == 200
        admission = alice.admission()
        assert (admission.held_compute_ms, admission.charged_compute_ms, admission.charged_tokens) == (60_000, 5, 3)
        assert alice.holds_nothing_and_is_right()

    def test_after_five_calls_the_next_is_estimated_by_what_they_used(self, lender):
        alice = Owner([])
        for _ in range(6):
            assert alice.call().status_code == 200
        admission = alice.admission()
        assert (admission.held_compute_ms, admission.held_tokens) == (5, 3)

    def test_max_tokens_is_held(self, lender):
        alice = Owner([], max_tokens_per_period=100)
        error = error_of(alice.call(options={"maxTokens": 100}))
        assert (error["details"]["limitType"], error["details"]["estimate"]) == ("tokens", 101)
        assert alice.call(options={"maxTokens": 99}).status_code == 200

    def test_more_than_the_estimate_is_shown_and_blocks_the_next(self, lender):
        alice = Owner([], max_tokens_per_period=2_000)
        lender.used = Usage(tokens=5_000, compute_ms=1)
        assert alice.call().status_code == 200
        error = error_of(alice.call())
        assert (error["details"]["limitType"], error["details"]["current"]) == ("tokens", 5_000)

    def test_thirty_at_once_never_hold_more_than_the_budget(self, lender):
        alice = Owner([], max_compute_ms_per_period=60_000 * 7)
        codes: list[int] = []
        go, end = threading.Barrier(30), threading.Event()
        lender._invoke = lambda target, invocation: end.wait(20) and Lender._invoke(lender, target, invocation)  # type: ignore[method-assign]

        def one() -> None:
            go.wait()
            codes.append(alice.call().status_code)

        crowd = [threading.Thread(target=one) for _ in range(30)]
        for thread in crowd:
            thread.start()
        while codes.count(402) < 23:
            pass
        assert alice.counter().held_compute_ms == 60_000 * 7
        end.set()
        for thread in crowd:
            thread.join()
        assert (codes.count(200), codes.count(402)) == (7, 23)
        assert alice.holds_nothing_and_is_right()

    def test_on_cloudflare_nothing_is_held(self, monkeypatch):
        lender = Lender()
        monkeypatch.setattr(invoke, "PROVIDERS", {Runtime.CLOUDFLARE: lender})
        alice = make_account("alice", max_compute_ms_per_period=1)
        agent = make_agent(alice)
        make_deployment(agent)
        headers = {"authorization": f"Bearer {make_token(alice)}"}
        body = {"input": {"prompt": "hi"}}
        path = f"/v1/invoke/{agent.public_id}"
        assert Client().post(path, body, content_type="application/json", headers=headers).status_code == 200

    def test_an_overdue_call_is_charged_at_what_was_held(self, lender):
        alice = Owner()
        request = invoke.rules.parse_invoke({"input": {"prompt": "hi"}})
        started = invoke.start(alice.account.pk, alice.agent.public_id, request, token_id=None, trace_id="")
        Admission.objects.filter(pk=started.invocation_id).update(expires_at=timezone.now() - timedelta(seconds=1))
        ledger.close_overdue(batch=10_000)
        admission = alice.admission()
        assert admission.outcome == Outcome.EXPIRED
        assert admission.charged_compute_ms == admission.held_compute_ms == 60_000
        assert admission.charged_tool_calls == admission.held_tool_calls > 0
        assert alice.holds_nothing_and_is_right()


class TestToolQuotas:
    def test_a_spent_quota_refuses_a_call_that_may_use_the_tool_and_not_one_with_tools_off(self, lender):
        alice = Owner(max_browser_sessions_per_period=1)
        lender.listed = [seen(Capability.BROWSER)]
        assert alice.call().status_code == 200
        error = error_of(alice.call())
        assert (error["details"]["limitType"], error["details"]["current"]) == ("browserSessions", 1)
        assert alice.call(options={"tools": "off"}).status_code == 200
        assert b'"browser":false' in lender.invocations[-1].body
        assert b'"codeInterpreter":false' in lender.invocations[-1].body

    def test_a_deployment_without_tools_is_not_judged_by_tool_quotas(self, lender):
        alice = Owner(["memory"], max_tool_calls_per_period=0)
        override(alice.account, "code_interpreter_enabled", 0)
        override(alice.account, "browser_enabled", 0)
        assert alice.call().status_code == 200

    def test_a_workload_that_reports_nothing_is_charged_what_was_seen(self, lender):
        alice = Owner()
        lender.listed = [seen(Capability.BROWSER), seen(Capability.CODE_INTERPRETER, began=1, lasted=1.5)]
        answer = alice.call()
        assert answer.json()["usage"]["toolCalls"] == 2
        admission = alice.admission()
        assert (admission.charged_tool_calls, admission.charged_code_ms, admission.charged_browser_sessions) == (
            2,
            1500,
            1,
        )
        assert alice.holds_nothing_and_is_right()

    def test_a_claim_can_only_raise(self, lender):
        alice = Owner()
        lender.used = Usage(tokens=1, compute_ms=1, tool_calls=9, code_ms=1, browser_sessions=0)
        lender.listed = [seen(Capability.BROWSER), seen(Capability.CODE_INTERPRETER, lasted=2.0)]
        alice.call()
        admission = alice.admission()
        assert (admission.charged_tool_calls, admission.charged_code_ms, admission.charged_browser_sessions) == (
            9,
            2000,
            1,
        )
        assert alice.holds_nothing_and_is_right()

    def test_what_was_seen_twice_is_charged_once(self, lender):
        alice = Owner()
        lender.listed = [seen(Capability.BROWSER)]
        alice.call()
        alice.call()
        tools.sweep_tools(timezone.now())
        assert alice.counter().used_browser_sessions == 1
        assert alice.holds_nothing_and_is_right()

    def test_what_cannot_be_seen_is_charged_at_the_hold_until_it_can(self, lender):
        alice = Owner()
        lender.blind = True
        assert alice.call().status_code == 200
        admission = alice.admission()
        assert admission.tools_estimated
        assert admission.charged_browser_sessions == admission.held_browser_sessions == 1
        assert alice.holds_nothing_and_is_right()
        lender.blind = False
        lender.listed = [seen(Capability.CODE_INTERPRETER, lasted=0.25)]
        tools.sweep_tools(timezone.now())
        admission.refresh_from_db()
        assert (admission.charged_tool_calls, admission.charged_code_ms, admission.charged_browser_sessions) == (
            1,
            250,
            0,
        )
        assert not admission.tools_estimated
        assert alice.holds_nothing_and_is_right()

    def test_a_session_that_runs_on_is_charged_as_it_grows_and_closed_when_it_vanishes(self, lender):
        alice = Owner()
        running = seen(Capability.CODE_INTERPRETER, began=1, lasted=None, remote="one")
        lender.listed = [running]
        alice.call()
        first = alice.admission().charged_code_ms
        assert first >= 1000
        tools.sweep_tools(timezone.now())
        second = alice.admission().charged_code_ms
        assert second > first
        lender.listed = []
        tools.sweep_tools(timezone.now())
        assert ToolUse.objects.get(deployment_id=alice.deployment.pk).ended_at is not None
        assert alice.admission().charged_code_ms == second
        assert alice.holds_nothing_and_is_right()

    def test_a_session_is_charged_to_the_invocation_that_it_names_and_never_to_somebody_elses(self, lender):
        alice, charlie = Owner(), Owner()
        charlie.call()
        alice.call()
        first = alice.admission()
        alice.call()
        lender.listed = [
            seen(Capability.BROWSER, public_id(Prefix.INVOCATION, first.pk)),
            seen(Capability.BROWSER, public_id(Prefix.INVOCATION, charlie.admission().pk)),
        ]
        alice.call()
        first.refresh_from_db()
        assert first.charged_browser_sessions == 1
        assert alice.counter().used_browser_sessions == 2
        assert charlie.counter().used_browser_sessions == 0
        assert alice.holds_nothing_and_is_right()

    def test_evidence_that_somebody_changed_is_found(self, lender):
        alice = Owner()
        lender.listed = [seen(Capability.CODE_INTERPRETER, lasted=2.0)]
        alice.call()
        ToolUse.objects.filter(deployment_id=alice.deployment.pk).update(code_ms=1)
        problems = [str(f) for f in verify_usage(alice.account.pk, period_of(timezone.now())).findings]
        assert any("signature does not fit" in problem for problem in problems)


class TestAfterADowngrade:
    def test_calls_are_refused_until_the_grant_is_withdrawn_and_then_run_without_the_tool(self, lender):
        alice = Owner()
        assert alice.call().status_code == 200
        assert b'"codeInterpreter":true' in lender.invocations[-1].body
        alice.downgrade()
        refused = alice.call()
        error = error_of(refused)
        assert (refused.status_code, error["details"]["limitType"], error["retryable"]) == (
            402, "codeInterpreterEnabled", True,
        )  # fmt: skip
        assert int(refused["Retry-After"]) > 0
        assert "withdrawn" in error["message"]
        assert alice.check()["error"] == error
        assert len(lender.invocations) == 1
        assert grants.sweep_grants(timezone.now()) >= 1  # other tests' accounts may have left some too
        assert lender.about("withdraw", alice.deployment) == [(alice.deployment.pk, frozenset({"codeInterpreter"}))]
        assert alice.call().status_code == 200
        assert b'"codeInterpreter":false' in lender.invocations[-1].body
        assert b'"browser":true' in lender.invocations[-1].body

    def test_a_withdrawal_that_fails_is_tried_again_and_nothing_runs_meanwhile(self, lender):
        alice = Owner()
        alice.downgrade()
        lender.broken = frozenset({"withdraw"})
        grants.sweep_grants(timezone.now())
        assert alice.call().status_code == 402
        assert Grant.objects.filter(deployment=alice.deployment, withdrawn_at=None).count() == 2
        lender.broken = frozenset()
        grants.sweep_grants(timezone.now())
        assert alice.call().status_code == 200

    def test_a_withdrawal_that_fails_keeps_no_other_agent_of_the_account_from_its_own(self, lender, monkeypatch):
        alice = Owner()
        other = make_deployment(make_agent(alice.account, runtime=Runtime.AGENTCORE), capabilities=TOOLS)
        alice.downgrade()
        stuck: list[Any] = []

        def withdraw(target: Any, capabilities: frozenset[str]) -> None:
            if target.account_id == alice.account.pk and target.deployment_id == (stuck or [target.deployment_id])[0]:
                stuck.append(target.deployment_id)
                raise DeploymentFailedError("It is stuck.", error_class="StillRunning", retryable=True)

        monkeypatch.setattr(lender, "_withdraw", withdraw)
        grants.sweep_grants(timezone.now())
        left = Grant.objects.filter(account_id=alice.account.pk, capability="codeInterpreter", withdrawn_at=None)
        assert {alice.deployment.pk, other.pk} > {stuck[0]}
        assert [grant.deployment_id for grant in left] == stuck[:1]

    def test_what_is_being_deployed_is_withdrawn_after_it_was_given_and_not_before(self, lender):
        alice = Owner()
        alice.downgrade()
        Deployment.objects.filter(pk=alice.deployment.pk).update(status="deploying")
        grants.sweep_grants(timezone.now())
        assert Grant.objects.filter(deployment=alice.deployment, withdrawn_at=None).count() == 2
        Deployment.objects.filter(pk=alice.deployment.pk).update(status="active")
        assert alice.call().status_code == 402
        grants.sweep_grants(timezone.now())
        assert alice.call().status_code == 200

    def test_giving_back_that_a_downgrade_overtakes_leaves_nothing_at_the_provider(self, lender):
        alice = Owner()
        alice.downgrade()
        grants.sweep_grants(timezone.now())
        override(alice.account, "code_interpreter_enabled", 1)

        def overtaken(target, capabilities):
            Grant.objects.filter(deployment_id=target.deployment_id, withdrawn_at=None).update(
                withdrawn_at=timezone.now()
            )
            lender._note("grant", (target.deployment_id, capabilities))

        lender._grant = overtaken  # type: ignore[method-assign]
        grants.sweep_grants(timezone.now())
        assert lender.about("withdraw", alice.deployment)[-1] == (alice.deployment.pk, frozenset({"codeInterpreter"}))

    def test_running_sessions_are_stopped_with_the_tool(self, lender):
        alice = Owner()
        alice.call(sessionId="mine")
        alice.downgrade("browser_enabled")
        grants.sweep_grants(timezone.now())
        assert lender.about("stop", alice.deployment) == [(alice.deployment.pk, "mine")]
        error = error_of(alice.call(sessionId="mine"))
        assert (error["code"], error["details"]["errorClass"], error["retryable"]) == (
            "RUNTIME_ERROR",
            "SessionEnded",
            False,
        )

    def test_a_stop_that_failed_is_tried_again(self, lender):
        alice = Owner()
        alice.call(sessionId="mine")
        override(alice.account, "agentcore_enabled", 0)
        lender.broken = frozenset({"stop"})
        grants.sweep_grants(timezone.now())
        lender.broken = frozenset()
        grants.sweep_grants(timezone.now())
        grants.sweep_grants(timezone.now())
        assert lender.about("stop", alice.deployment) == [(alice.deployment.pk, "mine")] * 2

    def test_without_the_runtime_nothing_is_retryable_and_everything_is_taken_away(self, lender):
        alice = Owner()
        override(alice.account, "agentcore_enabled", 0)
        error = error_of(alice.call())
        assert (error["details"]["limitType"], error["retryable"]) == ("runtimeGated", False)
        grants.sweep_grants(timezone.now())
        error = error_of(alice.call())
        assert (error["details"]["limitType"], error["details"]["exceeded"]) == ("runtimeGated", ["runtimeGated"])
        assert lender.invocations == []

    def test_an_upgrade_gives_back_what_the_deployment_asked_for(self, lender):
        alice = Owner()
        alice.downgrade()
        grants.sweep_grants(timezone.now())
        override(alice.account, "code_interpreter_enabled", 1)
        grants.sweep_grants(timezone.now())
        assert lender.about("grant", alice.deployment) == [(alice.deployment.pk, frozenset({"codeInterpreter"}))]
        assert alice.call().status_code == 200
        assert b'"codeInterpreter":true' in lender.invocations[-1].body
        grants.sweep_grants(timezone.now())
        assert len(lender.about("grant", alice.deployment)) == 1

    def test_giving_back_that_failed_half_way_is_tried_again(self, lender):
        alice = Owner()
        alice.downgrade()
        grants.sweep_grants(timezone.now())
        override(alice.account, "code_interpreter_enabled", 1)
        lender.broken = frozenset({"grant"})
        grants.sweep_grants(timezone.now())
        lender.broken = frozenset()
        grants.sweep_grants(timezone.now())
        assert len(lender.about("grant", alice.deployment)) == 2
        assert Grant.objects.filter(deployment=alice.deployment, withdrawn_at=None, given_at=None).count() == 0

    def test_giving_back_is_refused_by_the_adapter_whatever_its_caller_believes(self, lender):
        alice = Owner()
        alice.downgrade()
        target = deployments.target_of(alice.deployment)
        with pytest.raises(Exception, match="code interpreter is not included"):
            lender.grant(target, frozenset({"codeInterpreter"}))
        assert lender.about("grant", alice.deployment) == []


class TestSessions:
    @pytest.mark.case("AGC-01")
    def test_a_session_is_recorded_with_its_first_call_and_used_by_the_next(self, lender):
        alice = Owner([])
        first = alice.call().json()["sessionId"]
        assert alice.call(sessionId=first).json()["sessionId"] == first
        session = AgentSession.objects.get(agent_id=alice.agent.pk)
        assert (session.session_id, session.invocations, session.scope_id) == (first, 2, alice.deployment.pk)
        assert [i.session_id for i in lender.invocations] == [first, first]

    @pytest.mark.parametrize("stream", [False, True])
    def test_one_that_was_stopped_is_answered_without_a_call_and_counts_nothing(self, lender, stream):
        alice = Owner([])
        alice.call(sessionId="a/b ü")
        sessions.stop_session(alice.agent, "a/b ü", because="asked")
        used = alice.counter().used_requests
        answer = alice.call(sessionId="a/b ü", stream=stream)
        assert (answer.status_code, error_of(answer)["details"]["errorClass"]) == (502, "SessionEnded")
        assert len(lender.invocations) == 1
        assert alice.counter().used_requests == used
        assert alice.holds_nothing_and_is_right()

    @pytest.mark.parametrize("field", ["last_used_at", "started_at"])
    def test_one_past_its_idle_time_or_its_lifetime_has_ended(self, lender, field):
        alice = Owner([])
        alice.call(sessionId="old")
        AgentSession.objects.filter(agent_id=alice.agent.pk).update(**{field: timezone.now() - timedelta(days=1)})
        assert alice.call(sessionId="old").status_code == 502
        assert len(lender.invocations) == 1

    def test_another_version_starts_the_session_anew(self, lender):
        alice = Owner([])
        alice.call(sessionId="mine")
        sessions.stop_session(alice.agent, "mine", because="asked")
        make_deployment(alice.agent)
        assert alice.call(sessionId="mine").status_code == 200

    def test_a_refused_call_records_none(self, lender):
        alice = Owner([], max_requests_per_period=0)
        alice.call(sessionId="mine")
        assert not AgentSession.objects.filter(agent_id=alice.agent.pk).exists()

    def test_two_customers_may_use_the_same_name(self, lender):
        alice, charlie = Owner([]), Owner([])
        alice.call(sessionId="1")
        charlie.call(sessionId="1")
        sessions.stop_session(alice.agent, "1", because="asked")
        assert charlie.call(sessionId="1").status_code == 200


class TestVersions:
    def test_superseded_ones_beyond_the_newest_five_are_removed(self, lender):
        alice = Owner([])
        for _ in range(7):
            newer = make_deployment(alice.agent)
            Deployment.objects.filter(agent=alice.agent).exclude(pk=newer.pk).update(status="rolled_back")
        deployments._give_up_old(alice.agent, newer)
        left = Deployment.objects.filter(agent=alice.agent, removal_requested_at=None).count()
        assert left == 1 + 5

    def test_what_is_removed_has_no_grant_left(self, lender):
        alice = Owner()
        Deployment.objects.filter(pk=alice.deployment.pk).update(removal_requested_at=timezone.now())
        alice.call(sessionId="mine")
        removals.remove_remote(timezone.now())
        assert alice.deployment.pk in lender.of("remove")
        assert len(lender.about("stop", alice.deployment)) == 1
        assert not Grant.objects.filter(deployment=alice.deployment, withdrawn_at=None).exists()


def test_a_disabled_capability_without_quota_closes_the_gate_too(lender):
    alice = Owner(max_browser_sessions_per_period=0)
    entitled = read_standing(alice.account.pk).entitlements
    assert not entitled.allows(invoke.rules.limits.FLAG_OF_CAPABILITY[Capability.BROWSER])
    assert error_of(alice.call())["details"]["limitType"] == LimitType.BROWSER_ENABLED
    assert Account.objects.filter(pk=alice.account.pk).exists()
