"""Refusals are receipts too: counted per account, limit and minute, and never a flood."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest

from entitlements.actions import denials
from entitlements.actions.denials import flush_denials, record_denial
from entitlements.actions.gates import require_room, require_runtime
from entitlements.enums import LimitType
from entitlements.errors import LimitExceededError
from entitlements.models import Denial
from tests.entitlements.callers import Caller, alice
from webhost import db
from webhost.errors import UnavailableError

pytestmark = pytest.mark.usefixtures("live_db")

NOON = datetime(2031, 5, 15, 12, 0, 10, tzinfo=UTC)


@pytest.fixture(autouse=True)
def _nothing_waits() -> Iterator[None]:
    flush_denials()
    yield
    flush_denials()


def kept(caller: Caller) -> list[tuple[str, datetime, int]]:
    rows = Denial.objects.filter(account_id=caller.account_id).order_by("minute", "limit_type")
    return [(row.limit_type, row.minute, row.count) for row in rows]


class TestARefusal:
    def test_it_is_written_at_once_with_period_agent_and_trace(self) -> None:
        caller = alice(max_requests_per_period=0)
        caller.refusal(at=NOON)
        row = Denial.objects.get(account_id=caller.account_id)
        assert (row.limit_type, row.period, row.minute, row.count) == (
            "requests", NOON.date().replace(day=1), NOON.replace(second=0), 1,
        )  # fmt: skip
        assert row.agent_id == caller.agent_id

    def test_its_repeats_within_the_minute_are_one_row_with_their_count(self) -> None:
        caller = alice(max_requests_per_period=0)
        for second in range(30):
            caller.refusal(at=NOON + timedelta(seconds=second))
        assert kept(caller) == [("requests", NOON.replace(second=0), 1)]
        flush_denials()
        assert kept(caller) == [("requests", NOON.replace(second=0), 30)]

    def test_the_next_minute_is_a_row_of_its_own_and_flushes_the_one_before(self) -> None:
        caller = alice(max_requests_per_period=0)
        for _ in range(3):
            caller.refusal(at=NOON)
        caller.refusal(at=NOON + timedelta(minutes=1))
        first = NOON.replace(second=0)
        assert kept(caller) == [("requests", first, 3), ("requests", first + timedelta(minutes=1), 1)]

    def test_each_limit_has_its_own_row(self) -> None:
        caller = alice(max_requests_per_period=1, max_concurrent_invocations=1)
        caller.admit(at=NOON)
        caller.refusal(at=NOON)
        record_denial(caller.account_id, LimitType.CONCURRENCY, period=NOON.date(), at=NOON, agent_id=None, trace_id="")
        assert [limit for limit, _, _ in kept(caller)] == ["concurrency", "requests"]

    def test_only_the_first_of_several_limits_is_counted(self) -> None:
        caller = alice(max_requests_per_period=0, max_tokens_per_period=0)
        caller.refusal(at=NOON)
        assert [limit for limit, _, _ in kept(caller)] == ["requests"]

    def test_the_last_agent_and_trace_are_kept(self) -> None:
        caller = alice()
        last = uuid4()
        for agent, trace in ((uuid4(), "trc_1"), (last, "trc_2")):
            record_denial(
                caller.account_id, LimitType.TOKENS, period=NOON.date(), at=NOON, agent_id=agent, trace_id=trace
            )
        flush_denials()
        row = Denial.objects.get(account_id=caller.account_id)
        assert (row.agent_id, row.trace_id, row.count) == (last, "trc_2", 2)

    def test_two_processes_count_into_the_same_row(self) -> None:
        caller = alice(max_requests_per_period=0)
        caller.refusal(at=NOON)
        flush_denials()  # what another process has not seen
        caller.refusal(at=NOON)
        assert kept(caller) == [("requests", NOON.replace(second=0), 2)]

    def test_flushing_twice_counts_once(self) -> None:
        caller = alice(max_requests_per_period=0)
        caller.refusal(at=NOON)
        caller.refusal(at=NOON)
        flush_denials()
        flush_denials()
        assert kept(caller) == [("requests", NOON.replace(second=0), 2)]

    def test_it_consumes_nothing(self) -> None:
        caller = alice(max_requests_per_period=0)
        for _ in range(5):
            caller.refusal()
        assert caller.counter()._state.adding

    def test_what_waits_in_memory_is_bounded(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(denials, "_MOST_WAITING", 5)
        for _ in range(20):
            record_denial(uuid4(), LimitType.TOKENS, period=NOON.date(), at=NOON, agent_id=None, trace_id="")
        assert len(denials._waiting) <= 5

    def test_a_database_that_is_away_fails_no_request(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        def away(*_: object) -> None:
            raise UnavailableError

        monkeypatch.setattr(db, "run", away)
        record_denial(uuid4(), LimitType.TOKENS, period=NOON.date(), at=NOON, agent_id=None, trace_id="")
        assert "could not be written" in caplog.text


class TestGatesAndCaps:
    def test_a_closed_gate_is_counted(self) -> None:
        caller = alice()
        with pytest.raises(LimitExceededError) as raised:
            require_runtime(caller.account_id, "agentcore", ["memory"])
        assert raised.value.details["exceeded"] == ["runtimeGated", "memoryEnabled"]
        assert raised.value.details["suggestedAction"]["tier"] == "pro"
        assert [limit for limit, _, _ in kept(caller)] == ["runtimeGated"]

    def test_an_open_gate_is_not(self) -> None:
        caller = alice(agentcore_enabled=True, memory_enabled=True)
        require_runtime(caller.account_id, "agentcore", ["memory"])
        require_runtime(caller.account_id, "cloudflare", [])
        assert kept(caller) == []

    @pytest.mark.parametrize(
        ("capability", "limit", "slug"),
        [("memory", "memoryEnabled", "pro"), ("browser", "browserEnabled", "enterprise"),
         ("codeInterpreter", "codeInterpreterEnabled", "enterprise")],
    )  # fmt: skip
    def test_the_gate_of_each_capability_names_the_lowest_tier_that_has_it(
        self, capability: str, limit: str, slug: str
    ) -> None:
        caller = alice(agentcore_enabled=True)
        with pytest.raises(LimitExceededError) as raised:
            require_runtime(caller.account_id, "agentcore", [capability])
        assert raised.value.details["limitType"] == limit
        assert raised.value.details["suggestedAction"]["tier"] == slug

    @pytest.mark.parametrize(
        ("cap", "field"), [(LimitType.AGENTS, "max_agents"), (LimitType.DEPLOYMENTS, "max_deployments_per_agent")]
    )
    def test_a_reached_cap_is_counted_and_names_the_way_out(self, cap: LimitType, field: str) -> None:
        caller = alice(**{field: 2})
        require_room(caller.account_id, cap, 1)
        with pytest.raises(LimitExceededError) as raised:
            require_room(caller.account_id, cap, 2)
        details = raised.value.details
        assert (details["limitType"], details["current"], details["limit"], details["periodKey"]) == (
            cap.value,
            2,
            2,
            None,
        )
        assert [limit for limit, _, _ in kept(caller)] == [cap.value]
