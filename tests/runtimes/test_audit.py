"""What an agent's owner and its runtime do is in the audit log: secrets by name only, stopped sessions, deployments."""

from __future__ import annotations

from typing import Any

import pytest
from django.utils import timezone

from entitlements.models import HistoryEntry, UnsignedChange
from runtimes.models import Agent, AgentSession
from runtimes.providers import PROVIDERS
from runtimes.tasks import sweep_removals
from telemetry.models import AlertTarget
from telemetry.tasks import apply_retention, ask_addresses
from tests.api import Api
from tests.entitlements.admin_pages import Staff, history, said
from tests.factories import make_account, make_agent, make_deployment
from tests.runtimes.sessions import Ender, long_ago, make_session
from webhost.history import noted

pytestmark = pytest.mark.usefixtures("live_db", "nobody_sweeps")


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
    with noted(source="command tests"):
        return make_agent(alice.account)


def entries(account: Api, kind: str) -> list[HistoryEntry]:
    found = HistoryEntry.objects.filter(account_id=account.account_id, kind=kind)
    return list(found.order_by("event_id").select_related("context"))


def unsigned(entries: list[Any]) -> int:
    return UnsignedChange.objects.filter(pk__in=[e.context_id for e in entries]).count()


def test_setting_rotating_and_deleting_a_secret_is_recorded_by_whom_and_never_its_value(
    alice: Api, agent: Agent
) -> None:
    url = f"/v1/agents/{agent.public_id}/secrets"
    alice.put(url, {"secrets": {"API_KEY": "hunter2", "OTHER": "hunter2"}})
    alice.put(url, {"secrets": {"API_KEY": "hunter3"}})
    alice.delete(f"{url}/API_KEY")
    found = entries(alice, "runtimes.SecretName")
    assert [(e.verb, e.data["name"]) for e in found] == [
        ("insert", "API_KEY"), ("insert", "OTHER"), ("update", "API_KEY"), ("delete", "API_KEY"),
    ]  # fmt: skip
    assert alice.account
    for entry in found:
        assert entry.context
        notes = entry.context.metadata
        assert (notes["actor"], notes["source"], notes["token"][:4]) == (alice.account.email, "api", "tok_")
        assert "hunter" not in str(entry.data) + str(notes)
    assert unsigned(found) == 0
    page = said(Staff().client.get("/admin/entitlements/historyentry/", {"account": alice.account.email}))
    assert f"secret name API_KEY deleted - {alice.account.email} {alice.account.email} no reason given api" in page


def test_the_token_of_a_change_is_found_by_its_id(alice: Api, agent: Agent) -> None:
    alice.patch(f"/v1/agents/{agent.public_id}", {"description": "New."})
    entry = entries(alice, "runtimes.Agent")[-1]
    assert entry.context
    page = said(Staff().client.get("/admin/entitlements/historyentry/", {"q": entry.context.metadata["token"]}))
    assert "description: empty → New." in page


def test_stopping_a_session_is_recorded_once_and_using_it_never(alice: Api, agent: Agent) -> None:
    session = make_session(make_deployment(agent), "chat")
    AgentSession.objects.filter(pk=session.pk).update(last_used_at=timezone.now(), invocations=2)
    url = f"/v1/agents/{agent.public_id}/sessions/chat"
    alice.delete(url)
    alice.delete(url)
    (entry,) = entries(alice, "runtimes.AgentSession")
    assert (entry.verb, entry.data["session_id"]) == ("stop", "chat")
    assert alice.account
    assert entry.context
    assert entry.context.metadata["actor"] == alice.account.email
    assert unsigned([entry]) == 0


def test_support_stops_a_session_with_a_reason_that_is_in_the_audit_log(alice: Api, agent: Agent) -> None:
    session, stella = make_session(make_deployment(agent)), Staff()
    stella.run("stop_selected", session, why="It loops", confirmed="yes")
    (entry,) = entries(alice, "runtimes.AgentSession")
    assert entry.context
    notes = entry.context.metadata
    assert (notes["actor"], notes["reason"], notes["source"]) == (stella.account.email, "It loops", "admin")


@pytest.mark.case("ADM-03")
def test_retention_takes_a_session_and_leaves_what_was_recorded_of_it(alice: Api, agent: Agent) -> None:
    session = make_session(make_deployment(agent), "chat", **long_ago(days=4000))
    alice.delete(f"/v1/agents/{agent.public_id}/sessions/chat")
    apply_retention()
    assert not AgentSession.objects.filter(pk=session.pk).exists()
    assert [e.verb for e in entries(alice, "runtimes.AgentSession")] == ["stop"]


def test_what_tasks_change_past_djangos_connection_is_signed_with_their_names(alice: Api) -> None:
    with noted(source="command tests"):
        target = AlertTarget.objects.create(account_id=alice.account_id, kind="email", address="bob@example.com")
    ask_addresses()
    AlertTarget.objects.filter(pk=target.pk).update(created_at=timezone.now().replace(year=2020))
    apply_retention()
    sources = [event.pgh_context.metadata["source"] for event in history(target)]
    assert sources == ["command tests", "task telemetry.ask_addresses", "database", "task telemetry.apply_retention"]


def test_a_sweep_signs_what_it_removes(alice: Api, agent: Agent) -> None:
    alice.delete(f"/v1/agents/{agent.public_id}")
    sweep_removals()
    last = history(agent)[-1]
    assert last.removed_at is not None
    assert last.pgh_context.metadata["source"] == "task runtimes.sweep_removals"
