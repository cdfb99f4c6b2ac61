"""What the database itself refuses, whoever asks: each constraint and each trigger has its case."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from django.core.exceptions import ValidationError
from django.db import DatabaseError, IntegrityError, ProgrammingError, connection, transaction
from django.db.models import ProtectedError
from django.utils import timezone

from entitlements import ledger
from entitlements.models import Account, Adjustment, Admission, Denial, Override, PeriodCounter, Tier, TierPrice
from entitlements.models.tiers import LIMIT_FIELDS, MOST
from tests.entitlements.admin_pages import history
from tests.entitlements.callers import SUCCEEDED, alice, expire, receipt, used
from tests.factories import make_account, make_tier
from webhost import db
from webhost.ids import new_id

pytestmark = pytest.mark.usefixtures("live_db")

CODE = {"max_tool_calls_per_period": 1, "max_code_execution_seconds_per_period": 1}
BROWSER = {"max_tool_calls_per_period": 1, "max_browser_sessions_per_period": 1}


def refused(constraint: str) -> Any:
    return pytest.raises(IntegrityError, match=constraint)


class TestATier:
    @pytest.mark.case("LIM-03")
    @pytest.mark.parametrize("value", [-1, MOST + 1])
    @pytest.mark.parametrize("field", LIMIT_FIELDS)
    def test_has_no_limit_below_0_or_beyond_all_reason(self, field: str, value: int) -> None:
        with refused("tier_limits_in_range"):
            make_tier(**{field: value})

    @pytest.mark.case("LIM-03")
    @pytest.mark.parametrize("value", [0, 1, None, MOST])
    @pytest.mark.parametrize("field", LIMIT_FIELDS)
    def test_may_have_0_1_nothing_and_the_most(self, field: str, value: int | None) -> None:
        assert getattr(Tier.objects.get(pk=make_tier(**{field: value}).pk), field) == value

    @pytest.mark.parametrize("flag", ["memory_enabled", "code_interpreter_enabled", "browser_enabled"])
    def test_has_no_capability_without_agentcore(self, flag: str) -> None:
        with refused("tier_capability_needs_agentcore"):
            make_tier(**CODE | BROWSER | {flag: True})

    @pytest.mark.parametrize("value", [0, None])
    @pytest.mark.parametrize("quota", CODE)
    def test_has_no_code_interpreter_without_its_quotas(self, quota: str, value: int | None) -> None:
        with refused("tier_code_interpreter_needs_quotas"):
            make_tier(agentcore_enabled=True, code_interpreter_enabled=True, **CODE | {quota: value})

    @pytest.mark.parametrize("value", [0, None])
    @pytest.mark.parametrize("quota", BROWSER)
    def test_has_no_browser_without_its_quotas(self, quota: str, value: int | None) -> None:
        with refused("tier_browser_needs_quotas"):
            make_tier(agentcore_enabled=True, browser_enabled=True, **BROWSER | {quota: value})

    def test_may_have_everything_together(self) -> None:
        make_tier(
            agentcore_enabled=True, memory_enabled=True, code_interpreter_enabled=True, browser_enabled=True,
            **CODE | BROWSER,
        )  # fmt: skip

    @pytest.mark.parametrize("field", ["telemetry_retention_days", "logs_retention_days"])
    def test_keeps_data_for_a_day_at_least(self, field: str) -> None:
        with refused("tier_keeps_something"):
            make_tier(**{field: 0})

    def test_is_the_default_only_once(self) -> None:
        with refused("tier_one_default"):
            make_tier(is_default=True)

    def test_is_not_retired_while_it_is_the_default(self) -> None:
        with refused("tier_default_is_not_retired"):
            Tier.objects.filter(is_default=True).update(retired_at=timezone.now())

    def test_shares_neither_slug_name_nor_rank(self) -> None:
        other = make_tier()
        for field in ("slug", "name", "rank"):
            with refused(field), transaction.atomic():
                make_tier(**{field: getattr(other, field)})

    def test_has_no_price_that_another_tier_has(self) -> None:
        first, second = make_tier(), make_tier()
        TierPrice.objects.create(tier=first, price_id=f"price_{first.slug}")
        with refused("price_id"):
            TierPrice.objects.create(tier=second, price_id=f"price_{first.slug}")

    def test_cannot_be_deleted_while_an_account_has_it(self) -> None:
        tier = make_tier()
        account = make_account("alice", tier)
        with pytest.raises(ProtectedError):
            tier.delete()
        assert Account.objects.get(pk=account.pk).billing_tier == tier

    def test_counts_its_versions_whoever_edits_it(self) -> None:
        tier = make_tier()
        Tier.objects.filter(pk=tier.pk).update(max_agents=3)
        Tier.objects.filter(pk=tier.pk).update(max_agents=3)  # nothing changed
        Tier.objects.filter(pk=tier.pk).update(name=f"{tier.name} II")
        tier.refresh_from_db()
        assert tier.version == 3

    def test_says_in_words_what_the_constraints_would_refuse(self) -> None:
        tier = Tier(slug="x", name="X", rank=1, memory_enabled=True, max_agents=-1)
        with pytest.raises(ValidationError) as raised:
            tier.clean()
        assert raised.value.messages == [
            "maxAgents must be empty (unlimited) or 0 and more.",
            "memoryEnabled needs agentcoreEnabled.",
        ]


class TestAnOverride:
    def make(self, key: str, value: int | None, reason: str = "A trial") -> Override:
        return Override.objects.create(account=make_account(), key=key, value=value, reason=reason)

    def test_sets_only_what_there_is(self) -> None:
        with refused("override_known_key"):
            self.make("maxEverything", 1)

    @pytest.mark.parametrize("value", [-1, MOST + 1])
    def test_has_no_value_below_0_or_beyond_all_reason(self, value: int) -> None:
        with refused("override_value_in_range"):
            self.make("maxRequestsPerPeriod", value)

    @pytest.mark.parametrize("value", [2, None])
    @pytest.mark.parametrize("key", ["agentcoreEnabled", "memoryEnabled", "codeInterpreterEnabled", "browserEnabled"])
    def test_switches_on_or_off_and_nothing_else(self, key: str, value: int | None) -> None:
        with refused("override_switch_is_0_or_1"):
            self.make(key, value)

    @pytest.mark.parametrize(
        "key", ["maxToolCallsPerPeriod", "maxCodeExecutionSecondsPerPeriod", "maxBrowserSessionsPerPeriod"]
    )
    def test_sets_a_quota_to_a_number(self, key: str) -> None:
        with refused("override_quota_is_a_number"):
            self.make(key, None)

    @pytest.mark.parametrize("value", [0, None])
    @pytest.mark.parametrize("key", ["telemetryRetentionDays", "logsRetentionDays"])
    def test_keeps_data_for_a_day_at_least(self, key: str, value: int | None) -> None:
        with refused("override_keeps_something"):
            self.make(key, value)

    def test_has_a_reason(self) -> None:
        with refused("override_has_reason"):
            self.make("maxAgents", 1, reason="")


class TestAnAccount:
    def test_has_a_support_tier_only_with_a_reason(self) -> None:
        account = make_account()
        with refused("account_support_tier_has_reason"):
            Account.objects.filter(pk=account.pk).update(support_tier=make_tier())

    def test_shares_no_address_whatever_its_case(self) -> None:
        account = make_account()
        with refused("account_email_any_case"):
            Account.objects.create(email=account.email.upper())


class TestAnAdmission:
    """The trigger raises: nobody moves, lowers or reopens one."""

    LAW = "nobody moves, lowers or reopens one"

    @pytest.mark.parametrize("measure", ["tokens", "compute_ms", "tool_calls", "code_ms", "browser_sessions"])
    def test_is_never_charged_less_than_before(self, measure: str) -> None:
        admission = alice().call(**{measure: 10})
        with pytest.raises(ProgrammingError, match=self.LAW):
            Admission.objects.filter(pk=admission).update(**{f"charged_{measure}": 9})
        assert getattr(receipt(admission), f"charged_{measure}") == 10

    def test_may_be_charged_more_and_the_counter_follows(self) -> None:
        caller = alice()
        admission = caller.call(tokens=10)
        Admission.objects.filter(pk=admission).update(charged_tokens=15)
        assert caller.counter().used_tokens == 15

    @pytest.mark.parametrize("measure", ["tokens", "compute_ms", "tool_calls", "code_ms", "browser_sessions"])
    def test_keeps_what_was_held(self, measure: str) -> None:
        admission = alice().admit(**{measure: 10})
        with pytest.raises(ProgrammingError, match=self.LAW):
            Admission.objects.filter(pk=admission).update(**{f"held_{measure}": 0})

    def test_stays_in_its_month(self) -> None:
        admission = alice().call()
        with pytest.raises(ProgrammingError, match=self.LAW):
            Admission.objects.filter(pk=admission).update(period="2020-01-01")

    def test_stays_with_its_account(self) -> None:
        charlie = make_account("charlie")
        admission = alice().call()
        with pytest.raises(ProgrammingError, match=self.LAW):
            Admission.objects.filter(pk=admission).update(account_id=charlie.id)

    @pytest.mark.parametrize("outcome", ["open", "voided", "failed"])
    def test_is_closed_once(self, outcome: str) -> None:
        admission = alice().call()
        with pytest.raises((ProgrammingError, IntegrityError)):
            Admission.objects.filter(pk=admission).update(outcome=outcome)
        assert receipt(admission).outcome == "succeeded"

    def test_that_was_given_back_may_only_become_failed(self) -> None:
        caller = alice()
        admission = caller.admit()
        ledger.void(admission, "ConnectionRefused")
        with pytest.raises(ProgrammingError, match=self.LAW):
            Admission.objects.filter(pk=admission).update(outcome="succeeded", charged_requests=1)

    def test_whose_estimate_was_replaced_is_never_lowered_again(self) -> None:
        caller = alice()
        admission = caller.admit(tokens=100)
        expire(admission, caller)
        caller.report(admission, tokens=30)
        with pytest.raises(ProgrammingError, match=self.LAW):
            Admission.objects.filter(pk=admission).update(charged_tokens=29)

    def test_that_was_settled_cannot_be_lowered_by_calling_it_an_estimate(self) -> None:
        admission = alice().call(tokens=10)
        with pytest.raises(ProgrammingError, match=self.LAW):
            Admission.objects.filter(pk=admission).update(charged_tokens=1, estimate_stands=True)

    @pytest.mark.parametrize(
        "measure", ["requests", "tokens", "compute_ms", "tool_calls", "code_ms", "browser_sessions", "in_flight"]
    )
    def test_never_passes_a_limit_it_was_judged_by(self, measure: str) -> None:
        admission = alice().call()
        with refused("admission_within_limits"):
            Admission.objects.filter(pk=admission).update(**{f"limit_{measure}": 4, f"then_{measure}": 5})

    @pytest.mark.parametrize("column", ["held_tokens", "charged_tokens"])
    def test_has_nothing_below_0(self, column: str) -> None:
        row = receipt(alice().call())
        row.pk = new_id()
        setattr(row, column, -1)
        with refused("admission_never_negative"):
            row.save(force_insert=True)

    def test_that_was_given_back_counts_nothing(self) -> None:
        admission = alice().admit()
        with refused("admission_voided_counts_nothing"):
            Admission.objects.filter(pk=admission).update(outcome="voided")

    def test_has_an_outcome_that_we_know(self) -> None:
        admission = alice().admit()
        with refused("admission_known_outcome"):
            Admission.objects.filter(pk=admission).update(outcome="maybe")

    def test_cannot_be_closed_when_its_counter_is_gone(self) -> None:
        caller = alice()
        admission = caller.admit()
        PeriodCounter.objects.filter(account_id=caller.account_id).delete()
        with pytest.raises(psycopg.errors.RaiseException, match="its counter is gone"):
            ledger.settle(admission, SUCCEEDED, used())
        Admission.objects.filter(pk=admission).delete()


class TestTheRest:
    @pytest.mark.parametrize("column", ["used_requests", "used_tokens", "held_tokens", "in_flight"])
    def test_a_counter_is_never_negative(self, column: str) -> None:
        caller = alice()
        caller.call()
        with refused("counter_never_negative"):
            PeriodCounter.objects.filter(account_id=caller.account_id).update(**{column: -1})

    def test_a_refusal_has_one_row_a_minute(self) -> None:
        account, minute = make_account(), timezone.now().replace(second=0, microsecond=0)
        row = {
            "account_id": account.id,
            "limit_type": "requests",
            "period": minute.date().replace(day=1),
            "minute": minute,
        }
        Denial.objects.create(**row)
        with refused("denial_once_a_minute"):
            Denial.objects.create(**row)

    @pytest.mark.parametrize("table", ["accountevent", "adjustmentevent", "overrideevent", "tierevent"])
    @pytest.mark.parametrize("statement", ["UPDATE {} SET pgh_label = 'x'", "DELETE FROM {}", "TRUNCATE {}"])
    def test_history_is_only_ever_added_to(self, table: str, statement: str) -> None:
        caller = alice()
        caller.call()
        caller.adjust(caller.counter().period, requests=1)
        override = Override.objects.create(
            account=Account.objects.get(pk=caller.account_id), key="maxAgents", value=1, reason="A trial"
        )
        assert override.pk
        assert Adjustment.objects.filter(account_id=caller.account_id).exists()
        with pytest.raises(psycopg.errors.RaiseException), db.hot_connection() as connection:
            connection.execute(statement.format(f"entitlements_{table}"))


_IGNORE_ALL = (
    "SELECT set_config('pgtrigger.ignore',"
    " (SELECT array_agg(DISTINCT tgname)::text FROM pg_trigger WHERE NOT tgisinternal), true)"
)


class TestTriggers:
    """Nobody switches them off, and one more row costs what each before it did."""

    @pytest.mark.case("ADM-01")
    def test_no_session_makes_history_look_away(self) -> None:
        tier = make_tier(max_agents=3)
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute(_IGNORE_ALL)
            cursor.execute("UPDATE entitlements_tier SET max_agents = 9 WHERE id = %s", [tier.pk])
        assert [e.max_agents for e in history(tier)] == [3, 9]

    @pytest.mark.case("ADM-03")
    def test_no_session_makes_history_alterable(self) -> None:
        tier = make_tier(max_agents=3)
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute(_IGNORE_ALL)
            with pytest.raises(DatabaseError, match="Cannot update or delete"), transaction.atomic():
                cursor.execute("DELETE FROM entitlements_tierevent WHERE id = %s", [tier.pk])

    def test_after_a_migration_no_trigger_opens_a_subtransaction_per_row(self) -> None:
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT proname FROM pg_proc WHERE pronamespace = 'public'::regnamespace AND prosrc ~* 'exception +when'"
            )
            assert cursor.fetchall() == []
