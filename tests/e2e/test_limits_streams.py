"""Streams: they flow, they end in words, and however they end one request is counted and what was used is charged."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import pytest

from entitlements.models import Admission
from tests.e2e.customers import Agent, Cloud, events_of, puppet, until
from tests.e2e.test_limits import alice, counted
from webhost.ids import Prefix, parse_id
from webhost.local.product import Product

pytestmark = [pytest.mark.usefixtures("live_db"), pytest.mark.case("API-02")]


@pytest.fixture
def cloud(product: Product) -> Iterator[Cloud]:
    found = Cloud(product)
    yield found
    found.forgive()


def closed(agent: Agent, seconds: float = 20) -> Admission:
    """Wait until the only invocation of an agent is closed, and return it."""

    def look() -> Admission | None:
        rows = list(Admission.objects.filter(agent_id=parse_id(Prefix.AGENT, agent.id)))
        assert len(rows) <= 1
        return rows[0] if rows and rows[0].outcome != "open" else None

    found = until(look, seconds)
    assert found is not None, "It is still open."
    return found


def reported(agent: Agent) -> Admission:
    """Wait until the runtime's signed report of the only invocation was folded in, and return it."""

    def look() -> Admission | None:
        row = Admission.objects.get(agent_id=parse_id(Prefix.AGENT, agent.id))
        return row if row.reports else None

    found = until(look)
    assert found is not None, "Nobody has reported."
    return found


class TestFlowing:
    def test_the_first_event_comes_while_the_agent_still_works(self, product: Product, cloud: Cloud) -> None:
        agent = alice(product).deploy(puppet())
        agent.invoke({})  # a cold start is another matter
        with agent.streaming({"events": 5, "pause": 1000}, {"Accept-Encoding": "gzip"}) as reading:
            assert reading.answer.status == 200
            assert reading.answer.headers["Content-Type"] == "text/event-stream; charset=utf-8"
            assert reading.answer.headers["Content-Encoding"] is None
            assert reading.answer.headers["X-Accel-Buffering"] == "no"
            seen = list(reading.events())
        kinds = [kind for _, kind, _ in seen]
        assert kinds == ["meta", *["delta"] * 5, "usage", "done"]
        arrived = [at for at, kind, _ in seen if kind == "delta"]
        assert arrived[0] < 1.5
        assert all(later - earlier > 0.5 for earlier, later in pairwise(arrived))

    def test_text_that_is_split_inside_a_character_arrives_whole(self, product: Product, cloud: Cloud) -> None:
        agent = alice(product).deploy(puppet())
        text = "日本語 🙂 é" * 10_000
        events = events_of(agent.stream({"text": text, "events": 2}))
        assert "".join(data["text"] for kind, data in events if kind == "delta") == text * 2

    @pytest.mark.parametrize("tokens", [0, 7])
    def test_the_figures_at_the_end_are_what_is_charged_and_zero_stays_zero(
        self, product: Product, cloud: Cloud, tokens: int
    ) -> None:
        agent = alice(product).deploy(puppet())
        events = dict(events_of(agent.stream({"tokens": tokens, "events": 3})))
        assert events["usage"]["tokens"] == tokens
        assert closed(agent).charged_tokens == tokens

    def test_meta_names_the_invocation_whose_receipt_there_is(self, product: Product, cloud: Cloud) -> None:
        agent = alice(product).deploy(puppet())
        answer = agent.stream({})
        meta = events_of(answer)[0][1]
        assert meta["traceId"] == answer.headers["X-Trace-Id"]
        receipt = agent.owner.receipt(meta["invocationId"])
        assert (receipt["outcome"], receipt["sessionId"]) == ("succeeded", meta["sessionId"])


class TestBreaking:
    def test_an_agent_that_fails_half_way_ends_in_an_error_and_no_done(self, product: Product, cloud: Cloud) -> None:
        agent = alice(product).deploy(puppet())
        events = events_of(agent.stream({"events": 5, "throwAfter": 3, "pause": 50}))
        assert [kind for kind, _ in events] == ["meta", "delta", "delta", "delta", "error"]
        assert events[-1][1]["error"]["code"] == "RUNTIME_ERROR"
        assert events[-1][1]["error"]["details"]["docs"] == f"{product.url}/docs/errors/#runtime-error"
        row = closed(agent)
        assert (row.outcome, row.error_class) == ("failed", "AgentError")
        assert row.charged_tokens > 0
        assert counted(agent.owner) == cloud.calls(agent) == 1

    def test_a_runtime_that_dies_half_way_ends_in_an_error_and_no_done(self, product: Product, cloud: Cloud) -> None:
        agent = alice(product).deploy(puppet())
        with agent.streaming({"events": 20, "pause": 500}) as reading:
            events = reading.events()
            seen = [next(events)[1], next(events)[1]]
            os.kill(cloud.process_of(agent), signal.SIGKILL)
            seen += [kind for _, kind, _ in events]
        assert (seen[0], seen[-1]) == ("meta", "error")
        assert "done" not in seen
        assert (closed(agent).outcome, closed(agent).error_class) == ("failed", "Truncated")
        assert closed(agent).charged_tokens > 0
        assert counted(agent.owner) == cloud.calls(agent) == 1
        assert agent.invoke({}).status_code == 200  # it is started again

    @pytest.mark.parametrize(
        ("provoke", "asked"),
        [
            (lambda cloud, agent: cloud.fail(agent, "http-500"), {}),
            (lambda cloud, agent: cloud.fail(agent, "reset"), {}),
            (lambda cloud, agent: cloud.fail(agent, "truncated"), {"text": "x" * 4000}),
            (lambda cloud, agent: None, {"throwAfter": 0}),
        ],
        ids=["upstream 500", "upstream reset", "upstream breaks off", "the agent's own error"],
    )
    def test_a_failure_before_the_first_event_is_a_plain_http_error(
        self, product: Product, cloud: Cloud, provoke: Callable[[Cloud, Agent], None], asked: dict[str, Any]
    ) -> None:
        agent = alice(product).deploy(puppet())
        provoke(cloud, agent)
        answer = agent.stream(asked)
        assert answer.status_code == 502
        assert answer.headers["Content-Type"] == "application/json"
        assert answer.json()["error"]["code"] == "RUNTIME_ERROR"
        assert closed(agent).outcome == "failed"
        assert counted(agent.owner) == cloud.calls(agent) == 1

    def test_a_provider_that_is_away_is_a_plain_http_error_and_nothing_is_counted(
        self, product: Product, cloud: Cloud
    ) -> None:
        agent = alice(product).deploy(puppet())
        cloud.be_away(1)
        answer = agent.stream({})
        cloud.be_back()
        assert (answer.status_code, answer.json()["error"]["retryable"]) == (502, True)
        assert closed(agent).outcome == "voided"
        assert counted(agent.owner) == 0

    def test_a_timeout_in_the_middle_ends_in_an_error(self, product: Product, cloud: Cloud) -> None:
        agent = alice(product).deploy(puppet(timeout_seconds=2))
        events = events_of(agent.stream({"events": 20, "pause": 500}))
        assert events[-1][0] == "error"
        assert "delta" in [kind for kind, _ in events]
        assert (closed(agent).outcome, closed(agent).error_class) == ("failed", "Timeout")


class TestHangingUp:
    """The agent would work for 20 seconds; whoever hangs up ends that, and pays for what was used."""

    LONG = {"events": 40, "pause": 500}  # noqa: RUF012 - never changed

    def test_after_the_first_event(self, product: Product, cloud: Cloud) -> None:
        agent = alice(product, max_concurrent_invocations=1).deploy(puppet())
        began = time.monotonic()
        with agent.streaming(self.LONG) as reading:
            next(event for event in reading.events() if event[1] == "delta")
        row = closed(agent, 10)
        assert time.monotonic() - began < 10
        assert (row.outcome, row.error_class) == ("failed", "ClientClosed")
        assert row.charged_tokens > 0
        assert row.charged_compute_ms > 0
        assert counted(agent.owner) == cloud.calls(agent) == 1
        assert agent.invoke({}).status_code == 200  # its slot is free

    def test_after_the_first_event_the_upstream_is_stopped(self, product: Product, cloud: Cloud) -> None:
        agent = alice(product).deploy(puppet())
        with agent.streaming(self.LONG) as reading:
            next(event for event in reading.events() if event[1] == "delta")
        assert reported(agent).charged_compute_ms < 15_000

    def test_before_the_first_chunk(self, product: Product, cloud: Cloud) -> None:
        agent = alice(product, max_concurrent_invocations=1).deploy(puppet())
        with agent.sent(f"/v1/invoke/{agent.id}/stream", self.LONG | {"wait": 2000}):
            assert until(lambda: cloud.calls(agent) == 1)
        row = closed(agent, 15)
        assert row.outcome == "failed"
        assert counted(agent.owner) == 1
        assert reported(agent).charged_compute_ms < 15_000
        assert agent.invoke({}).status_code == 200

    def test_on_a_plain_invocation_it_is_settled_with_what_it_used(self, product: Product, cloud: Cloud) -> None:
        agent = alice(product, max_concurrent_invocations=1).deploy(puppet())
        with agent.sent(f"/v1/invoke/{agent.id}", {"wait": 1500, "tokens": 9}):
            assert until(lambda: cloud.calls(agent) == 1)
        row = closed(agent, 15)
        assert row.charged_tokens == 9
        assert counted(agent.owner) == cloud.calls(agent) == 1
        assert agent.invoke({}).status_code == 200


class TestTheLimitDuringAStream:
    def test_the_stream_that_crosses_it_is_finished_and_the_next_is_refused(
        self, product: Product, cloud: Cloud
    ) -> None:
        agent = alice(product, max_tokens_per_period=10).deploy(puppet())
        events = events_of(agent.stream({"events": 4, "pause": 100, "tokens": 500}))
        assert [kind for kind, _ in events][-2:] == ["usage", "done"]
        refused = agent.stream({})
        assert (refused.status_code, refused.json()["error"]["details"]["limitType"]) == (402, "tokens")
        assert counted(agent.owner) == cloud.calls(agent) == 1
