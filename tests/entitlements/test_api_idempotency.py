"""Idempotency-Key: a repeat is answered as the first was, and does nothing twice, whatever became of the first."""

from __future__ import annotations

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from django.utils import timezone

from entitlements import idempotency, ledger
from entitlements.enums import Outcome
from entitlements.models import Admission, IdempotencyRecord, PeriodCounter
from runtimes.actions import deployments, invoke
from runtimes.errors import NotReachedError, RuntimeFailedError
from runtimes.models import Agent, Deployment
from runtimes.providers import PROVIDERS
from tests.api import Answer, Api, at_once
from tests.factories import example, make_account, make_agent, make_deployment, make_token, override
from tests.runtimes.stub import StubProvider
from webhost.errors import UnavailableError

pytestmark = pytest.mark.usefixtures("live_db")
ASK = {"input": {"prompt": "hello"}}


@pytest.fixture
def provider(monkeypatch: pytest.MonkeyPatch) -> StubProvider:
    stub = StubProvider()
    monkeypatch.setitem(PROVIDERS, "cloudflare", stub)  # type: ignore[arg-type]
    return stub


@pytest.fixture
def alice() -> Api:
    return Api(make_account("alice", max_concurrent_invocations=100, requests_per_minute=1000))


@pytest.fixture
def agent(alice: Api) -> str:
    assert alice.account
    made = make_agent(alice.account)
    make_deployment(made)
    return made.public_id


@pytest.fixture
def key() -> str:
    return uuid4().hex


def used(alice: Api) -> int:
    counter = PeriodCounter.objects.filter(account_id=alice.account_id).first()
    return counter.used_requests if counter else 0


def record(alice: Api) -> IdempotencyRecord:
    return IdempotencyRecord.objects.get(account_id=alice.account_id)


def age(alice: Api, seconds: int) -> None:
    """Let time pass for the first request."""
    IdempotencyRecord.objects.filter(account_id=alice.account_id).update(
        created_at=timezone.now() - timedelta(seconds=seconds)
    )


class KilledError(BaseException):
    """Not an Exception: nothing catches it, as nothing catches a kill."""


def die(monkeypatch: pytest.MonkeyPatch, where: Any, name: str) -> None:
    """Let the process die there: nothing after it is done."""

    def killed(*args: object, **kwargs: object) -> None:
        raise KilledError

    monkeypatch.setattr(where, name, killed)


def call_and_die(alice: Api, path: str, body: object, key: str) -> None:
    with pytest.raises(KilledError):
        alice.post(path, body, idempotency_key=key)


class TestInvocations:
    def test_a_repeat_gets_the_first_answer_and_counts_nothing(
        self, alice: Api, agent: str, provider: StubProvider, key: str
    ) -> None:
        first = alice.post(f"/v1/invoke/{agent}", ASK, idempotency_key=key)
        again = alice.post(f"/v1/invoke/{agent}", ASK, idempotency_key=key)
        assert first.status == again.status == 200
        assert again.json == first.json
        assert again.headers["Idempotency-Replayed"] == "true"
        assert "Idempotency-Replayed" not in first.headers
        assert len(provider.invocations) == used(alice) == 1

    def test_without_a_key_nothing_is_remembered(self, alice: Api, agent: str, provider: StubProvider) -> None:
        for _ in range(2):
            alice.post(f"/v1/invoke/{agent}", ASK)
        assert len(provider.invocations) == 2
        assert not IdempotencyRecord.objects.filter(account_id=alice.account_id).exists()

    def test_the_same_key_with_another_body_is_409(
        self, alice: Api, agent: str, provider: StubProvider, key: str
    ) -> None:
        alice.post(f"/v1/invoke/{agent}", ASK, idempotency_key=key)
        other = alice.post(f"/v1/invoke/{agent}", {"input": {"prompt": "other"}}, idempotency_key=key)
        assert (other.status, other.json["error"]["retryable"]) == (409, False)
        assert len(provider.invocations) == 1

    def test_a_key_is_one_accounts_and_one_operations(
        self, alice: Api, agent: str, provider: StubProvider, key: str
    ) -> None:
        charlie = Api(make_account("charlie"))
        alice.post(f"/v1/invoke/{agent}", ASK, idempotency_key=key)
        assert alice.post("/v1/agents", {"name": "same-key"}, idempotency_key=key).status == 201
        assert charlie.post("/v1/agents", {"name": "same-key"}, idempotency_key=key).status == 201

    def test_twenty_at_once_run_once(self, alice: Api, agent: str, provider: StubProvider, key: str) -> None:
        release = threading.Event()
        provider.act = lambda invocation: "slow" if release.wait(5) else "never"

        def send(_: int) -> Answer:
            return Api(alice.account, token=alice.token).post(f"/v1/invoke/{agent}", ASK, idempotency_key=key)

        with ThreadPoolExecutor(20) as crowd:
            sent = [crowd.submit(send, n) for n in range(20)]
            while sum(one.done() for one in sent) < 19:
                release.wait(0.01)
            release.set()
            answers = [one.result() for one in sent]
        codes = Counter(answer.status for answer in answers)
        assert codes == {200: 1, 409: 19}
        for answer in answers:
            if answer.status == 409:
                assert answer.json["error"]["retryable"]
                assert int(answer.headers["Retry-After"]) >= 1
        assert len(provider.invocations) == used(alice) == 1

    def test_a_refusal_does_not_poison_the_key(self, alice: Api, agent: str, provider: StubProvider, key: str) -> None:
        assert alice.account
        spent = override(alice.account, "max_requests_per_period", 0)
        assert alice.post(f"/v1/invoke/{agent}", {"input": {}}, idempotency_key=key).status == 400
        assert alice.post(f"/v1/invoke/{agent}", ASK, idempotency_key=key).status == 402
        spent.delete()
        assert alice.post(f"/v1/invoke/{agent}", ASK, idempotency_key=key).status == 200
        assert len(provider.invocations) == 1

    def test_a_provider_that_was_not_reached_frees_the_key(
        self, alice: Api, agent: str, provider: StubProvider, key: str
    ) -> None:
        provider.fail = NotReachedError("It is away.", error_class="Refused")
        assert alice.post(f"/v1/invoke/{agent}", ASK, idempotency_key=key).status == 502
        assert used(alice) == 0
        provider.fail = None
        assert alice.post(f"/v1/invoke/{agent}", ASK, idempotency_key=key).status == 200
        assert used(alice) == 1

    def test_a_failure_that_counted_is_answered_again(
        self, alice: Api, agent: str, provider: StubProvider, key: str
    ) -> None:
        provider.fail = RuntimeFailedError("Too slow.", error_class="Timeout")
        first = alice.post(f"/v1/invoke/{agent}", ASK, idempotency_key=key)
        provider.fail = None
        again = alice.post(f"/v1/invoke/{agent}", ASK, idempotency_key=key)
        assert first.status == again.status == 504
        assert again.json == first.json
        assert len(provider.invocations) == used(alice) == 1

    def test_the_key_is_free_again_after_a_day(self, alice: Api, agent: str, provider: StubProvider, key: str) -> None:
        alice.post(f"/v1/invoke/{agent}", ASK, idempotency_key=key)
        kept = record(alice)
        assert timedelta(hours=23, minutes=59) < kept.expires_at - timezone.now() <= timedelta(hours=24)
        IdempotencyRecord.objects.filter(pk=kept.pk).update(expires_at=timezone.now())
        assert alice.post(f"/v1/invoke/{agent}", {"input": {"prompt": "new"}}, idempotency_key=key).status == 200
        assert len(provider.invocations) == 2

    @pytest.mark.parametrize("bad", ["", " ", "a b", "x" * 256, "é", "a\tb"])
    def test_a_key_that_is_none_is_400(self, alice: Api, agent: str, provider: StubProvider, bad: str) -> None:
        answer = alice.post(f"/v1/invoke/{agent}", ASK, idempotency_key=bad)
        assert answer.status == 400
        assert set(answer.issues) == {"Idempotency-Key"}
        assert not provider.invocations

    def test_an_agent_with_a_very_long_name_in_the_address_is_still_only_404(self, alice: Api, key: str) -> None:
        assert alice.post(f"/v1/invoke/{'x' * 3000}", ASK, idempotency_key=key).status == 404


class TestWhatIsKept:
    def test_it_is_readable_only_with_the_token_and_the_key(
        self, alice: Api, agent: str, provider: StubProvider, key: str
    ) -> None:
        provider.act = lambda invocation: "a very private answer"
        alice.post(f"/v1/invoke/{agent}", ASK, idempotency_key=key)
        kept = record(alice)
        assert b"private" not in bytes(kept.response_body or b"")
        assert key.encode() not in bytes(kept.key_digest)
        assert alice.account
        other_token = Api(alice.account, token=make_token(alice.account))
        answer = other_token.post(f"/v1/invoke/{agent}", ASK, idempotency_key=key)
        assert answer.status == 409
        assert answer.details["invocationId"] == f"inv_{provider.invocations[0].invocation_id.hex}"
        assert "private" not in str(answer.json)
        assert len(provider.invocations) == 1

    def test_a_large_answer_is_not_kept_and_its_repeat_is_409_with_the_invocation(
        self, alice: Api, agent: str, provider: StubProvider, key: str
    ) -> None:
        provider.act = lambda invocation: "x" * (1024 * 1024)
        first = alice.post(f"/v1/invoke/{agent}", ASK, idempotency_key=key)
        again = alice.post(f"/v1/invoke/{agent}", ASK, idempotency_key=key)
        assert (first.status, again.status) == (200, 409)
        assert again.details == {"invocationId": first.json["invocationId"], "outcome": "succeeded"}

    def test_a_stream_is_not_kept_and_its_repeat_is_409_with_the_invocation(
        self, alice: Api, agent: str, provider: StubProvider, key: str
    ) -> None:
        headers = {"Authorization": f"Bearer {alice.token}", "Idempotency-Key": key}
        first = alice.client.post(f"/v1/invoke/{agent}/stream", ASK, content_type="application/json", headers=headers)
        text = b"".join(first.streaming_content).decode()  # type: ignore[attr-defined]
        assert "event: done" in text
        again = alice.post(f"/v1/invoke/{agent}/stream", ASK, idempotency_key=key)
        assert again.status == 409
        assert again.details["invocationId"] in text
        assert len(provider.invocations) == used(alice) == 1


class TestAProcessThatDied:
    def test_before_anything_happened_a_repeat_runs_once_the_first_is_given_up(
        self, alice: Api, agent: str, provider: StubProvider, key: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with monkeypatch.context() as patch:
            die(patch, invoke, "admit")
            call_and_die(alice, f"/v1/invoke/{agent}", ASK, key)
        early = alice.post(f"/v1/invoke/{agent}", ASK, idempotency_key=key)
        assert (early.status, early.json["error"]["retryable"]) == (409, True)
        age(alice, 61)
        assert alice.post(f"/v1/invoke/{agent}", ASK, idempotency_key=key).status == 200
        assert len(provider.invocations) == used(alice) == 1

    def test_after_it_was_admitted_its_outcome_is_answered_and_nothing_runs_again(
        self, alice: Api, agent: str, provider: StubProvider, key: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with monkeypatch.context() as patch:
            die(patch, ledger, "settle")
            die(patch, idempotency, "_quietly")
            call_and_die(alice, f"/v1/invoke/{agent}", ASK, key)
        age(alice, 3600)
        running = alice.post(f"/v1/invoke/{agent}", ASK, idempotency_key=key)
        assert (running.status, running.json["error"]["retryable"]) == (409, True)
        invocation = provider.invocations[0].invocation_id
        Admission.objects.filter(pk=invocation).update(outcome=Outcome.EXPIRED)
        over = alice.post(f"/v1/invoke/{agent}", ASK, idempotency_key=key)
        assert (over.status, over.json["error"]["retryable"]) == (409, False)
        assert over.details == {"invocationId": f"inv_{invocation.hex}", "outcome": "expired"}
        assert len(provider.invocations) == used(alice) == 1

    def test_of_many_repeats_that_find_it_dead_one_goes_on(
        self, alice: Api, agent: str, provider: StubProvider, key: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with monkeypatch.context() as patch:
            die(patch, invoke, "admit")
            call_and_die(alice, f"/v1/invoke/{agent}", ASK, key)
        age(alice, 61)

        def send(_: int) -> int:
            return Api(alice.account, token=alice.token).post(f"/v1/invoke/{agent}", ASK, idempotency_key=key).status

        codes = Counter(at_once(send, 10))
        assert set(codes) <= {200, 409}
        assert len(provider.invocations) == used(alice) == 1

    def test_a_request_that_was_held_up_too_long_gives_way(
        self, alice: Api, agent: str, provider: StubProvider, key: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(idempotency, "_LEASE_SECONDS", 0)
        answer = alice.post(f"/v1/invoke/{agent}", ASK, idempotency_key=key)
        assert (answer.status, answer.json["error"]["retryable"]) == (409, True)
        assert not provider.invocations
        assert used(alice) == 0

    def test_a_database_that_went_away_meanwhile_runs_nothing_twice(
        self, alice: Api, agent: str, provider: StubProvider, key: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        admit = invoke.admit

        def admitted_but_unheard(*args: Any, **kwargs: Any) -> Any:
            admit(*args, **kwargs)
            raise UnavailableError

        with monkeypatch.context() as patch:
            patch.setattr(invoke, "admit", admitted_but_unheard)
            assert alice.post(f"/v1/invoke/{agent}", ASK, idempotency_key=key).status == 503
        age(alice, 3600)
        assert alice.post(f"/v1/invoke/{agent}", ASK, idempotency_key=key).status == 409
        assert not provider.invocations
        assert used(alice) == 1


class TestCreating:
    def test_an_agent_is_created_once(self, alice: Api, key: str) -> None:
        first = alice.post("/v1/agents", {"name": "once"}, idempotency_key=key)
        again = alice.post("/v1/agents", {"name": "once"}, idempotency_key=key)
        assert (first.status, again.status) == (201, 201)
        assert again.json == first.json
        assert Agent.objects.filter(account=alice.account).count() == 1

    def test_an_agent_whose_answer_was_lost_is_answered_as_it_is_now(
        self, alice: Api, key: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with monkeypatch.context() as patch:
            die(patch, idempotency, "_quietly")
            call_and_die(alice, "/v1/agents", {"name": "once"}, key)
        again = alice.post("/v1/agents", {"name": "once"}, idempotency_key=key)
        assert again.status == 201
        assert again.json["name"] == "once"
        assert Agent.objects.filter(account=alice.account).count() == 1

    def test_a_refused_creation_does_not_poison_the_key(self, alice: Api, key: str) -> None:
        alice.post("/v1/agents", {"name": "taken"})
        assert alice.post("/v1/agents", {"name": "taken"}, idempotency_key=key).status == 409
        made = Agent.objects.get(account=alice.account)
        assert alice.delete(f"/v1/agents/{made.public_id}").status == 204
        assert alice.post("/v1/agents", {"name": "taken"}, idempotency_key=key).status == 201

    def test_a_token_is_made_once_and_shown_again_to_the_same_caller(self, alice: Api, key: str) -> None:
        body = {"name": "laptop", "scopes": ["read"]}
        first = alice.post("/v1/tokens", body, idempotency_key=key)
        again = alice.post("/v1/tokens", body, idempotency_key=key)
        assert again.json == first.json
        assert len(alice.get("/v1/tokens").json["items"]) == 2

    def test_a_token_whose_answer_was_lost_is_named_so_that_it_can_be_revoked(
        self, alice: Api, key: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        body = {"name": "laptop", "scopes": ["read"]}
        with monkeypatch.context() as patch:
            die(patch, idempotency, "_quietly")
            call_and_die(alice, "/v1/tokens", body, key)
        again = alice.post("/v1/tokens", body, idempotency_key=key)
        assert again.status == 409
        assert alice.delete(f"/v1/tokens/{again.details['tokenId']}").status == 204

    @pytest.fixture
    def _nobody_woken(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(deployments, "send_on_commit", lambda *args: None)

    @pytest.mark.usefixtures("_nobody_woken", "provider")
    def test_a_deployment_is_accepted_once_whatever_the_multipart_boundary(self, alice: Api, key: str) -> None:
        agent = alice.post("/v1/agents", {"name": "deployed"}).json["id"]
        bundle = example("echo")
        answers = [
            alice.upload(f"/v1/agents/{agent}/deployments", bundle, name=name, idempotency_key=key)
            for name in ("a.zip", "b.zip")
        ]
        assert [answer.status for answer in answers] == [202, 202]
        assert answers[0].json == answers[1].json
        assert Deployment.objects.filter(account_id=alice.account_id).count() == 1
        other = alice.upload(f"/v1/agents/{agent}/deployments", example("tokens"), idempotency_key=key)
        assert other.status == 409
