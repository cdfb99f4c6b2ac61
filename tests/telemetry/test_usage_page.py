"""The usage page and its file: lines of any month that add up to the ledger exactly."""

from __future__ import annotations

import csv
import io
import re
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from entitlements import ledger
from entitlements.enums import Runtime
from entitlements.models import Adjustment, Movement, PeriodCounter
from runtimes.models import Agent
from telemetry import rules
from telemetry.actions.breakdown import MEASURES, Days, Group, breakdown_of, month_of
from telemetry.actions.roll_up import roll_up
from telemetry.actions.usage import RETENTION_ACTOR, usage_of
from tests.entitlements.admin_pages import said
from tests.entitlements.callers import FAILED, SUCCEEDED, used
from tests.factories import make_account, make_tier
from tests.pages import inline_of
from tests.telemetry.workload import Workload
from webhost.period import key_of, period_of

pytestmark = pytest.mark.usefixtures("live_db")

NOON = datetime(2035, 5, 15, 12, tzinfo=UTC)
MAY = date(2035, 5, 1)
MARK = "<img src=x onerror=alert(1)>"


def call(workload: Workload, at: datetime, outcome: Any = SUCCEEDED, **use: int) -> None:
    ledger.settle(workload.caller.admit(at=at), outcome, used(**use), error_class="E" if outcome == FAILED else None)


def rolled_up(workload: Workload) -> None:
    while Movement.objects.filter(account_id=workload.account.id).exists():
        roll_up()


@pytest.fixture
def alice() -> Workload:
    """Two agents on two runtimes, some days of May: rolled up, journalled, running, and adjusted by support."""
    made = Workload(agentcore_enabled=True)
    other = Workload(made.account, runtime=Runtime.AGENTCORE)
    call(made, NOON - timedelta(days=9), tokens=10, compute_ms=7)
    call(made, NOON - timedelta(days=9), FAILED, tokens=5)
    call(other, NOON, tokens=100, tool_calls=3, code_ms=1_500, browser_sessions=1)
    rolled_up(made)
    call(made, NOON, tokens=1)
    made.caller.report(made.caller.admit(at=NOON + timedelta(days=1)), tokens=30)
    made.caller.adjust(MAY, tokens=-20)
    # What retention carries of receipts that it took is in the hours already.
    Adjustment.objects.create(account_id=made.account.pk, period=MAY, tokens=9_999, actor=RETENTION_ACTOR, reason="x")
    return made


def signed_in(workload: Workload) -> Client:
    client = Client()
    client.force_login(workload.account)
    return client


def page_of(workload: Workload, query: str = "period=2035-05") -> Any:
    return signed_in(workload).get(f"/usage/?{query}")


def file_of(workload: Workload, query: str = "period=2035-05") -> list[list[str]]:
    answer = signed_in(workload).get(f"/usage/csv/?{query}")
    assert answer.streaming
    assert answer["Content-Type"] == "text/csv; charset=utf-8"
    return list(csv.reader(io.StringIO(answer.getvalue().decode())))


class TestTheSums:
    @pytest.mark.parametrize("group", list(Group))
    def test_lines_add_up_to_the_ledger_however_they_are_grouped(self, alice: Workload, group: Group) -> None:
        use, found = usage_of(alice.account.pk, MAY), breakdown_of(alice.account.pk, month_of(MAY), group)
        assert {m: getattr(found.total.quantities, m) for m in MEASURES} == alice.used(MAY)
        assert found.total.quantities == use.totals
        assert found.total.cost == use.cost
        assert found.total.errors == sum(r.errors for r in use.by_runtime) == 1
        assert found.running.quantities == rules.Quantities(requests=1, tokens=30)
        assert found.adjusted.quantities == rules.Quantities(tokens=-20)
        rolled_up(alice)
        assert breakdown_of(alice.account.pk, month_of(MAY), group).total == found.total

    def test_each_group_has_its_lines(self, alice: Workload) -> None:
        def tokens(group: Group) -> list[int]:
            found = breakdown_of(alice.account.pk, month_of(MAY), group)
            return sorted(line.quantities.tokens for line in found.lines.values())

        assert [tokens(group) for group in (Group.AGENT, Group.DEPLOYMENT, Group.RUNTIME)] == [[16, 100]] * 3
        assert tokens(Group.DAY) == [15, 101]

    def test_days_of_a_month_are_what_was_used_on_them(self, alice: Workload) -> None:
        found = breakdown_of(alice.account.pk, Days(date(2035, 5, 15), date(2035, 5, 15)), Group.RUNTIME)
        assert found.total.quantities.tokens == 101
        assert not any(vars(found.adjusted.quantities).values())
        first, rest = Days(MAY, date(2035, 5, 9)), Days(date(2035, 5, 10), date(2035, 5, 31))
        halves = [breakdown_of(alice.account.pk, days, Group.DAY).total.quantities.tokens for days in (first, rest)]
        assert sum(halves) == alice.used(MAY)["tokens"] + 20

    def test_the_neighbours_of_a_month_are_not_in_it(self, alice: Workload) -> None:
        before = breakdown_of(alice.account.pk, month_of(MAY), Group.DAY).total
        call(alice, datetime(2035, 4, 30, 23, 59, 59, tzinfo=UTC), tokens=7_000)
        call(alice, datetime(2035, 6, 1, tzinfo=UTC), tokens=7_000)
        assert breakdown_of(alice.account.pk, month_of(MAY), Group.DAY).total == before

    def test_nothing_of_charlie_is_in_it(self, alice: Workload) -> None:
        before = breakdown_of(alice.account.pk, month_of(MAY), Group.AGENT)
        charlie = Workload(make_account("charlie", make_tier()))
        call(charlie, NOON, tokens=5)
        charlie.caller.admit(at=NOON)
        charlie.caller.adjust(MAY, tokens=-1)
        assert breakdown_of(alice.account.pk, month_of(MAY), Group.AGENT) == before


class TestThePage:
    def test_the_total_is_the_ledgers(self, alice: Workload) -> None:
        page = page_of(alice)
        (total,) = re.findall(r'<tr id="total">.*?</tr>', page.content.decode(), flags=re.DOTALL)
        figures = [int(n.replace(",", "")) for n in re.findall(r"<strong>([\d,]+)</strong>", total)]
        assert figures == [*alice.used(MAY).values(), 1]
        assert "Still running" in said(page)
        assert "Adjusted by support" in said(page)
        assert inline_of(page) == []
        assert 'id="tokens-data"' in page.content.decode()

    def test_it_leads_to_each_agent_and_each_version(self, alice: Workload) -> None:
        agent = f"/agents/{alice.agent.public_id}/metrics/"
        assert f'href="{agent}"' in page_of(alice).content.decode()
        versions = page_of(alice, "period=2035-05&by=deployment")
        assert f'href="{agent}?range=day&amp;deployment={alice.deployment.public_id}"' in versions.content.decode()
        assert f"{alice.agent.name}, version 1" in said(versions)

    def test_a_deleted_agent_keeps_its_line_and_its_name(self, alice: Workload) -> None:
        Agent.objects.filter(pk=alice.agent.pk).update(deleted_at=timezone.now())
        page = page_of(alice)
        assert f"{alice.agent.name} (deleted)" in said(page)
        assert f'href="/agents/{alice.agent.public_id}/' not in page.content.decode()

    def test_every_month_with_usage_can_be_chosen(self, alice: Workload) -> None:
        PeriodCounter.objects.create(account_id=alice.account.pk, period=date(2034, 2, 1), used_requests=1)
        shown = page_of(alice).content.decode()
        months = [key_of(period_of(timezone.now())), "2034-02", "2035-05"]
        assert all(f'<option value="{month}"' in shown for month in months)

    def test_a_new_account_is_told_what_to_do(self) -> None:
        page = page_of(Workload(), "")
        assert "Nothing was used in this time." in said(page)
        assert "Download" not in said(page)

    @pytest.mark.parametrize(
        ("query", "told"),
        [
            ("period=2035-5", "A period reads YYYY-MM"),
            ("period=2035-05&from=2035-04-30", "2035-04-30 is not in 2035-05."),
            ("period=2035-05&to=soon", "A day reads 2026-11-30."),
            ("period=2035-05&from=2035-05-09&to=2035-05-08", "The first day is not after the last."),
            ("period=%00&from=%00", "A period reads YYYY-MM"),
        ],
    )
    def test_what_cannot_be_answered_is_said_and_no_file_of_it_is_sent(
        self, alice: Workload, query: str, told: str
    ) -> None:
        assert told in said(page_of(alice, query))
        sent_back = signed_in(alice).get(f"/usage/csv/?{query}", follow=True)
        assert told in said(sent_back)

    def test_names_are_inert(self, alice: Workload) -> None:
        Agent.objects.filter(pk=alice.agent.pk).update(name=MARK)
        for group in Group:
            page = page_of(alice, f"period=2035-05&by={group}")
            assert MARK not in page.content.decode()
            assert inline_of(page) == []

    def test_a_stranger_signs_in_first(self) -> None:
        for address in ("/usage/", "/usage/csv/"):
            assert Client().get(address)["Location"] == f"/sign-in/?next={address}"


class TestTheFile:
    def test_it_is_the_table_and_adds_up(self, alice: Workload) -> None:
        for group in Group:
            heading, *rows, total = file_of(alice, f"period=2035-05&by={group}")
            assert heading[0].lower() == group.value
            columns = [[int(row[n]) for row in rows] for n in range(2, 8)]
            assert [sum(column) for column in columns] == [int(n) for n in total[2:8]]
            assert [int(n) for n in total[2:8]] == list(alice.used(MAY).values())
            assert [row[0] for row in rows[-2:]] == ["Still running", "Adjusted by support"]

    def test_its_name_says_what_it_holds(self, alice: Workload) -> None:
        answer = signed_in(alice).get("/usage/csv/?period=2035-05&from=2035-05-03&to=2035-05-20&by=day")
        assert 'filename="usage-2035-05-03-to-2035-05-20-by-day.csv"' in answer["Content-Disposition"]

    @pytest.mark.parametrize("name", ["=1+1", "+1", "-1+1", "@SUM(A1)", "\tx"])
    def test_no_spreadsheet_takes_a_name_for_a_formula(self, alice: Workload, name: str) -> None:
        Agent.objects.filter(pk=alice.agent.pk).update(name=name)
        names = [row[0] for row in file_of(alice)]
        assert f"'{name}" in names
        assert name not in names

    def test_a_correction_stays_a_number(self, alice: Workload) -> None:
        (adjusted,) = [row for row in file_of(alice) if row[0] == "Adjusted by support"]
        assert adjusted[3] == "-20"

    def test_what_nobody_knows_any_more_has_its_id(self, alice: Workload) -> None:
        lost = Workload(alice.account)
        call(lost, NOON, tokens=1)
        rolled_up(lost)
        id_ = lost.deployment.public_id
        Agent.objects.filter(pk=lost.agent.pk).update(active_deployment=None)
        lost.deployment.delete()
        assert f"{id_} (deleted)" in [row[0] for row in file_of(alice, "period=2035-05&by=deployment")]
