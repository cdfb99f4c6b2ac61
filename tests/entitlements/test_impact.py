"""Before a tier is changed, its preview says whom that stops and what it would have refused: as the rules do, by hand."""

from __future__ import annotations

import random
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.utils import timezone

from entitlements import ledger, rules
from entitlements.actions.drafts import preview_tier
from entitlements.actions.standing import read_standing
from entitlements.actions.tiers import EDITABLE_FIELDS
from entitlements.enums import Capability, LimitType, Outcome, Runtime
from entitlements.impact import INVOCATION_LIMITS, Impact
from entitlements.models import Account, Admission, Override, Tier
from entitlements.rules import Key
from runtimes.enums import DeploymentStatus
from tests.entitlements.admin_pages import Staff, history, said
from tests.entitlements.callers import SUCCEEDED, Caller, used
from tests.factories import make_account, make_agent, make_deployment, make_tier, override
from webhost.errors import WebhostError

pytestmark = pytest.mark.usefixtures("live_db")

TOOLS = {
    "agentcore_enabled": True, "memory_enabled": True, "code_interpreter_enabled": True, "browser_enabled": True,
    "max_tool_calls_per_period": 50, "max_code_execution_seconds_per_period": 60, "max_browser_sessions_per_period": 9,
}  # fmt: skip


def drafted(tier: Tier, **changes: Any) -> dict[str, Any]:
    return {name: getattr(tier, name) for name in EDITABLE_FIELDS} | changes


def impact_of(tier: Tier, **changes: Any) -> Impact:
    return preview_tier(tier, drafted(tier, **changes)).impact


def of_limit(impact: Impact, limit: LimitType) -> tuple[int, int, int, int]:
    line = next(x for x in impact.limits if x.limit_type == limit)
    return line.full_now, line.full_then, line.refused_now, line.refused_then


def caller_of(account: Account, **fields: Any) -> Caller:
    agent = make_agent(account)
    return Caller(account.pk, agent.pk, make_deployment(agent).pk, **fields)


# --- The same by hand: the pure rules, one account and one receipt at a time ----------------------------------------

EVERYTHING = rules.Ask(
    tools=rules.TOOL_BUDGETS, runtime=Runtime.AGENTCORE, capabilities=frozenset(c.value for c in Capability)
)


def entitled(account: Account, values: Mapping[str, Any], tier: Tier) -> rules.Entitlements:
    look = read_standing(account.pk)
    row = {field: values[field] for field in rules.KEY_OF_FIELD}
    draft = ledger_values(tier, row)
    return rules.entitlements_of(draft, look.overrides, look.at)


def ledger_values(tier: Tier, row: Mapping[str, Any]) -> rules.TierValues:
    copy = Tier(slug=tier.slug, name=tier.name, rank=tier.rank, version=tier.version, **row)
    return copy.values()


def full_by_hand(account: Account, entitlements: rules.Entitlements) -> set[LimitType]:
    found = rules.refusals_of(entitlements, read_standing(account.pk).standing, EVERYTHING)
    return {r.limit_type for r in found} - rules.GATES


def refused_by_hand(row: Admission, entitlements: rules.Entitlements) -> set[LimitType]:
    """Judge a call again with what its receipt says was used, held and running just before it."""
    held = {
        LimitType.TOKENS: row.held_tokens, LimitType.COMPUTE_MS: row.held_compute_ms,
        LimitType.TOOL_CALLS: row.held_tool_calls, LimitType.BROWSER_SESSIONS: row.held_browser_sessions,
        LimitType.CODE_EXECUTION_SECONDS: -(-row.held_code_ms // 1000),
    }  # fmt: skip
    then = {
        LimitType.REQUESTS: row.then_requests - 1, LimitType.TOKENS: row.then_tokens - row.held_tokens,
        LimitType.COMPUTE_MS: row.then_compute_ms - row.held_compute_ms,
        LimitType.TOOL_CALLS: row.then_tool_calls - row.held_tool_calls,
        LimitType.BROWSER_SESSIONS: row.then_browser_sessions - row.held_browser_sessions,
        LimitType.CODE_EXECUTION_SECONDS: 0,
    }  # fmt: skip
    standing = rules.Standing(
        used=then, held={}, in_flight=row.then_in_flight - 1, this_minute=row.then_minute - 1,
        code_ms=row.then_code_ms - row.held_code_ms,
    )  # fmt: skip
    capabilities = {
        Capability.CODE_INTERPRETER: row.limit_code_ms is not None,
        Capability.BROWSER: row.limit_browser_sessions is not None,
    }
    may = [c for c, allowed in capabilities.items() if allowed]
    tools = {q for c in may for q in rules.QUOTAS_OF_FLAG[rules.FLAG_OF_CAPABILITY[c]]}
    ask = rules.Ask(
        estimate=held, code_ms=row.held_code_ms, runtime=row.runtime, capabilities=frozenset(may),
        tools=frozenset(m for m in rules.TOOL_BUDGETS if rules.KEY_OF_LIMIT[m] in tools),
    )  # fmt: skip
    # A capability that is lost takes the tool away, and the call goes on (docs/adr/0010).
    softened = rules.GATES - {LimitType.RUNTIME_GATED}
    return {r.limit_type for r in rules.refusals_of(entitlements, standing, ask)} - softened


def recount(impact: Impact, tier: Tier, values: Mapping[str, Any], accounts: list[Account]) -> None:
    """Count all of it by hand, and compare."""
    row = {field: getattr(tier, field) for field in rules.KEY_OF_FIELD}
    sets = {"then": values, "now": row}
    full = {w: {a.pk: full_by_hand(a, entitled(a, v, tier)) for a in accounts} for w, v in sets.items()}
    calls = Admission.objects.filter(
        account_id__in=[a.pk for a in accounts], admitted_at__gte=impact.at - timedelta(days=30), source="gateway"
    ).exclude(outcome=Outcome.VOIDED)
    by_pk = {a.pk: a for a in accounts}
    refused = {
        w: {c.pk: refused_by_hand(c, entitled(by_pk[c.account_id], v, tier)) for c in calls} for w, v in sets.items()
    }
    assert impact.accounts == len(accounts)
    assert impact.newly_stopped == sum(bool(full["then"][pk]) and not full["now"][pk] for pk in by_pk)
    assert impact.replay is not None
    assert impact.replay.calls == len(calls)
    assert impact.replay.refused_then == sum(bool(r) for r in refused["then"].values())
    assert impact.replay.refused_now == sum(bool(r) for r in refused["now"].values())
    hit = {c.account_id for c in calls if refused["then"][c.pk] and not refused["now"][c.pk]}
    assert impact.replay.accounts_hit == len(hit)
    for limit in INVOCATION_LIMITS:
        by_hand = tuple(
            sum(limit in found for found in counted[w].values()) for counted in (full, refused) for w in ("now", "then")
        )
        assert of_limit(impact, limit) == by_hand, limit


def a_busy_month(tier: Tier, people: int, dice: random.Random) -> list[Account]:
    """Let people call: with and without holds, tools and overrides, at once and one after the other."""
    accounts = []
    for n in range(people):
        account = make_account(f"p{n}", tier)
        accounts.append(account)
        if dice.random() < 0.4:
            override(
                account, dice.choice(["max_requests_per_period", "max_tokens_per_period"]), dice.choice([2, 40, None])
            )
        if dice.random() < 0.3:
            override(account, "agentcore_enabled", dice.choice([0, 1]))
        if dice.random() < 0.2:
            ended = timezone.now() - timedelta(days=1)
            Override.objects.create(account=account, key=Key.MAX_REQUESTS, value=1, ends_at=ended, reason="Ended")
        plain = caller_of(account)
        lent = frozenset({Capability.CODE_INTERPRETER.value, Capability.BROWSER.value})
        fancy = caller_of(account).but(
            runtime=Runtime.AGENTCORE, capabilities=lent, tools=rules.TOOL_BUDGETS, timeout_seconds=30
        )
        for _ in range(dice.randrange(9)):
            try:
                call(plain, fancy, dice)
            except WebhostError:
                continue
    return accounts


def call(plain: Caller, fancy: Caller, dice: random.Random) -> None:
    if dice.random() < 0.4:
        admitted = fancy.admit(tokens=dice.randrange(30), compute_ms=100, tool_calls=1, code_ms=dice.randrange(3000))
        if dice.random() < 0.7:
            ledger.settle(
                admitted, SUCCEEDED, used(tokens=dice.randrange(60), tool_calls=1, code_ms=dice.randrange(9000))
            )
    elif dice.random() < 0.1:
        ledger.void(plain.admit(), "ConnectionRefused")
    elif dice.random() < 0.3:
        plain.admit()
    else:
        plain.call(tokens=dice.randrange(40), compute_ms=dice.randrange(900))


@pytest.mark.parametrize("throw", range(6))
def test_every_number_is_what_a_recount_by_hand_finds(throw: int) -> None:
    dice = random.Random(throw)
    tier = make_tier(max_requests_per_period=dice.choice([None, 8]), max_concurrent_invocations=6, **TOOLS)
    accounts = a_busy_month(tier, 6, dice)
    values = drafted(
        tier,
        max_requests_per_period=dice.choice([0, 2, 5]),
        max_tokens_per_period=dice.choice([None, 30, 90]),
        max_compute_ms_per_period=dice.choice([None, 900]),
        max_tool_calls_per_period=dice.choice([1, 3]),
        max_code_execution_seconds_per_period=dice.choice([1, 4]),
        max_concurrent_invocations=dice.choice([1, 2]),
        requests_per_minute=dice.choice([None, 3]),
        agentcore_enabled=dice.random() < 0.7,
        browser_enabled=dice.random() < 0.5,
    )
    if not values["agentcore_enabled"]:
        values |= {"memory_enabled": False, "code_interpreter_enabled": False, "browser_enabled": False}
    recount(preview_tier(tier, values).impact, tier, values, accounts)


# --- In words -------------------------------------------------------------------------------------------------------


class TestTheReplay:
    def test_of_ten_calls_a_limit_of_four_would_have_refused_six(self) -> None:
        tier = make_tier()
        alice = caller_of(make_account("alice", tier))
        for _ in range(10):
            alice.call()
        impact = impact_of(tier, max_requests_per_period=4)
        assert impact.replay is not None
        assert (impact.replay.calls, impact.replay.refused_then, impact.replay.refused_now) == (10, 6, 0)
        assert of_limit(impact, LimitType.REQUESTS) == (0, 1, 0, 6)

    def test_a_call_that_reaches_the_budget_passes_and_the_next_does_not(self) -> None:
        tier = make_tier()
        alice = caller_of(make_account("alice", tier))
        for _ in range(3):
            alice.call(tokens=50)
        assert of_limit(impact_of(tier, max_tokens_per_period=100), LimitType.TOKENS) == (0, 1, 0, 1)
        assert of_limit(impact_of(tier, max_tokens_per_period=101), LimitType.TOKENS) == (0, 1, 0, 0)
        assert of_limit(impact_of(tier, max_tokens_per_period=151), LimitType.TOKENS) == (0, 0, 0, 0)

    def test_what_is_older_than_thirty_days_is_not_replayed(self) -> None:
        tier = make_tier()
        alice = caller_of(make_account("alice", tier))
        alice.call(at=datetime.now(UTC) - timedelta(days=31))
        alice.call(at=datetime.now(UTC) - timedelta(days=29))
        replay = impact_of(tier, max_requests_per_period=0).replay
        assert replay is not None
        assert (replay.calls, replay.refused_then) == (1, 1)

    def test_an_override_stays_over_the_draft(self) -> None:
        tier = make_tier()
        account = make_account("alice", tier, max_requests_per_period=100)
        caller_of(account).call()
        impact = impact_of(tier, max_requests_per_period=0)
        assert (impact.accounts, impact.newly_stopped) == (1, 0)
        assert impact.replay is not None
        assert impact.replay.refused_then == 0

    def test_accounts_on_other_tiers_do_not_count(self) -> None:
        tier = make_tier()
        caller_of(make_account("charlie", make_tier())).call()
        moved = make_account("alice", make_tier())
        Account.objects.filter(pk=moved.pk).update(support_tier=tier, support_tier_reason="By hand")
        impact = impact_of(tier, max_requests_per_period=0)
        assert (impact.accounts, impact.set_by) == (1, {"support": 1})

    def test_an_ended_tier_by_hand_is_none(self) -> None:
        tier, below = make_tier(), make_tier()
        account = make_account("alice", below)
        ended = timezone.now() - timedelta(minutes=1)
        Account.objects.filter(pk=account.pk).update(
            support_tier=tier, support_tier_until=ended, support_tier_reason="By hand"
        )
        assert impact_of(tier, max_requests_per_period=0).accounts == 0
        assert impact_of(below, max_requests_per_period=0).set_by == {"billing": 1}


class TestWhatIsLost:
    def test_live_deployments_lose_agentcore_and_others_are_not_counted(self) -> None:
        tier = make_tier(**TOOLS)
        account = make_account("alice", tier)
        live = make_agent(account, "live-one", runtime=Runtime.AGENTCORE)
        make_deployment(live, capabilities=["memory"])
        make_deployment(live, activate=False)
        make_deployment(make_agent(account))
        make_deployment(make_agent(account, runtime=Runtime.AGENTCORE), status=DeploymentStatus.FAILED)
        off = {"agentcore_enabled": False, "memory_enabled": False, "code_interpreter_enabled": False,
               "browser_enabled": False}  # fmt: skip
        (loss,) = preview_tier(tier, drafted(tier, **off)).losses
        assert (loss.then, loss.now, loss.accounts) == (1, 0, 1)
        assert loss.what == "live deployments on AgentCore that would be refused"
        (example,) = loss.examples
        assert (example.name, example.email) == ("live-one, version 1", account.email)

    @pytest.mark.parametrize(
        ("switch", "capability", "words"),
        [
            ("memory_enabled", "memory", "AgentCore Memory"),
            ("code_interpreter_enabled", "codeInterpreter", "the code interpreter"),
            ("browser_enabled", "browser", "the browser"),
        ],
    )
    def test_a_capability_is_lost_by_those_that_use_it(self, switch: str, capability: str, words: str) -> None:
        tier = make_tier(**TOOLS)
        account = make_account("alice", tier)
        make_deployment(make_agent(account, runtime=Runtime.AGENTCORE), capabilities=[capability])
        others = sorted({c.value for c in Capability} - {capability})
        make_deployment(make_agent(account, runtime=Runtime.AGENTCORE), capabilities=others)
        (loss,) = preview_tier(tier, drafted(tier, **{switch: False})).losses
        assert (loss.then, loss.now) == (1, 0)
        assert loss.what == f"live deployments that would go on without {words}"

    def test_more_agents_and_deployments_than_the_caps_are_told(self) -> None:
        tier = make_tier(max_agents=5, max_deployments_per_agent=5)
        account = make_account("alice", tier)
        agent = make_agent(account)
        for _ in range(3):
            make_deployment(agent)
        make_agent(account)
        losses = preview_tier(tier, drafted(tier, max_agents=1, max_deployments_per_agent=2)).losses
        assert [(x.then, x.now) for x in losses] == [(1, 0), (1, 0)]
        assert preview_tier(tier, drafted(tier, max_agents=2, max_deployments_per_agent=3)).losses == []

    def test_a_shorter_retention_says_that_data_are_deleted(self) -> None:
        tier = make_tier(logs_retention_days=30)
        preview = preview_tier(tier, drafted(tier, logs_retention_days=7))
        assert [(d.field, d.before, d.after) for d in preview.shortened] == [("logs_retention_days", 30, 7)]
        assert not preview_tier(tier, drafted(tier, logs_retention_days=31)).shortened


class TestTheForm:
    def send(self, stella: Staff, tier: Tier, **changes: Any) -> Any:
        url = stella.url(tier)
        return stella.send(url, stella.open(url) | {"why": "Ticket 7"} | changes)

    def test_nothing_is_saved_before_the_preview_was_confirmed(self) -> None:
        stella, tier = Staff(), make_tier(max_agents=3)
        page = self.send(stella, tier, max_agents="4")
        assert "Nothing is saved yet" in said(page)
        assert "Agents 3 4" in said(page)
        assert len(history(tier)) == 1
        assert stella.confirm(stella.url(tier), page).status_code == 302
        assert [e.max_agents for e in history(tier)] == [3, 4]

    def test_what_was_looked_at_is_what_is_saved(self) -> None:
        stella, tier = Staff(), make_tier(max_agents=3)
        page = self.send(stella, tier, max_agents="4")
        digest = page.context_data["digest"]
        again = self.send(stella, tier, max_agents="5", _looked=digest)
        assert "Nothing is saved yet" in said(again)
        assert len(history(tier)) == 1

    def test_somebody_elses_edit_between_preview_and_saving_is_not_overwritten(self) -> None:
        stella, steve, tier = Staff(), Staff(), make_tier(max_agents=3, max_requests_per_period=10)
        page = self.send(stella, tier, max_agents="4")
        steve.change(tier, max_requests_per_period="20")
        answer = stella.confirm(stella.url(tier), page)
        assert "changed by somebody else" in said(answer)
        tier.refresh_from_db()
        assert (tier.max_agents, tier.max_requests_per_period) == (3, 20)

    def test_going_on_editing_shows_the_draft_and_saves_nothing(self) -> None:
        stella, tier = Staff(), make_tier(max_agents=3)
        page = self.send(stella, tier, max_agents="4")
        sent = dict(page.context_data["sent"])
        form = stella.client.post(stella.url(tier), sent | {"_edit": "yes"})
        assert "this is your draft" in said(form)
        assert form.context["adminform"].form["max_agents"].value() == "4"
        assert len(history(tier)) == 1

    def test_a_change_that_touches_nobody_says_so(self) -> None:
        assert "Nobody is stopped by it" in said(self.send(Staff(), make_tier(max_agents=3), max_agents="4"))

    def test_it_names_whom_it_stops(self) -> None:
        tier = make_tier()
        account = make_account("alice", tier)
        caller_of(account).call()
        page = said(self.send(Staff(), tier, max_requests_per_period="1"))
        assert "1 account would be refused at once" in page
        assert f"{account.email} : requests" in page

    def test_making_a_tier_the_default_counts_those_who_come_to_it(self) -> None:
        stella, tier, nobody = Staff(), make_tier(max_requests_per_period=0), make_account("alice")
        page = self.send(stella, tier, is_default="on")
        assert "It becomes the default" in said(page)
        impact = page.context_data["impact"]
        assert nobody.billing_tier is None
        assert impact.accounts == impact.set_by["default"] >= 1
        assert Tier.objects.get(is_default=True) != tier
