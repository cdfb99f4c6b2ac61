"""The proof: every counter equals its admissions and adjustments, or is named, column by column."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import connection, transaction

from entitlements import ledger
from entitlements.models import Admission, PeriodCounter
from entitlements.tasks import verify_recent
from tests.entitlements.callers import Caller, alice
from webhost.ids import Prefix, public_id

pytestmark = pytest.mark.usefixtures("live_db")

MAY = datetime(2031, 5, 15, 12, tzinfo=UTC)
USED = ("requests", "tokens", "compute_ms", "tool_calls", "code_ms", "browser_sessions")
HELD = USED[1:]
CHARGED = dict.fromkeys(HELD, 10)


@contextmanager
def without_triggers() -> Iterator[None]:
    """Change rows as somebody with the keys of the database could, past every trigger."""
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SET LOCAL session_replication_role = replica")
        yield


@pytest.fixture
def busy() -> Iterator[Caller]:
    """alice with a settled, an open, a given back and an adjusted call; her rows go when the test ends."""
    caller = alice()
    caller.call(at=MAY, **CHARGED)
    caller.admit(at=MAY, **CHARGED)
    ledger.void(caller.admit(at=MAY), "ConnectionRefused")
    caller.adjust(MAY.date().replace(day=1), requests=2, tokens=-3)
    yield caller
    with without_triggers():
        PeriodCounter.objects.filter(account_id=caller.account_id).delete()
        Admission.objects.filter(account_id=caller.account_id).delete()
        with connection.cursor() as cursor:
            cursor.execute("DELETE FROM entitlements_adjustment WHERE account_id = %s", [caller.account_id])


def said(caller: Caller) -> str:
    """Return what `manage.py verify_ledger --account` prints; its failure is part of it."""
    out = io.StringIO()
    try:
        call_command("verify_ledger", account=public_id(Prefix.ACCOUNT, caller.account_id), stdout=out)
    except CommandError as error:
        return f"{out.getvalue()}{error}"
    return out.getvalue().strip()


def alter_counter(caller: Caller, **columns: Any) -> None:
    PeriodCounter.objects.filter(account_id=caller.account_id).update(**columns)


def alter_admission(caller: Caller, **columns: Any) -> None:
    with without_triggers():
        Admission.objects.filter(account_id=caller.account_id, outcome=columns.pop("of", "succeeded")).update(**columns)


class TestVerify:
    def test_what_only_verbs_have_touched_is_equal(self, busy: Caller) -> None:
        assert busy.differences() == []
        assert said(busy) == "equal"

    @pytest.mark.parametrize("column", [*[f"used_{m}" for m in USED], *[f"held_{m}" for m in HELD], "in_flight"])
    def test_an_altered_counter_is_named_with_its_column(self, busy: Caller, column: str) -> None:
        right = getattr(busy.counter(MAY.date().replace(day=1)), column)
        alter_counter(busy, **{column: right + 1})
        assert f"counter {public_id(Prefix.ACCOUNT, busy.account_id)} 2031-05 differs:" in said(busy)
        assert f"  {column}: counter {right + 1}, admissions and adjustments {right}\n" in said(busy)
        assert "1 counters differ." in said(busy)

    @pytest.mark.parametrize("measure", HELD)
    def test_an_admission_altered_past_the_triggers_is_found(self, busy: Caller, measure: str) -> None:
        right = getattr(busy.counter(MAY.date().replace(day=1)), f"used_{measure}")
        alter_admission(busy, **{f"charged_{measure}": 0})
        assert f"  used_{measure}: counter {right}, admissions and adjustments {right - 10}\n" in said(busy)

    def test_a_reopened_admission_is_found(self, busy: Caller) -> None:
        alter_admission(busy, outcome="open")
        assert "  in_flight: counter 1, admissions and adjustments 2\n" in said(busy)

    def test_a_deleted_admission_is_found(self, busy: Caller) -> None:
        Admission.objects.filter(account_id=busy.account_id, outcome="succeeded").delete()
        assert "  used_requests: counter 4, admissions and adjustments 3\n" in said(busy)

    def test_a_deleted_counter_is_found(self, busy: Caller) -> None:
        PeriodCounter.objects.filter(account_id=busy.account_id).delete()
        assert "  used_requests: counter no row, admissions and adjustments 4\n" in said(busy)

    def test_a_deleted_adjustment_is_found(self, busy: Caller) -> None:
        with without_triggers(), connection.cursor() as cursor:
            cursor.execute("DELETE FROM entitlements_adjustment WHERE account_id = %s", [busy.account_id])
        assert "  used_requests: counter 4, admissions and adjustments 2\n" in said(busy)

    def test_what_is_put_right_is_equal_again(self, busy: Caller) -> None:
        right = busy.counter(MAY.date().replace(day=1)).used_tokens
        alter_counter(busy, used_tokens=999)
        assert busy.differences() != []
        alter_counter(busy, used_tokens=right)
        assert said(busy) == "equal"

    def test_somebody_elses_counter_is_not_blamed(self, busy: Caller) -> None:
        charlie = alice()
        charlie.call(at=MAY)
        alter_counter(busy, used_tokens=999)
        assert charlie.differences() == []
        assert {d.account_id for d in ledger.verify()} >= {busy.account_id}
        assert charlie.account_id not in {d.account_id for d in ledger.verify()}

    def test_months_before_the_asked_one_are_left_out(self, busy: Caller) -> None:
        alter_counter(busy, used_tokens=999)
        assert ledger.verify(account_id=busy.account_id, since=MAY.date().replace(day=1)) != []
        assert ledger.verify(account_id=busy.account_id, since=MAY.date().replace(month=6, day=1)) == []


class TestThePeriodicTask:
    def test_it_raises_an_alert_that_names_account_and_month(
        self, busy: Caller, caplog: pytest.LogCaptureFixture
    ) -> None:
        alter_counter(busy, used_tokens=999)
        assert verify_recent() >= 1
        assert f"Ledger differs for account {busy.account_id} in 2031-05-01" in caplog.text
