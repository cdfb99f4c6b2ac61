"""Delegated invocation: who is believed, as whom a call is judged, and that nothing runs twice."""

from __future__ import annotations

import json
import logging
import secrets
import threading
from collections import Counter
from datetime import timedelta
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.test import Client
from django.utils import timezone
from hypothesis import given
from hypothesis import strategies as st

from entitlements import idempotency, throttles
from entitlements.enums import Runtime
from entitlements.models import Account, Admission, IdempotencyRecord, PeriodCounter
from runtimes.actions import invoke
from runtimes.delegation import Distrust, distrust_of, parse_envelope, signed_bytes
from runtimes.errors import RuntimeFailedError
from runtimes.models import Agent
from runtimes.providers import PROVIDERS
from tests.api import Answer, Api, at_once, documented
from tests.backend import ROUTE, Backend, envelope
from tests.entitlements.admin_pages import Staff
from tests.factories import make_account, make_agent, make_deployment, make_tier, override
from tests.runtimes.stub import StubProvider
from webhost import notes
from webhost.errors import InvalidRequestError
from webhost.settings import _delegated_sources

pytestmark = pytest.mark.usefixtures("live_db")
NOW = 1_795_000_000
KEY = "0123456789abcdef" * 4


@pytest.fixture
def shop(settings: Any) -> Backend:
    return source(settings, "shop")


@pytest.fixture
def crm(settings: Any, shop: Backend) -> Backend:
    return source(settings, "crm")


def source(settings: Any, name: str) -> Backend:
    """Trust one more backend, or give one a second key."""
    key = secrets.token_bytes(32)
    known = getattr(settings, "DELEGATED_SOURCES", {})
    settings.DELEGATED_SOURCES = {**known, name: (*known.get(name, ()), key)}
    return Backend(name, key)


@pytest.fixture
def provider(monkeypatch: pytest.MonkeyPatch) -> StubProvider:
    stub = StubProvider()
    monkeypatch.setitem(PROVIDERS, "cloudflare", stub)  # type: ignore[arg-type]
    monkeypatch.setitem(PROVIDERS, "agentcore", stub)  # type: ignore[arg-type]
    return stub


@pytest.fixture
def alice() -> Account:
    return make_account("alice", make_tier())


@pytest.fixture
def agent(alice: Account) -> Agent:
    made = make_agent(alice, "helper")
    make_deployment(made)
    return made


@pytest.fixture(autouse=True)
def _own_address(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no test use up the minute of the others' address."""
    notes.forget()
    mine = secrets.token_hex(8)
    monkeypatch.setattr(throttles, "_who", lambda request: mine)


def send(agent: str, body: Any, headers: dict[str, str], *, check: bool = True, **more: Any) -> Answer:
    """Send a call as it is: bytes, or something to be written as JSON."""
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    content_type = more.pop("content_type", "application/json")
    response = Client(raise_request_exception=False).generic(
        "POST", ROUTE + agent, raw, content_type=content_type, headers=headers, **more
    )
    answer = Answer(response)
    if check:
        documented("POST", ROUTE + agent, answer.status, answer.json)
    return answer


def call(backend: Backend, agent: Agent | str, body: Any, *, ago: int = 0, **more: Any) -> Answer:
    """Call as a backend does."""
    name = agent if isinstance(agent, str) else agent.public_id
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return send(name, raw, backend.headers(name, raw, ago=ago), **more)


def used(account: Account) -> int:
    return sum(PeriodCounter.objects.filter(account_id=account.pk).values_list("used_requests", flat=True))


class TestTheWindow:
    @pytest.mark.parametrize("ago", [-60, -1, 0, 1, 300])
    def test_from_five_minutes_back_to_one_ahead_a_call_is_timely(self, ago: int) -> None:
        assert distrust_of("shop", str(NOW - ago), known={"shop"}, now=NOW) is None

    @pytest.mark.parametrize("ago", [-(10**9), -61, 301, 86_400, NOW])
    def test_outside_of_it_is_not(self, ago: int) -> None:
        assert distrust_of("shop", str(NOW - ago), known={"shop"}, now=NOW) is Distrust.STALE

    @pytest.mark.parametrize(
        "text", [None, "", "now", f"{NOW}.0", f"+{NOW}", f" {NOW}", f"{NOW}\n", "1" * 13, "-1", "١" * 10, "1e9", "0x1"]
    )
    def test_a_time_that_is_not_plain_digits_is_none(self, text: str | None) -> None:
        assert distrust_of("shop", text, known={"shop"}, now=NOW) is Distrust.NO_TIMESTAMP

    @pytest.mark.parametrize("name", ["Shop", "shop ", "shop,shop", "shop.", "é", "x" * 10_000])
    def test_a_source_is_known_by_its_exact_name_only(self, name: str) -> None:
        assert distrust_of(name, str(NOW), known={"shop"}, now=NOW) is Distrust.UNKNOWN_SOURCE

    @pytest.mark.parametrize("name", [None, ""])
    def test_without_a_name_there_is_no_source(self, name: str | None) -> None:
        assert distrust_of(name, str(NOW), known={"": (), "shop": ()}, now=NOW) is Distrust.NO_SOURCE


_NAME = st.text("abcdefghijklmnopqrstuvwxyz0123456789-", min_size=1, max_size=32)
_AGENT = st.text("abcXYZ019_-", min_size=1, max_size=64)
_CALL = st.tuples(st.integers(0, 10**12 - 1).map(str), _NAME, _AGENT, st.binary(max_size=40))


class TestWhatIsSigned:
    @given(_CALL)
    def test_can_be_taken_apart_in_one_way_only_so_no_two_calls_are_signed_alike(self, one: Any) -> None:
        time, name, agent, body = one
        assert signed_bytes(*one).split(b".", 3) == [time.encode(), name.encode(), agent.encode(), body]


class TestTheEnvelope:
    def test_it_is_read_whole_and_every_issue_is_listed_with_its_path(self) -> None:
        with pytest.raises(InvalidRequestError) as refused:
            parse_envelope({"accountId": 1, "request": {"input": {}, "tier": "pro"}, "limits": {}, "tier": "pro"})
        paths = [issue["path"] for issue in refused.value.details["issues"]]
        assert paths == ["limits", "tier", "accountId", "idempotencyKey", "request.tier", "request.input"]

    @pytest.mark.parametrize("body", [None, [], "text", 1, True])
    def test_anything_but_an_object_is_refused(self, body: Any) -> None:
        with pytest.raises(InvalidRequestError):
            parse_envelope(body)

    @pytest.mark.parametrize("key", [None, "", " ", "a b", "x" * 256, "é", "a\tb", 1, ["k"]])
    def test_a_key_that_is_none_is_refused(self, key: Any) -> None:
        with pytest.raises(InvalidRequestError) as refused:
            parse_envelope(envelope("acc_1") | {"idempotencyKey": key})
        assert [issue["path"] for issue in refused.value.details["issues"]] == ["idempotencyKey"]

    def test_a_request_that_is_missing_is_named(self) -> None:
        with pytest.raises(InvalidRequestError) as refused:
            parse_envelope({"accountId": "acc_1", "idempotencyKey": "k"})
        assert [issue["path"] for issue in refused.value.details["issues"]] == ["request"]


class TestTheSetting:
    def test_empty_shuts_the_door(self) -> None:
        assert _delegated_sources("") == _delegated_sources("  ") == {}

    def test_a_source_is_listed_twice_while_its_key_rotates(self) -> None:
        other = KEY.replace("0", "1")
        found = _delegated_sources(f"shop:{KEY}, crm:{KEY.replace('0', '2')},shop:{other}")
        assert found["shop"] == (bytes.fromhex(KEY), bytes.fromhex(other))
        assert set(found) == {"shop", "crm"}

    @pytest.mark.parametrize(
        "text",
        ["shop", f"{KEY}", f":{KEY}", f"Shop:{KEY}", f"{'x' * 33}:{KEY}", f"shop:{KEY[:-1]}", f"shop:{KEY[:-2]}",
         f"shop:{KEY}a", f"shop:{KEY},", f",shop:{KEY}", f"shop:{KEY};crm:{KEY}", f"sh.op:{KEY}", f"shop:{KEY.upper()}",
         f"shop:{KEY},crm:{KEY}", f"shop:{KEY},shop:{KEY}"],
    )  # fmt: skip
    def test_anything_odd_stops_the_start(self, text: str) -> None:
        with pytest.raises(ImproperlyConfigured):
            _delegated_sources(text)


class TestACall:
    def test_is_answered_as_the_account_s_own_and_counts_there(
        self, shop: Backend, alice: Account, agent: Agent, provider: StubProvider
    ) -> None:
        answer = call(shop, agent, envelope(alice.public_id))
        assert (answer.status, answer.json["output"]["text"]) == (200, "hello")
        assert answer.headers["Cache-Control"] == "no-store"
        assert len(provider.invocations) == used(alice) == 1

    def test_names_its_agent_by_id_or_name(
        self, shop: Backend, alice: Account, agent: Agent, provider: StubProvider
    ) -> None:
        assert [call(shop, a, envelope(alice.public_id)).status for a in (agent, "helper")] == [200, 200]

    def test_shows_in_the_receipt_by_whom_it_was_delegated_and_an_own_call_does_not(
        self, shop: Backend, alice: Account, agent: Agent, provider: StubProvider
    ) -> None:
        owner = Api(alice)
        delegated = call(shop, agent, envelope(alice.public_id)).json["invocationId"]
        own = owner.post(f"/v1/invoke/{agent.public_id}", {"input": {"prompt": "hi"}}).json["invocationId"]
        receipts = {i: owner.get(f"/v1/invocations/{i}").json for i in (delegated, own)}
        assert (receipts[delegated]["delegatedBy"], receipts[delegated]["tokenId"]) == ("shop", None)
        assert receipts[own]["delegatedBy"] is None
        assert [item["delegatedBy"] for item in owner.get("/v1/invocations").json["items"]] == [None, "shop"]

    def test_shows_to_support_with_its_source(
        self, shop: Backend, alice: Account, agent: Agent, provider: StubProvider
    ) -> None:
        stella = Staff()
        shown = call(shop, agent, envelope(alice.public_id)).json["invocationId"]
        receipt = Admission.objects.get(account_id=alice.pk)
        for term in (shown, alice.public_id, alice.email, receipt.trace_id, agent.public_id):
            page = stella.client.get(stella.url(Admission, "changelist"), {"q": term}).content.decode()
            assert shown in page
            assert "source shop" in page
        assert shown not in stella.client.get(stella.url(Admission, "changelist"), {"q": "inv_0"}).content.decode()
        assert "source shop" in stella.client.get(stella.url(receipt)).content.decode()
        assert stella.client.post(stella.url(receipt), {"delegated_by": "crm"}).status_code == 403
        assert stella.client.post(stella.url(receipt, "delete"), {"post": "yes"}).status_code == 403

    def test_says_what_is_left_of_the_budgets(
        self, shop: Backend, agent: Agent, alice: Account, provider: StubProvider
    ) -> None:
        override(alice, "max_requests_per_period", 5)
        assert '"requests";r=4' in call(shop, agent, envelope(alice.public_id)).headers["RateLimit"]

    def test_without_a_source_in_the_settings_is_401(
        self, alice: Account, agent: Agent, provider: StubProvider, settings: Any
    ) -> None:
        settings.DELEGATED_SOURCES = {}
        assert call(Backend("shop", b""), agent, envelope(alice.public_id)).status == 401

    def test_with_a_token_besides_is_still_known_by_its_signature_only(
        self, shop: Backend, alice: Account, agent: Agent, provider: StubProvider
    ) -> None:
        token = {"Authorization": f"Bearer {Api(alice).token}"}
        assert send(agent.public_id, envelope(alice.public_id), token).status == 401
        assert provider.invocations == []


class TestDistrust:
    """Nothing of this is answered differently from the rest, read, counted, or sent."""

    def refused(self, answer: Answer) -> str:
        assert (answer.status, answer.code) == (401, "UNAUTHENTICATED")
        return json.dumps(answer.json["error"])

    def test_every_doubt_is_answered_alike(
        self, shop: Backend, crm: Backend, alice: Account, agent: Agent, provider: StubProvider
    ) -> None:
        name, raw = agent.public_id, json.dumps(envelope(alice.public_id)).encode()
        good = shop.headers(name, raw)
        signature, timestamp = good["X-Whs-Signature"], good["X-Whs-Timestamp"]
        other = make_agent(alice)
        make_deployment(other)
        tried = {
            "no headers": send(name, raw, {}),
            "stale": send(name, raw, shop.headers(name, raw, ago=301)),
            "from the future": send(name, raw, shop.headers(name, raw, ago=-70)),
            "a later time": send(name, raw, good | {"X-Whs-Timestamp": str(int(timestamp) + 1)}),
            "one more space": send(name, raw + b" ", good),
            "another body": send(name, raw.replace(b"hello", b"jello"), good),
            "another agent": send(other.public_id, raw, good),
            "the agent's name": send("helper", raw, good),
            "an agent with a dot": send(f"{name}.x", raw, good),
            "another source": send(name, raw, good | {"X-Whs-Source": "crm"}),
            "another source's key": send(name, raw, Backend("shop", crm.key).headers(name, raw)),
            "an unknown source": send(name, raw, Backend("nobody", shop.key).headers(name, raw)),
            "an empty key": send(name, raw, Backend("shop", b"").headers(name, raw)),
            "a signature of the body alone": send(name, raw, good | {"X-Whs-Signature": "v1=" + "0" * 64}),
            "not v1": send(name, raw, good | {"X-Whs-Signature": signature.replace("v1", "v0")}),
            "no scheme": send(name, raw, good | {"X-Whs-Signature": signature[3:]}),
            "an empty body": send(name, b"", good),
            "no JSON": send(name, b"{", good),
            "a form": send(name, b"a=1", good, content_type="application/x-www-form-urlencoded"),
            **{f"without {header}": send(name, raw, {h: v for h, v in good.items() if h != header}) for header in good},
            **{f"empty {header}": send(name, raw, good | {header: ""}) for header in good},
        }
        assert len({self.refused(answer) for answer in tried.values()}) == 1
        assert provider.invocations == []
        assert not IdempotencyRecord.objects.filter(account_id=alice.pk).exists()
        assert used(alice) == 0

    @pytest.mark.case("ING-02")
    @pytest.mark.parametrize("header", ["SOURCE", "TIMESTAMP", "SIGNATURE"])
    @pytest.mark.parametrize("junk", ["\xe9", "v1=" + "é" * 64, "\x80\xff", "x" * 10_000, ",", "=", "v1=,v1=", "\x00"])
    def test_junk_in_a_header_is_401_and_no_crash(
        self, shop: Backend, alice: Account, agent: Agent, header: str, junk: str
    ) -> None:
        raw = json.dumps(envelope(alice.public_id)).encode()
        meta = {f"HTTP_{h.upper().replace('-', '_')}": v for h, v in shop.headers(agent.public_id, raw).items()}
        answer = send(agent.public_id, raw, {}, **meta | {f"HTTP_X_WHS_{header}": junk})
        self.refused(answer)

    @pytest.mark.case("ING-01")
    def test_odd_spacing_and_escapes_are_verified_as_they_are(
        self, shop: Backend, alice: Account, agent: Agent, provider: StubProvider
    ) -> None:
        raw = json.dumps(envelope(alice.public_id, "caf\u00e9")).replace(":", " :\t").encode() + b"\n"
        assert call(shop, agent, raw).status == 200

    @pytest.mark.parametrize("method", ["GET", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"])
    def test_no_other_method_is_a_way_in(self, shop: Backend, agent: Agent, method: str) -> None:
        assert Api().call(method, ROUTE + agent.public_id, check=False).status == 401

    def test_strangers_are_paced_and_sources_are_not(
        self, shop: Backend, alice: Account, agent: Agent, provider: StubProvider, settings: Any
    ) -> None:
        settings.API_REQUESTS_PER_MINUTE = 3
        codes = [call(Backend("shop", b"guess"), agent, envelope(alice.public_id)).status for _ in range(5)]
        assert codes == [401, 401, 401, 429, 429]
        assert [call(shop, agent, envelope(alice.public_id)).status for _ in range(5)] == [200] * 5

    def test_what_is_refused_leaves_one_note_of_each_kind_in_ten_seconds(
        self, shop: Backend, alice: Account, agent: Agent, caplog: pytest.LogCaptureFixture
    ) -> None:
        body = envelope(alice.public_id)
        for _ in range(5):
            call(Backend("shop", b"guess"), agent, body)
            send(agent.public_id, body, {"X-Whs-Source": "evil\u00e9' X" + "x" * 500})
        said = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
        ours = [line for line in said if "delegated" in line]
        assert len(ours) == 2
        assert "(signature), the last of 'shop'" in ours[0]
        assert "(unknown source)" in ours[1]
        assert len(ours[1]) < 120
        assert ours[1].isascii()


class TestReading:
    def test_a_body_over_the_limit_is_413_before_it_is_read(self, shop: Backend, agent: Agent) -> None:
        assert call(shop, agent, b" " * (1024 * 1024 + 1)).status == 413

    def test_a_compressed_body_is_not_inflated(self, shop: Backend, alice: Account, agent: Agent) -> None:
        assert call(shop, agent, envelope(alice.public_id), HTTP_CONTENT_ENCODING="gzip").status == 415

    @pytest.mark.parametrize("kind", ["text/plain", "", "application/x-www-form-urlencoded", "multipart/form-data"])
    def test_what_is_signed_but_not_sent_as_json_is_415(
        self, shop: Backend, alice: Account, agent: Agent, provider: StubProvider, kind: str
    ) -> None:
        assert call(shop, agent, envelope(alice.public_id), content_type=kind).status == 415
        assert provider.invocations == []

    @pytest.mark.parametrize(
        "raw", [b"", b"{", b"[]", b"null", b"\xff", b'{"accountId": NaN}', b'{"accountId": "a", "accountId": "b"}']
    )
    def test_what_is_signed_but_makes_no_sense_is_400(
        self, shop: Backend, agent: Agent, provider: StubProvider, raw: bytes
    ) -> None:
        answer = call(shop, agent, raw)
        assert (answer.status, answer.code) == (400, "INVALID_REQUEST")

    def test_a_key_repeated_deep_inside_is_400(self, shop: Backend, alice: Account, agent: Agent) -> None:
        raw = json.dumps(envelope(alice.public_id)).replace('"prompt":', '"prompt": "a", "prompt":').encode()
        assert call(shop, agent, raw).status == 400

    @pytest.mark.parametrize("field", ["owner", "tier", "limits", "account", "tokenId", "delegatedBy", "source"])
    @pytest.mark.parametrize("inside", [False, True], ids=["envelope", "request"])
    def test_no_field_sets_owner_tier_or_limits(
        self, shop: Backend, alice: Account, agent: Agent, field: str, inside: bool
    ) -> None:
        body = envelope(alice.public_id)
        (body["request"] if inside else body)[field] = "pro"
        answer = call(shop, agent, body)
        assert answer.issues == {f"request.{field}" if inside else field: "Unknown field."}
        assert used(alice) == 0

    def test_a_call_without_a_key_in_the_envelope_is_400_even_with_one_in_a_header(
        self, shop: Backend, alice: Account, agent: Agent, provider: StubProvider
    ) -> None:
        body = envelope(alice.public_id)
        del body["idempotencyKey"]
        answer = call(shop, agent, body, HTTP_IDEMPOTENCY_KEY="unsigned")
        assert (answer.status, set(answer.issues)) == (400, {"idempotencyKey"})
        assert provider.invocations == []


class TestAsTheAccount:
    def test_an_unknown_account_and_somebody_elses_agent_are_the_same_404(
        self, shop: Backend, alice: Account, agent: Agent, provider: StubProvider
    ) -> None:
        charlie = make_account("charlie")
        tried = [
            call(shop, agent, envelope(charlie.public_id)),
            call(shop, agent, envelope("acc_" + "0" * 32)),
            call(shop, agent, envelope("acc_")),
            call(shop, agent, envelope(str(alice.pk))),
            call(shop, agent, envelope("'; --")),
            call(shop, "no-such-agent", envelope(alice.public_id)),
            call(shop, "no.such.agent", envelope(alice.public_id)),
        ]
        assert {(a.status, json.dumps(a.json["error"])) for a in tried} == {(404, json.dumps(tried[0].json["error"]))}
        assert provider.invocations == []
        assert used(alice) == used(charlie) == 0

    def test_what_is_wrong_with_a_request_is_said_before_anybody_is_looked_up(
        self, shop: Backend, agent: Agent, alice: Account
    ) -> None:
        bad = {"request": {"input": {}}}
        tried = [call(shop, agent, envelope(a) | bad) for a in (alice.public_id, "acc_" + "0" * 32)]
        assert [a.status for a in tried] == [400, 400]

    def test_a_disabled_account_is_403_for_its_backend_too(
        self, shop: Backend, alice: Account, agent: Agent, provider: StubProvider
    ) -> None:
        body = envelope(alice.public_id)
        assert call(shop, agent, body).status == 200
        Account.objects.filter(pk=alice.pk).update(is_active=False)
        assert call(shop, agent, body).status == 403
        assert call(shop, agent, envelope(alice.public_id)).status == 403
        assert len(provider.invocations) == 1

    def test_a_refusal_is_the_same_as_for_its_own_call(
        self, shop: Backend, alice: Account, agent: Agent, provider: StubProvider
    ) -> None:
        override(alice, "max_requests_per_period", 1)
        call(shop, agent, envelope(alice.public_id))
        delegated = call(shop, agent, envelope(alice.public_id))
        own = Api(alice).post(f"/v1/invoke/{agent.public_id}", {"input": {"prompt": "hi"}})
        assert (delegated.status, delegated.details["limitType"]) == (402, "requests")
        assert delegated.json["error"] == own.json["error"]
        assert len(provider.invocations) == used(alice) == 1

    def test_the_rate_per_minute_is_the_accounts(
        self, shop: Backend, alice: Account, agent: Agent, provider: StubProvider
    ) -> None:
        override(alice, "requests_per_minute", 1)
        assert Api(alice).post(f"/v1/invoke/{agent.public_id}", {"input": {"prompt": "hi"}}).status == 200
        refused = call(shop, agent, envelope(alice.public_id))
        if refused.status == 200:  # the minute turned in between
            refused = call(shop, agent, envelope(alice.public_id))
        assert (refused.status, refused.details["limitType"]) == (429, "requestsPerMinute")
        assert "Retry-After" in refused.headers

    def test_calls_at_the_same_time_are_the_accounts(
        self, shop: Backend, alice: Account, agent: Agent, provider: StubProvider
    ) -> None:
        override(alice, "max_concurrent_invocations", 2)
        hold = threading.Event()
        provider.act = lambda invocation: "slow" if hold.wait(10) else "never"
        threading.Timer(1.5, hold.set).start()
        answers = at_once(lambda _: call(shop, agent, envelope(alice.public_id)), 6)
        assert Counter(a.status for a in answers) == {200: 2, 429: 4}

    @pytest.mark.parametrize(
        ("capability", "limit"), [(None, "runtimeGated"), ("memory", "memoryEnabled"), ("browser", "browserEnabled")]
    )
    def test_a_gate_is_closed_through_this_door_too(
        self, shop: Backend, provider: StubProvider, capability: str | None, limit: str
    ) -> None:
        alice = make_account("alice", make_tier(agentcore_enabled=capability is not None))
        agent = make_agent(alice, runtime=Runtime.AGENTCORE)
        make_deployment(agent, capabilities=[capability] if capability else [])
        refused = call(shop, agent, envelope(alice.public_id))
        assert (refused.status, refused.details["limitType"]) == (402, limit)
        assert provider.invocations == []
        assert not Admission.objects.filter(account_id=alice.pk).exists()

    def test_a_disabled_agent_is_409_and_a_failing_one_502(
        self, shop: Backend, alice: Account, agent: Agent, provider: StubProvider
    ) -> None:
        provider.fail = RuntimeFailedError("It broke.", error_class="AgentError")
        assert call(shop, agent, envelope(alice.public_id)).status == 502
        Agent.objects.filter(pk=agent.pk).update(disabled_at=timezone.now())
        assert call(shop, agent, envelope(alice.public_id)).status == 409


class TestOnce:
    @pytest.mark.case("ING-03")
    def test_a_captured_call_gets_the_first_answer_in_the_window_and_401_after_it(
        self, shop: Backend, alice: Account, agent: Agent, provider: StubProvider
    ) -> None:
        name, raw = agent.public_id, json.dumps(envelope(alice.public_id)).encode()
        captured = shop.headers(name, raw, ago=290)
        first, again = send(name, raw, captured), send(name, raw, captured)
        assert (first.status, again.status) == (200, 200)
        assert again.json == first.json
        assert again.headers["Idempotency-Replayed"] == "true"
        assert send(name, raw, shop.headers(name, raw, ago=301)).status == 401
        assert len(provider.invocations) == used(alice) == 1

    def test_a_repeat_that_is_signed_anew_gets_the_first_answer(
        self, shop: Backend, alice: Account, agent: Agent, provider: StubProvider
    ) -> None:
        body = envelope(alice.public_id)
        first, again = call(shop, agent, body, ago=20), call(shop, agent, body)
        assert again.json == first.json
        assert len(provider.invocations) == used(alice) == 1

    def test_the_same_key_with_another_body_is_409(
        self, shop: Backend, alice: Account, agent: Agent, provider: StubProvider
    ) -> None:
        body = envelope(alice.public_id)
        raw = json.dumps(body).encode()
        assert [call(shop, agent, b).status for b in (raw, raw + b" ")] == [200, 409]
        assert call(shop, agent, envelope(alice.public_id, "other", key=body["idempotencyKey"])).status == 409
        assert len(provider.invocations) == 1

    def test_a_key_is_one_accounts_one_sources_and_not_the_one_of_own_calls(
        self, shop: Backend, crm: Backend, alice: Account, agent: Agent, provider: StubProvider
    ) -> None:
        charlie = make_account("charlie")
        other = make_agent(charlie, "helper")
        make_deployment(other)
        assert call(shop, "helper", envelope(alice.public_id, key="k")).status == 200
        assert call(crm, "helper", envelope(alice.public_id, key="k")).status == 200
        assert call(shop, "helper", envelope(charlie.public_id, key="k")).status == 200
        own = Api(alice).post("/v1/invoke/helper", {"input": {"prompt": "hello"}}, idempotency_key="k")
        assert (own.status, "Idempotency-Replayed" in own.headers) == (200, False)
        assert len(provider.invocations) == 4

    def test_twenty_at_once_run_once(self, shop: Backend, alice: Account, agent: Agent, provider: StubProvider) -> None:
        body = envelope(alice.public_id)
        codes = Counter(at_once(lambda _: call(shop, agent, body).status, 20))
        assert set(codes) <= {200, 409}
        assert codes[200] >= 1
        assert len(provider.invocations) == used(alice) == 1

    def test_a_refusal_does_not_poison_the_key(
        self, shop: Backend, alice: Account, agent: Agent, provider: StubProvider
    ) -> None:
        spent, body = override(alice, "max_requests_per_period", 0), envelope(alice.public_id)
        assert call(shop, agent, body).status == 402
        spent.delete()
        assert call(shop, agent, body).status == 200
        assert len(provider.invocations) == used(alice) == 1

    def test_a_failure_that_counted_is_answered_again(
        self, shop: Backend, alice: Account, agent: Agent, provider: StubProvider
    ) -> None:
        provider.fail = RuntimeFailedError("Too slow.", error_class="Timeout")
        body = envelope(alice.public_id)
        first = call(shop, agent, body)
        provider.fail = None
        again = call(shop, agent, body)
        assert (first.status, again.status) == (504, 504)
        assert again.json == first.json
        assert len(provider.invocations) == used(alice) == 1

    def test_a_process_that_died_before_it_did_anything_leaves_the_key_to_a_repeat(
        self, shop: Backend, alice: Account, agent: Agent, provider: StubProvider, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        class KilledError(BaseException):
            pass

        def killed(*args: Any, **kwargs: Any) -> None:
            raise KilledError

        body = envelope(alice.public_id)
        with monkeypatch.context() as patch:
            patch.setattr(invoke, "admit", killed)
            with pytest.raises(KilledError):
                call(shop, agent, body)
        assert call(shop, agent, body).status == 409
        IdempotencyRecord.objects.filter(account_id=alice.pk).update(created_at=timezone.now() - timedelta(seconds=61))
        assert call(shop, agent, body).status == 200
        assert len(provider.invocations) == used(alice) == 1

    def test_what_is_kept_can_be_read_only_with_the_sources_key(
        self, shop: Backend, alice: Account, agent: Agent, provider: StubProvider
    ) -> None:
        provider.act = lambda invocation: "a very private answer"
        body = envelope(alice.public_id)
        first = call(shop, agent, body)
        kept = IdempotencyRecord.objects.get(account_id=alice.pk)
        context = alice.pk.bytes + kept.operation.encode() + bytes(kept.body_digest)
        key, sealed = body["idempotencyKey"], bytes(kept.response_body or b"")
        assert b"private" not in sealed
        assert idempotency._Box.of(b"x" * 32, key, context).open(sealed) is None
        opened = idempotency._Box.of(shop.key, key, context).open(sealed)
        assert opened is not None
        assert json.loads(opened) == first.json


class TestRotation:
    def test_with_two_keys_listed_either_is_taken_and_with_one_only_that(
        self, shop: Backend, alice: Account, agent: Agent, provider: StubProvider, settings: Any
    ) -> None:
        new = source(settings, "shop")
        assert [call(b, agent, envelope(alice.public_id)).status for b in (shop, new)] == [200, 200]
        settings.DELEGATED_SOURCES = {"shop": (new.key,)}
        assert [call(b, agent, envelope(alice.public_id)).status for b in (shop, new)] == [401, 200]

    def test_several_signatures_may_be_listed_and_any_that_fits_will_do(
        self, shop: Backend, alice: Account, agent: Agent, provider: StubProvider
    ) -> None:
        name, raw = agent.public_id, json.dumps(envelope(alice.public_id)).encode()
        good = shop.headers(name, raw)
        listed = f"v0=x, v1={'0' * 64}, {good['X-Whs-Signature']}"
        assert send(name, raw, good | {"X-Whs-Signature": listed}).status == 200

    def test_a_repeat_under_the_new_key_runs_nothing_and_names_the_invocation(
        self, shop: Backend, alice: Account, agent: Agent, provider: StubProvider, settings: Any
    ) -> None:
        body = envelope(alice.public_id)
        first = call(shop, agent, body)
        again = call(source(settings, "shop"), agent, body)
        assert again.status == 409
        assert again.details == {"invocationId": first.json["invocationId"], "outcome": "succeeded"}
        assert len(provider.invocations) == used(alice) == 1
