"""Staff edit the price list in the admin: with a reason, over nobody else's edit, in force at once."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest
from django.db import connection, transaction

from entitlements.actions.standing import read_standing
from entitlements.actions.tiers import change_tier
from entitlements.enums import LimitType
from entitlements.errors import LimitExceededError
from entitlements.models import Account, Tier
from tests.entitlements.admin_pages import Staff, history, said
from tests.entitlements.callers import Caller
from tests.factories import make_account, make_tier

pytestmark = pytest.mark.usefixtures("live_db")


@pytest.fixture
def stella() -> Staff:
    return Staff()


def _fields_of(line: Any) -> list[Any]:
    """Return the fields of a line of a form, those included that are only shown."""
    return [SimpleNamespace(name=f.field["name"] if isinstance(f.field, dict) else f.field.name) for f in line]


def caller_on(tier: Tier) -> Caller:
    return Caller(make_account("alice", tier).pk, uuid4(), uuid4())


class TestEditingATier:
    @pytest.mark.case("ADM-01")
    def test_one_edit_is_one_entry_with_who_why_when_before_and_after(self, stella: Staff) -> None:
        tier = make_tier(max_requests_per_period=10)
        page = stella.change(tier, max_requests_per_period="12", why="A better offer")
        assert page.status_code == 302
        before, after = history(tier)
        assert (before.max_requests_per_period, after.max_requests_per_period) == (10, 12)
        assert (after.pgh_label, after.version) == ("update", 2)
        noted = after.pgh_context.metadata
        assert noted["actor"] == stella.account.email
        assert (noted["reason"], noted["source"]) == ("A better offer", "admin")
        assert after.pgh_created_at is not None

    @pytest.mark.case("ADM-01")
    def test_it_is_in_force_on_the_next_request(self, stella: Staff) -> None:
        tier = make_tier(max_requests_per_period=0)
        alice = caller_on(tier)
        assert isinstance(alice.refusal(), LimitExceededError)
        stella.change(tier, max_requests_per_period="1")
        assert alice.refusal() is None
        assert isinstance(alice.refusal(), LimitExceededError)

    def test_every_field_of_a_tier_is_in_the_form(self, stella: Staff) -> None:
        page = stella.client.get(stella.url(make_tier()))
        shown = {f.name for fieldset in page.context["adminform"] for line in fieldset for f in _fields_of(line)}
        editable = {f.name for f in Tier._meta.fields if f.editable and not f.primary_key}
        assert editable <= shown

    def test_without_a_reason_nothing_is_saved(self, stella: Staff) -> None:
        tier = make_tier(max_agents=3)
        page = stella.change(tier, max_agents="4", why="")
        assert page.status_code == 200
        tier.refresh_from_db()
        assert tier.max_agents == 3
        assert len(history(tier)) == 1

    @pytest.mark.case("ADM-01")
    def test_saving_without_a_change_leaves_no_entry(self, stella: Staff) -> None:
        tier = make_tier(max_agents=3)
        assert stella.change(tier).status_code == 302
        assert [e.pgh_label for e in history(tier)] == ["insert"]

    @pytest.mark.case("ADM-01")
    @pytest.mark.parametrize(
        ("changes", "words"),
        [
            ({"max_requests_per_period": "-1"}, "greater than or equal to 0"),
            ({"requests_per_minute": "-5"}, "greater than or equal to 0"),
            ({"memory_enabled": "on"}, "memoryEnabled needs agentcoreEnabled"),
            ({"agentcore_enabled": "on", "browser_enabled": "on"}, "needs maxBrowserSessionsPerPeriod set and above 0"),
            ({"logs_retention_days": "0"}, "greater than or equal to 1"),
        ],
    )
    def test_what_cannot_be_sold_is_refused_in_words_and_leaves_no_entry(
        self, stella: Staff, changes: dict[str, str], words: str
    ) -> None:
        tier = make_tier(max_requests_per_period=10)
        page = stella.change(tier, name=f"{tier.name}-new", **changes)
        assert page.status_code == 200
        assert words in said(page)
        assert len(history(tier)) == 1

    def test_of_two_people_at_once_the_second_is_told_and_overwrites_nothing(self, stella: Staff) -> None:
        tier = make_tier(max_agents=3, max_requests_per_period=10)
        steve = Staff()
        stale = steve.open(steve.url(tier))
        stella.change(tier, max_agents="4")
        page = steve.send(steve.url(tier), stale | {"max_requests_per_period": "20", "why": "Mine"})
        assert page.status_code == 200
        assert "changed by somebody else" in said(page)
        tier.refresh_from_db()
        assert (tier.max_agents, tier.max_requests_per_period) == (4, 10)

    def test_the_default_can_be_given_away_but_not_dropped_or_retired(self, stella: Staff) -> None:
        free = Tier.objects.get(is_default=True)
        before = len(history(free))
        assert "There must be a default" in said(stella.change(free, is_default=None))
        retired = stella.change(free, retired_at_0="2026-01-01", retired_at_1="00:00:00")
        assert "The default tier cannot be retired" in said(retired)
        assert len(history(free)) == before

    def test_a_new_tier_is_one_entry(self, stella: Staff) -> None:
        name = f"New {uuid4().hex[:8]}"
        rank = str(make_tier().rank + 1)
        page = stella.add(
            Tier, name=name, slug=name.lower().replace(" ", "-"), rank=rank, why="A new product",
            max_requests_per_period="", is_public=None,
        )  # fmt: skip
        assert page.status_code == 302
        tier = Tier.objects.get(name=name)
        assert tier.max_requests_per_period is None
        (entry,) = history(tier)
        assert entry.pgh_context.metadata["reason"] == "A new product"

    @pytest.mark.case("ADM-01")
    def test_what_raw_sql_changes_is_noted_too(self) -> None:
        tier = make_tier(max_agents=3)
        with connection.cursor() as cursor:
            cursor.execute("UPDATE entitlements_tier SET max_agents = 9 WHERE id = %s", [tier.pk])
        Tier.objects.filter(pk=tier.pk).update(max_agents=10)
        assert [e.max_agents for e in history(tier)] == [3, 9, 10]


def test_making_a_tier_the_default_moves_it_and_both_leave_an_entry() -> None:
    free, tier = Tier.objects.get(is_default=True), make_tier()
    before = len(history(free))
    with transaction.atomic():
        change_tier(tier.pk, {"is_default": True}, actor="stella", reason="A new start", expected_version=1)
        assert list(Tier.objects.filter(is_default=True)) == [tier]
        assert len(history(free)) == before + 1
        assert [e.is_default for e in history(tier)] == [False, True]
        transaction.set_rollback(True)  # all other tests count on the seeded default
    assert Tier.objects.get(is_default=True) == free


class TestTheList:
    @pytest.mark.case("ADM-01")
    def test_it_only_shows(self, stella: Staff) -> None:
        tier = make_tier(max_agents=3)
        data = {"form-TOTAL_FORMS": "1", "form-INITIAL_FORMS": "1", "form-0-id": tier.pk, "form-0-max_agents": "99",
                "_save": "Save"}  # fmt: skip
        stella.client.post(stella.url(Tier, "changelist"), data)
        tier.refresh_from_db()
        assert tier.max_agents == 3
        assert len(history(tier)) == 1

    @pytest.mark.case("LIM-03")
    def test_empty_is_unlimited_and_zero_is_zero(self, stella: Staff) -> None:
        none, unlimited = make_tier(max_requests_per_period=0, max_tokens_per_period=1), make_tier()
        listed = said(stella.client.get(stella.url(Tier, "changelist"), {"q": none.name}))
        assert f"{none.name} {none.rank} hidden 0 0 1 unlimited" in listed
        listed = said(stella.client.get(stella.url(Tier, "changelist"), {"q": unlimited.name}))
        assert f"{unlimited.name} {unlimited.rank} hidden 0 unlimited unlimited unlimited" in listed

    @pytest.mark.case("ADM-01")
    def test_an_action_on_three_tiers_is_three_entries(self, stella: Staff) -> None:
        tiers = [make_tier() for _ in range(3)]
        page = stella.run("retire_selected", *tiers, why="No longer sold")
        assert page.status_code == 200
        for tier in tiers:
            _, entry = history(tier)
            assert entry.retired_at is not None
            assert (entry.pgh_context.metadata["actor"], entry.pgh_context.metadata["reason"]) == (
                stella.account.email, "No longer sold",
            )  # fmt: skip

    def test_an_action_without_a_reason_changes_nothing(self, stella: Staff) -> None:
        tier = make_tier()
        assert "needs a reason" in said(stella.run("retire_selected", tier, why=" "))
        assert len(history(tier)) == 1

    @pytest.mark.case("ADM-01")
    def test_deleting_two_unused_tiers_is_two_entries(self, stella: Staff) -> None:
        tiers = [make_tier(), make_tier()]
        pks = [t.pk for t in tiers]
        stella.run("delete_selected", *tiers, post="yes")
        assert not Tier.objects.filter(pk__in=pks).exists()
        for pk in pks:
            entry = history(Tier, pk)[-1]
            assert entry.pgh_label == "delete"
            assert entry.pgh_context.metadata["actor"] == stella.account.email


class TestATierWithAccounts:
    @pytest.mark.case("ADM-03")
    def test_it_is_not_deleted_singly(self, stella: Staff) -> None:
        tier = make_tier()
        accounts = [make_account("alice", tier) for _ in range(3)]
        page = stella.client.post(stella.url(tier, "delete"), {"post": "yes"})
        assert page.status_code == 200
        assert f"3 accounts name {tier.name}. Retire it instead" in said(page)
        assert Account.objects.filter(pk__in=[a.pk for a in accounts], billing_tier=tier).count() == 3

    @pytest.mark.case("ADM-03")
    def test_it_is_not_deleted_in_a_selection_and_neither_is_the_rest(self, stella: Staff) -> None:
        tier, unused = make_tier(), make_tier()
        make_account("alice", tier)
        page = stella.run("delete_selected", tier, unused, post="yes")
        assert page.status_code == 200
        assert f"1 account names {tier.name}" in said(page)
        assert Tier.objects.filter(pk__in=[tier.pk, unused.pk]).count() == 2

    @pytest.mark.case("ADM-03")
    def test_it_is_retired_instead_and_its_accounts_keep_it(self, stella: Staff) -> None:
        tier = make_tier(max_requests_per_period=7)
        account = make_account("alice", tier)
        stella.run("retire_selected", tier, why="No longer sold")
        assert read_standing(account.pk).entitlements.limit(LimitType.REQUESTS) == 7

    def test_the_default_is_never_deleted(self, stella: Staff) -> None:
        free = Tier.objects.get(is_default=True)
        page = stella.client.post(stella.url(free, "delete"), {"post": "yes"})
        assert "is the default" in said(page)
        assert Tier.objects.filter(pk=free.pk).exists()


class TestWhoMayNot:
    def test_a_customer_is_sent_away_from_the_admin(self) -> None:
        alice = Staff(make_account("alice"))
        assert alice.client.get(alice.url(Tier, "changelist")).status_code == 302

    def test_staff_without_the_right_change_and_delete_nothing(self, stella: Staff) -> None:
        tier = make_tier(max_agents=3)
        data = stella.open(stella.url(tier)) | {"max_agents": "4", "why": "Mine"}
        looker = make_account("steve", staff=True)
        looker.is_superuser = False
        looker.save(update_fields=["is_superuser"])
        steve = Staff(looker)
        assert steve.send(steve.url(tier), data).status_code == 403
        assert steve.client.post(steve.url(tier, "delete"), {"post": "yes"}).status_code == 403
        assert len(history(tier)) == 1


def test_looking_at_every_page_changes_nothing(stella: Staff) -> None:
    tier = make_tier()
    pages: list[Any] = [stella.url(tier), stella.url(tier, "delete"), stella.url(tier, "history")]
    for url in pages:
        assert stella.client.get(url, {"action": "retire_selected", "post": "yes", "max_agents": "1"}).status_code < 400
    assert len(history(tier)) == 1
