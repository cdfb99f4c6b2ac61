"""The page of an agent: what it shows, what it offers, and what it refuses by itself."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client
from django.utils import timezone
from playwright.sync_api import Page, expect

from entitlements.enums import Capability, Runtime
from entitlements.models import Account, Tier
from entitlements.rules import entitlements_of
from runtimes.actions import agents, deployments
from runtimes.enums import DeploymentStatus
from runtimes.errors import NotReachedError
from runtimes.models import Agent, Deployment, DeploymentLogLine, Grant
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
    expect(page.get_by_role("status")).to_contain_text("Version 1 is being deployed.")
    for _ in range(60):
        if page.get_by_text("version 1 serves").count():
            break
        page.wait_for_timeout(500)
        page.reload()
    expect(page.get_by_text("Version 1 is active.")).to_be_visible()
    assert complaints == []  # nothing that the content security policy had to stop
