"""AgentCore on the running product: what reaches AWS, what is charged, and what never leaks."""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any
from urllib.parse import quote
from uuid import UUID

import boto3
import pytest
import requests
from django.conf import settings
from django.core.files.uploadedfile import SimpleUploadedFile
from django.db import connection
from django.test import Client
from django.urls import URLPattern, URLResolver, get_resolver
from django.utils import timezone
from pytest_django.plugin import DjangoDbBlocker

import runtimes.actions.deployments
import webhost.pages
from entitlements import ledger
from entitlements.enums import Capability, Outcome, Runtime
from entitlements.models import Account, ApiToken, PeriodCounter
from runtimes.actions import invoke
from runtimes.actions.targets import target_of
from runtimes.enums import DeploymentStatus
from runtimes.models import Deployment, Grant, SecretName
from runtimes.providers.agentcore_names import runtime_session_id
from runtimes.rules import parse_invoke
from telemetry.actions.verify import verify_usage
from tests.api import document
from tests.backend import ROUTE as DELEGATED
from tests.backend import Backend, envelope
from tests.billing.local_stripe import signature
from tests.e2e.customers import Agent, Customer, until
from tests.e2e.story import delegated, report
from tests.factories import make_account, make_agent, make_deployment, make_tier, make_token, zip_of
from tests.runtimes.sessions import make_session
from webhost.ids import Prefix, new_id, parse_id, public_id
from webhost.local.product import Product
from webhost.period import period_of

pytestmark = pytest.mark.usefixtures("live_db")

ALL = [capability.value for capability in Capability]
# What makes, starts or runs something at AWS; nobody knows what an unreadable call would have done.
_GIVING = ("Create", "Put", "Start", "Invoke", "Update", "Attach", "Unknown")
_INVOKE = "InvokeAgentRuntime"
_TIMEOUT_SECONDS = 3

# Does what its prompt says. Its lie calls the code interpreter past the shim, with the role's own credentials,
# under a name of its own, and claims that it used nothing at all.
_ACTOR = """
interface Ask { wait?: number; events?: number; pause?: number; lie?: boolean; digest?: string; throws?: string }
interface Context { env: Record<string, string> }
const pause = (ms: number): Promise<void> => new Promise((done) => setTimeout(done, ms));

async function compute(): Promise<void> {
  const { Aws } = await import(new URL("../_whs/aws.js", import.meta.url).href);
  const aws = new Aws(process.env);
  const place = `/code-interpreters/${process.env.WHS_CODE_INTERPRETER_ID}/sessions`;
  const wanted = { name: "mine", sessionTimeoutSeconds: 60 };
  const { sessionId } = await aws.json("bedrock-agentcore", "PUT", `${place}/start`, wanted);
  await pause(300);
  await aws.json("bedrock-agentcore", "PUT", `${place}/stop?sessionId=${sessionId}`, {});
}

export default async function* actor(
  request: { input: { messages: { content: string }[] } }, context: Context,
): AsyncGenerator<string, { usage: object } | undefined> {
  const ask: Ask = JSON.parse(request.input.messages.at(-1)!.content);
  if (ask.throws) throw new Error(context.env[ask.throws]);
  if (ask.digest) {
    const digest = await crypto.subtle.digest("SHA-256", new TextEncoder().encode(context.env[ask.digest]));
    yield Buffer.from(digest).toString("hex");
    return undefined;
  }
  if (ask.lie) {
    await compute();
    yield "I computed nothing.";
    return { usage: { tokens: 0, toolCalls: 0, codeExecutionMs: 0, browserSessions: 0 } };
  }
  if (ask.wait) await pause(ask.wait);
  for (let n = 0; n < (ask.events ?? 1); n++) {
    yield `piece ${n} `;
    if (ask.pause) await pause(ask.pause);
  }
  return undefined;
}
"""


def _bundle(*capabilities: str, code: str = _ACTOR) -> bytes:
    config = {
        "name": "actor", "entrypoint": "agent.ts", "runtimes": ["cloudflare", "agentcore"], "protocol": "invoke/v1",
        "timeoutSeconds": _TIMEOUT_SECONDS, "env": {"optionalKeys": ["API_KEY"]},
        "agentcore": {"capabilities": dict.fromkeys(capabilities, True)},
    }  # fmt: skip
    return zip_of({"agent.config.json": json.dumps(config), "agent.ts": code})


def _premium(**less: Any) -> Account:
    """Make an account that may use everything."""
    tier = {
        "agentcore_enabled": True, "memory_enabled": True, "code_interpreter_enabled": True, "browser_enabled": True,
        "max_tool_calls_per_period": 1000, "max_code_execution_seconds_per_period": 10_000,
        "max_browser_sessions_per_period": 1000,
    }  # fmt: skip
    return make_account("alice", make_tier(**tier | less))


def _customer(product: Product, account: Account) -> Customer:
    return Customer(product.url, public_id(Prefix.ACCOUNT, account.pk), make_token(account))


class Aws:
    """The local AWS, as a test sees it."""

    def __init__(self, product: Product) -> None:
        self._url = product.aws_url

    def _seen(self) -> dict[str, Any]:
        return dict(requests.get(f"{self._url}/local/calls", timeout=10).json())

    def calls(self, *about: UUID) -> list[str]:
        """Return the operations called about any of these ids, in order."""
        ids = {one.hex for one in about}
        return [str(call["operation"]) for call in self._seen()["calls"] if ids & set(call["ids"])]

    def given(self, *about: UUID) -> list[str]:
        """Return those of them that made, started or ran something."""
        return [operation for operation in self.calls(*about) if operation.startswith(_GIVING)]

    def given_to(self, owned: Owned) -> list[str]:
        """Return the same for everything of an account."""
        return self.given(*owned.ids)

    def ran(self, invocation: str) -> int:
        """Return how often an invocation was sent to an agent."""
        return self.calls(parse_id(Prefix.INVOCATION, invocation)).count(_INVOKE)

    def processes(self) -> dict[str, int]:
        """Return the process of each session that has one."""
        return dict(self._seen()["processes"])

    def fail(self, operation: str, fault: str) -> None:
        """Let the next call of an operation fail."""
        plan = {"operation": operation, "fault": fault}
        requests.post(f"{self._url}/local/faults", json=plan, timeout=10).raise_for_status()

    def forgive(self) -> None:
        """Forget the faults that nobody met."""
        requests.delete(f"{self._url}/local/faults", timeout=10).raise_for_status()


@pytest.fixture
def aws(product: Product) -> Iterator[Aws]:
    """The product's AWS, without leftover faults."""
    found = Aws(product)
    yield found
    found.forgive()


# --- Nothing for those who may not ----------------------------------------------------------------


class Owned:
    """An account, and one of everything that a route's parameters can name, as if it had been entitled once."""

    def __init__(self, product: Product, account: Account, runtime: Runtime) -> None:
        self.product, self.account = product, account
        self.customer = _customer(product, account)
        self.agent = make_agent(account, runtime=runtime)
        self.older = self._deployment(status=DeploymentStatus.ROLLED_BACK)
        self.serving = self._deployment()
        self.session = make_session(self.serving).session_id
        for provider in Runtime:
            SecretName.objects.create(
                agent=self.agent, account_id=self.agent.account_id, runtime=provider, name="API_KEY"
            )

    def _deployment(self, **fields: Any) -> Deployment:
        one = new_id()
        names = {"codeInterpreterId": "c", "browserId": "b", "runtimeId": "d"}
        remote = {key: f"{letter}{one.hex}-0123456789" for key, letter in names.items()}
        remote["memoryId"] = f"m{self.agent.pk.hex}-0123456789"
        remote["runtimeArn"] = f"arn:aws:bedrock-agentcore:us-east-1:123456789012:runtime/{remote['runtimeId']}"
        remote["roleArn"] = f"arn:aws:iam::123456789012:role/agents/whs-{one.hex}"
        return make_deployment(
            self.agent, id=one, runtime_provider=Runtime.AGENTCORE, capabilities=ALL, remote=remote,
            timeout_seconds=5, **fields,
        )  # fmt: skip

    @property
    def ids(self) -> list[UUID]:
        """Everything of it that a call to AWS can name, what its requests made included."""
        agents = list(self.account.agents.values_list("pk", flat=True))
        return agents + list(Deployment.objects.filter(account_id=self.account.pk).values_list("pk", flat=True))

    def name(self, parameter: str) -> str:
        """Return what a route's parameter of that name is to be."""
        makers = {
            "agent": lambda: self.agent.public_id,
            "deployment": lambda: self.older.public_id,
            "session": lambda: self.session,
            "name": lambda: "API_KEY",
            "invocation": self._invocation,
            "token": self._token,
            "target": lambda: public_id(Prefix.ALERT_TARGET, self.account.pk),
            "link": lambda: "of-nobody",
            "path": lambda: "index.html",
        }
        assert parameter in makers, f"Nobody has told this test yet what `{parameter}` in a route names."
        return makers[parameter]()

    def _token(self) -> str:
        make_token(self.account)
        return public_id(Prefix.TOKEN, ApiToken.objects.filter(user=self.account).latest("created").id)

    def _invocation(self) -> str:
        other = make_agent(self.account)
        make_deployment(other)
        request = parse_invoke({"input": {"prompt": "hi"}})
        started = invoke.start(self.account.pk, other.public_id, request, token_id=None, trace_id="")
        ledger.settle(started.invocation_id, Outcome.SUCCEEDED, ledger.NOTHING)
        return public_id(Prefix.INVOCATION, started.invocation_id)

    def forget(self) -> None:
        """Leave nothing to the sweeps of the running product."""
        now = timezone.now()
        self.account.agents.update(active_deployment=None)
        Grant.objects.filter(account_id=self.account.pk).delete()
        Deployment.objects.filter(account_id=self.account.pk).exclude(status=DeploymentStatus.DEPLOYING).update(
            removal_requested_at=now, removed_at=now
        )


# What a field of a body is to be, by its name, in any route; what else a route requires is made from its type.
_PLAUSIBLE: Mapping[str, Any] = {
    "runtimeProvider": "agentcore",
    "capabilities": ALL,
    "secrets": {"API_KEY": "a new value"},
    "input": {"prompt": "hi"},
    "name": "premium",
    "tier": "starter",
    "kind": "email",
    "address": "ops@example.com",
}


def _routes(patterns: Sequence[URLPattern | URLResolver], before: str = "") -> Iterator[tuple[str, Any]]:
    for pattern in patterns:
        route = before + str(pattern.pattern)
        if isinstance(pattern, URLResolver):
            yield from _routes(pattern.url_patterns, route)
        else:
            yield route, pattern.callback


def api_operations() -> list[tuple[str, str]]:
    """Return every method of every route of the API, from the table of URLs."""
    verbs = ["get", "post", "put", "patch", "delete"]
    api = [(route, view.cls) for route, view in _routes(get_resolver().url_patterns) if route.startswith("v1/")]
    return [(verb.upper(), route) for route, view in api for verb in verbs if hasattr(view, verb)]


def _parts(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    reference = schema.get("$ref")
    found: Mapping[str, Any] = (
        document()["components"]["schemas"][reference.rpartition("/")[2]] if reference else schema
    )
    return found


def _value(schema: Mapping[str, Any]) -> Any:
    found = _parts(schema)
    if "enum" in found:
        return found["enum"][0]
    makers = {"array": lambda: [_value(found["items"])], "object": lambda: _body(found), "string": lambda: "text"}
    return makers.get(str(found.get("type")), lambda: 1)()


def _body(schema: Mapping[str, Any]) -> dict[str, Any]:
    found = _parts(schema)
    fields, required = found.get("properties", {}), found.get("required", ())
    return {
        name: _PLAUSIBLE.get(name, _value(field))
        for name, field in fields.items()
        if name in required or name in _PLAUSIBLE
    }


def plausible(method: str, route: str) -> dict[str, Any]:
    """Return a body for an operation, from what the OpenAPI document says that it takes."""
    path = "/" + re.sub(r"<\w+:(\w+)>", r"{\1}", route)
    content = document()["paths"].get(path, {}).get(method.lower(), {}).get("requestBody", {}).get("content", {})
    if form := content.get("multipart/form-data"):
        upload = ("bundle.zip", _bundle(*ALL), "application/zip")
        return {"files": dict.fromkeys(_parts(form["schema"])["properties"], upload)}
    return {"json": _body(content["application/json"]["schema"])} if content else {}


def _switches(method: str, route: str, body: Mapping[str, Any]) -> bool:
    return method == "PATCH" and "<str:agent>" in route and "runtimeProvider" in body.get("json", {})


def called(product: Product, account: Account, method: str, route: str) -> tuple[Owned, int]:
    """Call an operation on things that its caller owns; return them and the status of the answer."""
    body = plausible(method, route)
    # Moving to AgentCore can only who is not there yet.
    owned = Owned(product, account, Runtime.CLOUDFLARE if _switches(method, route, body) else Runtime.AGENTCORE)
    if route == "v1/telemetry/report":
        agent = Agent(owned.customer, owned.agent.public_id, owned.older.public_id)
        return owned, report(product, agent, public_id(Prefix.INVOCATION, new_id()), 1).status_code
    path = "/" + re.sub(r"<\w+:(\w+)>", lambda found: quote(owned.name(found[1]), safe="/"), route)
    if path.startswith(DELEGATED):
        backend = Backend.listed(product.env["DELEGATED_SOURCES"])[0]
        body = envelope(owned.customer.account_id)
        return owned, delegated(product, backend, owned.agent.public_id, body).status_code
    if route == "v1/billing/webhook":
        return owned, _stripe_event(product)
    if route == "v1/billing/portal":
        owned.customer.call("POST", "/v1/billing/checkout", json={"tier": "starter"})
    answer = owned.customer.call(method, path, **body)
    return owned, answer.status_code


def _stripe_event(product: Product) -> int:
    thing = {"id": "sub_1", "object": "subscription", "customer": "cus_nobody"}
    event = {"id": f"evt_{secrets.token_hex(8)}", "object": "event", "type": "customer.subscription.updated"}
    body = json.dumps({**event, "created": 1, "livemode": False, "data": {"object": thing}}).encode()
    headers = {"Stripe-Signature": signature(body, product.env["STRIPE_WEBHOOK_SECRETS"])}
    return requests.post(f"{product.url}/v1/billing/webhook", data=body, headers=headers, timeout=30).status_code


# Every one of them ends in a provider, or leads there.
PREMIUM = [
    ("POST", "v1/invoke/<str:agent>"),
    ("POST", "v1/invoke/<str:agent>/stream"),
    ("POST", "v1/delegated/invoke/<str:agent>"),
    ("POST", "v1/agents/<str:agent>/deployments"),
    ("POST", "v1/agents/<str:agent>/deployments/<str:deployment>/activate"),
    ("PUT", "v1/agents/<str:agent>/secrets"),
    ("PATCH", "v1/agents/<str:agent>"),
    ("POST", "v1/agents"),
]


class TestWithoutTheRuntime:
    def test_no_route_of_the_api_makes_starts_or_runs_anything_at_aws(self, product: Product, aws: Aws) -> None:
        operations = api_operations()
        assert len(operations) >= 30
        assert set(PREMIUM) <= set(operations)
        tried: list[Owned] = []
        try:
            asked: dict[tuple[str, str], tuple[Owned, int]] = {}
            for method, route in operations:
                asked[method, route] = called(product, make_account("charlie", make_tier()), method, route)
                tried.append(asked[method, route][0])
            # The same of somebody who may: it shows that the requests are real. The queue is in order, so what
            # this deployment does comes after all that the others may have left behind.
            allowed = [called(product, _premium(), *operation)[0] for operation in PREMIUM[:6]]
            tried += allowed
            for owned, operation in zip(allowed, PREMIUM[:6], strict=True):
                assert until(partial(aws.given_to, owned)), operation
            statuses = {operation: status for operation, (_, status) in asked.items()}
            assert {operation: statuses[operation] for operation in PREMIUM} == dict.fromkeys(PREMIUM, 402)
            rest = {operation: status for operation, status in statuses.items() if operation not in PREMIUM}
            assert not {o: s for o, s in rest.items() if not 200 <= s < 300}, "not every request was understood"
            assert not {operation: g for operation, (owned, _) in asked.items() if (g := aws.given_to(owned))}
        finally:
            for owned in tried:
                owned.forget()

    def test_no_page_makes_starts_or_runs_anything_at_aws(self, product: Product, aws: Aws) -> None:
        pages = [route for route, _ in _routes(webhost.pages.urlpatterns)]
        one = "agents/<str:agent>/"
        refusing = {
            "agents/", f"{one}deploy/", f"{one}runtime/", f"{one}secrets/", f"{one}secrets/delete/", f"{one}playground/",
            f"{one}deployments/<str:deployment>/activate/",
        }  # fmt: skip
        assert refusing <= set(pages)
        tried: list[Owned] = []
        refused: set[str] = set()
        try:
            for route in pages:
                for method in ("GET", "POST"):
                    here = Runtime.CLOUDFLARE if "runtime" in route else Runtime.AGENTCORE
                    tried.append(owned := Owned(product, make_account("charlie", make_tier()), here))
                    answer = self._on_the_page(owned, method, route)
                    assert answer.status_code in (200, 302, 400, 402, 404, 405, 409), (
                        method,
                        route,
                        answer.status_code,
                    )
                    if answer.status_code == 402:
                        refused.add(route)
            assert refused == refusing
            assert not [given for owned in tried if (given := aws.given_to(owned))]
        finally:
            for owned in tried:
                owned.forget()

    def _on_the_page(self, owned: Owned, method: str, route: str) -> requests.Response:
        """Send a form with everything in it that a page may ask for, signed in."""
        client = Client()
        client.force_login(owned.account)
        token = secrets.token_hex(16)
        path = "/" + re.sub(r"<\w+:(\w+)>", lambda found: quote(owned.name(found[1]), safe="/"), route)
        form = {
            "name": "premium", "runtimeProvider": "agentcore", "sessionId": owned.session, "reason": "again",
            "tier": "starter", "interval": "month", "value": "a new value", "prompt": "hi",
            "description": "text", "confirm": owned.agent.name, "token": str(new_id()), "scopes": "read", "days": "30",
            "kind": "email", "address": "ops@example.com", "thresholds": "80", "email": "other@example.com",
            "current": "a-long-enough-secret", "password": "another-long-secret", "session": "1", "link": "of-nobody",
        }  # fmt: skip
        return requests.request(
            method, owned.product.url + path, timeout=30, allow_redirects=False,
            data=form if method == "POST" else None,
            files={"bundle": ("bundle.zip", _bundle(*ALL), "application/zip")} if method == "POST" else None,
            cookies={
                settings.SESSION_COOKIE_NAME: client.cookies[settings.SESSION_COOKIE_NAME].value,
                settings.CSRF_COOKIE_NAME: token,
            },
            headers={"X-CSRFToken": token},
        )  # fmt: skip


# --- One agent that does what its prompt says -----------------------------------------------------


class Stage:
    """alice, who may use everything, and her agent on AgentCore, with a code interpreter and a secret."""

    def __init__(self, product: Product) -> None:
        self.product, self.account = product, _premium()
        self.customer = _customer(product, self.account)
        created = self.customer.call("POST", "/v1/agents", json={"name": "actor", "runtimeProvider": "agentcore"})
        assert created.status_code == 201, created.text
        agent_id = str(created.json()["id"])
        self.secret = f"{secrets.token_urlsafe(24)}-ü"
        put = self.customer.call("PUT", f"/v1/agents/{agent_id}/secrets", json={"secrets": {"API_KEY": self.secret}})
        assert put.status_code == 200, put.text
        accepted = self.customer.upload(agent_id, _bundle(Capability.CODE_INTERPRETER))
        assert accepted.status_code == 202, accepted.text
        self.agent = Agent(self.customer, agent_id, str(accepted.json()["id"]))
        deployed = until(lambda: (d := self.customer.deployment(self.agent.deployment))["status"] != "deploying" and d)
        assert deployed
        assert deployed["status"] == "active", deployed

    @property
    def deployment(self) -> Deployment:
        """Its deployment, as the database has it."""
        return Deployment.objects.get(pk=parse_id(Prefix.DEPLOYMENT, self.agent.deployment))

    def told(self, ask: Mapping[str, Any], **more: Any) -> requests.Response:
        """Invoke it with a prompt, and more in the body."""
        body = {"input": {"prompt": json.dumps(ask)}, **more}
        return self.customer.call("POST", f"/v1/invoke/{self.agent.id}", json=body)

    def counted(self) -> int:
        """Return how many requests count so far."""
        counter = PeriodCounter.objects.filter(account_id=self.account.pk).first()
        return counter.used_requests if counter else 0

    def holds_nothing(self) -> bool:
        """Whether nothing is set aside or under way."""
        counter = PeriodCounter.objects.get(account_id=self.account.pk)
        held = [value for name, value in vars(counter).items() if name.startswith("held_")]
        assert held
        return not any(held) and counter.in_flight == 0

    def is_settled(self) -> bool:
        """Wait until nothing is held, then say whether both proofs hold."""
        assert until(self.holds_nothing), vars(PeriodCounter.objects.get(account_id=self.account.pk))
        proof = verify_usage(self.account.pk, period_of(timezone.now())).findings
        return ledger.verify(account_id=self.account.pk) == [] and not proof


@pytest.fixture(scope="module")
def stage(product: Product, django_db_blocker: DjangoDbBlocker) -> Iterator[Stage]:
    """One of it for the tests below, which leave it as it was."""
    with django_db_blocker.unblock():
        made = Stage(product)
    yield made
    made.customer.call("DELETE", f"/v1/agents/{made.agent.id}")


class TestTools:
    def test_an_agent_that_says_it_used_none_is_charged_what_the_control_plane_saw(
        self, stage: Stage, aws: Aws
    ) -> None:
        answer = stage.told({"lie": True})
        assert answer.status_code == 200, answer.text
        assert answer.json()["usage"]["toolCalls"] == 1
        receipt = stage.customer.receipt(answer.json()["invocationId"])
        assert receipt["usage"]["tokens"] == 0  # its own claims arrived
        assert receipt["usage"]["toolCalls"] == 1
        assert receipt["usage"]["codeExecutionMs"] >= 300
        assert aws.calls(stage.deployment.pk).count("StartCodeInterpreterSession") == 1
        assert stage.is_settled()


class TestHolds:
    def test_a_stream_that_its_reader_leaves_holds_nothing_afterwards(self, stage: Stage, aws: Aws) -> None:
        before = stage.counted()
        with stage.agent.streaming({"events": 100, "pause": 100}) as reading:
            events = reading.events()
            _, kind, meta = next(events)
            assert kind == "meta"
            next(events)
            assert not stage.holds_nothing()
        assert stage.is_settled()
        assert stage.counted() == before + 1
        assert aws.ran(meta["invocationId"]) == 1
        assert stage.customer.receipt(meta["invocationId"])["usage"]["requests"] == 1

    def test_a_connection_that_breaks_after_the_agent_ran_is_counted_once_and_sent_once(
        self, stage: Stage, aws: Aws
    ) -> None:
        before = stage.counted()
        aws.fail(_INVOKE, "reset-after")
        answer = stage.told({"wait": 200})
        assert answer.status_code == 502, answer.text
        receipt = stage.customer.last_receipt()
        assert (receipt["outcome"], receipt["usage"]["requests"]) == ("failed", 1)
        assert stage.is_settled()
        assert stage.counted() == before + 1
        assert aws.ran(receipt["id"]) == 1

    @pytest.mark.parametrize("stream", [False, True], ids=["json", "stream"])
    def test_an_agent_that_is_out_of_time_is_counted_once_and_sent_once(
        self, stage: Stage, aws: Aws, stream: bool
    ) -> None:
        before = stage.counted()
        answer = (stage.agent.stream if stream else stage.agent.invoke)({"wait": 60_000})
        assert "Timeout" in answer.text
        receipt = stage.customer.last_receipt()
        assert (receipt["outcome"], receipt["errorClass"], receipt["usage"]["requests"]) == ("failed", "Timeout", 1)
        assert stage.is_settled()
        assert stage.counted() == before + 1
        assert aws.ran(receipt["id"]) == 1


class TestSessions:
    def test_one_that_its_owner_stops_is_gone_at_aws_and_answers_without_a_call(self, stage: Stage, aws: Aws) -> None:
        session = f"chat/{secrets.token_hex(4)} ü"
        name = runtime_session_id(target_of(stage.deployment), session)
        assert stage.told({}, sessionId=session).status_code == 200
        process = aws.processes()[name]
        os.kill(process, 0)  # it is there
        path = f"/v1/agents/{stage.agent.id}/sessions/{quote(session, safe='')}"
        assert stage.customer.call("DELETE", path).status_code == 204
        assert name not in aws.processes()
        assert until(lambda: not _runs(process))
        sent, counted = aws.calls(stage.deployment.pk).count(_INVOKE), stage.counted()
        answer = stage.told({}, sessionId=session)
        error = answer.json()["error"]
        assert (error["code"], error["details"]["errorClass"]) == ("RUNTIME_ERROR", "SessionEnded")
        assert aws.calls(stage.deployment.pk).count(_INVOKE) == sent
        assert name not in aws.processes()
        assert stage.counted() == counted
        assert stage.is_settled()


def _runs(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


class TestCapabilities:
    FLAGS: Mapping[str, tuple[str, str]] = {
        Capability.MEMORY: ("memory_enabled", "memoryEnabled"),
        Capability.CODE_INTERPRETER: ("code_interpreter_enabled", "codeInterpreterEnabled"),
        Capability.BROWSER: ("browser_enabled", "browserEnabled"),
    }

    @pytest.mark.parametrize("capability", Capability)
    def test_a_manifest_that_asks_for_more_than_the_tier_has_is_refused_by_the_api(
        self, product: Product, aws: Aws, capability: Capability
    ) -> None:
        field, limit = self.FLAGS[capability]
        account = _premium(**{field: False})
        agent = make_agent(account, runtime=Runtime.AGENTCORE)
        answer = _customer(product, account).upload(agent.public_id, _bundle(capability))
        assert (answer.status_code, answer.json()["error"]["details"]["limitType"]) == (402, limit)
        assert not Deployment.objects.filter(agent=agent).exists()
        assert aws.calls(agent.pk) == []

    @pytest.mark.parametrize("capability", Capability)
    def test_with_the_api_off_the_adapter_refuses_in_the_worker(
        self, product: Product, aws: Aws, monkeypatch: pytest.MonkeyPatch, capability: Capability
    ) -> None:
        field, _ = self.FLAGS[capability]
        account = _premium(**{field: False})
        agent = make_agent(account, runtime=Runtime.AGENTCORE)
        monkeypatch.setattr(runtimes.actions.deployments, "require_runtime", lambda *args, **more: None)
        upload = SimpleUploadedFile("bundle.zip", _bundle(capability), "application/zip")
        headers = {"Authorization": f"Bearer {make_token(account)}"}
        answer = Client().post(f"/v1/agents/{agent.public_id}/deployments", {"bundle": upload}, headers=headers)
        assert answer.status_code == 202, answer.content
        made = Deployment.objects.get(agent=agent)
        failed = until(lambda: Deployment.objects.filter(pk=made.pk, status=DeploymentStatus.FAILED).first())
        assert failed, Deployment.objects.get(pk=made.pk).status
        assert failed.error_code == "LIMIT_EXCEEDED"
        assert "not included" in failed.error_message
        assert aws.given(agent.pk, made.pk) == []


class TestSecrets:
    def test_a_secret_reaches_the_agent_and_nothing_that_others_read(self, stage: Stage, product: Product) -> None:
        digest = stage.told({"digest": "API_KEY"})
        assert digest.json()["output"]["text"] == hashlib.sha256(stage.secret.encode()).hexdigest()
        failed = stage.told({"throws": "API_KEY"})
        assert failed.status_code == 502
        listed = stage.customer.call("GET", f"/v1/agents/{stage.agent.id}/secrets")
        assert [item["name"] for item in listed.json()["items"]] == ["API_KEY"]
        found = _control(product).get_agent_runtime(agentRuntimeId=stage.deployment.remote["runtimeId"])
        assert found["environmentVariables"]["WHS_SECRET_ARN"]
        shown = [failed.text, listed.text, json.dumps(found, default=str), json.dumps(stage.deployment.remote)]
        shown += [line.line for line in stage.deployment.log_lines.all()]
        logs = [path for path in product.logs.rglob("*") if path.is_file()]
        assert {"web.log", "worker.log", "agentcore.log"} <= {path.name for path in logs}
        shown += [path.read_text(errors="replace") for path in logs]
        audited = _audited(stage.account)
        assert audited
        shown += audited
        assert not [text for text in shown if stage.secret.removesuffix("-ü") in text]


def _control(product: Product) -> Any:
    env = product.env
    return boto3.session.Session().client(
        "bedrock-agentcore-control",
        region_name=env["AWS_REGION"],
        endpoint_url=product.aws_url,
        aws_access_key_id=env["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=env["AWS_SECRET_ACCESS_KEY"],
    )


def _audited(account: Account) -> list[str]:
    """Return what the audit keeps of an account's requests."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT metadata::text FROM pghistory_context WHERE metadata::text LIKE %s", [f"%{account.pk}%"])
        return [row[0] for row in cursor.fetchall()]
