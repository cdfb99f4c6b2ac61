"""/v1/agents/{id}/deployments and /v1/deployments/{id}: accepted, followed, activated, given up."""

from __future__ import annotations

from typing import Any

import pytest

from entitlements.models import PeriodCounter
from runtimes.actions import deployments
from runtimes.enums import DeploymentStatus
from runtimes.errors import NotReachedError
from runtimes.models import Agent, AgentLogLine, Artifact, Deployment
from runtimes.providers import PROVIDERS
from tests.api import Api
from tests.factories import example, make_account, make_agent, make_deployment, make_tier, override, zip_of
from tests.runtimes.stub import StubProvider
from webhost.ids import new_id

pytestmark = pytest.mark.usefixtures("live_db")


@pytest.fixture(autouse=True)
def provider(monkeypatch: pytest.MonkeyPatch) -> StubProvider:
    stub = StubProvider()
    monkeypatch.setitem(PROVIDERS, "cloudflare", stub)  # type: ignore[arg-type]
    return stub


@pytest.fixture
def woken(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """What was woken, so that no worker of another test takes it."""
    calls: list[tuple[Any, ...]] = []
    monkeypatch.setattr(deployments, "send_on_commit", lambda *args: calls.append(args))
    return calls


@pytest.fixture
def alice() -> Api:
    return Api(make_account("alice"))


@pytest.fixture
def agent(alice: Api) -> Agent:
    assert alice.account
    return make_agent(alice.account)


class TestDeploying:
    def test_a_bundle_is_accepted_and_its_deployment_is_woken(
        self, alice: Api, agent: Agent, woken: list[tuple[Any, ...]]
    ) -> None:
        answer = alice.upload(f"/v1/agents/{agent.public_id}/deployments", example("echo"))
        assert answer.status == 202
        shown = answer.json
        assert (shown["status"], shown["version"], shown["agentId"]) == ("deploying", 1, agent.public_id)
        assert (shown["error"], shown["finishedAt"], shown["deployedSha256"]) == (None, None, "")
        deployment = Deployment.objects.get(agent=agent)
        assert woken == [("runtimes.run_deployment", str(deployment.pk))]
        assert alice.get(f"/v1/deployments/{shown['id']}").json == shown
        assert alice.get(f"/v1/agents/{agent.public_id}/deployments").json["items"] == [shown]
        assert alice.get(f"/v1/agents/{agent.public_id}").json["status"] == "deploying"
        lines = alice.get(f"/v1/deployments/{shown['id']}/logs").json["items"]
        assert lines[0]["text"].startswith("Accepted version 1")
        assert lines[0]["invocationId"] is None

    def test_a_second_one_while_the_first_is_under_way_is_409(
        self, alice: Api, agent: Agent, woken: list[tuple[Any, ...]]
    ) -> None:
        make_deployment(agent, status=DeploymentStatus.DEPLOYING)
        answer = alice.upload(f"/v1/agents/{agent.public_id}/deployments", example("echo"))
        assert (answer.status, answer.json["error"]["retryable"]) == (409, True)
        assert not woken

    @pytest.mark.parametrize("content", [b"not a zip", b"PK\x05\x06" + b"\0" * 18, zip_of({"a.txt": "x"}), example("echo")[:200]],
                             ids=["no zip", "empty zip", "no config", "cut off"])  # fmt: skip
    def test_what_is_no_bundle_is_400_and_nothing_is_stored(
        self, alice: Api, agent: Agent, woken: list[tuple[Any, ...]], content: bytes
    ) -> None:
        kept = Artifact.objects.count()
        answer = alice.upload(f"/v1/agents/{agent.public_id}/deployments", content)
        assert (answer.status, answer.code) == (400, "INVALID_REQUEST")
        assert answer.issues
        assert not Deployment.objects.filter(agent=agent).exists()
        assert Artifact.objects.count() == kept
        assert not woken

    def test_an_empty_file_or_another_field_is_400(self, alice: Api, agent: Agent) -> None:
        path = f"/v1/agents/{agent.public_id}/deployments"
        assert set(alice.upload(path, b"").issues) == {"bundle"}
        assert set(alice.upload(path, b"x", field="file").issues) == {"file"}

    def test_a_bundle_that_is_no_multipart_is_415(self, alice: Api, agent: Agent) -> None:
        path = f"/v1/agents/{agent.public_id}/deployments"
        assert alice.post(path, {"bundle": "x"}).status == 415
        assert alice.post(path, example("echo"), content_type="application/zip").status == 415

    @pytest.mark.parametrize(
        "body",
        [b"", b"--x", b"--x\r\n\r\n", b"--y--", b"--x\r\nContent-Disposition: form-data; name=bundle; filename=a\r\n"],
    )
    def test_a_broken_multipart_body_is_400(self, alice: Api, agent: Agent, body: bytes) -> None:
        path = f"/v1/agents/{agent.public_id}/deployments"
        for kind in ("multipart/form-data; boundary=x", "multipart/form-data", "multipart/form-data; boundary=\xe9"):
            assert alice.post(path, body, content_type=kind).status == 400

    def test_a_bundle_over_the_limit_is_413_before_it_is_read(self, alice: Api, agent: Agent, settings: Any) -> None:
        path = f"/v1/agents/{agent.public_id}/deployments"
        assert alice.upload(path, b"x" * (settings.BUNDLE_LIMIT + 65 * 1024)).status == 413
        assert alice.upload(path, b"x" * (settings.BUNDLE_LIMIT + 1)).status == 413

    def test_the_cap_on_deployments_is_402_and_giving_one_up_makes_room(
        self, woken: list[tuple[Any, ...]], provider: StubProvider
    ) -> None:
        account = make_account("dave", max_deployments_per_agent=2)
        dave = Api(account)
        agent = make_agent(account)
        old, new = make_deployment(agent), make_deployment(agent)
        answer = dave.upload(f"/v1/agents/{agent.public_id}/deployments", example("echo"))
        assert (answer.status, answer.details["limitType"]) == (402, "deployments")
        assert (answer.details["current"], answer.details["limit"]) == (2, 2)
        assert dave.delete(f"/v1/deployments/{new.public_id}").status == 409, "it serves"
        assert dave.delete(f"/v1/deployments/{old.public_id}").status == 204
        assert dave.get(f"/v1/deployments/{old.public_id}").status == 404
        assert dave.upload(f"/v1/agents/{agent.public_id}/deployments", example("echo")).status == 202


class TestFollowing:
    def test_a_failed_deployment_says_why(self, alice: Api, agent: Agent) -> None:
        failed = make_deployment(
            agent, status=DeploymentStatus.FAILED, error_code="Probe500", error_message="No start."
        )
        shown = alice.get(f"/v1/deployments/{failed.public_id}").json
        assert shown["status"] == "failed"
        assert shown["error"] == {"code": "Probe500", "message": "No start."}

    def test_what_the_agent_printed_is_its_other_log(self, alice: Api, agent: Agent) -> None:
        deployment = make_deployment(agent)
        said = [
            AgentLogLine.objects.create(
                account_id=agent.account_id,
                agent_id=agent.pk,
                deployment_id=deployment.pk,
                invocation_id=new_id(),
                text=f"n{n}",
            )
            for n in range(3)
        ]
        page = alice.get(f"/v1/deployments/{deployment.public_id}/logs?source=agent&limit=2").json
        assert [line["text"] for line in page["items"]] == ["n2", "n1"]
        assert page["items"][0]["invocationId"] == f"inv_{said[2].invocation_id.hex}"
        rest = alice.get(f"/v1/deployments/{deployment.public_id}/logs?source=agent&cursor={page['nextCursor']}").json
        assert [line["text"] for line in rest["items"]] == ["n0"]
        assert alice.get(f"/v1/deployments/{deployment.public_id}/logs?source=other").status == 400

    def test_versions_are_listed_newest_first_in_pages(self, alice: Api, agent: Agent) -> None:
        for _ in range(3):
            make_deployment(agent)
        path = f"/v1/agents/{agent.public_id}/deployments"
        page = alice.get(f"{path}?limit=2").json
        assert [d["version"] for d in page["items"]] == [3, 2]
        assert [d["version"] for d in alice.get(f"{path}?cursor={page['nextCursor']}").json["items"]] == [1]
        assert alice.get(f"{path}?cursor=WyIxZTk5Il0").status == 400


class TestActivating:
    def path(self, agent: Agent, deployment: Deployment) -> str:
        return f"/v1/agents/{agent.public_id}/deployments/{deployment.public_id}/activate"

    def test_an_older_version_serves_again_with_a_reason(
        self, alice: Api, agent: Agent, provider: StubProvider
    ) -> None:
        old = make_deployment(agent, status=DeploymentStatus.ROLLED_BACK)
        new = make_deployment(agent)
        answer = alice.post(self.path(agent, old), {"reason": "The new one is slow."})
        assert (answer.status, answer.json["status"]) == (200, "active")
        assert alice.get(f"/v1/agents/{agent.public_id}").json["activeVersion"] == 1
        assert alice.get(f"/v1/deployments/{new.public_id}").json["status"] == "rolled_back"
        assert [target.deployment_id for target in provider.activated] == [old.pk]

    @pytest.mark.parametrize("body", [{}, {"reason": ""}, {"reason": "  "}, {"reason": "x" * 501}, {"reason": None},
                                      {"reason": "x", "force": True}])  # fmt: skip
    def test_without_a_reason_it_is_400(self, alice: Api, agent: Agent, body: object, provider: StubProvider) -> None:
        assert alice.post(self.path(agent, make_deployment(agent)), body).status == 400
        assert not provider.activated

    def test_a_failed_version_cannot_serve(self, alice: Api, agent: Agent) -> None:
        failed = make_deployment(agent, status=DeploymentStatus.FAILED)
        assert alice.post(self.path(agent, failed), {"reason": "x"}).status == 409

    def test_a_version_of_another_agent_of_the_same_account_is_404(self, alice: Api, agent: Agent) -> None:
        assert alice.account
        other = make_deployment(make_agent(alice.account))
        assert alice.post(self.path(agent, other), {"reason": "x"}).status == 404

    def test_the_entitlements_are_asked_again(self, provider: StubProvider, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(PROVIDERS, "agentcore", provider)  # type: ignore[arg-type]
        account = make_account("dave", make_tier(agentcore_enabled=True))
        agent = make_agent(account)
        gated = make_deployment(agent, runtime_provider="agentcore")
        override(account, "agentcore_enabled", 0)
        answer = Api(account).post(self.path(agent, gated), {"reason": "x"})
        assert (answer.status, answer.details["limitType"]) == (402, "runtimeGated")
        assert not provider.activated


class TestSecrets:
    def path(self, agent: Agent, name: str = "") -> str:
        return f"/v1/agents/{agent.public_id}/secrets{name}"

    def test_a_value_goes_in_and_never_comes_out(
        self, alice: Api, agent: Agent, provider: StubProvider, caplog: pytest.LogCaptureFixture
    ) -> None:
        put = alice.put(self.path(agent), {"secrets": {"API_KEY": "hunter2 \n"}})
        assert put.status == 200
        assert provider.secrets[agent.pk] == {"API_KEY": "hunter2 \n"}
        listed = alice.get(self.path(agent))
        assert [(s["name"], s["isSet"], s["rotatedAt"]) for s in listed.json["items"]] == [("API_KEY", True, None)]
        history = "".join(str(row) for row in Agent.pgh_event_model.objects.filter(pgh_obj_id=agent.pk).values())  # type: ignore[attr-defined]
        assert "hunter2" not in str(put.json) + str(listed.json) + caplog.text + history

    def test_setting_again_rotates_and_others_stay(self, alice: Api, agent: Agent, provider: StubProvider) -> None:
        alice.put(self.path(agent), {"secrets": {"A": "1", "B": "2"}})
        items = alice.put(self.path(agent), {"secrets": {"A": "3"}}).json["items"]
        assert [(s["name"], s["rotatedAt"] is not None) for s in items] == [("A", True), ("B", False)]
        assert provider.secrets[agent.pk] == {"A": "3", "B": "2"}

    def test_a_deleted_secret_is_gone_and_deleting_it_again_is_404(
        self, alice: Api, agent: Agent, provider: StubProvider
    ) -> None:
        alice.put(self.path(agent), {"secrets": {"A": "1"}})
        assert alice.delete(self.path(agent, "/A")).status == 204
        assert alice.delete(self.path(agent, "/A")).status == 404
        assert provider.secrets[agent.pk] == {}
        assert alice.get(self.path(agent)).json["items"] == []

    def test_what_the_active_deployment_asks_for_is_listed_unset(self, alice: Api, agent: Agent) -> None:
        make_deployment(agent, config={"env": {"requiredKeys": ["NEEDED"], "optionalKeys": ["NICE"]}})
        alice.put(self.path(agent), {"secrets": {"NEEDED": "1"}})
        items = alice.get(self.path(agent)).json["items"]
        assert [(s["name"], s["isSet"], s["isRequired"]) for s in items] == [
            ("NEEDED", True, True),
            ("NICE", False, False),
        ]

    @pytest.mark.parametrize("secrets", [
        {}, None, [], "x", {"1A": "x"}, {"A-B": "x"}, {"": "x"}, {"x" * 65: "x"}, {"A": ""}, {"A": "x" * 5121}, {"A": "é" * 2561},
        {"A": None}, {"A": {"b": "c"}}, {"A": "x\x00y"}, {"É": "x"}, {f"A{n}": "x" for n in range(65)},
    ])  # fmt: skip
    def test_what_cannot_be_a_secret_is_refused_without_repeating_it(
        self, alice: Api, agent: Agent, provider: StubProvider, secrets: object
    ) -> None:
        answer = alice.put(self.path(agent), {"secrets": secrets})
        assert answer.status in {400, 409}
        assert not provider.secrets
        assert "xxxxx" not in str(answer.json).replace("x" * 65, "")

    def test_a_provider_that_does_not_take_it_leaves_no_name(
        self, alice: Api, agent: Agent, provider: StubProvider
    ) -> None:
        provider.fail = NotReachedError("It is away.", error_class="Refused")
        assert alice.put(self.path(agent), {"secrets": {"A": "1"}}).status == 502
        provider.fail = None
        assert alice.get(self.path(agent)).json["items"] == []


def test_nothing_of_this_counts_as_an_invocation(alice: Api, agent: Agent, woken: list[tuple[Any, ...]]) -> None:
    alice.upload(f"/v1/agents/{agent.public_id}/deployments", example("echo"))
    alice.post("/v1/limits/check", {"agentId": agent.public_id})
    assert not PeriodCounter.objects.filter(account_id=alice.account_id).exists()
