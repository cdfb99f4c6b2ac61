"""What support does from the account's page: disable and enable, add and end overrides; each with a reason, once."""

from __future__ import annotations

from datetime import timedelta
from uuid import uuid4

import pytest
from django.utils import timezone

from entitlements.actions.overrides import end_override
from entitlements.actions.standing import read_standing
from entitlements.models import Account, Override
from entitlements.rules import Key
from tests.api import Api
from tests.entitlements.admin_pages import Staff, history, said
from tests.entitlements.callers import Caller
from tests.entitlements.test_groups import member
from tests.factories import make_account, make_tier, override
from webhost.errors import ConflictError
from webhost.period import ends_at, period_of

pytestmark = pytest.mark.usefixtures("live_db")


@pytest.fixture
def steve() -> Staff:
    return member("support")


class TestDisabling:
    @pytest.mark.case("ADM-01")
    def test_the_api_answers_403_at_once_and_one_entry_says_who_and_why(self, steve: Staff) -> None:
        account = make_account("alice", make_tier())
        api = Api(account)
        assert api.get("/v1/me").status == 200
        page = steve.client.post(steve.url(account, "disable"), {"why": "Abuse, ticket 9"}, follow=True)
        assert "Disabled" in said(page)
        assert "Abuse, ticket 9" in said(page)
        assert api.get("/v1/me").status == 403
        entry = history(account)[-1]
        assert (entry.is_active, entry.disabled_reason) == (False, "Abuse, ticket 9")
        assert entry.pgh_context.metadata["actor"] == steve.account.email
        steve.client.post(steve.url(account, "enable"), {"why": "Sorted out"})
        assert api.get("/v1/me").status == 200

    @pytest.mark.case("ADM-01")
    def test_twice_is_once(self, steve: Staff) -> None:
        account = make_account("alice")
        for _ in range(2):
            page = steve.client.post(steve.url(account, "disable"), {"why": "Abuse"}, follow=True)
        assert "is disabled already. Nothing was changed." in said(page)
        assert [e.pgh_label for e in history(account)] == ["insert", "update"]

    @pytest.mark.parametrize("why", ["", "   "])
    def test_it_needs_a_reason(self, steve: Staff, why: str) -> None:
        account = make_account("alice")
        page = steve.client.post(steve.url(account, "disable"), {"why": why})
        assert (page.status_code, "This field is required." in said(page)) == (422, True)
        assert Account.objects.get(pk=account.pk).is_active

    def test_looking_at_the_form_changes_nothing(self, steve: Staff) -> None:
        account = make_account("alice")
        assert steve.client.get(steve.url(account, "disable"), {"why": "Link"}).status_code == 200
        assert Account.objects.get(pk=account.pk).is_active

    def test_nobody_disables_themselves_and_support_no_colleague(self, steve: Staff) -> None:
        stella, colleague = Staff(), make_account("sam", staff=True)
        for staff, account in ((steve, steve.account), (steve, colleague), (stella, stella.account)):
            assert staff.client.post(staff.url(account, "disable"), {"why": "Mine"}).status_code == 403
            assert Account.objects.get(pk=account.pk).is_active
        stella.client.post(stella.url(colleague, "disable"), {"why": "Left us"})
        assert not Account.objects.get(pk=colleague.pk).is_active

    def test_the_big_form_cannot_disable(self, steve: Staff) -> None:
        account = make_account("alice")
        steve.change(account, is_active="")
        assert Account.objects.get(pk=account.pk).is_active

    def test_an_account_that_is_gone_is_not_found(self, steve: Staff) -> None:
        assert steve.client.post(f"/admin/entitlements/account/{uuid4()}/disable/", {"why": "X"}).status_code == 404


class TestAddingAnOverride:
    def test_the_form_shows_the_value_that_it_replaces_and_where_that_comes_from(self, steve: Staff) -> None:
        tier = make_tier(max_tokens_per_period=1_000_000)
        account = make_account("alice", tier)
        url = f"{steve.url(Override, 'add')}?account={account.pk}&key=maxTokensPerPeriod"
        assert f"This override replaces Tokens = 1,000,000 (1 million) ( tier {tier.slug} )" in said(
            steve.client.get(url)
        ).replace("(tier", "( tier").replace(f"{tier.slug})", f"{tier.slug} )")

    @pytest.mark.parametrize("ends", ["period", "week", "never"])
    def test_its_end_is_named_instead_of_typed(self, steve: Staff, ends: str) -> None:
        account = make_account("alice", make_tier())
        page = steve.add(
            Override, account=str(account.pk), key="maxAgents", value="3", ends=ends, reason="A trial",
        )  # fmt: skip
        assert page.status_code == 302
        found = Override.objects.get(account=account).ends_at
        now = timezone.now()
        if ends == "never":
            assert found is None
        elif ends == "period":
            assert found == ends_at(period_of(now))
        else:
            assert found is not None
            assert timedelta(days=6, hours=23) < found - now < timedelta(days=7, minutes=1)

    def test_saving_says_what_became_of_what_and_leads_back_to_the_account(self, steve: Staff) -> None:
        account = make_account("alice", make_tier(max_agents=2))
        page = steve.add(Override, account=str(account.pk), key="maxAgents", value="3", reason="A trial")
        assert page["Location"].startswith(steve.url(account))
        assert "Agents: 2 → 3" in said(steve.client.get(page["Location"]))

    def test_nobody_on_support_grants_themselves_or_a_colleague_more(self, steve: Staff) -> None:
        for account in (steve.account, make_account("stella", staff=True)):
            page = steve.add(Override, account=str(account.pk), key="maxAgents", value="99", reason="Mine")
            assert "Only a superuser grants staff more." in said(steve.client.get(page["Location"]))
            assert not Override.objects.filter(account=account).exists()

    @pytest.mark.parametrize(
        "given", ["nobody", "account=nobody&key=x&value=y&ends=z", "account=4f6c1d2e-0000-4000-8000-000000000000"]
    )
    def test_a_link_that_makes_no_sense_opens_an_empty_form(self, steve: Staff, given: str) -> None:
        assert steve.client.get(f"{steve.url(Override, 'add')}?{given}").status_code == 200


class TestEndingAnOverride:
    @pytest.mark.case("ADM-01")
    def test_it_ends_now_with_one_entry_and_keeps_why_it_was_granted(self, steve: Staff) -> None:
        account = make_account("alice", make_tier(max_requests_per_period=0))
        row = override(account, "max_requests_per_period", 5, reason="A trial")
        alice = Caller(account.pk, uuid4(), uuid4())
        assert alice.refusal() is None
        page = steve.client.post(steve.url(row, "end"), {"why": "The trial is over"}, follow=True)
        assert "Requests: 5 → 0" in said(page)
        assert alice.refusal() is not None
        row.refresh_from_db()
        assert (row.reason, row.ends_at is not None) == ("A trial", True)
        _, entry = history(row)
        assert entry.pgh_context.metadata["reason"] == "The trial is over"

    def test_twice_is_once(self, steve: Staff) -> None:
        row = override(make_account("alice"), "max_agents", 5)
        end_override(row.pk, actor="steve", reason="Over")
        with pytest.raises(ConflictError, match="has ended already"):
            end_override(row.pk, actor="steve", reason="Over")
        assert len(history(row)) == 2

    def test_a_get_and_a_missing_reason_end_nothing(self, steve: Staff) -> None:
        account = make_account("alice")
        row = override(account, "max_agents", 5)
        assert steve.client.get(steve.url(row, "end")).status_code == 200
        assert steve.client.post(steve.url(row, "end"), {"why": ""}).status_code == 422
        assert read_standing(account.pk).entitlements.sources[Key.MAX_AGENTS] == f"override:{row.pk}"

    @pytest.mark.parametrize("group", ["auditor", "pricing"])
    def test_who_may_only_look_ends_nothing(self, group: str) -> None:
        row, staff = override(make_account("alice"), "max_agents", 5), member(group)
        for method in (staff.client.get, staff.client.post):
            assert method(staff.url(row, "end"), {"why": "Mine"}).status_code == 403
        assert Override.objects.get(pk=row.pk).ends_at is None
