"""An account with a past: some of everything that its page in the admin shows. For tests and pictures."""

from __future__ import annotations

from datetime import timedelta
from typing import Final
from uuid import uuid4

import pghistory
from django.utils import timezone

from billing.models import BillingProblem, Customer, EventState, StripeEvent, Subscription
from billing.rules import ProblemKind
from entitlements.actions.denials import record_denial
from entitlements.enums import Capability, LimitType, Runtime
from entitlements.models import Account, Denial, Tier
from runtimes.enums import DeploymentStatus
from runtimes.models import AgentSession, SecretName
from telemetry.models import AlertDelivery, AlertEvent, AlertKind, DeliveryStatus
from tests.entitlements.callers import Caller
from tests.factories import make_account, make_agent, make_deployment, make_tier, override
from webhost.ids import new_id
from webhost.period import period_of

HOSTILE: Final = "<img src=x onerror=alert(1)>"


def busy_account(much: int = 1, *, name: str = "Alice", tier: Tier | None = None, **limits: int) -> Account:
    """Make an account with so much of everything: overrides, agents, calls that run, refusals, events, alerts."""
    now = timezone.now()
    tier = tier or make_tier(
        max_requests_per_period=10_000, max_tokens_per_period=2_500_000, max_compute_ms_per_period=36_000_000,
        agentcore_enabled=True, browser_enabled=True, max_tool_calls_per_period=5_000,
        max_browser_sessions_per_period=100, max_concurrent_invocations=1_000, max_agents=1_000, **limits,
    )  # fmt: skip
    account = make_account("alice", tier)
    with pghistory.context(actor="Stripe", reason="customer.subscription.created", source="stripe evt_1"):
        Account.objects.filter(pk=account.pk).update(name=name, billing_tier_until=now + timedelta(days=20))
    customer = Customer.objects.create(account=account, customer_id=f"cus_{uuid4().hex[:12]}", read_at=now)
    first = Caller(account.pk, uuid4(), uuid4())
    for n in range(much):
        with pghistory.context(actor="stella", reason=f"Ticket {n} {HOSTILE}", source="admin"):
            override(account, "max_tool_calls_per_period", 6_000 + n, reason=f"Ticket {n}: {HOSTILE}")
        caller = _agents_of(account, n)
        first = caller if n == 0 else first
        caller.call(tokens=1_234, compute_ms=95_000)
        caller.admit(tokens=2_000, compute_ms=60_000)
        _billed(account, customer, tier, n)
        _refused(caller, n)
        _alerted(account, n)
    return account


def _agents_of(account: Account, n: int) -> Caller:
    cloud = make_agent(account, f"weather-bot-{n}")
    deployment = make_deployment(cloud)
    failed = make_deployment(cloud, status=DeploymentStatus.DEPLOYING, activate=False)
    type(failed).objects.filter(pk=failed.pk).update(
        status=DeploymentStatus.FAILED, error_code="BUILD", error_message="agent.ts:3: it does not parse"
    )
    core = make_agent(account, f"researcher-{n}", runtime=Runtime.AGENTCORE)
    make_deployment(core, capabilities=[Capability.BROWSER.value])
    make_agent(account, f"drafts-{n}")
    SecretName.objects.create(agent=cloud, account_id=account.pk, name=f"API_KEY_{n}")
    AgentSession.objects.create(
        account_id=account.pk, agent_id=cloud.pk, deployment_id=deployment.pk, scope_id=cloud.pk,
        runtime=Runtime.CLOUDFLARE, session_id=f"chat-{n}", started_at=timezone.now(), last_used_at=timezone.now(),
        idle_seconds=900, stopped_at=timezone.now(), stopped_because="It ran in circles (stella)",
    )  # fmt: skip
    return Caller(account.pk, cloud.pk, deployment.pk)


def _billed(account: Account, customer: Customer, tier: Tier, n: int) -> None:
    now = timezone.now()
    Subscription.objects.create(
        id=f"sub_{uuid4().hex}", account=account, customer=customer, status="active", tier=tier, created_at=now,
        period_end=now + timedelta(days=20),
    )  # fmt: skip
    StripeEvent.objects.create(
        event_id=f"evt_{uuid4().hex}", type="customer.subscription.updated", customer_id=customer.customer_id,
        created_at=now, body=b"{}", state=EventState.DONE, outcome="no paid tier → Pro", next_try_at=None,
        finished_at=now,
    )  # fmt: skip
    BillingProblem.objects.create(customer=customer, kind=ProblemKind.UNMAPPED_PRICE, detail=f"price_{n}")


def _refused(caller: Caller, n: int) -> None:
    now = timezone.now()
    limits = list(LimitType)
    record_denial(
        caller.account_id, limits[n % len(limits)], period=period_of(now), at=now, agent_id=caller.agent_id,
        trace_id=f"trc_{uuid4().hex}",
    )  # fmt: skip
    day = (now - timedelta(days=1 + n)).replace(second=0, microsecond=0)
    Denial.objects.create(
        account_id=caller.account_id, limit_type=LimitType.REQUESTS, period=period_of(day), minute=day, count=1_234,
        agent_id=caller.agent_id, trace_id=f"trc_{uuid4().hex}",
    )  # fmt: skip


def _alerted(account: Account, n: int) -> None:
    event = AlertEvent.objects.create(
        account_id=account.pk, period=period_of(timezone.now()), limit_type=LimitType.TOKENS, threshold=80,
        used=80 + n, limit=100, fired_at=timezone.now(), recovered_at=timezone.now(),
    )  # fmt: skip
    AlertDelivery.objects.create(
        event=event, target_id=new_id(), kind=AlertKind.EMAIL, address=account.email, status=DeliveryStatus.SENT,
        sent_at=timezone.now(),
    )  # fmt: skip
