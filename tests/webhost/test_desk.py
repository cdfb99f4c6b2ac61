"""The support desk over all apps: one search box leads to everything in two hops, and shows nobody what is not theirs."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any
from uuid import uuid4

import pytest
from django.contrib.auth.models import Group
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from billing.models import Customer, StripeEvent, Subscription
from entitlements.actions.admit import admit
from entitlements.actions.denials import record_denial
from entitlements.display import NO_BREAK
from entitlements.enums import LimitType, Outcome
from entitlements.groups import GROUPS
from entitlements.ledger import Usage, settle
from entitlements.models import Account, Admission, Denial, TierPrice
from telemetry.models import AlertEvent, Report
from tests.entitlements.admin_pages import Staff, said
from tests.entitlements.callers import Caller
from tests.factories import make_account, make_agent, make_deployment, make_tier, make_token, override
from tests.runtimes.sessions import make_session
from webhost.desk.terms import read_term
from webhost.ids import Prefix, new_id, public_id

pytestmark = pytest.mark.usefixtures("live_db")

SEARCH = "/admin/search/"


class World:
    """alice with one of everything that can be asked for."""

    def __init__(self) -> None:
        self.trace = public_id(Prefix.TRACE, new_id())
        self.account = make_account("alice")
        make_token(self.account)
        self.agent = make_agent(self.account)
        self.deployment = make_deployment(self.agent)
        self.session = make_session(self.deployment, public_id(Prefix.SESSION, new_id()))
        self.alert = AlertEvent.objects.create(
            account_id=self.account.pk, period="2031-05-01", limit_type="tokens", threshold=80, used=80, limit=100,
            fired_at=timezone.now(),
        )  # fmt: skip
        self.tier = make_tier()
        self.override = override(self.account, "max_agents", 7)
        mark = uuid4().hex[:12]
        self.price = TierPrice.objects.create(tier=self.tier, price_id=f"price_{mark}")
        self.customer = Customer.objects.create(account=self.account, customer_id=f"cus_{mark}")
        self.subscription = Subscription.objects.create(
            id=f"sub_{mark}", account=self.account, customer=self.customer, status="active", created_at=timezone.now()
        )
        self.event = StripeEvent.objects.create(
            event_id=f"evt_{mark}", type="invoice.paid", object_id=f"in_{mark}", created_at=timezone.now(), body=b"{}"
        )
        self.invocation = self.call(self.trace)

    def call(self, trace: str) -> Admission:
        found = new_id()
        admit(found, Caller(self.account.pk, self.agent.pk, self.deployment.pk).subject, trace_id=trace)
        return Admission.objects.get(pk=found)


@pytest.fixture(scope="module")
def world(django_db_setup: None, django_db_blocker: Any) -> World:
    with django_db_blocker.unblock():
        return World()


@pytest.fixture
def stella() -> Staff:
    return Staff()


def member(*groups: str) -> Staff:
    account = make_account("steve")
    Account.objects.filter(pk=account.pk).update(is_staff=True)
    account.groups.set(Group.objects.filter(name__in=groups))
    return Staff(Account.objects.get(pk=account.pk))


def page_of(row: Any) -> str:
    return Staff.url(row)


KINDS: dict[str, tuple[Callable[[World], str], Callable[[World], Any]]] = {
    "an e-mail address": (lambda w: w.account.email, lambda w: w.account),
    "an e-mail address in capitals, with spaces": (lambda w: f"  {w.account.email.upper()} ", lambda w: w.account),
    "the beginning of an address": (lambda w: w.account.email.partition("@")[0], lambda w: w.account),
    "a part of an address": (lambda w: w.account.email.partition("@")[0][3:], lambda w: w.account),
    "acc_": (lambda w: w.account.public_id, lambda w: w.account),
    "a bare UUID": (lambda w: str(w.account.pk), lambda w: w.account),
    "a bare UUID of an invocation": (lambda w: w.invocation.pk.hex, lambda w: w.invocation),
    "tok_": (lambda w: public_id(Prefix.TOKEN, w.account.auth_token_set.get().id), lambda w: w.account),
    "agt_": (lambda w: w.agent.public_id, lambda w: w.agent),
    "an agent's name": (lambda w: w.agent.name.upper(), lambda w: w.agent),
    "dep_": (lambda w: w.deployment.public_id, lambda w: w.deployment),
    "inv_": (lambda w: public_id(Prefix.INVOCATION, w.invocation.pk), lambda w: w.invocation),
    "trc_": (lambda w: w.trace, lambda w: w.invocation),
    "trc_ in brackets": (lambda w: f"({w.trace}).", lambda w: w.invocation),
    "ses_ of the record": (lambda w: public_id(Prefix.SESSION, w.session.pk), lambda w: w.session),
    "ses_ as the gateway named it": (lambda w: w.session.session_id, lambda w: w.session),
    "evt_ of an alert": (lambda w: w.alert.public_id, lambda w: w.alert),
    "evt_ of Stripe": (lambda w: w.event.event_id, lambda w: w.event),
    "what an event of Stripe is about": (lambda w: w.event.object_id, lambda w: w.event),
    "cus_": (lambda w: w.customer.customer_id, lambda w: w.customer),
    "sub_": (lambda w: w.subscription.pk, lambda w: w.subscription),
    "price_": (lambda w: w.price.price_id, lambda w: w.price),
    "a tier's name": (lambda w: w.tier.slug, lambda w: w.tier),
    "an override's number": (lambda w: f"override {w.override.pk}", lambda w: w.override),
}  # fmt: skip


class TestOneBoxLeadsToEverything:
    @pytest.mark.parametrize("kind", KINDS)
    def test_what_is_named_alone_is_opened_to_support_at_once(self, world: World, kind: str) -> None:
        term, row = (f(world) for f in KINDS[kind])
        steve = member("support")
        answer = steve.client.get(SEARCH, {"q": term})
        assert (answer.status_code, answer.headers.get("Location")) == (302, page_of(row))
        assert steve.client.get(answer.headers["Location"]).status_code == 200

    def test_a_trace_is_found_in_invocations_refusals_and_the_audit_log(self, world: World, stella: Staff) -> None:
        trace = public_id(Prefix.TRACE, new_id())
        call = world.call(trace)
        record_denial(
            world.account.pk, LimitType.TOKENS, period=timezone.now().date(), at=timezone.now(), agent_id=None,
            trace_id=trace,
        )  # fmt: skip
        changed = make_account("bob")
        stella.client.post(stella.url(changed, "disable"), {"why": "Ticket 7"}, headers={"X-Trace-Id": trace})
        page = stella.client.get(SEARCH, {"q": trace})
        denial = Denial.objects.get(account_id=world.account.pk, trace_id=trace)
        assert page_of(call) in page.content.decode()
        assert page_of(denial) in page.content.decode()
        assert f"Changes by {stella.account.email}" in said(page)
        log = re.search(r'href="(/admin/entitlements/historyentry/\?q=[^"]+)"', page.content.decode())
        assert log is not None
        assert page_of(changed) in stella.client.get(log[1]).content.decode()

    def test_what_reports_say_of_an_unknown_invocation_is_found(self, world: World, stella: Staff) -> None:
        report = Report.objects.create(
            deployment_id=world.deployment.pk, event_id=b"evt-1", body=b"secret", signature="v1=0", key_id="k",
            status="rejected", reason="too late or too early", invocation_id=new_id(),
        )  # fmt: skip
        answer = stella.client.get(SEARCH, {"q": public_id(Prefix.INVOCATION, report.invocation_id)})
        assert answer.headers["Location"] == page_of(report)

    def test_several_are_listed_by_kind_with_what_tells_them_apart(self, stella: Staff) -> None:
        mark = f"m{uuid4().hex[:10]}"
        first, second = make_account(f"{mark}-a"), make_account(f"{mark}-b")
        agent = make_agent(first, f"{mark}-agent")
        page = stella.client.get(SEARCH, {"q": mark})
        text = said(page)
        for what in ("Accounts", first.email, second.public_id, "Agents", agent.name, agent.public_id):
            assert what in text
        assert page_of(agent) in page.content.decode()

    def test_more_than_anybody_reads_is_cut_and_says_so(self, stella: Staff) -> None:
        mark = f"m{uuid4().hex[:10]}"
        for number in range(22):
            make_account(f"{mark}-{number}")
        page = stella.client.get(SEARCH, {"q": mark})
        assert page.content.decode().count(f"{mark}-") == 20
        assert "There are more." in said(page)

    def test_the_overrides_of_a_limit_are_found_by_its_name(self, stella: Staff) -> None:
        answer = stella.client.get(SEARCH, {"q": "maxAgents"})
        assert answer.headers["Location"] == f"{reverse('admin:entitlements_override_changelist')}?key=maxAgents"


class TestNothing:
    @pytest.mark.parametrize(
        "term", ["", "   ", "nobody@nowhere.example", "agt_", "agt_" + "0" * 32, "trc_x", "\x00", "%", "_", "x" * 5000,
                 "override 99999999999999999", "<script>alert(1)</script>", "' OR 1=1 --", "4f6c1d2e-0000-4000-8000-000000000000"],
    )  # fmt: skip
    def test_whatever_is_typed_is_answered_with_what_can_be_searched(self, stella: Staff, term: str) -> None:
        page = stella.client.get(SEARCH, {"q": term})
        assert page.status_code == 200
        assert "an e-mail address, or a part of one" in said(page)
        assert "<script>alert(1)" not in page.content.decode()

    def test_a_part_means_itself_and_no_pattern(self, stella: Staff) -> None:
        mark = f"m{uuid4().hex[:10]}"
        plain = make_account(f"{mark}xy")
        marked = make_account(f"{mark}_y")
        answer = stella.client.get(SEARCH, {"q": f"{mark}_y"})
        assert answer.headers["Location"] == page_of(marked)
        assert stella.client.get(SEARCH, {"q": f"{mark}x"}).headers["Location"] == page_of(plain)


class TestWhoMaySeeWhat:
    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize("group", ["pricing", "none"])
    def test_who_may_not_open_a_page_does_not_find_it(self, world: World, group: str, kind: str) -> None:
        term, row = (f(world) for f in KINDS[kind])
        steve = member(group)
        answer = steve.client.get(SEARCH, {"q": term})
        may = steve.client.get(page_of(row)).status_code == 200
        assert answer.status_code == (302 if may else 200)
        if not may:
            assert page_of(row) not in answer.content.decode()
            assert world.account.email not in answer.content.decode().replace(term, "")

    def test_customers_and_strangers_search_nothing(self, world: World) -> None:
        bob = Client()
        assert bob.get(SEARCH, {"q": world.account.email}).status_code == 302
        bob.force_login(make_account("bob"))
        answer = bob.get(SEARCH, {"q": world.account.email})
        assert answer.headers["Location"].startswith("/admin/login/")

    def test_nothing_is_sent_to_it(self, stella: Staff) -> None:
        assert stella.client.post(SEARCH, {"q": "x"}).status_code == 405

    def test_the_command_palette_answers_the_same_and_keeps_no_answer_beyond_a_right(self, world: World) -> None:
        steve = member("support")
        query = {"s": world.account.email, "extended": "1"}
        assert page_of(world.account) in steve.client.get(SEARCH, query).content.decode()
        steve.account.groups.clear()
        assert page_of(world.account) not in steve.client.get(SEARCH, query).content.decode()

    def test_the_command_palette_opens_pages_by_their_name(self) -> None:
        found = member("support").client.get(SEARCH, {"s": "refus", "extended": "1"}).content.decode()
        assert reverse("admin:entitlements_denial_by_account") in found
        assert reverse("admin:telemetry_ratecard_changelist") not in found


class TestTheSidebar:
    @pytest.mark.parametrize("group", [*sorted(GROUPS), "none"])
    def test_every_entry_that_is_shown_opens_and_no_page_that_opens_is_missing(self, group: str) -> None:
        steve = member(group)
        page = steve.client.get("/admin/")
        shown = {item["link"] for task in page.context["sidebar_navigation"] for item in task["items"]}
        assert all(steve.client.get(link).status_code == 200 for link in shown)
        stella = Staff()
        everything = {
            item["link"] for t in stella.client.get("/admin/").context["sidebar_navigation"] for item in t["items"]
        }
        assert {link for link in everything if steve.client.get(link).status_code == 200} == shown

    def test_the_box_is_on_every_page_and_is_a_plain_form(self, stella: Staff) -> None:
        for link in ("/admin/", stella.url(Account, "changelist"), stella.url(make_account("bob")), SEARCH):
            page = stella.client.get(link).content.decode()
            form = re.search(rf'<form action="{SEARCH}" method="get" role="search".*?</form>', page, flags=re.DOTALL)
            assert form is not None
            assert 'name="q"' in form[0]
        assert 'accesskey="s"' in page

    def test_who_may_open_nothing_is_told_whom_to_ask(self) -> None:
        assert "Ask for a group" in said(member("none").client.get("/admin/"))


class TestWhatIsWritten:
    def test_dates_and_numbers_are_readable_in_lists_and_on_pages(self, world: World, stella: Staff) -> None:
        usage = Usage(tokens=1_234_567, compute_ms=98_765)
        settle(world.invocation.pk, Outcome.FAILED, usage, error_class="AgentError", latency_ms=754_321)
        when = f"{world.invocation.admitted_at:%Y-%m-%d %H:%M} UTC"
        query = {"q": public_id(Prefix.INVOCATION, world.invocation.pk)}
        for page in (
            stella.client.get(stella.url(Admission, "changelist"), query),
            stella.client.get(page_of(world.invocation)),
        ):
            text = said(page)
            assert when in text
            assert "1,234,567" in text
            assert f"12{NO_BREAK}min{NO_BREAK}34{NO_BREAK}s" in page.content.decode()
            assert re.search(r"(a|p)\.m\.", text) is None

    def test_an_empty_list_says_so_and_how_it_is_searched(self, stella: Staff) -> None:
        page = said(stella.client.get(stella.url(Denial, "changelist"), {"q": "acc_" + "0" * 32}))
        assert "No refusals fit" in page
        assert "This list is searched by" in page


def test_a_search_asks_a_bounded_number_of_questions(world: World, stella: Staff) -> None:
    def asked(term: str) -> int:
        with CaptureQueriesContext(connection) as queries:
            stella.client.get(SEARCH, {"q": term})
        return len(queries)

    for term in (world.account.email, world.trace, str(uuid4()), "example.com"):
        assert asked(term) <= 25, term


def test_the_shape_of_an_id_tells_where_to_look() -> None:
    digits = new_id().hex
    assert read_term(f" <agt_{digits.upper()}>. ").uuid is not None
    assert read_term(f"agt_{digits}").names("acc") is None
    assert read_term(digits).names("acc") == read_term(digits).names("agt")
    assert read_term("my_agent").is_words
    assert not read_term("cus_Nf1").is_words
    assert read_term("Override #12").override == 12
