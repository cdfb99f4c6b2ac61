"""An account with a year of usage, in seconds: every hour, every agent; counters, receipts and hours agree.

For tests of what pages cost. Receipts are written as the ledger would have left them; counters, hours and the rest are
summed from them, so that the books agree by construction, and `ledger.verify` says so.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from django.db import connection

from entitlements.enums import Runtime
from entitlements.models import Account
from entitlements.models.ledger import MEASURES
from runtimes.models import Agent, Deployment
from telemetry.actions.roll_up import BUCKETS
from tests.factories import make_account, make_agent, make_deployment, make_tier

_AGENTS: Final = 12
_ERROR_EVERY: Final = 50
_CHARGED: Final = ", ".join(f"sum(charged_{m})" for m in MEASURES)

# Time-ordered like all ids, unique by chance.
_ID: Final = """(lpad(to_hex((extract(epoch FROM at) * 1000)::bigint), 12, '0') || '7' || substr(r, 1, 3) || '8'
                 || substr(r, 4, 15))::uuid"""
_ADMISSIONS: Final = f"""
INSERT INTO entitlements_admission (id, account_id, agent_id, deployment_id, runtime, period, tier, tier_version,
    admitted_at, expires_at, settled_at, outcome, error_class, latency_ms, trace_id, session_id, charged_requests,
    charged_tokens, charged_compute_ms, charged_tool_calls)
SELECT {_ID}, %(account)s, agent_id, deployment_id, runtime, (date_trunc('month', at AT TIME ZONE 'UTC'))::date,
       'year', 1, at, at + interval '90 s', at + interval '1 s',
       CASE WHEN k %% {_ERROR_EVERY} = 0 THEN 'failed' ELSE 'succeeded' END,
       CASE WHEN k %% {_ERROR_EVERY} = 0 THEN %(error)s END, 20 + k %% 3000, 'trc_' || r, 'chat-' || k %% 40, 1,
       100 + k %% 700, 50 + k %% 2000, k %% 3
  FROM (SELECT a.*, k, md5(random()::text || k || a.agent_id) AS r,
               date_trunc('milliseconds', %(now)s::timestamptz - interval '1 hour' * k - interval '1 s' * (k %% 3000))
                   AS at
          FROM (SELECT unnest(%(agents)s::uuid[]) AS agent_id, unnest(%(deployments)s::uuid[]) AS deployment_id,
                       unnest(%(runtimes)s::text[]) AS runtime) a
         CROSS JOIN generate_series(1, 365 * 24) k) calls
"""
_STEPS: Final = (
    _ADMISSIONS,
    f"""
INSERT INTO entitlements_periodcounter (account_id, period, {", ".join(f"used_{m}" for m in MEASURES)})
SELECT account_id, period, {_CHARGED} FROM entitlements_admission WHERE account_id = %(account)s GROUP BY 1, 2
""",
    f"""
INSERT INTO telemetry_usagehour (account_id, agent_id, deployment_id, runtime, hour, {", ".join(MEASURES)}, errors,
    errors_by_class, latency_buckets)
SELECT account_id, agent_id, deployment_id, runtime, date_trunc('hour', admitted_at, 'UTC'), {_CHARGED},
       count(error_class),
       CASE WHEN count(error_class) > 0 THEN jsonb_build_object(min(error_class), count(error_class)) ELSE '{{}}' END,
       ARRAY[{BUCKETS}]::bigint[]
  FROM entitlements_admission WHERE account_id = %(account)s GROUP BY 1, 2, 3, 4, 5
""",
    """
INSERT INTO entitlements_denial (account_id, limit_type, period, minute, count, agent_id, trace_id, tier)
SELECT %(account)s, (ARRAY['requests', 'tokens', 'requestsPerMinute', 'runtimeGated'])[1 + k %% 4],
       (date_trunc('month', minute AT TIME ZONE 'UTC'))::date, minute, 1 + k %% 7,
       (%(agents)s::uuid[])[1 + k %% cardinality(%(agents)s::uuid[])], 'trc_' || md5(random()::text || k), 'year'
  FROM (SELECT k, date_trunc('minute', %(now)s::timestamptz - interval '1 hour' * k) AS minute
          FROM generate_series(1, 365 * 24) k) d
""",
    """
INSERT INTO telemetry_report (deployment_id, event_id, body, item, signature, key_id, received_at, status, reason,
    attempts, processed_at, account_id, invocation_id, facts)
SELECT deployment_id, convert_to(trace_id, 'UTF8'), '{}', 0, 'v1=year', 'year', admitted_at,
       CASE WHEN n %% 40 = 0 THEN 'rejected' WHEN n %% 41 = 0 THEN 'duplicate' ELSE 'accepted' END,
       CASE WHEN n %% 40 = 0 THEN 'It is too old.' ELSE '' END, 0, settled_at, account_id, id, ''
  FROM (SELECT *, row_number() OVER (ORDER BY id) AS n FROM entitlements_admission
         WHERE account_id = %(account)s AND admitted_at > %(now)s::timestamptz - interval '60 days') a
""",
    """
INSERT INTO runtimes_agentlogline (account_id, agent_id, deployment_id, invocation_id, at, text)
SELECT account_id, agent_id, deployment_id, id, admitted_at, 'Served ' || trace_id FROM entitlements_admission
 WHERE account_id = %(account)s AND admitted_at > %(now)s::timestamptz - interval '60 days'
""",
    """
INSERT INTO runtimes_agentsession (id, account_id, agent_id, deployment_id, scope_id, runtime, session_id, started_at,
    last_used_at, idle_seconds, invocations, stopped_because)
SELECT gen_random_uuid(), %(account)s, (%(agents)s::uuid[])[1], (%(deployments)s::uuid[])[1], (%(agents)s::uuid[])[1],
       'cloudflare', 'chat-' || k, %(now)s::timestamptz - interval '2 hours' * k,
       %(now)s::timestamptz - interval '2 hours' * k, 900, 1, ''
  FROM generate_series(1, 4000) k
""",
)
_CHANGED: Final = (
    "entitlements_admission", "entitlements_periodcounter", "telemetry_usagehour", "entitlements_denial",
    "telemetry_report", "runtimes_agentlogline", "runtimes_agentsession",
)  # fmt: skip


@dataclass(frozen=True)
class Year:
    """Whose year it is, one of the agents with its version and newest invocation, and how long it took to make."""

    account: Account
    agent: Agent
    deployment: Deployment
    invocation: str
    seconds: float


def year_of_usage(who: str = "alice", *, agents: int = _AGENTS, mark: str = "") -> Year:
    """Make an account that has been calling each of its agents every hour for a year.

    `mark` becomes a part of every name that people give: of the account, its agents, its errors.
    """
    began = time.monotonic()
    account = make_account(who, make_tier(agentcore_enabled=True, max_agents=None))
    Account.objects.filter(pk=account.pk).update(name=f"{who} {mark}")
    made = [make_agent(account, runtime=Runtime.AGENTCORE if n % 4 == 3 else Runtime.CLOUDFLARE) for n in range(agents)]
    for agent in made:
        make_deployment(agent)
    deployments = [make_deployment(agent) for agent in made]
    if mark:
        for n, agent in enumerate(made):
            Agent.objects.filter(pk=agent.pk).update(name=f"{mark}-{n}")
    parameters = {
        "account": account.pk, "now": datetime.now(UTC), "agents": [a.pk for a in made],
        "deployments": [d.pk for d in deployments], "runtimes": [a.runtime_provider for a in made],
        "error": mark or "TypeError",
    }  # fmt: skip
    with connection.cursor() as cursor:
        for statement in _STEPS:
            cursor.execute(statement, parameters)
        cursor.execute(f"VACUUM (ANALYZE) {', '.join(_CHANGED)}")
        cursor.execute("SELECT max(id::text) FROM entitlements_admission WHERE agent_id = %s", [made[0].pk])
        newest = cursor.fetchone()[0]
    return Year(account, made[0], deployments[0], f"inv_{newest.replace('-', '')}", time.monotonic() - began)
