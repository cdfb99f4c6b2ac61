"""Support looks at an agent: what failed, what runs, its versions; and tries a removal again that is stuck."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.contrib.auth.models import Group, Permission
from django.utils import timezone

from entitlements.actions.admit import admit
from entitlements.enums import Outcome
from entitlements.ledger import NOTHING, settle
from entitlements.models import Account, Admission
from runtimes.errors import NotReachedError
from runtimes.models import Agent, AgentSession, Deployment
from runtimes.providers import PROVIDERS
from telemetry.models import Report
from tests.entitlements.admin_pages import Staff, history, said
from tests.entitlements.callers import Caller
from tests.factories import make_account, make_agent, make_deployment
from tests.runtimes.sessions import Ender, long_ago, make_session
from webhost.ids import Prefix, new_id, public_id

pytestmark = pytest.mark.usefixtures("live_db")


class Remover(Ender):
    """A provider that keeps what it was told to remove."""

    def __init__(self) -> None:
        super().__init__()
        self.removed: list[object] = []

    def _remove(self, target: object) -> None:
        if self.fail is not None:
            raise self.fail
        self.removed.append(target)


@pytest.fixture(autouse=True)
def provider(monkeypatch: pytest.MonkeyPatch) -> Remover:
    remover = Remover()
    monkeypatch.setitem(PROVIDERS, "cloudflare", remover)  # type: ignore[arg-type]
    return remover


@pytest.fixture
def steve() -> Staff:
    return member("support")


@pytest.fixture
def deployment() -> Deployment:
    return make_deployment(make_agent(make_account("alice")))


def member(*groups: str) -> Staff:
    account = make_account("steve")
    Account.objects.filter(pk=account.pk).update(is_staff=True)
    account.groups.set(Group.objects.filter(name__in=groups))
    return Staff(Account.objects.get(pk=account.pk))


def call(deployment: Deployment, outcome: Outcome, **said_of_it: str) -> Admission:
    found = new_id()
    caller = Caller(deployment.account_id, deployment.agent_id, deployment.pk)
    admit(found, caller.subject, trace_id=public_id(Prefix.TRACE, new_id()))
    settle(found, outcome, NOTHING, latency_ms=61_000, **said_of_it)
    return Admission.objects.get(pk=found)


def given_up(deployment: Deployment) -> Deployment:
    Deployment.objects.filter(pk=deployment.pk).update(removal_requested_at=timezone.now() - timedelta(hours=1))
    return deployment


def retry(staff: Staff, row: Agent | Deployment, why: str = "Ticket 7") -> str:
    answer = staff.client.post(f"{staff.url(row).removesuffix('change/')}retry-removal/", {"why": why}, follow=True)
    return said(answer) if answer.status_code == 200 else str(answer.status_code)


class TestAnAgentsPage:
    def test_it_shows_what_went_wrong_last_with_its_trace_and_nothing_that_went_well(
        self, steve: Staff, deployment: Deployment
    ) -> None:
        good = call(deployment, Outcome.SUCCEEDED)
        bad = call(deployment, Outcome.FAILED, error_class="AgentError")
        page = steve.client.get(steve.url(deployment.agent))
        text = said(page)
        assert public_id(Prefix.INVOCATION, bad.pk) in text
        assert "failed AgentError 1 min 1 s" in text
        assert f"/admin/search/?q={bad.trace_id}" in page.content.decode()
        assert public_id(Prefix.INVOCATION, good.pk) not in text

    def test_it_shows_the_sessions_that_run_and_stops_the_chosen_with_a_reason_that_is_recorded(
        self, steve: Staff, deployment: Deployment, provider: Remover
    ) -> None:
        running = make_session(deployment, "chat-now")
        make_session(deployment, "chat-idle", **long_ago(hours=3))
        make_session(deployment, "chat-stopped", stopped_at=timezone.now())
        text = said(steve.client.get(steve.url(deployment.agent)))
        assert "chat-now" in text
        assert "chat-idle" not in text
        assert "chat-stopped" not in text
        sent = {"action": "stop_selected", "_selected_action": [str(running.pk)]}
        url = steve.url(AgentSession, "changelist")
        assert "Stop sessions?" in said(steve.client.post(url, sent, follow=True))
        steve.client.post(url, {**sent, "confirmed": "yes", "why": "Ticket 7"}, follow=True)
        running.refresh_from_db()
        assert running.stopped_because == f"Ticket 7 ({steve.account.email})"
        assert provider.ended == ["chat-now"]

    def test_it_shows_every_version_with_its_status_and_error(self, steve: Staff, deployment: Deployment) -> None:
        make_deployment(
            deployment.agent, activate=False, status="failed", error_code="WorkerUploadError",
            error_message="<b>Line 7</b>",
        )  # fmt: skip
        page = steve.client.get(steve.url(deployment.agent))
        assert "v1 cloudflare serves" in said(page)
        assert "v2 cloudflare failed WorkerUploadError: &lt;b&gt;Line 7&lt;/b&gt;" in said(page)

    def test_who_may_not_see_invocations_sees_none_of_them_here(self, deployment: Deployment) -> None:
        bad = call(deployment, Outcome.FAILED, error_class="AgentError")
        victor = member()
        assert victor.client.get(victor.url(deployment.agent)).status_code == 403
        victor.account.user_permissions.set(Permission.objects.filter(codename="view_agent"))
        page = victor.client.get(victor.url(deployment.agent))
        assert page.status_code == 200
        assert public_id(Prefix.INVOCATION, bad.pk) not in page.content.decode()


class TestADeploymentsPage:
    def test_it_counts_its_usage_reports_and_leads_to_each_kind(self, steve: Staff, deployment: Deployment) -> None:
        for number, (status, reason) in enumerate(
            [("accepted", ""), ("accepted", ""), ("duplicate", ""), ("rejected", "malformed: tokens")]
        ):
            Report.objects.create(
                deployment_id=deployment.pk, event_id=f"evt-{number}".encode(), body=b"secret prompt",
                signature="v1=0", key_id="k", status=status, reason=reason, account_id=deployment.account_id,
            )  # fmt: skip
        page = steve.client.get(steve.url(deployment))
        assert "pending 0 accepted 2 duplicate 1 rejected 1 parked 0" in said(page)
        lists = {
            f"deployment={deployment.public_id}&status=rejected": ("evt-3",),
            f"deployment={deployment.public_id}&status=accepted": ("evt-0", "evt-1"),
            f"agent={deployment.agent.public_id}": ("evt-0", "evt-1", "evt-2", "evt-3"),
            f"q={deployment.public_id}&reason=malformed": ("evt-3",),
            f"q={deployment.public_id}&reason=conflict": (),
            f"q={deployment.public_id}&since=hour": ("evt-0", "evt-1", "evt-2", "evt-3"),
            "deployment=nonsense": (),
        }
        for query, expected in lists.items():
            page = steve.client.get(f"{steve.url(Report, 'changelist')}?{query}")
            assert {str(bytes(r.event_id), "utf-8") for r in page.context["cl"].result_list} == set(expected), query
            assert "secret prompt" not in page.content.decode()
        assert "secret prompt" not in steve.client.get(steve.url(Report.objects.latest("pk"))).content.decode()

    def test_it_names_the_keys_that_are_read_and_shows_what_the_provider_called_things(self, steve: Staff) -> None:
        made = make_deployment(
            make_agent(make_account("alice")), remote={"script": "whs-1"},
            config={"name": "hello", "entrypoint": "agent.ts", "env": {"requiredKeys": ["API_KEY"], "optionalKeys": []}},
        )  # fmt: skip
        text = said(steve.client.get(steve.url(made)))
        assert "requiredKeys: API_KEY" in text
        assert "script: whs-1" in text


class TestARemovalThatIsStuck:
    @pytest.mark.case("ADM-01")
    def test_a_version_is_removed_at_once_and_the_audit_log_says_who_and_why(
        self, steve: Staff, deployment: Deployment, provider: Remover
    ) -> None:
        given_up(deployment)
        assert "Retry removal now" in said(steve.client.get(steve.url(deployment)))
        assert "Nothing of it is left at the provider." in retry(steve, deployment)
        deployment.refresh_from_db()
        assert deployment.removed_at is not None
        assert len(provider.removed) == 1
        entry = history(deployment)[-1]
        said_of_it = entry.pgh_context.metadata
        assert entry.removal_retried_at is not None
        assert (said_of_it["actor"], said_of_it["reason"], said_of_it["source"]) == (
            steve.account.email, "Ticket 7", "admin",
        )  # fmt: skip
        log = said(
            steve.client.get("/admin/entitlements/historyentry/", {"object": f"runtimes.Deployment:{deployment.pk}"})
        )
        assert "removal retried at: none →" in log

    def test_a_deleted_agent_goes_with_all_its_versions(
        self, steve: Staff, deployment: Deployment, provider: Remover
    ) -> None:
        agent = deployment.agent
        Agent.objects.filter(pk=agent.pk).update(deleted_at=timezone.now())
        assert "Nothing of it is left at the provider." in retry(steve, agent)
        agent.refresh_from_db()
        deployment.refresh_from_db()
        assert agent.removed_at is not None
        assert deployment.removed_at is not None
        assert any(entry.removal_retried_at for entry in history(agent))
        assert history(agent)[-1].pgh_context.metadata["actor"] == steve.account.email

    def test_what_the_provider_refuses_is_told_and_stays_to_be_tried_and_is_in_the_log(
        self, steve: Staff, deployment: Deployment, provider: Remover
    ) -> None:
        provider.fail = NotReachedError("The runtime could not be reached.", error_class="Unreachable")
        assert "The runtime could not be reached." in retry(steve, given_up(deployment))
        deployment.refresh_from_db()
        assert deployment.removed_at is None
        assert history(deployment)[-1].removal_retried_at is not None

    def test_nothing_is_tried_without_a_reason_or_by_a_link(
        self, steve: Staff, deployment: Deployment, provider: Remover
    ) -> None:
        given_up(deployment)
        assert "A change needs a reason." in retry(steve, deployment, why="  ")
        url = f"{steve.url(deployment).removesuffix('change/')}retry-removal/"
        assert steve.client.get(url, {"why": "x"}).status_code == 405
        assert provider.removed == []
        assert [e.pgh_label for e in history(deployment)] == ["insert"]

    def test_what_serves_or_is_gone_is_not_removed(
        self, steve: Staff, deployment: Deployment, provider: Remover
    ) -> None:
        assert "Nothing of this version waits to be removed." in retry(steve, deployment)
        assert "Nothing of this agent waits to be removed." in retry(steve, deployment.agent)
        Deployment.objects.filter(pk=given_up(deployment).pk).update(removed_at=timezone.now())
        assert "Nothing of this version waits to be removed." in retry(steve, deployment)
        assert provider.removed == []

    @pytest.mark.parametrize("group", ["auditor", "pricing", "none"])
    def test_nobody_but_support_tries_it(self, group: str, deployment: Deployment, provider: Remover) -> None:
        given_up(deployment)
        staff = member(group)
        assert retry(staff, deployment) == "403"
        assert "Retry removal now" not in staff.client.get(staff.url(deployment)).content.decode()
        assert provider.removed == []

    def test_it_is_found_among_all(self, steve: Staff, deployment: Deployment) -> None:
        fresh = make_deployment(deployment.agent, activate=False)
        given_up(deployment)
        Deployment.objects.filter(pk=fresh.pk).update(removal_requested_at=timezone.now())
        url = steve.url(Deployment, "changelist")
        query = {"q": deployment.agent.public_id}

        def listed(removal: str) -> set[object]:
            return {d.pk for d in steve.client.get(url, {**query, "removal": removal}).context["cl"].result_list}

        assert listed("stuck") == {deployment.pk}
        assert listed("waiting") == {deployment.pk, fresh.pk}
        assert listed("gone") == set()
