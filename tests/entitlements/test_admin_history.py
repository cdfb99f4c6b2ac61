"""The audit log in the admin: readable and searchable, and nobody can write to it, a superuser included."""

from __future__ import annotations

import csv

import pytest
from django.contrib.auth.models import Group
from django.db import DatabaseError, connection, transaction
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from entitlements.actions.authorship import written_by
from entitlements.history import finding
from entitlements.models import Account, Adjustment, Denial, Tier, TierPrice
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


class TestFinding:
    @pytest.fixture
    def tier(self, stella: Staff) -> Tier:
        tier = make_tier(max_agents=1)
        stella.change(tier, max_agents="2", why=f"Ticket {tier.slug} over the phone")
        return tier

    def rows(self, stella: Staff, **asked: str) -> list[str]:
        """Return what the list shows, as `kind name verb`."""
        page = stella.client.get(LOG, asked)
        assert page.status_code == 200
        return [f"{e.told.kind} {e.told.name} {e.told.verb}" for e in page.context["cl"].result_list]

    def test_by_who_alone_and_with_a_day(self, stella: Staff, tier: Tier) -> None:
        today = f"{timezone.now():%Y-%m-%d}"
        changed = [f"tier {tier.name} changed"]
        assert self.rows(stella, actor=stella.account.email) == changed
        assert self.rows(stella, actor=stella.account.email, since=today, until=today) == changed
        assert self.rows(stella, actor=stella.account.email, until="2020-01-01") == []
        assert self.rows(stella, actor=stella.account.email, since="2100-01-01") == []
        assert self.rows(stella, actor="nobody") == []

    def test_by_the_words_of_the_reason(self, stella: Staff, tier: Tier) -> None:
        assert self.rows(stella, q=f"{tier.slug} PHONE") == [f"tier {tier.name} changed"]
        assert self.rows(stella, q=f"{tier.slug} letter") == []

    def test_by_source_kind_and_what_happened(self, stella: Staff, tier: Tier) -> None:
        one = {"object": f"entitlements.Tier:{tier.pk}"}
        assert self.rows(stella, source="admin", **one) == [f"tier {tier.name} changed"]
        assert self.rows(stella, source="database", **one) == [f"tier {tier.name} created"]
        assert self.rows(stella, did="insert", **one) == [f"tier {tier.name} created"]
        assert self.rows(stella, kind="entitlements.Override", **one) == []
        assert self.rows(stella, kind="no such kind", **one) == []

    def test_by_tier_its_own_entries_its_prices_and_who_was_put_on_it(self, stella: Staff, tier: Tier) -> None:
        alice = make_account("alice")
        stella.change(alice, support_tier=str(tier.pk))
        price = TierPrice.objects.create(tier=tier, price_id=f"price_{tier.slug}")
        assert self.rows(stella, tier=str(tier.pk)) == [
            f"tier price {price.price_id} created",
            f"account {alice.email} changed",
            f"tier {tier.name} changed",
            f"tier {tier.name} created",
        ]

    def test_by_an_address_also_when_the_account_is_gone(self, stella: Staff) -> None:
        alice = make_account("alice", max_agents=3)
        email = alice.email
        stella.client.post(stella.url(alice, "delete"), {"post": "yes"})
        for asked in ({"account": email}, {"q": email}, {"q": email.upper()}, {"account": email[:16]}):
            page = said(stella.client.get(LOG, asked))
            assert f"account {email} deleted" in page
            assert f"override maxAgents deleted - {email}" in page

    def test_a_tier_that_was_deleted_keeps_its_name(self, stella: Staff, tier: Tier) -> None:
        alice = make_account("alice")
        stella.change(alice, support_tier=str(tier.pk))
        stella.change(alice, support_tier="")
        stella.client.post(stella.url(tier, "delete"), {"post": "yes"})
        page = said(stella.client.get(LOG, {"account": alice.email}))
        assert f"support tier: {tier.name} (deleted) → none" in page
        assert f"support tier: none → {tier.name} (deleted)" in page

    def test_by_any_id_and_the_trace(self, stella: Staff, tier: Tier) -> None:
        alice = make_account("alice")
        entry = history(tier)[-1]
        assert self.rows(stella, q=entry.pgh_context.metadata["trace"]) == [f"tier {tier.name} changed"]
        assert self.rows(stella, q=str(entry.pgh_context_id)) == [f"tier {tier.name} changed"]
        assert self.rows(stella, context=str(entry.pgh_context_id)) == [f"tier {tier.name} changed"]
        for text in (alice.public_id, str(alice.pk), alice.pk.hex):
            assert self.rows(stella, q=text) == [f"account {alice.email} created"]
        assert self.rows(stella, q=tier.name[:10]) == self.rows(stella, q=tier.name)

    @pytest.mark.parametrize(
        "asked",
        [
            {"q": "%"}, {"q": "x' OR 1=1 --"}, {"q": "a\x00b"}, {"q": "& | !"}, {"account": "%"}, {"actor": "\x00"},
            {"tier": "9999999999"}, {"tier": "x"}, {"object": ":"}, {"object": "a:b:c"}, {"context": "x"},
            {"until": "9999-12-31"}, {"p": "0"}, {"o": "1.2"}, {"all": ""},
        ],
    )  # fmt: skip
    def test_what_means_nothing_breaks_nothing(self, stella: Staff, asked: dict[str, str]) -> None:
        assert stella.client.get(LOG, asked, follow=True).status_code == 200
        assert b"".join(stella.client.get(f"{LOG}export.csv", asked)).startswith(b"when")

    def test_a_date_that_is_none_is_said(self, stella: Staff) -> None:
        page = stella.client.get(LOG, {"since": "yesterday"}, follow=True)
        assert "A date is written as 2026-11-30" in said(page)

    def test_a_page_of_fifty_asks_no_more_than_a_page_of_one(self, stella: Staff) -> None:
        counts = []
        for many in (1, 50):
            tier = make_tier(max_agents=0)
            for number in range(many):
                Tier.objects.filter(pk=tier.pk).update(max_agents=number + 1)
            with CaptureQueriesContext(connection) as queries:
                assert len(self.rows(stella, object=f"entitlements.Tier:{tier.pk}", did="update")) == many
            counts.append(len(queries))
        assert counts[1] <= counts[0]

    def test_an_export_is_all_of_it_however_many_pages(self, stella: Staff, monkeypatch: pytest.MonkeyPatch) -> None:
        tier = make_tier(max_agents=0)
        for number in range(25):
            with written_by(f"many-{tier.slug}", "Counting"):
                Tier.objects.filter(pk=tier.pk).update(max_agents=number + 1)
        others = [make_tier().pk for _ in range(12)]
        with written_by(f"many-{tier.slug}", "All at once"):
            Tier.objects.filter(pk__in=others).update(max_agents=7)
        monkeypatch.setattr(finding, "_PAGE", 4)
        monkeypatch.setattr(finding, "MOST_SIGNATURES", 10)
        for asked in ({"object": f"entitlements.Tier:{tier.pk}", "did": "update"}, {"actor": f"many-{tier.slug}"}):
            answer = stella.client.get(f"{LOG}export.csv", asked)
            _, *rows = csv.reader(b"".join(answer).decode().splitlines())
            changed = [row[-1] for row in rows if row[2] == str(tier.pk)]
            assert changed == [f"max_agents: {n} -> {n + 1}" for n in reversed(range(25))]
            assert len(rows) == 25 + (12 if "actor" in asked else 0)

    def test_of_a_busy_signature_the_newest_are_shown_and_that_is_said(
        self, stella: Staff, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        tier = make_tier(max_agents=0)
        for number in range(5):
            with written_by(f"busy-{tier.slug}", "Counting"):
                Tier.objects.filter(pk=tier.pk).update(max_agents=number + 1)
        monkeypatch.setattr(finding, "MOST_SIGNATURES", 3)
        page = said(stella.client.get(LOG, {"actor": f"busy-{tier.slug}"}))
        assert "Only the newest" in page
        assert page.count("max agents:") == 3


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


class TestWhoReadsWhat:
    def test_who_sets_prices_reads_of_prices_and_of_no_customer(self) -> None:
        pricing = make_account("pat")
        Account.objects.filter(pk=pricing.pk).update(is_staff=True)
        pricing.groups.set([Group.objects.get(name="pricing")])
        pat, stella = Staff(Account.objects.get(pk=pricing.pk)), Staff()
        tier, alice = make_tier(max_agents=3), make_account("alice")
        stella.change(tier, max_agents="4", why=f"Shared reason {tier.slug}")
        stella.client.post(stella.url(alice, "disable"), {"why": f"Shared reason {tier.slug}"})
        everything = said(stella.client.get(LOG, {"q": f"Shared reason {tier.slug}"}))
        assert tier.name in everything
        assert alice.email in everything
        for answer in (pat.client.get(LOG, {"q": f"Shared reason {tier.slug}"}), pat.client.get(LOG)):
            assert tier.name in said(answer)
            assert alice.email not in said(answer)
        rows = b"".join(pat.client.get(f"{LOG}export.csv", {"q": f"Shared reason {tier.slug}"}))
        assert tier.name.encode() in rows
        assert alice.email.encode() not in rows
        entry = history(alice)[-1]
        one = f"{LOG}entitlements.AccountEvent_3A{entry.pgh_id}/change/"
        assert pat.client.get(one).status_code == 302
        assert stella.client.get(one).status_code == 200
