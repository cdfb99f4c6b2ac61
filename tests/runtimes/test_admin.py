"""Support at work on what runs: sessions stopped with a reason, runtimes switched off, evidence looked at."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal

import pytest
from django.contrib.auth.models import Permission
from django.utils import timezone

from entitlements.models import Account
from runtimes.errors import NotReachedError
from runtimes.models import Agent, AgentSession, Deployment, Grant, RuntimeSwitch, SecretName, ToolUse
from runtimes.providers import PROVIDERS
from tests.entitlements.admin_pages import Staff, history, said
from tests.factories import make_account, make_agent, make_deployment
from tests.runtimes.sessions import Ender, long_ago, make_session
from webhost.ids import Prefix, new_id, public_id

pytestmark = pytest.mark.usefixtures("live_db")


@pytest.fixture(autouse=True)
def provider(monkeypatch: pytest.MonkeyPatch) -> Ender:
    ender = Ender()
    monkeypatch.setitem(PROVIDERS, "cloudflare", ender)  # type: ignore[arg-type]
    return ender


@pytest.fixture
def stella() -> Staff:
    return Staff()


@pytest.fixture
def alice() -> Account:
    return make_account("alice")


@pytest.fixture
def deployment(alice: Account) -> Deployment:
    return make_deployment(make_agent(alice))


def viewer(*models: str) -> Staff:
    """Somebody on the staff who may look and do nothing."""
    account = make_account("victor")
    account.is_staff = True
    account.save()
    account.user_permissions.set(Permission.objects.filter(codename__in=[f"view_{m}" for m in models]))
    return Staff(account)


def listed(staff: Staff, model: type, **query: str) -> str:
    page = staff.client.get(staff.url(model, "changelist"), query)
    assert page.status_code == 200
    return said(page)


class TestSessions:
    def test_one_is_stopped_after_a_confirmation_and_a_reason(
        self, stella: Staff, deployment: Deployment, provider: Ender
    ) -> None:
        session = make_session(deployment, "chat")
        asked = stella.run("stop_selected", session)
        assert "chat of " in said(asked)
        assert "Reason" in said(asked)
        session.refresh_from_db()
        assert (session.stopped_at, provider.ended) == (None, [])
        done = stella.run("stop_selected", session, confirmed="yes", why="Ticket 7")
        assert "chat is stopped." in said(done)
        session.refresh_from_db()
        assert session.stopped_at is not None
        assert session.stopped_because == f"Ticket 7 ({stella.account.email})"
        assert provider.ended == ["chat"]

    def test_without_a_reason_it_goes_on(self, stella: Staff, deployment: Deployment, provider: Ender) -> None:
        session = make_session(deployment)
        assert "A reason is needed." in said(stella.run("stop_selected", session, confirmed="yes", why="  "))
        session.refresh_from_db()
        assert (session.stopped_at, provider.ended) == (None, [])

    def test_a_link_stops_nothing(self, stella: Staff, deployment: Deployment, provider: Ender) -> None:
        session = make_session(deployment)
        query = {"action": "stop_selected", "_selected_action": str(session.pk), "confirmed": "yes", "why": "x"}
        stella.client.get(stella.url(AgentSession, "changelist"), query)
        session.refresh_from_db()
        assert (session.stopped_at, provider.ended) == (None, [])

    def test_who_may_only_look_sees_no_action_and_is_refused(self, deployment: Deployment, provider: Ender) -> None:
        session = make_session(deployment, "chat")
        victor = viewer("agentsession")
        page = victor.client.get(victor.url(AgentSession, "changelist"), {"q": session_id(session)})
        assert "chat" in said(page)
        assert "stop_selected" not in page.content.decode()
        assert "stop_selected" not in victor.client.get(victor.url(session)).content.decode()
        assert victor.run("stop_selected", session, confirmed="yes", why="x").status_code == 403
        session.refresh_from_db()
        assert (session.stopped_at, provider.ended) == (None, [])

    def test_what_the_provider_refuses_is_told(self, stella: Staff, deployment: Deployment, provider: Ender) -> None:
        provider.fail = NotReachedError("The runtime could not be reached.", error_class="Unreachable")
        page = stella.run("stop_selected", make_session(deployment, "chat"), confirmed="yes", why="x")
        assert "chat: The runtime could not be reached." in said(page)

    def test_its_own_page_offers_to_stop_it_until_it_is_stopped(self, stella: Staff, deployment: Deployment) -> None:
        session = make_session(deployment)
        assert "Stop this session" in said(stella.client.get(stella.url(session)))
        AgentSession.objects.filter(pk=session.pk).update(stopped_at=timezone.now())
        assert "Stop this session" not in said(stella.client.get(stella.url(session)))

    def test_they_are_found_by_every_id_and_by_address(
        self, stella: Staff, alice: Account, deployment: Deployment
    ) -> None:
        mine, named = (
            make_session(deployment, "one-of-alice"),
            make_session(deployment, public_id(Prefix.SESSION, new_id())),
        )
        other = make_session(make_deployment(make_agent(make_account("charlie"))), "one-of-charlie")
        agent = public_id(Prefix.AGENT, deployment.agent_id)
        for term in (alice.public_id, agent, deployment.public_id, alice.email, session_id(mine)):
            text = listed(stella, AgentSession, q=term)
            assert "one-of-alice" in text
            assert "one-of-charlie" not in text
        assert named.session_id in listed(stella, AgentSession, q=named.session_id)
        for term in ("agt_x", "ses_" + "0" * 32, "acc_"):
            assert other.session_id not in listed(stella, AgentSession, q=term)

    def test_they_are_filtered_by_where_they_stand(self, stella: Staff, alice: Account, deployment: Deployment) -> None:
        make_session(deployment, "fresh")
        make_session(deployment, "endless", lifetime_seconds=None)
        make_session(deployment, "idle", **long_ago(hours=1))
        make_session(deployment, "halted", stopped_at=timezone.now())
        names = {"fresh", "endless", "idle", "halted"}
        for status, expected in {"running": {"fresh", "endless"}, "expired": {"idle"}, "stopped": {"halted"}}.items():
            page = stella.client.get(stella.url(AgentSession, "changelist"), {"q": alice.public_id, "status": status})
            assert {s.session_id for s in page.context["cl"].result_list} & names == expected

    def test_a_name_with_markup_is_shown_as_text(self, stella: Staff, deployment: Deployment) -> None:
        session = make_session(deployment, "<img src=x onerror=alert(1)>")
        asked = stella.run("stop_selected", session)
        for page in (asked, stella.client.get(stella.url(session))):
            assert "<img src=x" not in page.content.decode()
            assert "&lt;img src=x" in page.content.decode()


def session_id(session: AgentSession) -> str:
    return public_id(Prefix.SESSION, session.pk)


@pytest.fixture
def switch() -> Iterator[RuntimeSwitch]:
    """The switch of AgentCore, as it is without one: other tests deploy meanwhile on Cloudflare."""
    RuntimeSwitch.objects.filter(runtime="agentcore").delete()
    yield RuntimeSwitch.objects.create(runtime="agentcore")
    RuntimeSwitch.objects.filter(runtime="agentcore").delete()


class TestSwitches:
    def test_a_runtime_is_switched_off_with_a_message_a_reason_and_a_history(
        self, stella: Staff, switch: RuntimeSwitch
    ) -> None:
        page = stella.change(switch, deploys=None, message="AWS is down", daily_cost_alarm="99.50", why="Outage")
        assert page.status_code == 302
        switch.refresh_from_db()
        assert (switch.deploys, switch.invocations, switch.message) == (False, True, "AWS is down")
        assert switch.daily_cost_alarm == Decimal("99.50")
        entry = history(switch)[-1]
        assert (entry.pgh_context.metadata["actor"], entry.pgh_context.metadata["reason"]) == (
            stella.account.email,
            "Outage",
        )

    def test_it_needs_a_reason_and_an_alarm_that_is_not_negative(self, stella: Staff, switch: RuntimeSwitch) -> None:
        assert stella.change(switch, deploys=None, why="").status_code == 200
        assert stella.change(switch, daily_cost_alarm="-1").status_code == 200
        switch.refresh_from_db()
        assert (switch.deploys, switch.daily_cost_alarm) == (True, None)

    def test_of_two_people_at_once_the_second_is_told(self, stella: Staff, switch: RuntimeSwitch) -> None:
        stale = stella.open(stella.url(switch))
        Staff().change(switch, message="Mine")
        page = stella.send(stella.url(switch), stale | {"message": "Yours", "why": "x"})
        assert "changed by somebody else" in said(page)
        switch.refresh_from_db()
        assert switch.message == "Mine"

    def test_a_runtime_without_one_is_given_one_and_nobody_deletes_it(
        self, stella: Staff, switch: RuntimeSwitch
    ) -> None:
        assert stella.client.post(f"{stella.url(switch, 'delete')}", {"post": "yes"}).status_code == 403
        switch.delete()
        assert stella.add(RuntimeSwitch, runtime="agentcore", invocations=None, message="Not yet").status_code == 302
        made = RuntimeSwitch.objects.get(runtime="agentcore")
        assert (made.deploys, made.invocations, made.message) == (True, False, "Not yet")

    def test_who_may_only_look_changes_nothing(self, switch: RuntimeSwitch) -> None:
        victor = viewer("runtimeswitch")
        assert victor.client.get(victor.url(switch)).status_code == 200
        assert victor.client.post(victor.url(switch), {"why": "x", "message": "Off"}).status_code == 403
        switch.refresh_from_db()
        assert switch.message == ""


class TestEvidence:
    def test_grants_tool_use_and_names_of_secrets_are_found_and_never_written(
        self, stella: Staff, alice: Account, deployment: Deployment
    ) -> None:
        now = timezone.now()
        grant = Grant.objects.create(deployment=deployment, account_id=alice.pk, capability="browser")
        use = ToolUse.objects.create(
            account_id=alice.pk, deployment_id=deployment.pk, invocation_id=new_id(), kind="browser",
            remote_id=new_id().hex, started_at=now, seen_at=now, mac="v1=0",
        )  # fmt: skip
        secret = SecretName.objects.create(agent=deployment.agent, account_id=deployment.account_id, name="API_KEY")
        agent = public_id(Prefix.AGENT, deployment.agent_id)
        invocation = public_id(Prefix.INVOCATION, use.invocation_id)
        for model, terms, shown in (
            (Grant, (alice.email, alice.public_id, agent, deployment.public_id), str(deployment)),
            (ToolUse, (alice.email, alice.public_id, invocation, deployment.public_id), use.remote_id),
            (SecretName, (alice.email, alice.public_id, agent, "API_KEY"), deployment.agent.name),
        ):
            for term in terms:
                assert shown in listed(stella, model, q=term), (model, term)
            assert shown not in listed(stella, model, q="acc_" + "0" * 32)
        for row in (grant, use, secret):
            assert stella.client.get(stella.url(row)).status_code == 200
            assert stella.client.post(stella.url(row), {}).status_code == 403
            assert stella.client.post(stella.url(row, "delete"), {"post": "yes"}).status_code == 403
            assert stella.client.get(stella.url(type(row), "add")).status_code == 403

    def test_agents_and_deployments_are_found_by_every_id(
        self, stella: Staff, alice: Account, deployment: Deployment
    ) -> None:
        agent = public_id(Prefix.AGENT, deployment.agent_id)
        for term in (alice.public_id, agent, deployment.agent.name):
            assert agent in listed(stella, Agent, q=term)
            assert deployment.public_id in listed(stella, Deployment, q=term)
        assert deployment.public_id in listed(stella, Deployment, q=deployment.public_id)
        assert deployment.public_id not in listed(stella, Deployment, q="dep_x")

    def test_all_of_it_is_in_the_navigation(self, stella: Staff) -> None:
        page = said(stella.client.get("/admin/"))
        for name in ("Sessions", "Grants", "Tool use", "Secrets", "Runtime switches", "Daily cost"):
            assert name in page
