"""The list of invocations, and the receipt of one."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from entitlements import ledger
from entitlements.enums import LimitType, Outcome, Runtime
from runtimes.actions import receipts
from runtimes.models import ToolUse
from tests.entitlements.admin_pages import said
from tests.entitlements.callers import FAILED, SUCCEEDED, expire, used
from tests.factories import make_account, make_token, override
from tests.pages import inline_of
from tests.telemetry.workload import Workload
from webhost.ids import new_id

INERT = "<img src=x onerror=alert(1)>"


@pytest.fixture
def alice(live_db: None) -> Workload:
    return Workload(max_tokens_per_period=100_000)


def signed_in(workload: Workload) -> Client:
    client = Client()
    client.force_login(workload.account)
    return client


def receipt(workload: Workload, invocation: UUID, status: int = 200) -> Any:
    page = signed_in(workload).get(f"/invocations/inv_{invocation.hex}/")
    assert page.status_code == status
    return page


def listed(workload: Workload, **query: Any) -> Any:
    return signed_in(workload).get("/invocations/", query)


def ids_in(page: Any) -> list[UUID]:
    return [line.receipt.pk for line in page.context["lines"]]


class TestTheReceipt:
    def test_a_call_that_succeeded_shows_the_limits_then_and_who_saw_what(self, alice: Workload) -> None:
        kept = override(alice.account, "max_requests_per_period", 50)
        invocation = alice.caller.admit(tokens=4000)
        ledger.settle(invocation, SUCCEEDED, used(tokens=10, compute_ms=20), latency_ms=123)
        alice.report(invocation, tokens=15, computeMs=5)
        assert alice.statuses() == ["accepted"]
        page = receipt(alice, invocation)
        text = said(page)
        assert "It was answered" in text
        assert "the gateway and 1 signed report" in text
        assert "Tokens 4,000 10 15 – 15" in text
        assert "Compute (ms) 0 20 5 – 20" in text
        assert f"Requests 1 50 set by support (override {kept.pk})" in text
        assert "Tokens 4,000 100,000 tier " in text
        assert "123 ms" in text
        assert f"/agents/{alice.agent.public_id}/deployments/{alice.deployment.public_id}/" in page.content.decode()
        assert "tool" not in text.lower().partition("limits then")[2].partition("signed reports")[0]
        assert inline_of(page) == []

    @pytest.mark.parametrize("outcome", ["open", "failed", "voided", "expired", "adopted", "guessed"])
    def test_each_way_to_end_says_why_it_is_charged_so(self, alice: Workload, outcome: str) -> None:
        invocation = new_id() if outcome == "adopted" else alice.caller.admit(tokens=4000, compute_ms=500)
        words = {
            "open": "It still runs", "failed": "The agent was reached and failed", "voided": "Nothing is charged",
            "expired": "so what was held is charged, as an estimate", "adopted": "the gateway never saw it",
            "guessed": "they are guessed from the text",
        }  # fmt: skip
        if outcome == "failed":
            ledger.settle(invocation, FAILED, used(tokens=1), error_class="TypeError")
        elif outcome == "voided":
            ledger.void(invocation, "Unreachable")
        elif outcome == "expired":
            assert expire(invocation, alice.caller)
        elif outcome == "adopted":
            alice.report(invocation, tokens=3)
            assert alice.statuses() == ["accepted"]
        elif outcome == "guessed":
            ledger.settle(invocation, SUCCEEDED, used(tokens=9, tokens_estimated=True))
        text = said(receipt(alice, invocation))
        assert words[outcome] in text
        assert ("estimated" in text) == (outcome in ("expired", "guessed"))
        assert ("No limit judged it" in text) == (outcome == "adopted")

    def test_what_became_of_each_report_is_shown_with_its_reason(self, alice: Workload) -> None:
        invocation = alice.caller.call(tokens=1)
        event = alice.event(invocation, tokens=2)
        alice.post(event)
        assert alice.statuses() == ["accepted"]
        alice.post(event)
        alice.post(event | {"tokens": 9})
        assert alice.statuses() == ["accepted", "duplicate", "rejected"]
        text = said(receipt(alice, invocation))
        assert "2 tokens, 0 ms of compute Counted." in text
        assert "It counts once." in text
        assert "Conflict: this eventId was accepted with other numbers. Use a new eventId" in text

    def test_what_a_stranger_reports_of_a_call_is_not_shown_to_its_owner(self, alice: Workload) -> None:
        invocation = alice.caller.call(tokens=1)
        charlie = Workload(make_account("charlie"))
        charlie.report(invocation, eventId="of-charlie", tokens=99)
        assert charlie.judged()[0][0] == "rejected"
        assert "of-charlie" not in receipt(alice, invocation).content.decode()

    def test_tools_that_were_seen_are_listed_without_the_providers_ids(self, live_db: None) -> None:
        alice = Workload(
            runtime=Runtime.AGENTCORE, agentcore_enabled=True, code_interpreter_enabled=True,
            max_tool_calls_per_period=10, max_code_execution_seconds_per_period=100,
        )  # fmt: skip
        tools = frozenset({LimitType.TOOL_CALLS, LimitType.CODE_EXECUTION_SECONDS})
        invocation = alice.caller.but(tools=tools).admit(tool_calls=2, code_ms=5000)
        ledger.settle(invocation, SUCCEEDED, used(tool_calls=1, code_ms=1200))
        ToolUse.objects.create(
            account_id=alice.account.pk, deployment_id=alice.deployment.pk, invocation_id=invocation,
            kind="codeInterpreter", remote_id="01REMOTE", started_at=timezone.now(), ended_at=timezone.now(),
            code_ms=1200, seen_at=timezone.now(), mac="m",
        )  # fmt: skip
        page = receipt(alice, invocation)
        text = said(page)
        assert "Code execution (ms) 5,000 1,200 – 1,200 1,200" in text
        assert "Code execution (ms) 5,000 100,000 tier" in text
        assert "codeInterpreter" in text
        assert "our own look at its tools" in text
        assert "01REMOTE" not in page.content.decode()

    def test_who_called_is_told(self, alice: Workload) -> None:
        make_token(alice.account, name=INERT)
        token = alice.account.auth_token_set.get()
        by_token, by_backend = new_id(), new_id()
        for invocation, who in ((by_token, {"token_id": token.id}), (by_backend, {"delegated_by": "shop"})):
            subject = ledger.Subject(alice.account.pk, alice.agent.pk, alice.deployment.pk, "cloudflare", 60, **who)
            assert ledger.judge(invocation, subject)
        assert "&lt;img src=x onerror=alert(1)&gt;" in receipt(alice, by_token).content.decode()
        assert "the trusted backend shop, for this account" in said(receipt(alice, by_backend))
        assert "a page, signed in" in said(receipt(alice, alice.caller.admit()))

    def test_names_and_ids_of_others_are_text(self, alice: Workload) -> None:
        invocation = new_id()
        ledger.judge(invocation, alice.caller.subject, session_id=INERT)
        ledger.settle(invocation, FAILED, used(), error_class=INERT)
        alice.report(invocation, eventId=INERT)
        assert alice.statuses() == ["accepted"]
        page = receipt(alice, invocation)
        assert "<img" not in page.content.decode()
        assert inline_of(page) == []
        assert "<img" not in listed(alice, q=INERT).content.decode()

    def test_charlie_is_answered_as_if_it_did_not_exist(self, alice: Workload) -> None:
        invocation = alice.caller.call()
        charlie = Workload(make_account("charlie"))
        receipt(charlie, invocation, status=404)
        receipt(charlie, new_id(), status=404)
        assert signed_in(alice).get("/invocations/nonsense/").status_code == 404
        assert Client().get(f"/invocations/inv_{invocation.hex}/").status_code == 302

    def test_a_deleted_agent_and_a_token_that_is_gone_leave_a_receipt_without_dead_links(self, alice: Workload) -> None:
        invocation = new_id()
        subject = ledger.Subject(
            alice.account.pk, alice.agent.pk, alice.deployment.pk, "cloudflare", 60, token_id=new_id()
        )
        ledger.judge(invocation, subject)
        type(alice.agent).objects.filter(pk=alice.agent.pk).update(deleted_at=timezone.now(), removed_at=timezone.now())
        page = receipt(alice, invocation)
        assert "(deleted)" in said(page)
        assert "(deleted since)" in said(page)
        assert "/agents/agt_" not in page.content.decode()

    def test_it_asks_few_questions_of_the_database(self, alice: Workload) -> None:
        invocation = alice.caller.call(tokens=1)
        for n in range(12):
            alice.report(invocation, eventId=f"e{n}")
        alice.statuses()
        client = signed_in(alice)
        with CaptureQueriesContext(connection) as asked:
            client.get(f"/invocations/inv_{invocation.hex}/")
        assert len(asked) <= 15


class TestTheList:
    def test_it_shows_the_newest_first_and_turns_pages(self, alice: Workload) -> None:
        made = [alice.caller.call(tokens=n) for n in range(30)]
        first = listed(alice)
        assert ids_in(first) == made[:4:-1]
        assert f"/invocations/inv_{made[-1].hex}/" in first.content.decode()
        older = signed_in(alice).get(f"/invocations/{first.context['older']}")
        assert ids_in(older) == made[4::-1]
        assert older.context["older"] == ""
        assert inline_of(first) == []

    def test_filters_leave_only_what_they_name_also_on_the_next_page(self, alice: Workload) -> None:
        made = [alice.caller.admit() for _ in range(60)]
        for n, invocation in enumerate(made):
            ledger.settle(invocation, FAILED if n % 2 else SUCCEEDED, used())
        first = listed(alice, outcome="failed", agent=alice.agent.public_id)
        older = signed_in(alice).get(f"/invocations/{first.context['older']}")
        assert ids_in(first) + ids_in(older) == made[::-1][::2]

    def test_a_time_is_from_then_on_and_before_then(self, alice: Workload) -> None:
        noon = datetime(2034, 5, 15, 12, tzinfo=UTC)
        made = [alice.caller.call(at=noon + timedelta(hours=n)) for n in range(4)]
        page = listed(alice, **{"from": "2034-05-15T13:00", "to": "2034-05-15T15:00"})
        assert ids_in(page) == [made[2], made[1]]

    def test_an_id_opens_its_receipt_and_a_trace_id_finds_its_calls(self, alice: Workload) -> None:
        invocation, trace = new_id(), f"trc_{new_id().hex}"
        ledger.judge(invocation, alice.caller.subject, trace_id=trace)
        alice.caller.call()
        found = listed(alice, q=f" inv_{invocation.hex} ")
        assert (found.status_code, found["Location"]) == (302, f"/invocations/inv_{invocation.hex}/")
        assert ids_in(listed(alice, q=trace)) == [invocation]
        charlie = Workload(make_account("charlie"))
        assert ids_in(listed(charlie, q=trace)) == []
        assert "No call is like this." in said(listed(charlie, q=f"inv_{invocation.hex}"))

    def test_nothing_yet_says_what_to_do(self, alice: Workload) -> None:
        page = listed(alice)
        assert "No call yet." in said(page)
        assert "No call is like this." in said(listed(alice, outcome="failed"))

    def test_nobody_elses_calls_and_agents_are_in_it(self, alice: Workload) -> None:
        charlie = Workload(make_account("charlie"))
        charlie.caller.call()
        page = listed(alice)
        assert ids_in(page) == []
        assert charlie.agent.name not in page.content.decode()
        refused = listed(alice, agent=charlie.agent.public_id)
        assert refused.status_code == 400
        assert "You have no such agent." in said(refused)

    @pytest.mark.parametrize(
        ("query", "status"),
        [
            ({"from": "nonsense"}, 400), ({"from": "0001-01-01T00:00"}, 400), ({"to": "9999-12-31T23:59:59-12:00"}, 400),
            ({"from": "2034-05-16T12:00", "to": "2034-05-15T12:00"}, 400), ({"agent": "agt_x"}, 400),
            ({"outcome": "mars"}, 200), ({"cursor": "mars"}, 404), ({"q": "\x00"}, 200), ({"q": "x" * 500}, 200),
            ({"to": "2034-05-16T12:00+25:00"}, 400),
        ],
    )  # fmt: skip
    def test_any_address_is_answered(self, alice: Workload, query: dict[str, str], status: int) -> None:
        assert listed(alice, **query).status_code == status

    def test_a_rare_call_is_looked_for_in_steps_that_miss_none_and_show_none_twice(
        self, alice: Workload, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(receipts, "_MOST_LOOKED_AT", 7)
        made = [alice.caller.admit() for _ in range(40)]
        for n, invocation in enumerate(made):
            ledger.settle(invocation, FAILED if n in (0, 1, 6, 7, 39) else SUCCEEDED, used())
        found: list[UUID] = []
        page, steps = listed(alice, outcome="failed"), 0
        while True:
            found += ids_in(page)
            steps += 1
            if not page.context["older"]:
                break
            assert "back to" in said(page)
            page = signed_in(alice).get(f"/invocations/{page.context['older']}")
        assert found == [made[n] for n in (39, 7, 6, 1, 0)]
        assert steps == 6

    def test_it_asks_few_questions_of_the_database(self, alice: Workload) -> None:
        for _ in range(26):
            alice.caller.call()
        client = signed_in(alice)
        with CaptureQueriesContext(connection) as asked:
            client.get("/invocations/", {"outcome": Outcome.SUCCEEDED.value, "agent": alice.agent.public_id})
        assert len(asked) <= 15
