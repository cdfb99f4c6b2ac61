"""/v1/agents/{id}/sessions: conversations are listed and stopped, each by its owner only."""

from __future__ import annotations

from datetime import timedelta
from urllib.parse import quote

import pytest
import requests
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from entitlements.enums import Scope
from runtimes.errors import NotReachedError
from runtimes.models import Agent, Deployment
from runtimes.providers import PROVIDERS
from tests.api import Api
from tests.factories import make_account, make_agent, make_deployment
from tests.runtimes.sessions import Ender, long_ago, make_session
from webhost.ids import Prefix, new_id, public_id
from webhost.local.product import Product

pytestmark = pytest.mark.usefixtures("live_db")


@pytest.fixture(autouse=True)
def provider(monkeypatch: pytest.MonkeyPatch) -> Ender:
    ender = Ender()
    monkeypatch.setitem(PROVIDERS, "cloudflare", ender)  # type: ignore[arg-type]
    return ender


@pytest.fixture
def alice() -> Api:
    return Api(make_account("alice"))


@pytest.fixture
def agent(alice: Api) -> Agent:
    assert alice.account
    return make_agent(alice.account)


@pytest.fixture
def deployment(agent: Agent) -> Deployment:
    return make_deployment(agent)


def url(agent: Agent, session_id: str | None = None) -> str:
    return f"/v1/agents/{agent.public_id}/sessions" + ("" if session_id is None else f"/{quote(session_id, safe='')}")


class TestListing:
    def test_a_session_is_shown_as_it_was_recorded(self, alice: Api, agent: Agent, deployment: Deployment) -> None:
        session = make_session(deployment, "chat", invocations=3)
        (shown,) = alice.get(url(agent)).json["items"]
        stamp = "%Y-%m-%dT%H:%M:%S.%fZ"
        assert shown == {
            "sessionId": "chat",
            "runtimeProvider": "cloudflare",
            "deploymentId": deployment.public_id,
            "status": "running",
            "invocations": 3,
            "startedAt": f"{session.started_at:{stamp}}",
            "lastUsedAt": f"{session.last_used_at:{stamp}}",
            "endsAt": f"{session.last_used_at + timedelta(seconds=900):{stamp}}",
            "stoppedAt": None,
        }

    def test_one_that_is_idle_or_alive_for_too_long_is_expired_and_a_stopped_one_stays_stopped(
        self, alice: Api, agent: Agent, deployment: Deployment
    ) -> None:
        make_session(deployment, "fresh")
        make_session(deployment, "idle", **long_ago(minutes=16))
        make_session(deployment, "old", started_at=timezone.now() - timedelta(hours=9))
        make_session(deployment, "endless", lifetime_seconds=None, started_at=timezone.now() - timedelta(days=90))
        make_session(deployment, "stopped", stopped_at=timezone.now(), **long_ago(hours=1))
        shown = {item["sessionId"]: item["status"] for item in alice.get(url(agent)).json["items"]}
        assert shown == {
            "fresh": "running", "idle": "expired", "old": "expired", "endless": "running", "stopped": "stopped",
        }  # fmt: skip

    def test_pages_come_the_last_used_first_and_none_is_lost_or_repeated(
        self, alice: Api, agent: Agent, deployment: Deployment
    ) -> None:
        at_once = timezone.now()
        names = [f"s{n}" for n in range(5)]
        for n, name in enumerate(names):
            make_session(deployment, name, last_used_at=at_once - timedelta(seconds=n // 2))
        found, cursor = [], ""
        while cursor is not None:
            page = alice.get(f"{url(agent)}?limit=2&cursor={cursor}").json
            found += [item["sessionId"] for item in page["items"]]
            cursor = page["nextCursor"]
        assert (sorted(found), found[-1]) == (names, "s4")
        assert set(found[:2]) == {"s0", "s1"}

    def test_many_cost_as_many_queries_as_one(self, alice: Api, agent: Agent, deployment: Deployment) -> None:
        make_session(deployment)
        with CaptureQueriesContext(connection) as few:
            alice.get(url(agent))
        for _ in range(9):
            make_session(deployment)
        with CaptureQueriesContext(connection) as many:
            assert len(alice.get(url(agent)).json["items"]) == 10
        assert len(many) == len(few)

    def test_an_agent_without_sessions_has_an_empty_list(self, alice: Api, agent: Agent) -> None:
        assert alice.get(url(agent)).json == {"items": [], "nextCursor": None}

    def test_charlie_finds_nothing_of_alice_s(self, agent: Agent, deployment: Deployment) -> None:
        make_session(deployment)
        assert Api(make_account("charlie")).get(url(agent)).status == 404
        assert Api().get(url(agent)).status == 401

    def test_a_cursor_that_is_none_is_400(self, alice: Api, agent: Agent) -> None:
        assert alice.get(f"{url(agent)}?cursor=nonsense").status == 400


class TestStopping:
    @pytest.mark.parametrize(
        "name",
        ["chat", "a/b/c", "/", "//x/", "ünï ☃ code", "100% sure?", "a#b&c=d;e", "..", "%2F", " spaced ", "x" * 256],
    )
    def test_a_session_is_stopped_whatever_its_caller_named_it(
        self, alice: Api, agent: Agent, deployment: Deployment, provider: Ender, name: str
    ) -> None:
        session = make_session(deployment, name)
        assert alice.delete(url(agent, name)).status == 204
        session.refresh_from_db()
        assert session.stopped_at is not None
        assert provider.ended == [name]
        (shown,) = alice.get(url(agent)).json["items"]
        assert (shown["sessionId"], shown["status"], shown["stoppedAt"] is None) == (name, "stopped", False)

    def test_stopping_twice_is_success_and_keeps_when_it_was_stopped(
        self, alice: Api, agent: Agent, deployment: Deployment
    ) -> None:
        session = make_session(deployment, "chat")
        assert alice.delete(url(agent, "chat")).status == 204
        session.refresh_from_db()
        first = session.stopped_at
        assert alice.delete(url(agent, "chat")).status == 204
        session.refresh_from_db()
        assert session.stopped_at == first

    def test_what_nobody_started_is_404(self, alice: Api, agent: Agent, deployment: Deployment) -> None:
        make_session(deployment, "chat")
        for name in ("chat2", "Chat", "chat ", "x" * 257, "\n", "chat\nchat"):
            assert alice.delete(url(agent, name)).status == 404
        unknown = public_id(Prefix.AGENT, new_id())
        assert alice.delete(f"/v1/agents/{unknown}/sessions/chat").status == 404

    def test_an_address_that_no_session_can_have_is_400(self, alice: Api, agent: Agent) -> None:
        assert alice.delete(url(agent, "a\x00b")).status == 400

    def test_charlie_stops_nothing_of_alice_s(self, agent: Agent, deployment: Deployment, provider: Ender) -> None:
        session = make_session(deployment, "chat")
        charlie = make_account("charlie")
        assert Api(charlie).delete(url(agent, "chat")).status == 404
        # Nor through an agent of his own, with her session's name.
        assert Api(charlie).delete(url(make_agent(charlie), "chat")).status == 404
        session.refresh_from_db()
        assert (session.stopped_at, provider.ended) == (None, [])

    def test_another_agent_s_session_of_the_same_name_goes_on(
        self, alice: Api, agent: Agent, deployment: Deployment
    ) -> None:
        make_session(deployment, "chat")
        assert alice.account
        other = make_session(make_deployment(make_agent(alice.account)), "chat")
        alice.delete(url(agent, "chat"))
        other.refresh_from_db()
        assert other.stopped_at is None

    def test_it_needs_a_token_that_may_deploy(self, alice: Api, agent: Agent, deployment: Deployment) -> None:
        assert alice.account
        make_session(deployment, "chat")
        assert Api(alice.account, scopes=[Scope.READ, Scope.INVOKE]).delete(url(agent, "chat")).status == 403
        assert Api().delete(url(agent, "chat")).status == 401

    def test_a_provider_that_does_not_answer_is_told_and_stopping_again_ends_it(
        self, alice: Api, agent: Agent, deployment: Deployment, provider: Ender
    ) -> None:
        make_session(deployment, "chat")
        provider.fail = NotReachedError("The runtime could not be reached.", error_class="Unreachable")
        answer = alice.delete(url(agent, "chat"))
        assert (answer.status, answer.json["error"]["retryable"], provider.ended) == (502, True, [])
        provider.fail = None
        assert alice.delete(url(agent, "chat")).status == 204
        assert provider.ended == ["chat"]

    def test_the_real_web_server_keeps_slashes_and_letters_of_a_name(
        self, alice: Api, agent: Agent, deployment: Deployment, product: Product
    ) -> None:
        for name in ("a/b//c ☃?#%", "x/../y", "/"):
            session = make_session(deployment, name)
            answer = requests.delete(
                product.url + url(agent, name), headers={"Authorization": f"Bearer {alice.token}"}, timeout=10
            )
            # 502 where the provider knows no such version: it was found, and is stopped for every call.
            assert answer.status_code in (204, 502), answer.text
            session.refresh_from_db()
            assert session.stopped_at is not None
