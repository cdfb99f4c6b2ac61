"""Staff and customers in the admin: overrides, tiers set by hand, disabled accounts; secrets never shown."""

from __future__ import annotations

from datetime import timedelta
from uuid import uuid4

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from entitlements.actions.standing import read_standing
from entitlements.models import Account, Override, PeriodCounter
from entitlements.rules import Key
from runtimes.models import Agent
from tests.entitlements.admin_pages import Staff, history, said
from tests.entitlements.callers import Caller
from tests.factories import make_account, make_agent, make_tier, make_token
from webhost.errors import ForbiddenError

pytestmark = pytest.mark.usefixtures("live_db")


@pytest.fixture
def stella() -> Staff:
    return Staff()


class TestAnOverride:
    def test_it_is_in_force_at_once_and_says_who_set_it_and_why(self, stella: Staff) -> None:
        account = make_account("alice", make_tier(max_requests_per_period=0))
        alice = Caller(account.pk, uuid4(), uuid4())
        assert alice.refusal() is not None
        page = stella.add(Override, account=str(account.pk), key="maxRequestsPerPeriod", value="1", reason="A trial")
        assert page.status_code == 302
        assert alice.refusal() is None
        override = Override.objects.get(account=account)
        assert override.created_by == stella.account
        (entry,) = history(override)
        assert entry.pgh_context.metadata["actor"] == stella.account.email
        assert entry.pgh_context.metadata["reason"] == "A trial"

    @pytest.mark.parametrize(
        ("key", "value", "words"),
        [
            ("maxRequestsPerPeriod", "-1", "Empty (unlimited), or 0 and more."),
            ("agentcoreEnabled", "2", "A switch is 1 (on) or 0 (off)."),
            ("agentcoreEnabled", "", "A switch is 1 (on) or 0 (off)."),
            ("maxToolCallsPerPeriod", "", "A tool's quota must be a number."),
            ("logsRetentionDays", "0", "At least 1 day."),
            ("memoryEnabled", "1", "memoryEnabled needs agentcoreEnabled"),
            ("", "1", "This field is required."),
        ],
    )
    def test_what_could_not_be_sold_is_refused_in_words(self, stella: Staff, key: str, value: str, words: str) -> None:
        account = make_account("alice", make_tier())
        page = stella.add(Override, account=str(account.pk), key=key, value=value, reason="A trial")
        assert page.status_code == 200
        assert words in page.content.decode().replace("&#x27;", "'")
        assert not Override.objects.filter(account=account).exists()

    def test_without_a_reason_it_is_refused(self, stella: Staff) -> None:
        account = make_account("alice", make_tier())
        page = stella.add(Override, account=str(account.pk), key="maxAgents", value="1", reason="")
        assert "This field is required." in said(page)

    def test_its_end_must_lie_ahead(self, stella: Staff) -> None:
        account = make_account("alice", make_tier())
        page = stella.add(
            Override, account=str(account.pk), key="maxAgents", value="1", reason="A trial",
            ends_at_0="2020-01-01", ends_at_1="00:00:00",
        )  # fmt: skip
        assert "The end must lie ahead." in said(page)

    def test_a_capability_fits_once_what_it_needs_is_there(self, stella: Staff) -> None:
        account = make_account("alice", make_tier())
        for key, value in [("agentcoreEnabled", "1"), ("memoryEnabled", "1")]:
            stella.add(Override, account=str(account.pk), key=key, value=value, reason="A trial")
        assert read_standing(account.pk).entitlements.allows(Key.MEMORY)

    def test_what_a_downgrade_broke_does_not_stand_in_the_way_of_another_value(self, stella: Staff) -> None:
        tier = make_tier(agentcore_enabled=True)
        account = make_account("alice", tier, memory_enabled=1)
        account.billing_tier = make_tier()
        account.save(update_fields=["billing_tier"])
        page = stella.add(Override, account=str(account.pk), key="maxAgents", value="1", reason="A trial")
        assert page.status_code == 302

    def test_a_change_asks_for_its_own_reason_and_is_one_entry(self, stella: Staff) -> None:
        override = Override.objects.create(account=make_account("alice"), key="maxAgents", value=1, reason="A trial")
        assert stella.change(override, value="2").status_code == 200
        assert stella.change(override, value="2", reason="Two are needed").status_code == 302
        assert stella.change(override, reason="Nothing else").status_code == 302
        assert [(e.value, e.reason) for e in history(override)] == [(1, "A trial"), (2, "Two are needed")]

    def test_of_two_people_at_once_the_second_is_told(self, stella: Staff) -> None:
        override = Override.objects.create(account=make_account("alice"), key="maxAgents", value=1, reason="A trial")
        stale = stella.open(stella.url(override))
        Staff().change(override, value="2", reason="Two are needed")
        page = stella.send(stella.url(override), stale | {"value": "3", "reason": "Three"})
        assert "changed by somebody else" in said(page)
        override.refresh_from_db()
        assert override.value == 2

    @pytest.mark.case("ADM-01")
    def test_removing_three_is_three_entries(self, stella: Staff) -> None:
        account = make_account("alice")
        overrides = [
            Override.objects.create(account=account, key="maxAgents", value=n, reason="A trial") for n in range(3)
        ]
        pks = [o.pk for o in overrides]
        stella.run("delete_selected", *overrides, post="yes")
        assert [history(Override, pk)[-1].pgh_label for pk in pks] == ["delete"] * 3


class TestATierSetByHand:
    @pytest.mark.case("ADM-01")
    def test_it_is_in_force_over_what_is_paid_for_with_one_entry(self, stella: Staff) -> None:
        paid, given = make_tier(), make_tier(max_requests_per_period=5)
        account = make_account("alice", paid)
        page = stella.change(account, support_tier=str(given.pk), why="Goodwill")
        assert page.status_code == 302
        look = read_standing(account.pk)
        assert (look.tier.slug, look.tier_source, look.support_reason) == (given.slug, "support", "Goodwill")
        _, entry = history(account)
        assert (entry.support_tier_id, entry.billing_tier_id) == (given.pk, paid.pk)
        assert entry.pgh_context.metadata["reason"] == "Goodwill"

    def test_it_ends_by_itself_and_the_paid_one_is_back(self, stella: Staff) -> None:
        paid, given = make_tier(), make_tier()
        account = make_account("alice", paid)
        until = timezone.now() + timedelta(days=1)
        stella.change(
            account,
            support_tier=str(given.pk),
            support_tier_until_0=f"{until:%Y-%m-%d}",
            support_tier_until_1="00:00:00",
        )
        assert read_standing(account.pk, at=until - timedelta(days=1)).tier.slug == given.slug
        assert read_standing(account.pk, at=until + timedelta(days=1)).tier.slug == paid.slug

    def test_taking_it_away_takes_its_reason_and_end_along(self, stella: Staff) -> None:
        account = make_account("alice")
        stella.change(account, support_tier=str(make_tier().pk))
        stella.change(account, support_tier="")
        account.refresh_from_db()
        assert (account.support_tier, account.support_tier_until, account.support_tier_reason) == (None, None, "")

    def test_an_end_without_a_tier_is_refused(self, stella: Staff) -> None:
        page = stella.change(make_account("alice"), support_tier_until_0="2100-01-01", support_tier_until_1="00:00:00")
        assert "An end needs a tier that ends." in said(page)

    def test_it_shows_what_it_becomes_in_the_list(self, stella: Staff) -> None:
        given = make_tier()
        account = make_account("alice", make_tier())
        stella.change(account, support_tier=str(given.pk))
        page = said(stella.client.get(stella.url(Account, "changelist"), {"q": account.public_id}))
        assert f"{account.email} Alice {given.name} support" in page


class TestAnAccount:
    def test_it_is_disabled_with_a_reason_and_refused_from_the_next_request(self, stella: Staff) -> None:
        account = make_account("alice", make_tier())
        alice = Caller(account.pk, uuid4(), uuid4())
        stella.client.post(stella.url(account, "disable"), {"why": "Abuse, ticket 9"})
        account.refresh_from_db()
        assert account.disabled_reason == "Abuse, ticket 9"
        assert isinstance(alice.refusal(), ForbiddenError)
        stella.client.post(stella.url(account, "enable"), {"why": "Sorted out"})
        account.refresh_from_db()
        assert account.disabled_reason == ""
        assert alice.refusal() is None

    def test_it_is_created_by_its_address_in_lower_case(self, stella: Staff) -> None:
        address = f"Alice-{uuid4().hex[:8]}@Example.com"
        page = stella.add(Account, email=address, password="a-long-enough-secret")
        assert page.status_code == 302
        account = Account.objects.get(email=address.lower())
        assert account.check_password("a-long-enough-secret")
        assert not account.is_staff
        (entry,) = history(account)
        assert entry.pgh_context.metadata["actor"] == stella.account.email

    def test_an_address_is_one_accounts_only_whatever_its_case(self, stella: Staff) -> None:
        account = make_account("alice")
        assert stella.add(Account, email=account.email.upper()).status_code == 200

    def test_a_weak_password_is_refused(self, stella: Staff) -> None:
        assert "too short" in said(stella.add(Account, email="new@example.com", password="short"))

    def test_its_page_shows_use_and_refusals_but_no_hash_and_no_token(self, stella: Staff) -> None:
        account = make_account(
            "alice", make_tier(max_requests_per_period=1), password="a-long-enough-secret", max_agents=3
        )
        token = make_token(account)
        alice = Caller(account.pk, uuid4(), uuid4())
        assert alice.refusal() is None
        assert alice.refusal() is not None
        page = stella.client.get(stella.url(account))
        text = said(page)
        assert "Requests 1 0 1 0 100 %" in text
        assert "1 of 1 requests are used. Wait until" in text
        assert "Agents maxAgents 3 unlimited in force" in text
        raw = page.content.decode()
        account.refresh_from_db()
        assert account.password not in raw
        assert token not in raw
        assert token[:12] not in raw

    def test_a_name_with_markup_is_shown_as_text(self, stella: Staff) -> None:
        account = make_account("alice")
        Account.objects.filter(pk=account.pk).update(name="<img src=x onerror=alert(1)>")
        for url in (stella.url(account), f"{stella.url(Account, 'changelist')}?q={account.public_id}"):
            page = stella.client.get(url).content.decode()
            assert "<img src=x" not in page
            assert "&lt;img src=x" in page

    def test_of_two_people_at_once_the_second_is_told(self, stella: Staff) -> None:
        account, tier = make_account("alice"), make_tier()
        stale = stella.open(stella.url(account))
        Staff().change(account, support_tier=str(tier.pk))
        page = stella.send(stella.url(account), stale | {"support_tier": "", "why": "Mine"})
        assert "changed by somebody else" in said(page)
        account.refresh_from_db()
        assert account.support_tier == tier

    def test_nobody_disables_themselves(self, stella: Staff) -> None:
        assert stella.client.post(stella.url(stella.account, "disable"), {"why": "Mine"}).status_code == 403
        stella.account.refresh_from_db()
        assert stella.account.is_active

    def test_knox_tokens_have_no_page(self, stella: Staff) -> None:
        assert stella.client.get("/admin/knox/authtoken/").status_code == 404


class TestDeletingAnAccount:
    @pytest.mark.case("ADM-03")
    def test_staff_who_changed_things_can_go_and_the_history_keeps_their_name(self, stella: Staff) -> None:
        steve = Staff()
        name, override_of = steve.account.email, make_account("alice")
        tier = make_tier(max_agents=1)
        steve.change(tier, max_agents="2")
        steve.add(Override, account=str(override_of.pk), key="maxAgents", value="1", reason="A trial")
        page = stella.client.post(stella.url(steve.account, "delete"), {"post": "yes"})
        assert page.status_code == 302
        assert not Account.objects.filter(pk=steve.account.pk).exists()
        assert history(tier)[-1].pgh_context.metadata["actor"] == name
        assert Override.objects.get(account=override_of).created_by is None
        assert name in said(stella.client.get("/admin/entitlements/historyentry/", {"q": name}))

    @pytest.mark.case("ADM-03")
    def test_a_customer_with_usage_is_refused_politely_on_both_paths(self, stella: Staff) -> None:
        account = make_account("alice")
        Caller(account.pk, uuid4(), uuid4()).admit()
        for page in (
            stella.client.post(stella.url(account, "delete"), {"post": "yes"}),
            stella.run("delete_selected", account, post="yes"),
        ):
            assert page.status_code == 200
            assert "has usage, which is a billing record. Disable the account instead." in said(page)
        assert Account.objects.filter(pk=account.pk).exists()
        assert PeriodCounter.objects.filter(account_id=account.pk).exists()

    @pytest.mark.case("ADM-03")
    def test_a_customer_with_agents_is_refused_and_they_stay(self, stella: Staff) -> None:
        agent = make_agent(make_account("alice"))
        page = stella.client.post(stella.url(agent.account, "delete"), {"post": "yes"})
        assert "has agents" in said(page)
        assert Agent.objects.filter(pk=agent.pk).exists()


def test_a_change_of_staff_needs_a_superuser(stella: Staff) -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT p.id FROM auth_permission p JOIN django_content_type t ON t.id = p.content_type_id "
            "WHERE t.app_label = 'entitlements' AND t.model = 'account'"
        )
        rights = [row[0] for row in cursor.fetchall()]
    plain = make_account("steve", staff=True)
    plain.is_superuser = False
    plain.save(update_fields=["is_superuser"])
    plain.user_permissions.set(rights)
    steve, alice = Staff(plain), make_account("alice")
    data = stella.open(stella.url(stella.account))
    assert steve.send(steve.url(stella.account), data | {"why": "Mine", "support_tier": ""}).status_code == 403
    # Their own rights are no field of theirs, whatever they send.
    assert steve.change(alice, is_superuser="on", is_staff="on").status_code == 302
    alice.refresh_from_db()
    assert (alice.is_staff, alice.is_superuser) == (False, False)


def test_the_list_reads_sixty_accounts_with_as_many_questions_as_one() -> None:
    stella, mark, tier = Staff(), f"many{uuid4().hex[:8]}", make_tier()

    def asked() -> tuple[int, int]:
        with CaptureQueriesContext(connection) as queries:
            page = stella.client.get(stella.url(Account, "changelist"), {"q": mark})
        return len(page.context["cl"].result_list), len(queries)

    make_account(mark, tier)
    asked()  # what is asked once per process
    one = asked()
    for n in range(59):
        make_account(f"{mark}-{n}", tier if n % 2 else None)
    assert (one[0], asked()) == (1, (60, one[1]))
