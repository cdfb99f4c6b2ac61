"""Usage events: what became of an account's signed reports, and why."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from telemetry.actions import usage_events
from telemetry.models import Report
from tests.entitlements.admin_pages import said
from tests.factories import make_account
from tests.pages import inline_of
from tests.telemetry.workload import Workload

INERT = "<img src=x onerror=alert(1)>"


@pytest.fixture
def alice(live_db: None) -> Workload:
    return Workload()


def shown(workload: Workload, tail: str = "", **query: Any) -> Any:
    client = Client()
    client.force_login(workload.account)
    return client.get(f"/usage/events/{tail}", query)


def events_in(page: Any) -> list[str]:
    return [line.event for line in page.context["lines"]]


def park(workload: Workload, event: str) -> None:
    """Leave a report as one that failed five times: nobody's, by its row."""
    Report.objects.filter(deployment_id=workload.deployment.pk, event_id=event.encode()).update(
        status="parked", reason="failed: UniqueViolation", account_id=None, invocation_id=None, facts="", attempts=5
    )


class TestWhatIsShown:
    def test_each_status_is_there_with_its_reason_and_what_to_do(self, alice: Workload) -> None:
        invocation = alice.caller.call(tokens=1)
        event = alice.event(invocation, eventId="e1", tokens=7, toolCalls=2)
        alice.post(event)
        assert alice.statuses() == ["accepted"]
        alice.post(event)
        alice.post(event | {"tokens": 8})
        alice.report(eventId="e2", tokens=1)
        assert alice.statuses() == ["accepted", "duplicate", "rejected", "accepted"]
        park(alice, "e2")
        page = shown(alice)
        text = said(page)
        assert "7 tokens, 0 ms of compute, 2 tool calls" in text
        assert "Conflict: this eventId was accepted with other numbers. Use a new eventId for each event" in text
        assert "Nothing: repeats are harmless." in text
        assert "by a fault of ours" in text
        assert "UniqueViolation" not in text
        assert f"/invocations/inv_{invocation.hex}/" in page.content.decode()
        assert 'href="/docs/telemetry/"' in page.content.decode()
        assert events_in(page) == ["e2", "e1", "e1", "e1"]
        assert inline_of(page) == []

    def test_what_waits_and_what_is_parked_belongs_to_its_deployments_account(self, alice: Workload) -> None:
        charlie = Workload(make_account("charlie"))
        for workload, name in ((alice, "hers"), (charlie, "his")):
            Report.objects.create(
                deployment_id=workload.deployment.pk, event_id=name.encode(), body=b"{}", signature="v1=0", key_id="k",
                status="parked",
            )  # fmt: skip
        assert events_in(shown(alice)) == events_in(shown(alice, status="parked")) == ["hers"]
        assert events_in(shown(alice, agent=alice.agent.public_id)) == ["hers"]
        assert events_in(shown(charlie)) == ["his"]
        assert events_in(shown(alice, status="accepted")) == []

    def test_nothing_yet_says_what_to_do_and_nothing_found_says_so(self, alice: Workload) -> None:
        assert "No event yet." in said(shown(alice))
        assert "No event is like this." in said(shown(alice, status="rejected"))

    def test_nobody_elses_are_in_it(self, alice: Workload) -> None:
        charlie = Workload(make_account("charlie"))
        charlie.report(eventId="his")
        charlie.statuses()
        assert events_in(shown(alice)) == []
        assert shown(alice, agent=charlie.agent.public_id).status_code == 400
        # She may name his call in a report of hers, and is not led to his receipt.
        theirs = charlie.caller.call()
        alice.report(theirs, eventId="hers")
        assert alice.judged() == [("rejected", "the invocation belongs to another deployment")]
        page = shown(alice)
        assert "Report the id that this deployment was called with." in said(page)
        assert theirs.hex not in page.content.decode()
        assert Client().get("/usage/events/").status_code == 302

    def test_bodies_are_not_shown_and_names_are_text(self, alice: Workload) -> None:
        alice.report(eventId=INERT, provider={"secret": "of the body"})
        assert alice.statuses() == ["accepted"]
        page = shown(alice)
        assert "<img" not in page.content.decode()
        assert events_in(page) == [INERT]
        assert "of the body" not in page.content.decode()


class TestFilters:
    def test_a_status_and_an_agent_leave_only_theirs(self, alice: Workload) -> None:
        other = Workload(alice.account)
        sent = {f"{x}{n}": w.event(eventId=f"{x}{n}") for x, w in (("a", alice), ("b", other)) for n in range(3)}
        for n in range(3):
            alice.post(sent[f"a{n}"])
            other.post(sent[f"b{n}"])
        alice.statuses()
        other.statuses()
        alice.post(sent["a0"] | {"tokens": 2})
        alice.post(sent["a1"])
        other.post(sent["b1"])
        alice.statuses()
        other.statuses()
        assert events_in(shown(alice, agent=other.agent.public_id)) == ["b1", "b2", "b1", "b0"]
        assert events_in(shown(alice, agent=other.agent.public_id, status="accepted")) == ["b2", "b1", "b0"]
        assert events_in(shown(alice, agent=other.agent.public_id, status="duplicate")) == ["b1"]
        assert events_in(shown(alice, status="duplicate")) == ["b1", "a1"]
        assert events_in(shown(alice, status="rejected")) == ["a0"]

    @pytest.mark.parametrize("at_once", [200, 26])
    def test_pages_are_turned_without_missing_or_repeating_one(
        self, alice: Workload, monkeypatch: pytest.MonkeyPatch, at_once: int
    ) -> None:
        monkeypatch.setattr(usage_events, "_AT_ONCE", at_once)
        for n in range(60):
            alice.report(eventId=f"e{n}")
        alice.statuses()
        park(alice, "e20")
        park(alice, "e59")
        every = [f"e{n}" for n in range(59, -1, -1)]
        accepted = [event for event in every if event not in ("e20", "e59")]
        for query, expected in (
            ({}, every),
            ({"agent": alice.agent.public_id}, every),
            ({"status": "accepted"}, accepted),
        ):
            page = shown(alice, **query)
            found = events_in(page)
            while page.context["older"]:
                page = shown(alice, page.context["older"])
                found += events_in(page)
            assert found == expected

    def test_a_time_is_from_then_on_and_before_then(self, alice: Workload) -> None:
        noon = (timezone.now() - timedelta(days=10)).replace(hour=12, minute=0, second=0, microsecond=0)
        for n in range(6):
            at = noon + timedelta(hours=n)
            alice.keep(alice.event(eventId=f"e{n}", timestamp=at.isoformat()), at)

        def clock(time: str, day: int = 0) -> str:
            return f"{noon + timedelta(days=day):%Y-%m-%d}T{time}"

        assert set(alice.statuses()) == {"accepted"}
        park(alice, "e5")
        span = {"from": clock("13:00"), "to": clock("15:00")}
        for more in ({}, {"agent": alice.agent.public_id}):
            assert events_in(shown(alice, **span, **more)) == ["e2", "e1"]
            assert events_in(shown(alice, **{"from": clock("15:30")}, **more)) == ["e5", "e4"]
            assert events_in(shown(alice, to=clock("12:30"), **more)) == ["e0"]
            assert events_in(shown(alice, to=clock("12:30", 1), **more)) == ["e5", "e4", "e3", "e2", "e1", "e0"]

    @pytest.mark.parametrize(
        ("query", "status"),
        [
            ({"from": "nonsense"}, 400), ({"from": "0001-01-01T00:00"}, 400), ({"agent": "agt_x"}, 400),
            ({"from": "2034-05-16T12:00", "to": "2034-05-15T12:00"}, 400), ({"status": "mars"}, 200),
            ({"cursor": "mars"}, 404), ({"from": "2034-05-16T12:00"}, 200),
        ],
    )  # fmt: skip
    def test_any_address_is_answered(self, alice: Workload, query: dict[str, str], status: int) -> None:
        assert shown(alice, **query).status_code == status

    def test_it_asks_few_questions_of_the_database(self, alice: Workload) -> None:
        for n in range(26):
            alice.report(eventId=f"e{n}")
        alice.statuses()
        client = Client()
        client.force_login(alice.account)
        query = {"agent": alice.agent.public_id, "from": "2020-01-01T00:00", "to": "2034-01-01T00:00"}
        with CaptureQueriesContext(connection) as asked:
            assert len(events_in(client.get("/usage/events/", query))) == 25
        assert len(asked) <= 15
