"""The audit log in the admin: readable and searchable, and nobody can write to it, a superuser included."""

from __future__ import annotations

import csv

import pytest
from django.db import DatabaseError, connection, transaction
from django.test import Client
from django.urls import reverse

from entitlements.models import Account, Adjustment, Denial, Tier
from tests.entitlements.admin_pages import Staff, history, said
from tests.factories import make_account, make_tier
from webhost.period import parse_key

pytestmark = pytest.mark.usefixtures("live_db")

LOG = "/admin/entitlements/historyentry/"


@pytest.fixture
def stella() -> Staff:
    return Staff()


class TestReadingTheLog:
    def test_it_says_who_changed_what_from_which_value_to_which_and_why(self, stella: Staff) -> None:
        tier = make_tier(max_requests_per_period=1000, max_tokens_per_period=5)
        stella.change(tier, max_requests_per_period="2000", max_tokens_per_period="", why="Ticket 12, a better offer")
        page = said(
            stella.client.get(LOG, {"q": "Ticket 12, a better offer", "object": f"entitlements.Tier:{tier.pk}"})
        )
        assert f"tier {tier.name} changed" in page
        assert "max requests per period: 1,000 → 2,000" in page
        assert "max tokens per period: 5 → unlimited" in page
        assert f"5 → unlimited - {stella.account.email} Ticket 12, a better offer admin" in page

    def test_a_change_without_a_context_says_so(self, stella: Staff) -> None:
        tier = make_tier(max_agents=3)
        Tier.objects.filter(pk=tier.pk).update(max_agents=9)
        page = said(stella.client.get(LOG, {"object": f"entitlements.Tier:{tier.pk}"}))
        assert "max agents: 3 → 9 - database role webhost no reason given database" in page

    def test_it_is_exported_as_it_is_filtered_and_no_cell_is_a_formula(self, stella: Staff) -> None:
        tier, other = make_tier(max_requests_per_period=1000), make_tier(max_agents=1)
        stella.change(tier, max_requests_per_period="2000", why="=HYPERLINK(1)")
        stella.change(other, max_agents="2")
        page = said(stella.client.get(LOG, {"object": f"entitlements.Tier:{tier.pk}"}))
        assert "Download this list as CSV" in page
        answer = stella.client.get(f"{LOG}export.csv", {"object": f"entitlements.Tier:{tier.pk}"})
        assert answer.headers["Content-Type"] == "text/csv; charset=utf-8"
        head, *rows = csv.reader(b"".join(answer).decode().splitlines())
        assert head[:6] == ["when (UTC)", "kind", "row", "did", "who", "why"]
        assert [row[3] for row in rows] == ["changed", "created"]
        assert rows[0][1:6] == ["entitlements.Tier", str(tier.pk), "changed", stella.account.email, "'=HYPERLINK(1)"]
        assert "max_requests_per_period: 1,000 -> 2,000" in rows[0][-1]

    def test_it_is_exported_only_to_who_may_read_it(self) -> None:
        account = make_account("steve")
        Account.objects.filter(pk=account.pk).update(is_staff=True)
        staff = Staff(Account.objects.get(pk=account.pk))
        assert staff.client.get(f"{LOG}export.csv").status_code == 403
        assert Client().get(f"{LOG}export.csv").status_code == 302

    def test_it_tells_everything_of_one_account(self, stella: Staff) -> None:
        account, other = make_account("alice", max_agents=3), make_account("charlie")
        page = said(stella.client.get(LOG, {"account": account.public_id}))
        assert "override maxAgents created" in page
        assert f"account {account.email} created" in page
        assert other.email not in page
        assert f"account {other.email} created" in said(stella.client.get(LOG, {"q": other.public_id}))

    def test_one_entry_has_a_page_and_a_row_leads_to_its_own(self, stella: Staff) -> None:
        tier = make_tier(max_agents=3)
        entry = history(tier)[0]
        page = stella.client.get(
            reverse("admin:entitlements_historyentry_change", args=[f"entitlements.TierEvent:{entry.pk}"])
        )
        assert "max agents: 3" in said(page)
        away = stella.client.get(stella.url(tier, "history"))
        assert away.url == f"{LOG}?object=entitlements.Tier:{tier.pk}"
        assert tier.name in said(stella.client.get(away.url))

    def test_a_customer_does_not_read_it(self) -> None:
        alice = Staff(make_account("alice"))
        assert alice.client.get(LOG).status_code == 302
        assert Client().get(LOG).status_code == 302

    def test_staff_without_the_right_do_not_read_it(self) -> None:
        plain = make_account("steve", staff=True)
        plain.is_superuser = False
        plain.save(update_fields=["is_superuser"])
        assert Staff(plain).client.get(LOG).status_code == 403


class TestWritingToTheLog:
    @pytest.mark.case("ADM-03")
    def test_a_superuser_adds_changes_and_deletes_nothing_by_direct_post(self, stella: Staff) -> None:
        tier = make_tier(max_agents=3)
        entry = history(tier)[0]
        key = f"entitlements.TierEvent:{entry.pk}"
        attempts = [
            (reverse("admin:entitlements_historyentry_add"), {"pgh_label": "update"}),
            (reverse("admin:entitlements_historyentry_change", args=[key]), {"max_agents": "9"}),
            (reverse("admin:entitlements_historyentry_delete", args=[key]), {"post": "yes"}),
            (LOG, {"action": "delete_selected", "_selected_action": key, "post": "yes", "index": "0"}),
        ]
        for url, data in attempts:
            assert stella.client.post(url, data).status_code == 403, url
        assert [e.max_agents for e in history(tier)] == [3]

    @pytest.mark.case("ADM-03")
    @pytest.mark.parametrize(
        "statement",
        [
            "UPDATE entitlements_tierevent SET max_agents = 9 WHERE pgh_obj_id = %s",
            "DELETE FROM entitlements_tierevent WHERE pgh_obj_id = %s",
            "TRUNCATE entitlements_tierevent",
        ],
    )
    def test_the_database_refuses_it_as_well(self, statement: str) -> None:
        tier = make_tier(max_agents=3)
        with pytest.raises(DatabaseError), transaction.atomic(), connection.cursor() as cursor:
            cursor.execute(statement, [tier.pk] if "%s" in statement else None)
        assert [e.max_agents for e in history(tier)] == [3]


@pytest.mark.parametrize("model", [Denial, Adjustment])
def test_receipts_are_read_only_for_a_superuser_too(stella: Staff, model: type[Denial | Adjustment]) -> None:
    alice, period = make_account("alice"), parse_key("2026-11")
    row: Denial | Adjustment
    if model is Denial:
        row = Denial.objects.create(
            account_id=alice.pk, limit_type="requests", period=period, minute="2026-11-01T00:00:00Z", count=7
        )
    else:
        row = Adjustment.objects.create(account_id=alice.pk, period=period, actor="stella", reason="Lost twice")
    assert alice.email in said(stella.client.get(stella.url(model, "changelist"), {"q": alice.public_id}))
    assert alice.email in said(stella.client.get(stella.url(row)))
    assert stella.client.post(stella.url(row), {"count": "1"}).status_code == 403
    assert stella.client.post(stella.url(row, "delete"), {"post": "yes"}).status_code == 403
    assert stella.client.post(stella.url(model, "add"), {}).status_code == 403
    row.refresh_from_db()
