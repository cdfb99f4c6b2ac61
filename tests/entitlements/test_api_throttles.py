"""How many API calls an account may make in a minute, with Redis and without."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError

from entitlements import throttles
from tests.api import Api
from tests.factories import make_account

pytestmark = pytest.mark.usefixtures("live_db")


@pytest.fixture(autouse=True)
def _still_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    # A minute that no test of another run counts in, and that does not end in the middle of a test.
    minute = int(time.time()) // 60 + uuid4().int % 10**6 + 10**6
    stop_the_clock(monkeypatch, minute * 60 + 15.0)
    monkeypatch.setattr(throttles, "_away_until", 0.0)


def stop_the_clock(monkeypatch: pytest.MonkeyPatch, at: float) -> None:
    monkeypatch.setattr(throttles, "time", SimpleNamespace(time=lambda: at, monotonic=time.monotonic))


@pytest.fixture
def three_a_minute(settings: Any) -> None:
    settings.API_REQUESTS_PER_MINUTE = 3


@pytest.mark.usefixtures("three_a_minute")
class TestRate:
    def test_the_fourth_call_of_a_minute_is_429_and_says_when_to_try_again(self) -> None:
        alice, charlie = Api(make_account("alice")), Api(make_account("charlie"))
        assert [alice.get("/v1/me").status for _ in range(3)] == [200] * 3
        answer = alice.get("/v1/me")
        assert (answer.status, answer.code) == (429, "RATE_LIMITED")
        assert answer.headers["Retry-After"] == "45"
        assert answer.json["error"]["retryable"]
        assert answer.details["limitType"] == "requestsPerMinute"
        assert (answer.details["current"], answer.details["limit"]) == (3, 3)
        assert charlie.get("/v1/me").status == 200

    def test_tokens_of_one_account_share_its_rate(self) -> None:
        account = make_account("alice")
        assert [Api(account).get("/v1/me").status for _ in range(4)] == [200, 200, 200, 429]

    def test_the_next_minute_is_a_new_one(self, monkeypatch: pytest.MonkeyPatch) -> None:
        alice = Api(make_account("alice"))
        assert [alice.get("/v1/me").status for _ in range(4)][-1] == 429
        later = throttles.time.time() + 60
        stop_the_clock(monkeypatch, later)
        assert alice.get("/v1/me").status == 200

    def test_invocations_are_not_counted_here(self) -> None:
        alice = Api(make_account("alice"))
        assert {alice.post("/v1/invoke/nobody", {"input": {"prompt": "x"}}).status for _ in range(6)} == {404}

    def test_without_a_token_it_is_counted_by_address_and_no_header_changes_that(self) -> None:
        peer = f"2001:db8:{uuid4().hex[:4]}:{uuid4().hex[:4]}::1"
        codes = []
        for n in range(5):
            nobody = Api()
            nobody.client.defaults["REMOTE_ADDR"] = peer
            codes.append(nobody.get("/v1/tiers", x_forwarded_for=f"203.0.113.{n}").status)
        assert codes == [200, 200, 200, 429, 429]

    def test_the_addresses_of_one_ipv6_network_are_one_caller(self) -> None:
        network = f"2001:db8:{uuid4().hex[:4]}:{uuid4().hex[:4]}"
        codes = []
        for n in range(4):
            nobody = Api()
            nobody.client.defaults["REMOTE_ADDR"] = f"{network}::{n + 1}"
            codes.append(nobody.get("/v1/tiers").status)
        assert codes == [200, 200, 200, 429]

    @pytest.mark.parametrize("path", ["/v1/invoke/agent", "/v1/invoke/agent/stream"])
    def test_guessing_tokens_at_the_gateway_is_paced_as_well(self, path: str) -> None:
        charlie = Api(token="whs_" + "0" * 64)
        body = {"input": {"prompt": "hi"}}
        address = f"203.0.113.{uuid4().int % 200}"
        charlie.client.defaults["REMOTE_ADDR"] = address
        assert [charlie.post(path, body).status for _ in range(4)] == [401, 401, 401, 429]

    def test_guessing_tokens_is_paced_too(self) -> None:
        guesser = Api(token="whs_" + "0" * 64)
        guesser.client.defaults["REMOTE_ADDR"] = f"2001:db8:{uuid4().hex[:4]}:{uuid4().hex[:4]}::1"
        assert [guesser.get("/v1/me").status for _ in range(4)] == [401, 401, 401, 429]


@pytest.mark.usefixtures("three_a_minute")
class TestWithoutRedis:
    def test_each_process_counts_for_itself_and_nobody_waits(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        asked = []

        def away(*args: object, **kwargs: object) -> None:
            asked.append(args)
            raise RedisConnectionError("refused")

        monkeypatch.setattr(throttles.cache, "add", away)
        alice = Api(make_account("alice"))
        assert [alice.get("/v1/me").status for _ in range(5)] == [200, 200, 200, 429, 429]
        assert len(asked) == 1, "a Redis that is away is left alone for a while"
        assert "counted per process" in caplog.text
