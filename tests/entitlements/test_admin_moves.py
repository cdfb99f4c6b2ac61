"""Support moves many accounts to a tier at once: after a preview, all or none, each with its own entry."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from django.contrib.auth.models import Group
from django.utils import timezone

from entitlements.actions import moves
from entitlements.actions.moves import move_accounts, selection_digest
from entitlements.actions.standing import read_standing
from entitlements.actions.tiers import retire_tier
from entitlements.enums import Runtime
from entitlements.models import Account
from runtimes.models import Agent
from tests.entitlements.admin_pages import Staff, history, said
from tests.factories import make_account, make_agent, make_deployment, make_tier
from webhost.errors import ConflictError, InvalidRequestError

pytestmark = pytest.mark.usefixtures("live_db")


def chosen(*accounts: Account) -> Any:
    return Account.objects.filter(pk__in=[a.pk for a in accounts])


def move(*accounts: Account, to: Any, reason: str = "A merger", until: Any = None, seen: str | None = None) -> int:
    return move_accounts(
        [a.pk for a in accounts], to.pk, until=until, actor="stella", reason=reason,
        seen=selection_digest(chosen(*accounts)) if seen is None else seen,
    )  # fmt: skip


def in_force(pk: UUID) -> tuple[str, str]:
    look = read_standing(pk)
    return look.entitlements.tier, look.tier_source


class Mover(Staff):
    """Stella on the list of accounts."""

    def ask(self, *accounts: Account, **fields: str) -> Any:
        return self.run("move_selected", *accounts, **fields)

    def fill(self, tier: Any, **fields: str) -> dict[str, str]:
        return {"tier": str(tier.pk), "until_0": "", "until_1": "", "why": "A merger"} | fields

    def look(self, *accounts: Account, to: Any, **fields: str) -> Any:
        return self.ask(*accounts, **self.fill(to, **fields))

    def go(self, *accounts: Account, to: Any, digest: str, **fields: str) -> Any:
        return self.ask(*accounts, **self.fill(to, **fields), _looked=digest)


class TestMoving:
    @pytest.mark.case("ADM-01")
    def test_three_accounts_leave_one_entry_each_with_who_and_why(self) -> None:
        stella, tier, old = Mover(), make_tier(), make_tier()
        accounts = [make_account(name, old) for name in ("alice", "bob", "charlie")]
        page = stella.look(*accounts, to=tier)
        assert "Nothing is moved yet" in said(page)
        assert all(len(history(a)) == 1 for a in accounts)
        done = stella.go(*accounts, to=tier, digest=page.context_data["digest"])
        assert f"3 accounts are on {tier.name} now" in said(done)
        for account in accounts:
            entries = history(account)
            assert [e.support_tier_id for e in entries] == [None, tier.pk]
            assert entries[1].pgh_context.metadata["actor"] == stella.account.email
            assert entries[1].pgh_context.metadata["reason"] == "A merger"
            assert in_force(account.pk) == (tier.slug, "support")

    def test_who_is_on_it_already_leaves_no_entry(self) -> None:
        tier = make_tier()
        alice, bob = make_account("alice"), make_account("bob")
        assert move(alice, to=tier) == 1
        assert move(alice, bob, to=tier) == 1
        assert (len(history(alice)), len(history(bob))) == (2, 2)

    def test_an_end_that_is_another_one_is_a_change(self) -> None:
        tier, alice = make_tier(), make_account("alice")
        move(alice, to=tier)
        assert move(alice, to=tier, until=timezone.now() + timedelta(days=3)) == 1

    def test_all_or_none_where_one_was_changed_meanwhile(self) -> None:
        tier, other = make_tier(), make_tier()
        alice, bob = make_account("alice"), make_account("bob")
        seen = selection_digest(chosen(alice, bob))
        move(bob, to=other)
        with pytest.raises(ConflictError, match="changed meanwhile"):
            move(alice, bob, to=tier, seen=seen)
        assert in_force(alice.pk)[1] == "default"
        assert in_force(bob.pk)[0] == other.slug

    def test_nobody_is_moved_to_a_retired_tier(self) -> None:
        tier, alice = make_tier(), make_account("alice")
        retire_tier(tier.pk, actor="stella", reason="Old")
        with pytest.raises(ConflictError, match="is retired"):
            move(alice, to=tier)

    def test_without_a_reason_or_with_an_end_that_is_over_nothing_moves(self) -> None:
        tier, alice = make_tier(), make_account("alice")
        with pytest.raises(InvalidRequestError, match="reason"):
            move(alice, to=tier, reason=" ")
        with pytest.raises(InvalidRequestError, match="lie ahead"):
            move(alice, to=tier, until=timezone.now() - timedelta(seconds=1))
        assert len(history(alice)) == 1

    def test_more_than_fit_into_a_transaction_are_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(moves, "MOST_MOVED", 1)
        with pytest.raises(ConflictError, match="At most 1 accounts"):
            move(make_account("alice"), make_account("bob"), to=make_tier())


class TestThePage:
    def test_it_says_who_would_be_stopped_and_what_would_be_lost(self) -> None:
        stella, tier = Mover(), make_tier(max_requests_per_period=0)
        quotas = {"agentcore_enabled": True, "memory_enabled": True}
        alice = make_account("alice", make_tier(**quotas))
        agent: Agent = make_agent(alice, runtime=Runtime.AGENTCORE)
        make_deployment(agent, capabilities=["memory"])
        page = said(stella.look(alice, to=tier))
        assert "1 account would be refused at once" in page
        assert "1 live deployments on AgentCore that would be refused" in page

    def test_a_selection_that_changed_between_look_and_go_is_looked_at_again(self) -> None:
        stella, tier, alice = Mover(), make_tier(), make_account("alice")
        page = stella.look(alice, to=tier)
        move(alice, to=make_tier())
        again = stella.go(alice, to=tier, digest=page.context_data["digest"])
        assert "Something changed meanwhile" in said(again)
        assert in_force(alice.pk)[0] != tier.slug

    def test_without_a_reason_it_asks_again(self) -> None:
        stella, tier, alice = Mover(), make_tier(), make_account("alice")
        assert "This field is required" in said(stella.look(alice, to=tier, why=""))
        assert len(history(alice)) == 1

    def test_support_moves_customers_but_no_staff(self) -> None:
        tier, alice, colleague = make_tier(), make_account("alice"), make_account("steve", staff=True)
        support = make_account("sue", staff=True)
        support.is_superuser = False
        support.save(update_fields=["is_superuser"])
        support.groups.add(Group.objects.get(name="support"))
        sue = Mover(support)
        assert "Some of these are staff" in said(sue.ask(alice, colleague))
        page = sue.look(alice, to=tier)
        assert "are on" not in said(page)
        assert "1 account is on" in said(sue.go(alice, to=tier, digest=page.context_data["digest"]))

    @pytest.mark.parametrize("group", ["auditor", "pricing"])
    def test_who_may_only_look_moves_nobody(self, group: str) -> None:
        tier, alice = make_tier(), make_account("alice")
        looker = make_account("lou", staff=True)
        looker.is_superuser = False
        looker.save(update_fields=["is_superuser"])
        looker.groups.add(Group.objects.get(name=group))
        Mover(looker).look(alice, to=tier, _looked="anything")
        assert in_force(alice.pk)[1] == "default"
        assert len(history(alice)) == 1
