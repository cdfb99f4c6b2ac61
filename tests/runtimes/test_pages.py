"""The page of an agent: what it shows, what it offers, and what it refuses by itself."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from playwright.sync_api import Page, expect

from entitlements.enums import Capability, Runtime
from entitlements.models import Account, Tier
from entitlements.rules import entitlements_of
from runtimes.actions import agents, deployments
from runtimes.enums import DeploymentStatus
from runtimes.errors import NotReachedError
from runtimes.models import Agent, AgentLogLine, Deployment, DeploymentLogLine, Grant
from runtimes.pages import offers
from runtimes.providers import PROVIDERS
from tests.entitlements.admin_pages import said
from tests.entitlements.tiers import everything, tier
from tests.factories import example, make_account, make_agent, make_deployment, make_tier, zip_of
from tests.pages import inline_of
from tests.runtimes.sessions import Ender, long_ago, make_session
from webhost.ids import Prefix, new_id, public_id
from webhost.local.product import Product

pytestmark = pytest.mark.usefixtures("live_db")

PASSWORD = "a-long-enough-secret"


@pytest.fixture(autouse=True)
def provider(monkeypatch: pytest.MonkeyPatch) -> Ender:
    ender = Ender()
    monkeypatch.setitem(PROVIDERS, "cloudflare", ender)  # type: ignore[arg-type]
    monkeypatch.setitem(PROVIDERS, "agentcore", ender)  # type: ignore[arg-type]
    return ender


@pytest.fixture
def woken(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """What was woken, so that no worker of another test takes it."""
    calls: list[tuple[Any, ...]] = []
    monkeypatch.setattr(deployments, "send_on_commit", lambda *args: calls.append(args))
    return calls


def signed_in(account: Account, **options: Any) -> Client:
    client = Client(**options)
    client.force_login(account)
    return client


def url(agent: Agent, tail: str = "") -> str:
    return f"/agents/{agent.public_id}/{tail}"


def bundle(*capabilities: str, code: str = "export default async function agent() { return 'hi' }") -> bytes:
    config = {
        "name": "agent", "entrypoint": "a.ts", "runtimes": ["agentcore", "cloudflare"], "protocol": "invoke/v1",
        "agentcore": {"capabilities": dict.fromkeys(capabilities, True)},
    }  # fmt: skip
    return zip_of({"agent.config.json": json.dumps(config), "a.ts": code})


def deploy(client: Client, agent: Agent, content: bytes) -> Any:
    return client.post(url(agent, "deploy/"), {"bundle": SimpleUploadedFile("a.zip", content, "application/zip")})


def entitled(**more: Any) -> Tier:
    return make_tier(agentcore_enabled=True, **more)


class TestWhatItShows:
    def test_it_is_reached_from_the_list(self) -> None:
        alice = make_account("alice")
        agent = make_agent(alice)
        assert f'href="{url(agent)}"' in signed_in(alice).get("/agents/").content.decode()

    def test_status_runtime_version_and_deployments_with_their_lines(self) -> None:
        alice = make_account("alice")
        agent = make_agent(alice, "my-bot")
        make_deployment(agent)
        failed = make_deployment(
            agent, status=DeploymentStatus.FAILED, error_code="LoadError", error_message="It could not be loaded."
        )
        DeploymentLogLine.objects.create(deployment=failed, line="Building.")
        text = said(signed_in(alice).get(url(agent)))
        assert "my-bot active" in text
        assert "Cloudflare Workers · version 1 serves" in text
        assert "Version 2 failed" in text
        assert "It could not be loaded." in text
        assert "Building." in text

    def test_grants_say_where_they_stand(self) -> None:
        alice = make_account("alice", entitled(memory_enabled=True))
        agent = make_agent(alice, runtime=Runtime.AGENTCORE)
        deployment = make_deployment(agent)
        now = timezone.now()
        for capability, withdrawn in (("memory", None), ("browser", None), ("codeInterpreter", now)):
            Grant.objects.create(
                deployment=deployment, account_id=alice.pk, capability=capability, withdrawn_at=withdrawn
            )
        text = said(signed_in(alice).get(url(agent)))
        assert "AgentCore Memory 1 granted" in text
        assert "Browser 1 being withdrawn" in text
        assert "Code interpreter 1 withdrawn" in text

    def test_an_empty_agent_says_what_to_do_next(self) -> None:
        alice = make_account("alice")
        text = said(signed_in(alice).get(url(make_agent(alice))))
        assert "nothing serves yet" in text
        assert "None yet. Upload a bundle below." in text

    def test_charlie_is_answered_as_if_it_did_not_exist(self) -> None:
        agent = make_agent(make_account("alice"))
        make_session(make_deployment(agent), "chat")
        charlie = signed_in(make_account("charlie"))
        assert charlie.get(url(agent)).status_code == 404
        assert charlie.get(f"/agents/{public_id(Prefix.AGENT, new_id())}/").status_code == 404
        assert charlie.get("/agents/nonsense/").status_code == 404
        assert deploy(charlie, agent, example("echo")).status_code == 404
        assert charlie.post(url(agent, "runtime/"), {"runtimeProvider": "cloudflare"}).status_code == 404
        assert charlie.post(url(agent, "sessions/stop/"), {"sessionId": "chat"}).status_code == 404
        assert Client().get(url(agent)).status_code == 302
        assert Client().post(url(agent, "deploy/")).status_code == 302

    def test_names_are_shown_as_text(self) -> None:
        alice = make_account("alice")
        agent = make_agent(alice)
        Agent.objects.filter(pk=agent.pk).update(description="<img src=x onerror=alert(1)>", last_error="<b>bold</b>")
        make_session(make_deployment(agent), '"><script>alert(1)</script>')
        page = signed_in(alice).get(url(agent))
        html = page.content.decode()
        assert inline_of(page) == []
        assert "<img src=x" not in html
        assert "<b>bold" not in html

    def test_it_runs_under_the_strict_policy_and_carries_nothing_inline(self) -> None:
        alice = make_account("alice", make_tier())
        agent = make_agent(alice)
        make_session(make_deployment(agent))
        page = signed_in(alice).get(url(agent))
        assert "default-src 'self'" in page.headers["Content-Security-Policy"]
        assert "no-store" in page.headers["Cache-Control"]
        assert inline_of(page) == []
        assert page.content.decode().count("<h1") == 1


class TestDeploying:
    def test_a_bundle_is_accepted_and_its_deployment_is_woken(self, woken: list[Any]) -> None:
        alice = make_account("alice")
        agent = make_agent(alice)
        client = signed_in(alice)
        answer = deploy(client, agent, example("echo"))
        assert (answer.status_code, answer["Location"]) == (302, url(agent))
        made = Deployment.objects.get(agent=agent)
        assert woken == [("runtimes.run_deployment", str(made.pk))]
        text = said(client.get(url(agent)))
        assert "Version 1 is being deployed." in text
        assert "Accepted version 1" in text

    def test_a_bundle_that_does_not_build_is_told_with_file_and_line(self, woken: list[Any]) -> None:
        alice = make_account("alice")
        agent = make_agent(alice)
        page = deploy(signed_in(alice), agent, bundle(code="export default async function agent() {\n  return <\n"))
        assert page.status_code == 400
        assert re.search(r"a\.ts\D{1,3}[23]", said(page)), said(page)
        assert not Deployment.objects.filter(agent=agent).exists()

    @pytest.mark.parametrize("content", [b"not a zip", zip_of({"a.txt": "x"})])
    def test_what_is_no_bundle_is_refused_in_words(self, woken: list[Any], content: bytes) -> None:
        alice = make_account("alice")
        agent = make_agent(alice)
        page = deploy(signed_in(alice), agent, content)
        assert page.status_code == 400
        assert 'role="alert"' in page.content.decode()
        assert not woken

    def test_a_form_without_a_file_is_refused(self) -> None:
        alice = make_account("alice")
        page = signed_in(alice).post(url(make_agent(alice), "deploy/"))
        assert (page.status_code, "Choose a zip file first." in said(page)) == (400, True)

    def test_one_that_is_too_large_is_refused_before_it_is_read(self, settings: Any) -> None:
        alice = make_account("alice")
        agent = make_agent(alice)
        page = deploy(signed_in(alice), agent, b"x" * (settings.BUNDLE_LIMIT + 65 * 1024))
        assert (page.status_code, "larger than" in said(page)) == (413, True)

    def test_a_second_one_meanwhile_is_told_to_wait(self) -> None:
        alice = make_account("alice")
        agent = make_agent(alice)
        make_deployment(agent, status=DeploymentStatus.DEPLOYING)
        page = deploy(signed_in(alice), agent, example("echo"))
        assert (page.status_code, "is under way" in said(page)) == (409, True)

    def test_a_form_from_elsewhere_and_a_link_change_nothing(self) -> None:
        alice = make_account("alice")
        agent = make_agent(alice)
        session = make_session(make_deployment(agent), "chat")
        client = signed_in(alice, enforce_csrf_checks=True)
        assert deploy(client, agent, example("echo")).status_code == 403
        assert client.post(url(agent, "runtime/"), {"runtimeProvider": "cloudflare"}).status_code == 403
        assert client.post(url(agent, "sessions/stop/"), {"sessionId": "chat"}).status_code == 403
        for tail in ("deploy/", "runtime/", "sessions/stop/"):
            assert client.get(url(agent, tail)).status_code == 405
        session.refresh_from_db()
        assert session.stopped_at is None
        assert Deployment.objects.filter(agent=agent).count() == 1


class TestSwitchingTheRuntime:
    def test_the_next_version_goes_there_and_what_serves_goes_on(self) -> None:
        alice = make_account("alice", entitled())
        agent = make_agent(alice)
        make_deployment(agent)
        client = signed_in(alice)
        assert client.post(url(agent, "runtime/"), {"runtimeProvider": "agentcore"}).status_code == 302
        text = said(client.get(url(agent)))
        assert "The next version is deployed to AWS AgentCore." in text
        assert "version 1 serves, still on cloudflare" in text

    def test_with_one_runtime_only_there_is_no_form(self) -> None:
        alice = make_account("alice", make_tier())
        html = signed_in(alice).get(url(make_agent(alice))).content.decode()
        assert "runtimeProvider" not in html
        assert "Switch runtime" not in html


class TestSessions:
    def test_one_that_runs_has_a_stop_button_and_is_stopped(self, provider: Ender) -> None:
        alice = make_account("alice")
        agent = make_agent(alice)
        deployment = make_deployment(agent)
        running = make_session(deployment, "a/b ☃")
        make_session(deployment, "idle", **long_ago(hours=1))
        client = signed_in(alice)
        page = client.get(url(agent, "sessions/"))
        assert page.content.decode().count('name="sessionId"') == 1
        assert "idle expired" in said(page)
        assert client.post(url(agent, "sessions/stop/"), {"sessionId": "a/b ☃"}).status_code == 302
        running.refresh_from_db()
        assert (running.stopped_at is not None, provider.ended) == (True, ["a/b ☃"])
        page = client.get(url(agent, "sessions/"))
        assert "a/b ☃ stopped" in said(page)
        assert 'name="sessionId"' not in page.content.decode()

    def test_an_unknown_one_and_a_provider_that_is_away_are_told(self, provider: Ender) -> None:
        alice = make_account("alice")
        agent = make_agent(alice)
        make_session(make_deployment(agent), "chat")
        client = signed_in(alice)
        assert client.post(url(agent, "sessions/stop/"), {"sessionId": "x\x00y"}).status_code == 404
        provider.fail = NotReachedError("The runtime could not be reached.", error_class="Unreachable")
        page = client.post(url(agent, "sessions/stop/"), {"sessionId": "chat"})
        assert (page.status_code, "could not be reached" in said(page)) == (502, True)


class TestTheGateOfThePage:
    """The first of three layers, each of which refuses with the others switched off."""

    def test_what_is_not_entitled_is_locked_and_its_control_is_absent(self) -> None:
        alice = make_account("alice", make_tier())
        agent = make_agent(alice, runtime=Runtime.AGENTCORE)
        page = signed_in(alice).get(url(agent))
        text, html = said(page), page.content.decode()
        assert "Deploying to AWS AgentCore locked unlocked by the Pro tier" in text
        assert re.search(r"Browser locked unlocked by the \w+ tier", text)
        assert 'type="file"' not in html
        assert 'value="agentcore"' not in html

    def test_it_refuses_a_runtime_by_itself(self, monkeypatch: pytest.MonkeyPatch, woken: list[Any]) -> None:
        for module in (agents, deployments):
            monkeypatch.setattr(module, "require_runtime", lambda *_, **__: None)
        alice = make_account("alice", make_tier())
        mine, moved = make_agent(alice), make_agent(alice, runtime=Runtime.AGENTCORE)
        client = signed_in(alice)
        switched = client.post(url(mine, "runtime/"), {"runtimeProvider": "agentcore"})
        deployed = deploy(client, moved, bundle())
        for page in (switched, deployed):
            assert page.status_code == 402
            assert "AgentCore is not in your tier. The Pro tier unlocks it." in said(page)
        mine.refresh_from_db()
        assert mine.runtime_provider == "cloudflare"
        assert not Deployment.objects.filter(agent=moved).exists()

    @pytest.mark.parametrize("capability", list(Capability))
    def test_it_refuses_a_capability_of_a_manifest_by_itself(
        self, monkeypatch: pytest.MonkeyPatch, woken: list[Any], capability: Capability
    ) -> None:
        monkeypatch.setattr(deployments, "require_runtime", lambda *_, **__: None)
        alice = make_account("alice", entitled())
        agent = make_agent(alice, runtime=Runtime.AGENTCORE)
        page = deploy(signed_in(alice), agent, bundle(capability))
        assert (page.status_code, "is not in your tier." in said(page)) == (402, True)
        assert not Deployment.objects.filter(agent=agent).exists()
        assert not woken

    def test_with_the_page_switched_off_the_layer_behind_it_refuses(
        self, monkeypatch: pytest.MonkeyPatch, woken: list[Any]
    ) -> None:
        monkeypatch.setattr(offers, "page_offers", lambda _: list(Runtime))
        monkeypatch.setattr(offers, "page_capabilities", lambda _: list(Capability))
        free = make_account("alice", make_tier())
        client = signed_in(free)
        mine, moved = make_agent(free), make_agent(free, runtime=Runtime.AGENTCORE)
        assert client.post(url(mine, "runtime/"), {"runtimeProvider": "agentcore"}).status_code == 402
        assert deploy(client, moved, bundle()).status_code == 402
        paid = make_account("alice", entitled())
        assert (
            deploy(signed_in(paid), make_agent(paid, runtime=Runtime.AGENTCORE), bundle("browser")).status_code == 402
        )
        assert not woken

    def test_what_is_entitled_passes(self, woken: list[Any]) -> None:
        alice = make_account("alice", entitled(memory_enabled=True))
        agent = make_agent(alice, runtime=Runtime.AGENTCORE)
        assert deploy(signed_in(alice), agent, bundle("memory")).status_code == 302
        assert Deployment.objects.get(agent=agent).capabilities == ["memory"]

    def test_what_a_bundle_asks_of_agentcore_does_not_matter_elsewhere(self, woken: list[Any]) -> None:
        alice = make_account("alice", make_tier())
        assert deploy(signed_in(alice), make_agent(alice), bundle("browser")).status_code == 302

    def test_an_unknown_runtime_is_refused(self) -> None:
        alice = make_account("alice", entitled())
        assert signed_in(alice).post(url(make_agent(alice), "runtime/"), {"runtimeProvider": "mars"}).status_code == 402

    def test_it_offers_what_the_rules_allow(self) -> None:
        assert offers.page_capabilities(entitlements_of(tier(), (), None)) == []
        assert offers.page_capabilities(entitlements_of(everything(), (), None)) == list(Capability)


class TestTheTabs:
    """What every page of an agent keeps."""

    TABS = ("", "playground/", "secrets/", "sessions/", "settings/", "delete/")

    def test_strangers_find_none_of_them_and_can_do_nothing(self) -> None:
        agent = make_agent(make_account("alice"))
        version = make_deployment(agent, activate=False, status=DeploymentStatus.ROLLED_BACK)
        one = f"deployments/{version.public_id}/"
        charlie = signed_in(make_account("charlie"))
        for tail in (*self.TABS, one, f"{one}follow/"):
            assert charlie.get(url(agent, tail)).status_code == 404, tail
        for tail in ("secrets/", "secrets/delete/", "settings/", "disable/", "enable/", "delete/", "playground/"):
            form = {"name": "KEY", "value": "v", "confirm": agent.name, "prompt": "hi"}
            assert charlie.post(url(agent, tail), form).status_code == 404, tail
        assert charlie.post(url(agent, f"{one}activate/"), {"reason": "mine"}).status_code == 404
        agent.refresh_from_db()
        assert (agent.deleted_at, agent.disabled_at) == (None, None)

    def test_nobody_elses_version_is_shown_below_an_agent(self) -> None:
        alice = make_account("alice")
        theirs = make_deployment(make_agent(make_account("charlie")))
        tail = f"deployments/{theirs.public_id}/"
        client = signed_in(alice)
        mine = make_agent(alice)
        assert client.get(url(mine, tail)).status_code == 404
        assert client.post(url(mine, f"{tail}activate/"), {"reason": "mine"}).status_code == 404

    def test_with_many_rows_each_asks_few_questions_and_carries_nothing_inline(self) -> None:
        alice = make_account("alice", entitled(memory_enabled=True))
        agent = make_agent(alice)
        for _ in range(12):
            version = make_deployment(agent, status=DeploymentStatus.ROLLED_BACK, activate=False)
            DeploymentLogLine.objects.create(deployment=version, line="<img src=x onerror=alert(1)>")
        serving = make_deployment(agent)
        for n in range(30):
            make_session(serving, f"<img src=x onerror=alert({n})>")
            AgentLogLine.objects.create(
                account_id=alice.pk, agent_id=agent.pk, deployment_id=serving.pk, invocation_id=new_id(),
                text="<img src=x onerror=alert(1)>",
            )  # fmt: skip
        client = signed_in(alice)
        for tail in (*self.TABS, f"deployments/{serving.public_id}/"):
            with CaptureQueriesContext(connection) as asked:
                page = client.get(url(agent, tail))
            assert page.status_code == 200, tail
            # Two more are not Django's: the look at the tier, and on the list what was used.
            assert len(asked) + 2 <= 15, (tail, [q["sql"] for q in asked])
            assert inline_of(page) == [], tail
            assert "<img" not in page.content.decode(), tail

    def test_versions_and_sessions_come_in_pages(self) -> None:
        alice = make_account("alice")
        agent = make_agent(alice)
        for _ in range(11):
            make_deployment(agent, status=DeploymentStatus.ROLLED_BACK, activate=False)
        client = signed_in(alice)
        first = client.get(url(agent))
        (cursor,) = re.findall(r"\?cursor=([\w-]+)", first.content.decode())
        assert "Version 1 " not in said(first)
        assert "Version 1 rolled_back" in said(client.get(url(agent, f"?cursor={cursor}")))
        assert client.get(url(agent, "?cursor=nonsense")).status_code == 404
        assert client.get(url(agent, f"?cursor={'x' * 300}")).status_code == 404


class TestServingAgain:
    def test_an_earlier_version_serves_for_a_reason_that_is_shown(self) -> None:
        alice = make_account("alice")
        agent = make_agent(alice)
        older = make_deployment(agent, status=DeploymentStatus.ROLLED_BACK, activate=False)
        make_deployment(agent)
        client = signed_in(alice)
        at = url(agent, f"deployments/{older.public_id}/activate/")
        page = client.post(at, {"reason": "  "})
        assert (page.status_code, "Say why" in said(page)) == (400, True)
        assert client.post(at, {"reason": "2 is <b>wrong</b>"}).status_code == 302
        page = client.get(url(agent))
        assert "version 1 serves" in said(page)
        assert "Reason: 2 is" in said(page)
        assert "<b>wrong" not in page.content.decode()

    def test_what_is_not_in_the_tier_has_no_button(self) -> None:
        alice = make_account("alice", make_tier())
        agent = make_agent(alice)
        older = make_deployment(
            agent, status=DeploymentStatus.ROLLED_BACK, activate=False, runtime_provider=Runtime.AGENTCORE
        )
        make_deployment(agent)
        client = signed_in(alice)
        assert 'name="reason"' not in client.get(url(agent)).content.decode()
        assert client.post(url(agent, f"deployments/{older.public_id}/activate/"), {"reason": "x"}).status_code == 402


class TestFollowing:
    def test_the_part_asks_again_until_it_is_over_and_then_brings_the_rest_along(self) -> None:
        alice = make_account("alice")
        agent = make_agent(alice)
        version = make_deployment(agent, status=DeploymentStatus.DEPLOYING, activate=False)
        client, at = signed_in(alice), url(agent, f"deployments/{version.public_id}/follow/")
        assert client.get(at)["Location"] == url(agent)  # without a script
        part = client.get(at, headers={"HX-Request": "true"}).content.decode()
        assert ("hx-get" in part, "hx-swap-oob" in part) == (True, False)
        assert 'http-equiv="refresh"' in client.get(url(agent)).content.decode()
        Deployment.objects.filter(pk=version.pk).update(status=DeploymentStatus.ACTIVE)
        part = client.get(at, headers={"HX-Request": "true"}).content.decode()
        assert ("hx-get" in part, part.count("hx-swap-oob")) == (False, 2)
        assert 'http-equiv="refresh"' not in client.get(url(agent)).content.decode()


class TestSecrets:
    VALUE = "hunter2-and-more"

    def test_a_value_goes_in_and_comes_back_nowhere(self) -> None:
        alice = make_account("alice")
        agent = make_agent(alice)
        client = signed_in(alice)
        page = client.post(url(agent, "secrets/"), {"name": "API_KEY", "value": self.VALUE}, follow=True)
        assert "API_KEY is set." in said(page)
        assert self.VALUE not in page.content.decode()
        page = client.post(url(agent, "secrets/"), {"name": "not a name", "value": self.VALUE})
        assert page.status_code == 400
        assert self.VALUE not in page.content.decode()
        assert client.post(url(agent, "secrets/delete/"), {"name": "API_KEY"}).status_code == 302
        assert "None yet." in said(client.get(url(agent, "secrets/")))
        assert client.post(url(agent, "secrets/delete/"), {"name": "API_KEY"}).status_code == 404

    def test_on_a_locked_runtime_there_is_no_form_and_none_is_taken(self) -> None:
        alice = make_account("alice", make_tier())
        agent = make_agent(alice, runtime=Runtime.AGENTCORE)
        client = signed_in(alice)
        assert 'name="value"' not in client.get(url(agent, "secrets/")).content.decode()
        assert client.post(url(agent, "secrets/"), {"name": "API_KEY", "value": "v"}).status_code == 402


class TestSettings:
    def test_description_disabling_and_enabling(self) -> None:
        alice = make_account("alice")
        agent = make_agent(alice)
        client = signed_in(alice)
        assert client.post(url(agent, "settings/"), {"description": "x" * 201}).status_code == 400
        assert "It says hi." in said(client.post(url(agent, "settings/"), {"description": "It says hi."}, follow=True))
        assert "disabled" in said(client.post(url(agent, "disable/"), follow=True))
        agent.refresh_from_db()
        assert agent.disabled_at is not None
        client.post(url(agent, "enable/"))
        agent.refresh_from_db()
        assert agent.disabled_at is None

    def test_deleting_says_what_is_lost_and_takes_the_name(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(agents, "send_on_commit", lambda *_: None)
        alice = make_account("alice")
        agent = make_agent(alice)
        make_session(make_deployment(agent))
        client = signed_in(alice)
        text = said(client.get(url(agent, "delete/")))
        assert "1 version and what they keep" in text
        assert "1 running session ends" in text
        assert client.post(url(agent, "delete/"), {"confirm": "yes"}).status_code == 400
        assert client.post(url(agent, "delete/"), {"confirm": agent.name})["Location"] == "/agents/"
        assert client.get(url(agent)).status_code == 404


class TestThePlayground:
    def test_without_a_deployment_it_says_what_to_do_first(self) -> None:
        alice = make_account("alice")
        agent = make_agent(alice)
        client = signed_in(alice)
        page = client.get(url(agent, "playground/"))
        assert ("Nothing serves yet." in said(page), 'name="prompt"' in page.content.decode()) == (True, False)
        assert client.post(url(agent, "playground/"), {"prompt": "hi"}).status_code == 409

    def test_a_refusal_says_when_it_resets_and_what_to_do(self) -> None:
        alice = make_account("alice", make_tier(max_requests_per_period=0))
        agent = make_agent(alice)
        make_deployment(agent)
        page = signed_in(alice).post(url(agent, "playground/"), {"prompt": "<b>hi</b>"})
        assert page.status_code == 402
        text = said(page)
        assert "includes no requests" in text
        assert "It resets at" in text
        assert re.search("What to do: (upgrade to|contact support)", text)
        assert "Trace id: trc_" in text
        assert "<b>hi" not in page.content.decode()

    @pytest.mark.parametrize(
        "form", [{"prompt": ""}, {"prompt": "x", "maxTokens": "many"}, {"prompt": "x", "tools": "y"}]
    )
    def test_what_is_no_request_is_refused_in_words(self, form: dict[str, str]) -> None:
        alice = make_account("alice")
        agent = make_agent(alice)
        make_deployment(agent)
        page = signed_in(alice).post(url(agent, "playground/"), form)
        assert (page.status_code, 'role="alert"' in page.content.decode()) == (400, True)


@pytest.mark.browser
def test_alice_deploys_a_bundle_in_her_browser_and_follows_it(product: Product, page: Page, tmp_path: Any) -> None:
    complaints: list[str] = []
    page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
    alice = make_account("alice", make_tier(), password=PASSWORD)
    agent = make_agent(alice)
    page.goto(f"{product.url}/sign-in/")
    page.get_by_label("E-mail address").fill(alice.email)
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Sign in").click()
    page.get_by_role("link", name="Agents", exact=True).click()
    page.get_by_role("link", name=agent.name).click()
    zipped = tmp_path / "echo.zip"
    zipped.write_bytes(example("echo"))
    page.get_by_label("Bundle").set_input_files(zipped)
    page.get_by_role("button", name="Deploy", exact=True).click()
    # Followed in place: nobody reloads.
    expect(page.get_by_text("version 1 serves")).to_be_visible(timeout=30_000)
    expect(page.locator("#build")).to_contain_text("Version 1 is active.")
    assert complaints == []  # nothing that the content security policy had to stop
