"""The proof of a bill: equal, or the very row that was altered or deleted."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest
from django.core.management import CommandError, call_command
from django.db import connection, transaction

from entitlements import ledger
from entitlements.enums import Runtime
from entitlements.models import Admission, Movement, PeriodCounter
from telemetry.actions.closing import close_periods
from telemetry.actions.verify import verify_usage
from telemetry.models import Delivery, Report, UsageHour, UsageStatement
from telemetry.proof import Observed, Settled, charge_problems, outcome_problem, read_settlement
from tests.entitlements.callers import FAILED, SUCCEEDED, expire, receipt, used
from tests.telemetry.workload import Workload
from webhost.ids import Prefix, new_id, public_id

pytestmark = pytest.mark.usefixtures("live_db")

MAY = datetime(2031, 5, 1, tzinfo=UTC).date()
NOON = datetime(2031, 5, 15, 12, tzinfo=UTC)


@contextmanager
def without_triggers() -> Iterator[None]:
    """Change rows as somebody with the keys of the database could, past every trigger."""
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SET LOCAL session_replication_role = replica")
        yield


class Busy(Workload):
    """alice with a month that has something of everything."""

    def __init__(self) -> None:
        super().__init__()
        self.reported = self.caller.admit(at=NOON)
        ledger.settle(self.reported, SUCCEEDED, used(tokens=10, compute_ms=20), latency_ms=15)
        self.failed = self.caller.admit(at=NOON)
        ledger.settle(self.failed, FAILED, used(tokens=5), error_class="TypeError", latency_ms=90_000)
        self.plain = self.caller.admit(at=NOON)
        ledger.settle(self.plain, SUCCEEDED, used(tokens=3))
        self.running = self.caller.admit(at=NOON, tokens=50)
        self.voided = self.caller.admit(at=NOON)
        ledger.void(self.voided, "ConnectionRefused")
        self.revived = self.caller.admit(at=NOON)
        ledger.void(self.revived, "ConnectionRefused")
        self.overdue = self.caller.admit(at=NOON)
        assert expire(self.overdue, self.caller)
        self.unknown = UUID(int=new_id().int & ~(0xF << 76) | 0x4 << 76)
        self.caller.adjust(MAY, tokens=-1)
        stamp = {"timestamp": NOON.isoformat()}
        self.keep(self.event(self.reported, tokens=30, **stamp), NOON)
        many = [
            self.event(i, tokens=7, **stamp)
            for i in (self.reported, self.failed, self.revived, self.overdue, self.unknown)
        ]
        self.keep({"events": [*many, many[0]]}, NOON)
        assert self.statuses() == ["accepted"] * 6 + ["duplicate"]

    def said(self) -> str:
        """Return what `manage.py verify_usage` prints about May; its failure is part of it."""
        out = io.StringIO()
        try:
            call_command("verify_usage", account=self.account.public_id, period="2031-05", stdout=out)
        except CommandError as error:
            return f"{out.getvalue()}{error}"
        return out.getvalue().strip()

    def row(self, invocation: UUID) -> Any:
        return Admission.objects.filter(pk=invocation)

    def report_of(self, invocation: UUID) -> Report:
        report = Report.objects.filter(invocation_id=invocation, status="accepted").order_by("id").first()
        assert report is not None
        return report

    @property
    def hour(self) -> Any:
        return UsageHour.objects.filter(account_id=self.account.id)


@pytest.fixture
def alice() -> Iterator[Busy]:
    """alice, whose rows go when the test ends: they are off, and others look at all rows."""
    busy = Busy()
    yield busy
    with without_triggers():
        for model in (PeriodCounter, Admission, UsageHour, Movement, UsageStatement):
            model._default_manager.filter(account_id=busy.account.id).delete()  # type: ignore[attr-defined]
        for model in (Report, Delivery):
            model._default_manager.filter(deployment_id=busy.deployment.id).delete()  # type: ignore[attr-defined]
        with connection.cursor() as cursor:
            cursor.execute("DELETE FROM entitlements_adjustment WHERE account_id = %s", [busy.account.id])


def name(invocation: UUID) -> str:
    return f"admission {public_id(Prefix.INVOCATION, invocation)}"


def test_what_nobody_touched_is_equal(alice: Busy) -> None:
    said = alice.said()
    assert said.endswith("equal")
    assert "8 admissions, 6 reports, 1 hours" in said


def test_so_it_is_while_lines_are_not_rolled_up_yet(alice: Busy) -> None:
    alice.caller.call(at=NOON, tokens=5)
    assert verify_usage(alice.account.id, MAY).findings == []


def test_a_month_without_anything_is_equal(alice: Busy) -> None:
    assert verify_usage(alice.account.id, MAY.replace(month=1)).findings == []


def test_of_all_accounts_each_is_checked(alice: Busy) -> None:
    PeriodCounter.objects.filter(account_id=alice.account.id).update(used_tokens=9999)
    out = io.StringIO()
    with pytest.raises(CommandError):
        call_command("verify_usage", period="2031-05", stdout=out)
    assert f"{alice.account.public_id} 2031-05 counter" in out.getvalue()


Change = Callable[[Busy], Any]


def _columns(**values: Any) -> Change:
    return lambda a: a.row(a.reported).update(**values)


ALTERED: dict[str, tuple[Change, Callable[[Busy], str]]] = {
    "the counter": (lambda a: PeriodCounter.objects.filter(account_id=a.account.id).update(used_tokens=1), lambda a: "counter 2031-05"),
    "an admission's charge": (_columns(charged_tokens=29), lambda a: name(a.reported)),
    "an admission's charge, upwards": (_columns(charged_compute_ms=9999), lambda a: name(a.reported)),
    "an admission's outcome": (_columns(outcome="failed"), lambda a: name(a.reported)),
    "an admission's number of reports": (_columns(reports=1), lambda a: name(a.reported)),
    "an admission's settlement": (
        lambda a: a.row(a.plain).update(settlement=receipt(a.plain).settlement.replace("|3|", "|1|"), charged_tokens=1), lambda a: name(a.plain)),
    "a settlement moved from another admission": (
        lambda a: a.row(a.plain).update(settlement=receipt(a.reported).settlement, settlement_mac=receipt(a.reported).settlement_mac),
        lambda a: name(a.plain)),
    "a settlement's signature": (_columns(settlement_mac="k1:" + "0" * 64), lambda a: name(a.reported)),
    "a settlement taken away": (lambda a: a.row(a.plain).update(settlement="", settlement_mac="", charged_tokens=0), lambda a: name(a.plain)),
    "an admission given back": (
        lambda a: a.row(a.plain).update(outcome="voided", charged_requests=0, charged_tokens=0), lambda a: name(a.plain)),
    "an admission's hour": (_columns(admitted_at=NOON.replace(hour=3)), lambda a: "roll-up 2031-05-15T03:00Z"),
    "an admission's month": (_columns(admitted_at=NOON.replace(month=6)), lambda a: name(a.reported)),
    "an admission's account": (lambda a: a.row(a.reported).update(account_id=new_id()), lambda a: "counter 2031-05"),
    "a report's bytes": (
        lambda a: Report.objects.filter(pk=a.report_of(a.reported).pk).update(
            body=bytes(a.report_of(a.reported).body).replace(b'"tokens": 30', b'"tokens": 10')), lambda a: f"report {a.report_of(a.reported).pk}"),
    "a batch's bytes": (
        lambda a: Delivery.objects.filter(deployment_id=a.deployment.id).update(body=b'{"events": []}'),
        lambda a: f"report {a.report_of(a.failed).pk}"),
    "a report's place in its batch": (
        lambda a: Report.objects.filter(pk=a.report_of(a.failed).pk).update(item=2), lambda a: f"report {a.report_of(a.failed).pk}"),
    "a report's signature": (
        lambda a: Report.objects.filter(pk=a.report_of(a.reported).pk).update(signature="v1=" + "0" * 64),
        lambda a: f"report {a.report_of(a.reported).pk}"),
    "a report's facts": (
        lambda a: Report.objects.filter(pk=a.report_of(a.reported).pk).update(facts="x"), lambda a: f"report {a.report_of(a.reported).pk}"),
    "a report's event id": (
        lambda a: Report.objects.filter(pk=a.report_of(a.reported).pk).update(event_id=b"x"), lambda a: f"report {a.report_of(a.reported).pk}"),
    "a report's account": (
        lambda a: Report.objects.filter(pk=a.report_of(a.reported).pk).update(account_id=new_id()),
        lambda a: f"report {a.report_of(a.reported).pk}"),
    "a report's verdict": (
        lambda a: Report.objects.filter(pk=a.report_of(a.reported).pk).update(status="rejected"), lambda a: name(a.reported)),
    "a duplicate's verdict": (
        lambda a: Report.objects.filter(deployment_id=a.deployment.id, status="duplicate").update(status="accepted", event_id=b"y"),
        lambda a: name(a.reported)),
    "a roll-up": (lambda a: a.hour.update(tokens=1), lambda a: "roll-up 2031-05-15T12:00Z"),
    "a roll-up's requests": (lambda a: a.hour.update(requests=0), lambda a: "roll-up 2031-05-15T12:00Z"),
    "a roll-up's errors": (lambda a: a.hour.update(errors_by_class={"TypeError": 900}), lambda a: "roll-up 2031-05-15T12:00Z"),
    "a roll-up's latencies": (lambda a: a.hour.update(latency_buckets=[9]), lambda a: "roll-up 2031-05-15T12:00Z"),
    "a roll-up's runtime": (lambda a: a.hour.update(runtime="agentcore"), lambda a: "roll-up 2031-05-15T12:00Z"),
    "a roll-up's hour": (lambda a: a.hour.update(hour=NOON.replace(hour=3)), lambda a: "roll-up 2031-05-15T03:00Z"),
}  # fmt: skip


@pytest.mark.parametrize("what", ALTERED)
def test_an_alteration_is_named(alice: Busy, what: str) -> None:
    change, where = ALTERED[what]
    if what == "a duplicate's verdict":
        assert alice.said().endswith("equal")
    with without_triggers():
        assert change(alice) == 1
    said = alice.said()
    assert where(alice) in said, said
    assert said.endswith("differences.")


def test_an_alteration_that_the_trigger_carries_into_the_counter_is_named_all_the_same(alice: Busy) -> None:
    alice.row(alice.plain).update(charged_tokens=999)
    assert alice.caller.differences() == []
    assert name(alice.plain) in alice.said()


def _deleted(select: Callable[[Busy], Any]) -> Change:
    return lambda a: select(a).delete()[0]


DELETED: dict[str, tuple[Change, Callable[[Busy], str]]] = {
    "the counter": (_deleted(lambda a: PeriodCounter.objects.filter(account_id=a.account.id)), lambda a: "counter 2031-05"),
    "an admission with a report": (_deleted(lambda a: a.row(a.failed)), lambda a: name(a.failed)),
    "an admission without one": (_deleted(lambda a: a.row(a.plain)), lambda a: "counter 2031-05"),
    "an admission that a report made": (_deleted(lambda a: a.row(a.unknown)), lambda a: name(a.unknown)),
    "a roll-up": (_deleted(lambda a: a.hour), lambda a: "roll-up 2031-05-15T12:00Z"),
    "a batch's bytes": (
        _deleted(lambda a: Delivery.objects.filter(deployment_id=a.deployment.id)), lambda a: f"report {a.report_of(a.failed).pk}"),
}  # fmt: skip


@pytest.mark.parametrize("what", DELETED)
def test_a_deletion_is_named(alice: Busy, what: str) -> None:
    remove, where = DELETED[what]
    with without_triggers():
        assert remove(alice) == 1
    assert where(alice) in alice.said()


def test_a_deleted_report_is_named_by_the_admission_that_counted_it(alice: Busy) -> None:
    alice.report_of(alice.reported).delete()
    said = alice.said()
    assert name(alice.reported) in said
    assert "2 reports were folded in, 1 are there" in said


def test_an_invented_admission_is_named(alice: Busy) -> None:
    invented = receipt(alice.plain)
    invented.pk = new_id()
    with without_triggers(), connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO entitlements_admission (id, account_id, agent_id, deployment_id, runtime, period, tier, admitted_at, "
            "expires_at, outcome, charged_requests, charged_tokens, charged_compute_ms, charged_tool_calls, charged_code_ms, "
            "charged_browser_sessions, held_tokens, held_compute_ms, held_tool_calls, held_code_ms, held_browser_sessions) "
            "VALUES (%s, %s, %s, %s, 'cloudflare', %s, '', %s, %s, 'succeeded', 1, 500, 0, 0, 0, 0, 0, 0, 0, 0, 0)",
            [invented.pk, alice.account.id, alice.agent.id, alice.deployment.id, MAY, NOON, NOON],
        )
    said = alice.said()
    assert f"{name(invented.pk)}: it is succeeded, and nobody signed that" in said


def test_a_statement_that_was_altered_is_named(alice: Busy) -> None:
    ledger.settle(alice.running, SUCCEEDED, used())
    assert close_periods(at=datetime(2031, 6, 4, tzinfo=UTC)) >= 1
    assert alice.said().endswith("equal")
    UsageStatement.objects.filter(account_id=alice.account.id).update(totals={"tokens": 1})
    assert "statement" in alice.said()


def test_estimates_and_what_replaced_them_are_explained() -> None:
    alice = Workload(runtime=Runtime.AGENTCORE, agentcore_enabled=True)
    stands = alice.caller.admit(at=NOON, tokens=100)
    claimed = alice.caller.admit(at=NOON, tokens=100)
    settled_late = alice.caller.admit(at=NOON, tokens=100)
    for invocation in (stands, claimed, settled_late):
        assert expire(invocation, alice.caller)
    body = {
        "events": [
            alice.event(i, tokens=n, timestamp=NOON.isoformat()) for i, n in ((claimed, 170), (settled_late, 30))
        ]
    }
    alice.keep(body, NOON)
    assert alice.statuses() == ["accepted"] * 2
    ledger.settle(settled_late, SUCCEEDED, used(tokens=12))
    charged = [receipt(i).charged_tokens for i in (stands, claimed, settled_late)]
    assert charged == [100, 170, 30]  # the estimate goes; what anybody observed stays, in whichever order it came
    assert verify_usage(alice.account.id, MAY).findings == []


class TestRules:
    ROW: dict[str, Any] = {  # noqa: RUF012
        "outcome": "succeeded", "estimate_stands": False, "tools_estimated": False, "observed_at": None, "settled_at": NOON,
        **{f"{kind}_{m}": 0 for kind in ("charged", "held") for m in ("tokens", "compute_ms", "tool_calls", "code_ms", "browser_sessions")},
    }  # fmt: skip

    @staticmethod
    def measures(tokens: int) -> dict[str, int]:
        return dict.fromkeys(("tokens", "compute_ms", "tool_calls", "code_ms", "browser_sessions"), 0) | {
            "tokens": tokens
        }

    @pytest.mark.parametrize(("charged", "is_right"), [(29, False), (30, True), (31, False)])
    def test_the_charge_is_the_largest_of_everything_signed(self, charged: int, is_right: bool) -> None:
        settled = Settled(SUCCEEDED, self.measures(10))
        reports = [Observed(self.measures(n), trusted, NOON) for n, trusted in ((20, True), (30, False))]
        assert (not list(charge_problems(self.ROW | {"charged_tokens": charged}, settled, reports))) is is_right

    @pytest.mark.parametrize("charged", [0, 1])
    def test_with_nothing_signed_nothing_may_be_charged(self, charged: int) -> None:
        assert bool(list(charge_problems(self.ROW | {"charged_tokens": charged}, None, []))) is bool(charged)

    def test_a_settlement_of_another_kind_or_row_is_none(self) -> None:
        invocation = new_id()
        text = ledger.settlement_of(invocation, SUCCEEDED, used(tokens=4))
        assert read_settlement(text, invocation) == Settled(SUCCEEDED, self.measures(4))
        for other in ("", "v2" + text[2:], text + "|0", text.replace("succeeded", "great"), text.replace("|4|", "|x|")):
            assert read_settlement(other, invocation) is None
        assert read_settlement(text, new_id()) is None

    def test_an_outcome_is_what_was_signed_or_what_evidence_made_of_it(self) -> None:
        voided = Settled(ledger.Outcome.VOIDED, self.measures(0))
        assert outcome_problem(FAILED, voided, is_reported=False, reports=1) == ""
        assert outcome_problem(FAILED, voided, is_reported=False, reports=0)
        assert outcome_problem(SUCCEEDED, None, is_reported=True, reports=1) == ""
        assert outcome_problem(SUCCEEDED, None, is_reported=False, reports=1)


def test_bytes_of_a_body_are_what_is_signed_and_not_their_meaning(alice: Busy) -> None:
    report = alice.report_of(alice.reported)
    Report.objects.filter(pk=report.pk).update(body=json.dumps(json.loads(bytes(report.body)), indent=1).encode())
    assert f"report {report.pk}: its signature does not fit its bytes" in alice.said()
