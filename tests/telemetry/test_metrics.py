"""What one agent did over time: the ledger's figures in buckets, by API."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from entitlements import ledger
from entitlements.models import Admission, Movement
from telemetry import rules
from telemetry.actions.metrics import activity_of, metrics_of
from telemetry.actions.roll_up import roll_up
from telemetry.metric_rules import Bucket, percentile, span_of
from telemetry.models import UsageHour
from tests.api import Api
from tests.entitlements.admin_pages import said
from tests.entitlements.callers import FAILED, SUCCEEDED, used
from tests.factories import make_account, make_agent, make_deployment
from tests.pages import inline_of
from tests.telemetry.workload import Workload
from webhost.ids import Prefix, new_id, public_id
from webhost.period import period_of

NOON = datetime(2034, 5, 15, 12, tzinfo=UTC)


@pytest.fixture
def alice(live_db: None) -> Workload:
    return Workload()


def call(workload: Workload, at: datetime, outcome: Any = SUCCEEDED, ms: int | None = None, **use: int) -> Any:
    error = None if outcome == SUCCEEDED else "TypeError"
    invocation = workload.caller.admit(at=at)
    ledger.settle(invocation, outcome, used(**use), error_class=error, latency_ms=ms)
    return invocation


def rolled_up(workload: Workload) -> None:
    while Movement.objects.filter(account_id=workload.account.id).exists():
        roll_up()


def ask(workload: Workload, tail: str = "", **expected: Any) -> Any:
    return Api(workload.account).get(f"/v1/agents/{workload.agent.public_id}/metrics{tail}", **expected)


def between(start: datetime, end: datetime, bucket: str) -> str:
    return f"?from={start:%Y-%m-%dT%H:%M:%SZ}&to={end:%Y-%m-%dT%H:%M:%SZ}&bucket={bucket}"


class TestSpans:
    NOW = datetime(2026, 11, 30, 17, 42, 5, tzinfo=UTC)

    @pytest.mark.parametrize(("bucket", "count"), [(Bucket.MINUTE, 60), (Bucket.HOUR, 24), (Bucket.DAY, 30)])
    def test_by_default_they_end_with_the_present_bucket(self, bucket: Bucket, count: int) -> None:
        span = span_of(None, None, bucket, self.NOW)
        assert len(span.times) == count
        assert span.start < self.NOW < span.end

    def test_a_time_is_widened_to_whole_buckets(self) -> None:
        span = span_of(self.NOW - timedelta(hours=2), self.NOW, Bucket.HOUR, self.NOW)
        assert (span.start.hour, span.end.hour, len(span.times)) == (15, 18, 3)
        whole = self.NOW.replace(minute=0, second=0)
        assert span_of(whole - timedelta(hours=1), whole, Bucket.HOUR, self.NOW).times == [whole - timedelta(hours=1)]

    def test_minutes_of_longer_ago_than_every_receipt_is_kept_are_refused_not_shown_as_none(self) -> None:
        old = self.NOW - timedelta(days=36)
        with pytest.raises(Exception, match="last 35 days"):
            span_of(old, old + timedelta(hours=1), Bucket.MINUTE, self.NOW)

    def test_a_percentile_is_interpolated_within_its_step(self) -> None:
        empty = [0] * 13
        assert percentile(empty, 0.5) is None
        assert percentile([0, 0, 0, 0, 10, *[0] * 8], 0.5) == 175  # between 100 and 250
        assert percentile([*[0] * 12, 3], 0.95) == 60_000  # longer than the last bound


class TestMetrics:
    def test_every_bucket_is_there_and_the_empty_ones_are_zeros(self, alice: Workload) -> None:
        call(alice, NOON, ms=300, tokens=5, compute_ms=7, tool_calls=2)
        call(alice, NOON + timedelta(hours=2), FAILED, ms=20, tokens=1)
        said = ask(alice, between(NOON, NOON + timedelta(hours=4), "hour")).json
        assert [b["requests"] for b in said["buckets"]] == [1, 0, 1, 0]
        assert [b["errors"] for b in said["buckets"]] == [0, 0, 1, 0]
        first, second = said["buckets"][:2]
        assert (first["tokens"], first["computeMs"], first["toolCalls"]) == (5, 7, 2)
        assert 250 < first["latencyMs"]["p50"] <= 500
        assert second["latencyMs"] == {"p50": None, "p95": None}
        assert (said["totals"]["requests"], said["totals"]["tokens"]) == (2, 6)

    @pytest.mark.parametrize("bucket", ["hour", "day"])
    def test_sums_are_the_usage_rolled_up_journalled_and_running(self, alice: Workload, bucket: str) -> None:
        for n in range(5):
            call(alice, NOON + timedelta(hours=n * 7), tokens=n + 1, compute_ms=10)
        rolled_up(alice)
        call(alice, NOON + timedelta(days=2), tokens=100)
        alice.caller.admit(at=NOON + timedelta(days=2, hours=1))
        said = ask(alice, between(NOON - timedelta(days=1), NOON + timedelta(days=4), bucket)).json
        counted = alice.used(period_of(NOON))
        assert said["totals"]["requests"] == counted["requests"] == 7
        assert said["totals"]["tokens"] == counted["tokens"] == 115
        assert sum(b["computeMs"] for b in said["buckets"]) == counted["compute_ms"]

    def test_they_are_still_the_usage_when_retention_took_the_receipts(self, alice: Workload) -> None:
        for n in range(3):
            call(alice, NOON + timedelta(days=n), ms=40, tokens=10)
        rolled_up(alice)
        counted = alice.used(period_of(NOON))
        Admission.objects.filter(account_id=alice.account.pk).delete()
        said = ask(alice, between(NOON, NOON + timedelta(days=3), "day")).json
        assert (said["totals"]["requests"], said["totals"]["tokens"]) == (counted["requests"], counted["tokens"])
        assert said["buckets"][0]["latencyMs"]["p95"] is not None

    def test_minutes_come_from_receipts_and_agree_with_the_hour(self, alice: Workload) -> None:
        hour = timezone.now().replace(minute=0, second=0, microsecond=0)
        for n, ms in enumerate([10, 20, 30, 400]):
            call(alice, hour + timedelta(seconds=n), ms=ms, tokens=3)
        ledger.void(alice.caller.admit(at=hour), "Unreachable")
        call(alice, hour + timedelta(minutes=5), FAILED, tokens=1)
        span = (hour, hour + timedelta(hours=1))
        minutes, hours = ask(alice, between(*span, "minute")).json, ask(alice, between(*span, "hour")).json
        assert len(minutes["buckets"]) == 60
        assert minutes["totals"] == hours["totals"]
        assert (minutes["totals"]["requests"], minutes["totals"]["errors"]) == (5, 1)
        assert minutes["buckets"][0]["latencyMs"] == {"p50": 20, "p95": 400}
        assert (minutes["latencyIsExact"], hours["latencyIsExact"]) == (True, False)

    def test_a_filter_leaves_only_what_it_names(self, live_db: None) -> None:
        alice = Workload(agentcore_enabled=True)
        other = make_deployment(alice.agent)
        call(alice, NOON, tokens=1)
        invocation = alice.caller.but(deployment_id=other.pk, runtime="agentcore").admit(at=NOON)
        ledger.settle(invocation, SUCCEEDED, used(tokens=50))
        span = between(NOON, NOON + timedelta(hours=1), "hour")
        assert ask(alice, span).json["totals"]["tokens"] == 51
        assert ask(alice, f"{span}&deployment={other.public_id}").json["totals"]["tokens"] == 50
        assert ask(alice, f"{span}&runtime=cloudflare").json["totals"]["tokens"] == 1

    def test_nobody_elses_usage_is_in_it(self, alice: Workload) -> None:
        charlie = Workload(make_account("charlie"))
        call(charlie, NOON, tokens=9)
        call(alice, NOON, tokens=1)
        second = make_agent(alice.account)
        span = between(NOON, NOON + timedelta(hours=1), "hour")
        assert ask(alice, span).json["totals"]["tokens"] == 1
        assert Api(alice.account).get(f"/v1/agents/{second.public_id}/metrics{span}").json["totals"]["requests"] == 0


class TestWhoMayAskWhat:
    def test_charlie_is_answered_as_if_it_did_not_exist(self, alice: Workload) -> None:
        charlie = Api(make_account("charlie"))
        assert charlie.get(f"/v1/agents/{alice.agent.public_id}/metrics").status == 404
        assert charlie.get(f"/v1/agents/{public_id(Prefix.AGENT, new_id())}/metrics").status == 404
        theirs = Workload(make_account("charlie")).deployment.public_id
        assert ask(alice, f"?deployment={theirs}").status == 404

    def test_a_deleted_agent_keeps_its_usage(self, alice: Workload) -> None:
        call(alice, NOON, tokens=4)
        type(alice.agent).objects.filter(pk=alice.agent.pk).update(deleted_at=timezone.now(), removed_at=timezone.now())
        assert ask(alice, between(NOON, NOON + timedelta(hours=1), "hour")).json["totals"]["tokens"] == 4

    @pytest.mark.parametrize(
        ("tail", "path"),
        [
            ("?bucket=week", "bucket"),
            ("?bucket=minute&from=2026-01-01T00:00:00Z&to=2026-01-03T00:00:00Z", "bucket"),
            ("?from=2026-01-02T00:00:00Z&to=2026-01-01T00:00:00Z", "to"),
            ("?from=0001-01-01T00:00:00Z", "from"),
            ("?to=9999-12-31T23:59:59-12:00", "to"),
            ("?runtime=mars", "runtime"),
            ("?agent=x", "agent"),
        ],
    )
    def test_what_cannot_be_answered_is_refused_with_its_path(self, alice: Workload, tail: str, path: str) -> None:
        answer = ask(alice, tail)
        assert answer.status == 400
        assert answer.json["error"]["details"]["issues"][0]["path"] == path

    def test_the_most_buckets_are_answered_and_one_more_is_not(self, alice: Workload) -> None:
        assert len(ask(alice, between(NOON, NOON + timedelta(hours=1500), "hour")).json["buckets"]) == 1500
        assert ask(alice, between(NOON, NOON + timedelta(hours=1501), "hour")).status == 400


def test_activity_is_the_last_24_hours_of_each_agent(alice: Workload) -> None:
    now = timezone.now()
    idle = make_agent(alice.account)
    call(alice, now, FAILED)
    rolled_up(alice)
    call(alice, now)
    UsageHour.objects.create(
        account_id=alice.account.pk, agent_id=idle.pk, deployment_id=new_id(), runtime="cloudflare",
        hour=now.replace(minute=0, second=0, microsecond=0) - timedelta(days=3), requests=8,
    )  # fmt: skip
    found = activity_of(alice.account.pk, [alice.agent.pk, idle.pk], now)
    assert (found[alice.agent.pk].requests, found[alice.agent.pk].errors) == (2, 1)
    assert found[idle.pk].requests == 0
    assert found[idle.pk].last_hour is not None
    assert activity_of(alice.account.pk, [], now) == {}


def test_cost_is_priced_by_the_card_of_the_day(alice: Workload) -> None:
    call(alice, NOON, tokens=1_000_000, compute_ms=5)
    span = span_of(NOON, NOON + timedelta(hours=1), Bucket.HOUR, NOON)
    found = metrics_of(alice.account.pk, alice.agent.pk, span)
    assert found.cost == sum(p.cost for p in found.points)
    assert rules.exact(found.cost) == ask(alice, between(span.start, span.end, "hour")).json["totals"]["estimatedCost"]


class TestThePage:
    def test_it_shows_charts_their_tables_and_errors_with_their_receipts(self, alice: Workload) -> None:
        failed = call(alice, timezone.now(), FAILED, ms=30, tokens=7, compute_ms=5)
        page = signed_in(alice).get(f"/agents/{alice.agent.public_id}/metrics/")
        html = page.content.decode()
        assert page.status_code == 200
        assert "1 request, 1 error, 7 tokens" in said(page)
        assert f"/invocations/inv_{failed.hex}/" in html
        assert html.count("data-chart=") == 4
        assert inline_of(page) == []

    def test_names_of_errors_are_shown_as_text(self, alice: Workload) -> None:
        ledger.settle(alice.caller.admit(), FAILED, used(), error_class="<img src=x onerror=alert(1)>")
        page = signed_in(alice).get(f"/agents/{alice.agent.public_id}/metrics/")
        assert "<img" not in page.content.decode()

    @pytest.mark.parametrize(
        ("tail", "status"),
        [
            ("", 200), ("?range=minute", 200), ("?range=day", 200), ("?from=2034-05-15T12:00&to=2034-05-16T12:00", 200),
            ("?from=nonsense", 400), ("?from=2034-05-15T12:00", 400), ("?from=0001-01-01T00:00", 400),
            ("?range=mars&deployment=x&runtime=y", 200),
        ],
    )  # fmt: skip
    def test_any_address_is_answered_and_an_empty_time_says_what_to_do(
        self, alice: Workload, tail: str, status: int
    ) -> None:
        page = signed_in(alice).get(f"/agents/{alice.agent.public_id}/metrics/{tail}")
        assert (page.status_code, "Nothing in this time." in said(page)) == (status, True)

    def test_charlie_finds_nothing(self, alice: Workload) -> None:
        charlie = Client()
        charlie.force_login(make_account("charlie"))
        assert charlie.get(f"/agents/{alice.agent.public_id}/metrics/").status_code == 404


def signed_in(workload: Workload) -> Client:
    client = Client()
    client.force_login(workload.account)
    return client
