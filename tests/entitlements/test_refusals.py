"""Refusals as staff read them: added up by account, counted by tier and day, exactly, and without a name for prices."""

from __future__ import annotations

import csv
import io
import random
from collections import defaultdict
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest
from django.contrib.auth.models import Group
from django.urls import reverse
from django.utils import timezone

from entitlements.actions.denials import flush_denials, record_denial
from entitlements.actions.gates import require_room, require_runtime
from entitlements.actions.refused import figures_by_day, refusals_by_account
from entitlements.enums import LimitType
from entitlements.errors import LimitExceededError
from entitlements.models import Account, Denial
from tests.entitlements.admin_pages import Staff, said
from tests.entitlements.callers import Caller, alice
from tests.factories import make_account, make_tier
from webhost.ids import Prefix, public_id

pytestmark = pytest.mark.usefixtures("live_db")

BY_ACCOUNT = "/admin/entitlements/denial/by-account/"
FIGURES = "/admin/entitlements/denialfigure/"
# A span of its own, long after every other test's.
FUTURE = datetime(2044, 2, 1, tzinfo=UTC)


def denied(
    account: Account, limit: LimitType, at: datetime, *, count: int = 1, tier: str = "", trace: str = ""
) -> None:
    minute = at.replace(second=0, microsecond=0)
    Denial.objects.create(
        account_id=account.pk, limit_type=limit, period=minute.date().replace(day=1), minute=minute, count=count,
        tier=tier, trace_id=trace,
    )  # fmt: skip


def member(*groups: str) -> Staff:
    account = make_account("paul")
    Account.objects.filter(pk=account.pk).update(is_staff=True)
    account.groups.set(Group.objects.filter(name__in=groups))
    return Staff(Account.objects.get(pk=account.pk))


@pytest.fixture
def stella() -> Staff:
    return Staff()


class TestTheTierThatJudged:
    def slug(self, caller: Caller) -> str:
        return Account.objects.get(pk=caller.account_id).billing_tier.slug  # type: ignore[union-attr]

    def test_it_is_kept_with_the_refusal_of_an_invocation(self) -> None:
        caller = alice(max_requests_per_period=0)
        caller.refusal()
        assert Denial.objects.get(account_id=caller.account_id).tier == self.slug(caller)

    def test_it_is_kept_with_the_refusal_of_a_runtime_and_of_a_cap(self) -> None:
        caller = alice(max_agents=1)
        with pytest.raises(LimitExceededError):
            require_runtime(caller.account_id, "agentcore")
        with pytest.raises(LimitExceededError):
            require_room(caller.account_id, LimitType.AGENTS, 1)
        kept = Denial.objects.filter(account_id=caller.account_id).values_list("limit_type", "tier")
        assert set(kept) == {("runtimeGated", self.slug(caller)), ("agents", self.slug(caller))}

    def test_of_two_within_a_minute_it_is_the_last(self) -> None:
        account, now = make_account("alice"), timezone.now()
        for tier in ("free", "pro"):
            record_denial(
                account.pk, LimitType.TOKENS, period=now.date(), at=now, agent_id=None, trace_id="", tier=tier
            )
        flush_denials()
        row = Denial.objects.get(account_id=account.pk)
        assert (row.tier, row.count) == ("pro", 2)


class TestByAccount:
    def test_minutes_are_added_up_with_the_last_tier_and_trace(self) -> None:
        account = make_account("alice")
        for minute, (count, tier, trace) in enumerate(
            [(3, "free", "trc_1"), (4, "free", "trc_2"), (5, "pro", "trc_3")]
        ):
            denied(account, LimitType.TOKENS, FUTURE + timedelta(minutes=minute), count=count, tier=tier, trace=trace)
        denied(account, LimitType.REQUESTS, FUTURE, count=1)
        denied(account, LimitType.TOKENS, FUTURE - timedelta(minutes=1), count=1000)
        met = refusals_by_account(FUTURE, accounts=[account.pk])
        assert [(m.limit_type, m.refusals, m.minutes, m.tier, m.trace_id, m.email) for m in met] == [
            (LimitType.TOKENS, 12, 3, "pro", "trc_3", account.email),
            (LimitType.REQUESTS, 1, 1, "", "", account.email),
        ]
        assert (met[0].first, met[0].last) == (FUTURE, FUTURE + timedelta(minutes=2))

    def test_it_is_asked_by_account_limit_tier_and_time(self, stella: Staff) -> None:
        one, other, now = make_account("alice"), make_account("charlie"), timezone.now()
        tier = make_tier().slug
        denied(one, LimitType.TOKENS, now, count=1_234, tier=tier)
        denied(one, LimitType.AGENTS, now - timedelta(days=2), count=7, tier=tier)
        denied(other, LimitType.TOKENS, now, tier="free")

        def lines(**query: str) -> str:
            page = stella.client.get(BY_ACCOUNT, query)
            assert page.status_code == 200
            return said(page)

        day = lines(q=one.email)
        assert f"{one.email} Tokens 1,234 1 " in day
        assert tier in day
        assert f"{one.email} Agents" not in day
        assert f"{one.email} Agents 7 1 " in lines(q=one.public_id, since="week")
        assert one.email in lines(tier=tier)
        assert other.email not in lines(tier=tier)
        assert f"{one.email} Tokens" not in lines(q=one.email, limit="agents", since="week")
        assert "Nothing was refused to an account like" in lines(q=one.email, limit="browserSessions")
        assert lines(q=one.email, since="nonsense", limit="nonsense")

    def test_each_line_leads_to_the_account_and_to_its_minutes(self, stella: Staff) -> None:
        account = make_account("alice")
        denied(account, LimitType.TOKENS, timezone.now(), count=5)
        page = stella.client.get(BY_ACCOUNT, {"q": account.email}).content.decode()
        assert stella.url(account) in page
        minutes = f"?q={account.public_id}&amp;limit_type=tokens&amp;since=day"
        assert minutes in page
        shown = said(stella.client.get(stella.url(Denial, "changelist") + minutes.replace("&amp;", "&")))
        assert account.email in shown
        assert "not recorded" in shown

    def test_an_account_that_is_gone_leaves_its_refusals(self, stella: Staff) -> None:
        account = make_account("alice")
        denied(account, LimitType.TOKENS, timezone.now(), count=99_999_999)
        gone = public_id(Prefix.ACCOUNT, account.pk)
        Account.objects.filter(pk=account.pk).delete()
        assert f"{gone} (gone)" in said(stella.client.get(BY_ACCOUNT, {"q": gone}))
        Denial.objects.filter(account_id=account.pk).delete()

    @pytest.mark.parametrize("group", ["pricing", "none"])
    def test_who_may_not_see_customers_sees_none(self, group: str) -> None:
        paul = member(group)
        assert paul.client.get(BY_ACCOUNT).status_code == 403
        assert paul.client.get(reverse("admin:entitlements_denial_changelist")).status_code == 403

    def test_nothing_is_sent_to_it(self, stella: Staff) -> None:
        assert stella.client.post(BY_ACCOUNT, {}).status_code == 403


class TestFigures:
    def test_they_are_what_a_recount_by_hand_says(self) -> None:
        begin = datetime(2045, 3, 1, tzinfo=UTC)
        dice = random.Random(7)
        accounts = [make_account("alice") for _ in range(12)]
        limits = [LimitType.TOKENS, LimitType.REQUESTS, LimitType.AGENTS]
        rows = {}
        for _ in range(400):
            account, limit = dice.choice(accounts), dice.choice(limits)
            # Minutes beside midnight, too.
            at = begin + timedelta(minutes=dice.choice([0, 1, 1439, 1440, 1441, dice.randrange(4 * 1440)]))
            rows[account.pk, limit, at] = (dice.randint(1, 50), dice.choice(["free", "pro", "t-gone", ""]))
        Denial.objects.bulk_create(
            Denial(account_id=a, limit_type=x, minute=m, period=m.date().replace(day=1), count=n, tier=t)
            for (a, x, m), (n, t) in rows.items()
        )
        met: dict[tuple[date, LimitType], set[Any]] = defaultdict(set)
        by_tier: dict[tuple[date, LimitType], dict[str, set[Any]]] = defaultdict(lambda: defaultdict(set))
        refusals: dict[tuple[date, LimitType], int] = defaultdict(int)
        for (account_id, limit, at), (count, tier) in rows.items():
            key = (at.date(), limit)
            met[key].add(account_id)
            by_tier[key][tier].add(account_id)
            refusals[key] += count
        found = figures_by_day(begin, begin + timedelta(days=4))
        assert {(f.day, f.limit_type): (f.accounts, f.refusals) for f in found} == {
            key: (len(met[key]), refusals[key]) for key in met
        }
        assert {(f.day, f.limit_type): dict(f.by_tier) for f in found} == {
            key: {tier: len(who) for tier, who in by_tier[key].items()} for key in by_tier
        }
        assert all(sum(f.refusals_by_tier.values()) == f.refusals for f in found)
        assert [f.day for f in found] == sorted((f.day for f in found), reverse=True)
        Denial.objects.filter(account_id__in=[a.pk for a in accounts]).delete()

    def test_an_account_that_changed_its_tier_counts_once_in_all(self) -> None:
        begin, account = datetime(2046, 3, 1, tzinfo=UTC), make_account("alice")
        for minute, tier in enumerate(["free", "free", "pro"]):
            denied(account, LimitType.TOKENS, begin + timedelta(minutes=minute), tier=tier)
        (figure,) = figures_by_day(begin, begin)
        assert (figure.accounts, dict(figure.by_tier)) == (1, {"free": 1, "pro": 1})
        Denial.objects.filter(account_id=account.pk).delete()

    def test_pricing_reads_them_without_an_address_and_takes_them_along_as_csv(self) -> None:
        tier, now = make_tier(name="Bespoke"), timezone.now()
        accounts = [make_account("alice") for _ in range(2)]
        for account in accounts:
            denied(account, LimitType.BROWSER_SESSIONS, now, count=600, tier=tier.slug)
        denied(accounts[0], LimitType.BROWSER_ENABLED, now)
        paul = member("pricing")
        page = paul.client.get(FIGURES)
        text = said(page)
        assert "Bespoke" in text
        assert "not recorded" in text
        assert all(a.email not in text and a.pk.hex not in page.content.decode() for a in accounts)
        answer = paul.client.get(f"{FIGURES}figures.csv", {"days": "28"})
        assert answer.headers["Content-Disposition"] == 'attachment; filename="refusals-by-tier.csv"'
        lines = list(csv.DictReader(io.StringIO(answer.content.decode())))
        today = [line for line in lines if line["day (UTC)"] == str(now.date()) and line["tier"] == tier.slug]
        assert [(x["limit"], x["accounts"], x["refusals"]) for x in today] == [("browserSessions", "2", "1200")]

    @pytest.mark.parametrize("group", ["none"])
    def test_a_stranger_reads_none(self, group: str) -> None:
        paul = member(group)
        assert paul.client.get(FIGURES).status_code == 403
        assert paul.client.get(f"{FIGURES}figures.csv").status_code == 403

    def test_nothing_is_sent_to_them(self, stella: Staff) -> None:
        for url in (FIGURES, f"{FIGURES}figures.csv", f"{FIGURES}add/"):
            assert stella.client.post(url, {}).status_code == 403
