"""Support, pricing and auditor: what each may do in the admin, and that nobody can do more, or make themselves more."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib import admin
from django.contrib.auth.models import Group, Permission
from django.urls import reverse

from entitlements.groups import GROUPS
from entitlements.models import Account, Override, Tier
from entitlements.rules import Key
from tests.entitlements.admin_pages import Staff, said
from tests.factories import make_account, make_tier, override

pytestmark = pytest.mark.usefixtures("live_db")

# Whose list may be opened by whom, and where something may be added or changed.
PAGES = sorted(f"{m._meta.app_label}.{m._meta.model_name}" for m in admin.site._registry)
WRITES = {
    "support": {"entitlements.account", "entitlements.override"},
    "pricing": {"entitlements.tier", "entitlements.tierprice", "telemetry.ratecard"},
    "auditor": set(),
}
ADDS = {
    "support": {"entitlements.override"},
    "pricing": {"entitlements.tier", "entitlements.tierprice", "telemetry.ratecard"},
    "auditor": set(),
}


def member(*groups: str) -> Staff:
    """Make somebody on staff, in some groups and with nothing else."""
    account = make_account("steve")
    Account.objects.filter(pk=account.pk).update(is_staff=True)
    account.groups.set(Group.objects.filter(name__in=groups))
    return Staff(Account.objects.get(pk=account.pk))


def looked_at(group: str) -> set[str]:
    permissions = (permission.split(".") for permission in GROUPS[group])
    return {f"{app}.{name.removeprefix('view_')}" for app, name in permissions if name.startswith("view_")}


class TestTheGroups:
    @pytest.mark.parametrize("group", sorted(GROUPS))
    def test_every_right_that_is_named_exists_and_is_given(self, group: str) -> None:
        given = Permission.objects.filter(group__name=group).select_related("content_type")
        assert {f"{p.content_type.app_label}.{p.codename}" for p in given} == set(GROUPS[group])
        assert all(p.content_type.model_class() is not None for p in given)

    @pytest.mark.parametrize("page", PAGES)
    @pytest.mark.parametrize("group", [*sorted(GROUPS), "none"])
    def test_each_page_opens_for_those_who_need_it_and_for_nobody_else(self, group: str, page: str) -> None:
        staff = member(group)
        name = page.replace(".", "_")
        opened = staff.client.get(reverse(f"admin:{name}_changelist")).status_code
        expected = 200 if group in GROUPS and page in looked_at(group) else 403
        assert opened == expected
        adding = staff.client.get(reverse(f"admin:{name}_add")).status_code
        assert adding == (200 if page in ADDS.get(group, set()) else 403)

    def test_an_auditor_sees_everything_that_anybody_sees(self) -> None:
        assert looked_at("support") | looked_at("pricing") <= looked_at("auditor")

    def test_an_auditor_writes_nothing(self) -> None:
        assert all(permission.partition(".")[2].startswith("view_") for permission in GROUPS["auditor"])


class TestSupport:
    def test_sets_a_tier_by_hand_and_an_override(self) -> None:
        steve, alice, tier = member("support"), make_account("alice"), make_tier()
        assert steve.change(alice, support_tier=str(tier.pk)).status_code == 302
        assert Account.objects.get(pk=alice.pk).support_tier == tier
        page = steve.add(Override, account=str(alice.pk), key="maxAgents", value="7", reason="A trial")
        assert page.status_code == 302
        assert Override.objects.get(account=alice).value == 7

    def test_changes_neither_an_address_nor_rights_whatever_is_sent(self) -> None:
        steve, alice = member("support"), make_account("alice")
        pricing = Group.objects.get(name="pricing")
        steve.change(alice, email="mine@example.com", is_staff="on", is_superuser="on", groups=[str(pricing.pk)])
        fresh = Account.objects.get(pk=alice.pk)
        assert (fresh.email, fresh.is_staff, fresh.is_superuser) == (alice.email, False, False)
        assert not fresh.groups.exists()

    def test_makes_itself_and_its_colleagues_nothing_more(self) -> None:
        steve, colleague = member("support"), make_account("stella", staff=True)
        for account in (steve.account, colleague):
            sent = {"why": "Me", "is_superuser": "on", "is_staff": "on", "support_tier": str(make_tier().pk)}
            assert steve.client.post(steve.url(account), sent).status_code == 403
        fresh = Account.objects.get(pk=steve.account.pk)
        assert (fresh.is_superuser, fresh.support_tier) == (False, None)

    def test_does_not_touch_the_price_list(self) -> None:
        steve, tier = member("support"), make_tier(max_agents=1)
        assert steve.client.post(steve.url(tier), {"why": "Mine", "max_agents": "9"}).status_code == 403
        sent: dict[str, Any] = {"action": "retire_selected", "_selected_action": [tier.pk], "why": "Mine"}
        steve.client.post(steve.url(Tier, "changelist"), sent)
        fresh = Tier.objects.get(pk=tier.pk)
        assert (fresh.max_agents, fresh.retired_at) == (1, None)


class TestPricing:
    def test_changes_a_tier_and_no_account(self) -> None:
        paul, tier, alice = member("pricing"), make_tier(max_agents=1), make_account("alice")
        assert paul.change(tier, max_agents="2").status_code == 302
        assert Tier.objects.get(pk=tier.pk).max_agents == 2
        assert paul.client.get(paul.url(alice)).status_code == 403


class TestAnAuditor:
    @pytest.mark.parametrize("way", ["change", "delete"])
    def test_changes_nothing_by_any_form(self, way: str) -> None:
        anna, alice, tier = member("auditor"), make_account("alice"), make_tier(max_agents=1)
        granted = override(alice, "max_agents", 3)
        for row in (alice, tier, granted):
            assert anna.client.post(anna.url(row, way), {"post": "yes", "why": "Mine"}).status_code == 403
        assert Override.objects.get(pk=granted.pk).key == Key.MAX_AGENTS

    def test_runs_no_action(self) -> None:
        anna, tier = member("auditor"), make_tier()
        for name, row, action in (
            ("entitlements_tier", tier.pk, "retire_selected"),
            ("entitlements_tier", tier.pk, "delete_selected"),
            ("billing_stripeevent", 1, "replay_selected"),
            ("runtimes_agentsession", 1, "stop_selected"),
        ):
            sent = {"action": action, "_selected_action": [row], "why": "Mine", "post": "yes"}
            assert anna.client.post(reverse(f"admin:{name}_changelist"), sent).status_code in {200, 302, 403}
        assert Tier.objects.get(pk=tier.pk).retired_at is None


class TestMembership:
    def test_a_superuser_gives_it_and_the_history_says_who_why_and_what(self) -> None:
        stella, steve = Staff(), make_account("steve")
        Account.objects.filter(pk=steve.pk).update(is_staff=True)
        support = Group.objects.get(name="support")
        assert stella.change(steve, groups=[str(support.pk)]).status_code == 302
        assert list(steve.groups.all()) == [support]
        text = said(stella.client.get("/admin/entitlements/historyentry/", {"account": steve.public_id}))
        assert f"group support of {steve.email}" in text
        assert "Ticket 7" in text
        stella.change(steve, groups=[])
        assert not steve.groups.exists()
        text = said(stella.client.get("/admin/entitlements/historyentry/", {"account": steve.public_id}))
        assert text.count(f"group support of {steve.email}") == 2
