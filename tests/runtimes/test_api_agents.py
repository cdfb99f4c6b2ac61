"""/v1/agents: create, list, change, switch, disable, delete; caps and gates; strangers get 404."""

from __future__ import annotations

import pytest

from entitlements.enums import Runtime
from entitlements.models import Denial
from runtimes.actions import agents
from runtimes.enums import DeploymentStatus
from runtimes.models import Agent
from runtimes.providers import PROVIDERS
from tests.api import Api, at_once
from tests.factories import make_account, make_agent, make_deployment, make_tier, override
from tests.runtimes.stub import StubProvider

pytestmark = pytest.mark.usefixtures("live_db")


@pytest.fixture
def alice() -> Api:
    return Api(make_account("alice", max_agents=None))


@pytest.fixture
def charlie() -> Api:
    return Api(make_account("charlie"))


def create(api: Api, name: str = "helper", **more: object) -> str:
    answer = api.post("/v1/agents", {"name": name, **more})
    assert answer.status == 201
    return str(answer.json["id"])


class TestCreating:
    def test_a_new_agent_waits_for_its_first_deployment(self, alice: Api) -> None:
        answer = alice.post("/v1/agents", {"name": "helper", "description": "Answers."})
        assert answer.status == 201
        shown = {key: answer.json[key] for key in answer.json.keys() - {"id", "createdAt"}}
        assert shown == {
            "name": "helper", "description": "Answers.", "runtimeProvider": "cloudflare", "status": "created",
            "activeDeploymentId": None, "activeVersion": None, "lastError": "", "disabledAt": None,
        }  # fmt: skip
        assert alice.get(f"/v1/agents/{answer.json['id']}").json == answer.json

    @pytest.mark.parametrize("name", ["abc", "a" * 64, "A-b_9", "___", "-a-"])
    def test_a_good_name_is_taken(self, alice: Api, name: str) -> None:
        assert create(alice, name)

    @pytest.mark.parametrize("name", ["", "ab", "a" * 65, "a b", "a.b", "агент", "abc\n", " abc", "a/b", "<img>", 5, None, ["abc"],
                                      "abc\x00"])  # fmt: skip
    def test_any_other_is_400_and_says_what_would_be_right(self, alice: Api, name: object) -> None:
        answer = alice.post("/v1/agents", {"name": name})
        assert answer.status == 400
        assert set(answer.issues) == {"name"}

    def test_a_name_is_unique_in_its_account_only(self, alice: Api, charlie: Api) -> None:
        create(alice)
        answer = alice.post("/v1/agents", {"name": "helper"})
        assert (answer.status, answer.code) == (409, "CONFLICT")
        assert "helper" in answer.json["error"]["message"]
        create(charlie)

    def test_a_name_is_free_again_after_deletion(self, alice: Api) -> None:
        assert alice.delete(f"/v1/agents/{create(alice)}").status == 204
        create(alice)

    @pytest.mark.parametrize("field", ["id", "account", "accountId", "owner", "tier", "limits", "requestLimit", "status",
                                       "activeDeploymentId", "disabledAt", "runtime_provider"])  # fmt: skip
    def test_no_field_sets_what_is_not_the_callers_to_set(self, alice: Api, field: str) -> None:
        mine = create(alice)
        for answer in (
            alice.post("/v1/agents", {"name": "other", field: "x"}),
            alice.patch(f"/v1/agents/{mine}", {field: "x"}),
        ):
            assert answer.status == 400
            assert set(answer.issues) == {field}

    @pytest.mark.parametrize("runtime", ["lambda", "", None, 1, ["cloudflare"]])
    def test_an_unknown_runtime_is_400(self, alice: Api, runtime: object) -> None:
        assert alice.post("/v1/agents", {"name": "helper", "runtimeProvider": runtime}).status == 400


class TestGates:
    def test_agentcore_is_402_where_it_is_not_in_the_tier_and_says_what_unlocks_it(self, charlie: Api) -> None:
        answer = charlie.post("/v1/agents", {"name": "premium", "runtimeProvider": "agentcore"})
        assert (answer.status, answer.code) == (402, "LIMIT_EXCEEDED")
        assert answer.details["limitType"] == "runtimeGated"
        assert answer.details["suggestedAction"]["tier"] == "pro"
        assert "current" not in answer.details
        assert not Agent.objects.filter(account=charlie.account).exists()
        assert Denial.objects.filter(account_id=charlie.account_id, limit_type="runtimeGated").exists()

    def test_switching_to_agentcore_is_402_and_changes_nothing_else_either(self, charlie: Api) -> None:
        mine = create(charlie)
        answer = charlie.patch(f"/v1/agents/{mine}", {"runtimeProvider": "agentcore", "name": "renamed"})
        assert (answer.status, answer.details["limitType"]) == (402, "runtimeGated")
        shown = charlie.get(f"/v1/agents/{mine}").json
        assert (shown["runtimeProvider"], shown["name"]) == ("cloudflare", "helper")

    def test_with_it_in_the_tier_both_pass_and_without_it_again_neither(self) -> None:
        dave = Api(make_account("dave", make_tier(agentcore_enabled=True)))
        assert create(dave, runtimeProvider="agentcore")
        mine = create(dave, "switcher")
        assert dave.patch(f"/v1/agents/{mine}", {"runtimeProvider": "agentcore"}).json["runtimeProvider"] == "agentcore"
        assert dave.account
        override(dave.account, "agentcore_enabled", 0)
        assert dave.post("/v1/agents", {"name": "later", "runtimeProvider": "agentcore"}).status == 402
        assert dave.patch(f"/v1/agents/{mine}", {"runtimeProvider": "cloudflare"}).status == 200


class TestCap:
    def test_one_more_than_the_cap_is_402_with_the_numbers(self) -> None:
        dave = Api(make_account("dave", max_agents=2))
        create(dave, "one")
        two = create(dave, "two")
        answer = dave.post("/v1/agents", {"name": "three"})
        assert (answer.status, answer.details["limitType"]) == (402, "agents")
        assert (answer.details["current"], answer.details["limit"], answer.details["periodKey"]) == (2, 2, None)
        dave.delete(f"/v1/agents/{two}")
        create(dave, "three")

    def test_a_cap_of_0_lets_none_through_and_null_lets_all(self) -> None:
        assert Api(make_account("dave", max_agents=0)).post("/v1/agents", {"name": "one"}).status == 402
        erin = Api(make_account("erin", max_agents=None))
        for n in range(30):
            create(erin, f"agent-{n}")

    def test_twenty_at_once_on_a_cap_of_three_make_exactly_three(self) -> None:
        account = make_account("dave", max_agents=3)
        token = Api(account).token

        def send(n: int) -> int:
            return Api(account, token=token).post("/v1/agents", {"name": f"agent-{n}"}).status

        codes = sorted(at_once(send, 20))
        assert codes == [201] * 3 + [402] * 17
        assert Agent.objects.filter(account=account, deleted_at__isnull=True).count() == 3

    def test_twenty_at_once_of_one_name_make_one(self, alice: Api) -> None:
        def send(_: int) -> int:
            return Api(alice.account, token=alice.token).post("/v1/agents", {"name": "same"}).status

        codes = sorted(at_once(send, 20))
        assert codes == [201] + [409] * 19


class TestReading:
    def test_a_list_is_newest_first_in_pages_without_gaps_or_repeats(self, alice: Api) -> None:
        made = [create(alice, f"agent-{n}") for n in range(7)]
        seen, cursor = [], ""
        while cursor is not None:
            page = alice.get(f"/v1/agents?limit=3&cursor={cursor}").json
            seen += [agent["id"] for agent in page["items"]]
            create(alice, f"late-{len(seen)}")  # what comes meanwhile moves nothing
            cursor = page["nextCursor"]
        assert seen == made[::-1]

    def test_a_list_costs_the_same_queries_however_long(self, alice: Api, django_assert_num_queries: object) -> None:
        assert alice.account
        for _ in range(12):
            make_deployment(make_agent(alice.account))
        for limit in (2, 12):
            with django_assert_num_queries(2):  # type: ignore[operator]
                assert len(alice.get(f"/v1/agents?limit={limit}").json["items"]) == limit

    def test_the_status_follows_the_deployments(self, alice: Api) -> None:
        assert alice.account
        agent = make_agent(alice.account)

        def status() -> str:
            return str(alice.get(f"/v1/agents/{agent.public_id}").json["status"])

        assert status() == "created"
        failed = make_deployment(agent, status=DeploymentStatus.FAILED)
        Agent.objects.filter(pk=agent.pk).update(last_error="Line 3.")
        assert status() == "error"
        make_deployment(agent)
        assert status() == "active"
        make_deployment(agent, status=DeploymentStatus.DEPLOYING)
        assert status() == "deploying"
        alice.post(f"/v1/agents/{agent.public_id}/disable")
        assert status() == "disabled"
        assert failed.version == 1
        assert alice.get(f"/v1/agents/{agent.public_id}").json["activeVersion"] == 2


class TestLife:
    @pytest.fixture
    def provider(self, monkeypatch: pytest.MonkeyPatch) -> StubProvider:
        stub = StubProvider()
        monkeypatch.setitem(PROVIDERS, "cloudflare", stub)  # type: ignore[arg-type]
        return stub

    def test_a_disabled_agent_is_409_and_calls_nobody_until_it_is_enabled(
        self, alice: Api, provider: StubProvider
    ) -> None:
        assert alice.account
        agent = make_agent(alice.account)
        make_deployment(agent)
        path, ask = f"/v1/invoke/{agent.public_id}", {"input": {"prompt": "x"}}
        for _ in range(2):
            assert alice.post(f"/v1/agents/{agent.public_id}/disable").json["status"] == "disabled"
        assert alice.post(path, ask).status == 409
        assert not provider.invocations
        for _ in range(2):
            assert alice.post(f"/v1/agents/{agent.public_id}/enable").json["status"] == "active"
        assert alice.post(path, ask).status == 200

    def test_a_deleted_agent_is_gone_at_once_and_its_receipts_stay(
        self, alice: Api, provider: StubProvider, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert alice.account
        woken: list[str] = []
        monkeypatch.setattr(agents, "send_on_commit", woken.append)
        agent = make_agent(alice.account)
        make_deployment(agent)
        path, ask = f"/v1/invoke/{agent.public_id}", {"input": {"prompt": "x"}}
        invocation = alice.post(path, ask).json["invocationId"]
        assert alice.delete(f"/v1/agents/{agent.public_id}").status == 204
        assert woken == ["runtimes.sweep_removals"]
        assert alice.post(path, ask).status == 404
        for method, below in (("GET", ""), ("PATCH", ""), ("DELETE", ""), ("POST", "/disable"), ("GET", "/secrets"),
                              ("GET", "/deployments")):  # fmt: skip
            assert (
                alice.call(method, f"/v1/agents/{agent.public_id}{below}", {} if method != "GET" else None).status
                == 404
            )
        assert alice.get(f"/v1/invocations/{invocation}").status == 200
        assert len(alice.get(f"/v1/invocations?agent={agent.public_id}").json["items"]) == 1

    def test_a_change_of_nothing_changes_nothing(self, alice: Api) -> None:
        mine = create(alice)
        assert alice.patch(f"/v1/agents/{mine}", {}).json == alice.get(f"/v1/agents/{mine}").json

    def test_a_rename_to_a_name_in_use_is_409(self, alice: Api) -> None:
        create(alice, "first")
        second = create(alice, "second")
        assert alice.patch(f"/v1/agents/{second}", {"name": "first"}).status == 409
        assert alice.patch(f"/v1/agents/{second}", {"name": "third"}).json["name"] == "third"


class TestStrangers:
    def test_a_stranger_gets_404_for_everything_of_somebody_elses_agent_as_for_one_that_is_none(
        self, alice: Api, charlie: Api
    ) -> None:
        assert alice.account
        agent = make_agent(alice.account)
        deployment = make_deployment(agent)
        calls = [
            ("GET", "/v1/agents/{a}", None), ("PATCH", "/v1/agents/{a}", {"name": "mine"}), ("DELETE", "/v1/agents/{a}", None),
            ("POST", "/v1/agents/{a}/disable", None), ("POST", "/v1/agents/{a}/enable", None),
            ("GET", "/v1/agents/{a}/deployments", None), ("GET", "/v1/agents/{a}/secrets", None),
            ("PUT", "/v1/agents/{a}/secrets", {"secrets": {"A": "b"}}), ("DELETE", "/v1/agents/{a}/secrets/A", None),
            ("GET", "/v1/deployments/{d}", None), ("GET", "/v1/deployments/{d}/logs", None),
            ("DELETE", "/v1/deployments/{d}", None), ("GET", "/v1/invocations?agent={a}", None),
            ("POST", "/v1/invoke/{a}", {"input": {"prompt": "x"}}), ("POST", "/v1/limits/check", {"agentId": "{a}"}),
        ]  # fmt: skip
        own = make_agent(charlie.account)  # type: ignore[arg-type]
        for method, path, body in calls:
            answers = []
            for a, d in (
                (agent.public_id, deployment.public_id), ("agt_" + "0" * 32, "dep_" + "0" * 32), ("nonsense", "dep_x"),
            ):  # fmt: skip
                filled = (
                    {k: v.replace("{a}", a) if isinstance(v, str) else v for k, v in body.items()} if body else None
                )
                answers.append(charlie.call(method, path.format(a=a, d=d), filled))
            assert [answer.status for answer in answers] == [404] * 3, (method, path)
            assert len({str(answer.json["error"]) for answer in answers}) == 1, (method, path)
        crossed = charlie.post(
            f"/v1/agents/{own.public_id}/deployments/{deployment.public_id}/activate", {"reason": "Mine now."}
        )
        assert crossed.status == 404
        assert charlie.upload(f"/v1/agents/{agent.public_id}/deployments", b"zip").status == 404
        agent.refresh_from_db()
        assert (agent.deleted_at, agent.disabled_at, agent.runtime_provider) == (None, None, Runtime.CLOUDFLARE)
        assert agent.public_id not in str(charlie.get("/v1/agents").json)
