"""/v1/invocations: receipts that explain a decision. /v1/limits/check: the same answer beforehand, for nothing."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import connection, transaction

from entitlements import ledger
from entitlements.enums import Outcome
from entitlements.models import Denial, PeriodCounter
from runtimes.actions.receipts import ReceiptFilter, receipts_of
from runtimes.errors import RuntimeFailedError
from runtimes.models import Agent
from runtimes.providers import PROVIDERS
from tests.api import Answer, Api
from tests.factories import make_account, make_agent, make_deployment, make_tier, override
from tests.runtimes.stub import StubProvider
from webhost.api import validated
from webhost.ids import new_id
from webhost.paging import PageQuery, paginate

pytestmark = pytest.mark.usefixtures("live_db")
ASK = {"input": {"prompt": "hello"}}


@pytest.fixture(autouse=True)
def provider(monkeypatch: pytest.MonkeyPatch) -> StubProvider:
    stub = StubProvider()
    monkeypatch.setitem(PROVIDERS, "cloudflare", stub)  # type: ignore[arg-type]
    return stub


@pytest.fixture
def alice() -> Api:
    return Api(make_account("alice", max_concurrent_invocations=10, requests_per_minute=1000))


@pytest.fixture
def agent(alice: Api) -> Agent:
    assert alice.account
    made = make_agent(alice.account)
    make_deployment(made)
    return made


def invoke(alice: Api, agent: Agent) -> str:
    return str(alice.post(f"/v1/invoke/{agent.public_id}", ASK).json["invocationId"])


class TestReceipts:
    def test_a_receipt_shows_decision_limits_counters_usage_and_outcome(self, alice: Api, agent: Agent) -> None:
        assert alice.account
        made = override(alice.account, "max_requests_per_period", 5)
        trace = "trc_" + "b" * 32
        answer = alice.post(f"/v1/invoke/{agent.public_id}", ASK, x_trace_id=trace)
        receipt = alice.get(f"/v1/invocations/{answer.json['invocationId']}").json
        assert receipt["agentId"] == agent.public_id
        assert (receipt["outcome"], receipt["errorClass"], receipt["traceId"]) == ("succeeded", None, trace)
        assert receipt["sessionId"] == answer.json["sessionId"]
        assert (receipt["limits"]["requests"], receipt["counters"]["requests"]) == (5, 1)
        assert receipt["counters"]["concurrency"] == 1
        assert receipt["counters"]["requestsPerMinute"] == 1
        assert receipt["overrides"]["maxRequestsPerPeriod"] == 5
        assert receipt["tier"]["slug"] == "free"
        assert receipt["usage"] == {
            "requests": 1, "tokens": 3, "computeMs": 5, "toolCalls": 0, "codeExecutionMs": 0, "browserSessions": 0,
            "tokensEstimated": False, "isEstimate": False,
        }  # fmt: skip
        assert receipt["tokenId"] == alice.get("/v1/tokens").json["items"][0]["id"]
        assert receipt["settledAt"] >= receipt["admittedAt"]
        assert made.pk

    def test_a_failure_keeps_its_class_and_counts(self, alice: Api, agent: Agent, provider: StubProvider) -> None:
        provider.fail = RuntimeFailedError("No.", error_class="Boom")
        assert alice.post(f"/v1/invoke/{agent.public_id}", ASK).status == 502
        receipt = alice.get("/v1/invocations").json["items"][0]
        assert (receipt["outcome"], receipt["errorClass"], receipt["usage"]["requests"]) == ("failed", "Boom", 1)

    def test_a_stranger_gets_404_for_a_receipt(self, alice: Api, agent: Agent) -> None:
        mine = invoke(alice, agent)
        charlie = Api(make_account("charlie"))
        assert charlie.get(f"/v1/invocations/{mine}").status == 404
        assert charlie.get("/v1/invocations").json == {"items": [], "nextCursor": None}


class TestListing:
    def test_receipts_come_newest_first_in_pages(self, alice: Api, agent: Agent) -> None:
        made = [invoke(alice, agent) for _ in range(5)]
        seen, cursor = [], ""
        while cursor is not None:
            page = alice.get(f"/v1/invocations?limit=2&cursor={cursor}").json
            seen += [receipt["id"] for receipt in page["items"]]
            cursor = page["nextCursor"]
        assert seen == made[::-1]

    def test_they_are_chosen_by_agent_outcome_and_span(self, alice: Api, agent: Agent, provider: StubProvider) -> None:
        assert alice.account
        other = make_agent(alice.account)
        make_deployment(other)
        first, second = invoke(alice, agent), invoke(alice, other)
        provider.fail = RuntimeFailedError("No.", error_class="Boom")
        alice.post(f"/v1/invoke/{agent.public_id}", ASK)

        def ids(query: str) -> list[str]:
            return [receipt["id"] for receipt in alice.get(f"/v1/invocations?{query}").json["items"]]

        at = alice.get(f"/v1/invocations/{second}").json["admittedAt"]
        assert ids(f"agent={other.public_id}") == [second]
        assert ids("outcome=succeeded") == [second, first]
        assert len(ids("outcome=failed")) == 1
        assert ids("outcome=voided") == []
        assert ids(f"from={at}")[-1] == second, "from is included"
        assert ids(f"to={at}") == [first], "to is not"

    @pytest.mark.parametrize("query", ["outcome=great", "from=yesterday", "to=2026", "from=2026-01-02T00:00:00Z&to=2026-01-01T00:00:00Z",
                                       "from=2026-01-01T00:00:00Z&to=2026-01-01T00:00:00Z"])  # fmt: skip
    def test_what_cannot_be_a_filter_is_400(self, alice: Api, query: str) -> None:
        assert alice.get(f"/v1/invocations?{query}").status == 400

    def test_months_follow_each_other(self, alice: Api, agent: Agent) -> None:
        months = [datetime(2026, month, 15, tzinfo=UTC) for month in (3, 4, 5)]
        for at in months:
            admission = new_id()
            ledger.judge(admission, subject(alice, agent), at=at)
            ledger.settle(admission, Outcome.SUCCEEDED, ledger.NOTHING)
        seen, cursor = [], ""
        while cursor is not None:
            page = alice.get(f"/v1/invocations?limit=1&cursor={cursor}").json
            seen += [receipt["periodKey"] for receipt in page["items"]]
            cursor = page["nextCursor"]
        assert seen == ["2026-05", "2026-04", "2026-03"]
        april = alice.get("/v1/invocations?from=2026-04-01T00:00:00Z&to=2026-05-01T00:00:00Z").json["items"]
        assert [receipt["periodKey"] for receipt in april] == ["2026-04"]

    def test_a_page_deep_in_the_list_is_one_step_down_the_index(self, alice: Api, agent: Agent) -> None:
        invoke(alice, agent)
        seen: list[str] = []

        def watch(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
            seen.append(sql % tuple(f"'{p}'" for p in params))
            return execute(sql, params, many, context)

        cursor = "WyIyMDI2LTA1LTAxIiwgIjAxOGYwMDAwLTAwMDAtNzAwMC04MDAwLTAwMDAwMDAwMDAwMCJd"
        query = validated(PageQuery, {"limit": 25, "cursor": cursor})
        with connection.execute_wrapper(watch):
            paginate(receipts_of(alice.account_id, ReceiptFilter()), query, by=("period", "id"))
        with transaction.atomic(), connection.cursor() as c:
            c.execute("SET LOCAL enable_seqscan = off")
            c.execute(f"EXPLAIN {seen[0]}")
            plan = "\n".join(row[0] for row in c.fetchall())
        assert "admission_of_account" in plan
        assert "ROW(period, id) <" in plan.split("Index Cond")[1]
        assert "Sort" not in plan


def subject(alice: Api, agent: Agent) -> ledger.Subject:
    agent.refresh_from_db()
    assert agent.active_deployment_id
    return ledger.Subject(alice.account_id, agent.pk, agent.active_deployment_id, "cloudflare", 60)


class TestAskingBeforehand:
    def check(self, alice: Api, **body: Any) -> Answer:
        return alice.post("/v1/limits/check", body)

    def test_what_would_pass_is_allowed_and_nothing_is_consumed(self, alice: Api, agent: Agent) -> None:
        for _ in range(3):
            assert self.check(alice, agentId=agent.public_id).json["allowed"] is True
        assert not PeriodCounter.objects.filter(account_id=alice.account_id).exists()
        assert not Denial.objects.filter(account_id=alice.account_id).exists()

    def test_the_refusal_is_the_very_one_that_the_invocation_gets(
        self, alice: Api, agent: Agent, provider: StubProvider
    ) -> None:
        assert alice.account
        override(alice.account, "max_requests_per_period", 1)
        invoke(alice, agent)
        asked = self.check(alice, agentId=agent.public_id)
        refused = alice.post(f"/v1/invoke/{agent.public_id}", ASK)
        assert (asked.status, asked.json["allowed"], refused.status) == (200, False, 402)
        assert asked.json["error"] == refused.json["error"]
        assert len(provider.invocations) == 1

    def test_an_estimate_that_does_not_fit_is_said_to_be_one(self, alice: Api, agent: Agent) -> None:
        assert alice.account
        override(alice.account, "max_tokens_per_period", 100)
        assert self.check(alice, agentId=agent.public_id, estimate={"tokens": 100}).json["allowed"] is True
        refused = self.check(alice, agentId=agent.public_id, estimate={"tokens": 101})
        assert refused.details["limitType"] == "tokens"
        assert refused.details["estimate"] == 101

    def test_an_agent_that_cannot_be_invoked_at_all_says_so(self, alice: Api, agent: Agent) -> None:
        assert alice.account
        empty = make_agent(alice.account)
        assert self.check(alice, agentId=empty.public_id).json["error"]["code"] == "CONFLICT"
        alice.post(f"/v1/agents/{agent.public_id}/disable")
        assert self.check(alice, agentId=agent.public_id).json["error"]["code"] == "CONFLICT"

    def test_a_runtime_and_its_capabilities_are_answered_by_the_gates(self, alice: Api) -> None:
        assert self.check(alice, runtimeProvider="cloudflare").json["allowed"] is True
        refused = self.check(alice, runtimeProvider="agentcore", capabilities=["memory", "browser"])
        assert refused.details["limitType"] == "runtimeGated"
        assert refused.details["exceeded"] == ["runtimeGated", "memoryEnabled", "browserEnabled"]
        dave = Api(make_account("dave", make_tier(agentcore_enabled=True, memory_enabled=True)))
        assert self.check(dave, runtimeProvider="agentcore", capabilities=["memory"]).json["allowed"] is True
        assert (
            self.check(dave, runtimeProvider="agentcore", capabilities=["browser"]).details["limitType"]
            == "browserEnabled"
        )

    @pytest.mark.parametrize("body", [
        {}, {"agentId": "x", "runtimeProvider": "cloudflare"}, {"runtimeProvider": "x"}, {"agentId": "agt_x", "estimate": []},
        {"agentId": "agt_x", "estimate": {"tokens": -1}}, {"agentId": "agt_x", "estimate": {"tokens": 10**13}},
        {"agentId": "agt_x", "estimate": {"requests": 1}}, {"runtimeProvider": "agentcore", "capabilities": ["root"]},
        {"agentId": "agt_x", "estimate": {"tokens": 1.5}}, {"agentId": "agt_x", "account": "acc_x"},
    ])  # fmt: skip
    def test_what_is_no_question_is_400(self, alice: Api, body: object) -> None:
        assert alice.post("/v1/limits/check", body).status == 400


def test_receipts_are_kept_for_as_long_as_anybody_asks(alice: Api, agent: Agent) -> None:
    mine = invoke(alice, agent)
    since = (datetime.now(UTC) - timedelta(days=400)).isoformat().replace("+", "%2B")
    assert [r["id"] for r in alice.get(f"/v1/invocations?from={since}").json["items"]] == [mine]
