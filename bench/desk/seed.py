"""Fill a database with accounts that have been calling for thirty days: set-based, repeatable, books equal.

Every account calls evenly; one in a hundred has a hundred times the calls of the others, as customers do. Counters,
receipts and denials agree with each other as if the ledger had written them; `verify_ledger` says so.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

from django.db import connection

Say = Callable[[str], None]

# A UUIDv7 of an instant (milliseconds) and of two numbers that make it unique.
_ID: Final = """
CREATE OR REPLACE FUNCTION pg_temp.id_at(at timestamptz, a bigint, b bigint) RETURNS uuid LANGUAGE sql IMMUTABLE AS $$
    SELECT (lpad(to_hex((extract(epoch FROM at) * 1000)::bigint), 12, '0') || '7' || lpad(to_hex(b % 4096), 3, '0')
            || '8' || lpad(to_hex(b / 4096 % 4096), 3, '0') || lpad(to_hex(a), 12, '0'))::uuid $$
"""
_STEPS: Final[tuple[tuple[str, str], ...]] = (
    (
        "accounts",
        """
INSERT INTO entitlements_account (id, password, is_superuser, email, name, is_active, disabled_reason, is_staff,
    date_joined, billing_tier_id, support_tier_reason)
SELECT pg_temp.id_at(:now - interval '60 days', n, 0), '!', false, 'desk-' || n || '@example.com', 'Desk ' || n,
       true, '', false, :now - interval '60 days', t.id, ''
  FROM generate_series(1, %(accounts)s) n
  LEFT JOIN entitlements_tier t ON t.slug = CASE n %% 10 WHEN 0 THEN 'enterprise' WHEN 1 THEN 'starter'
                                                        WHEN 2 THEN 'starter' WHEN 3 THEN 'pro' END
""",
    ),
    (
        "overrides",
        """
INSERT INTO entitlements_override (account_id, key, value, reason, created_at)
SELECT pg_temp.id_at(:now - interval '60 days', n, 0), 'maxRequestsPerPeriod', 5000000, 'Seeded', :now
  FROM generate_series(1, %(accounts)s, 20) n
""",
    ),
    (
        "agents",
        """
INSERT INTO runtimes_agent (id, account_id, name, description, runtime_provider, last_error, created_at)
SELECT pg_temp.id_at(:now - interval '50 days', n, 1), pg_temp.id_at(:now - interval '60 days', n, 0), 'agent', '',
       CASE WHEN n %% 10 IN (0, 3) THEN 'agentcore' ELSE 'cloudflare' END, '', :now - interval '50 days'
  FROM generate_series(1, %(accounts)s) n
""",
    ),
    (
        "deployments",
        """
WITH artifact AS (
    INSERT INTO runtimes_artifact (sha256, size, created_at) VALUES (md5('desk') || md5('seed'), 1, :now)
    ON CONFLICT DO NOTHING RETURNING sha256)
INSERT INTO runtimes_deployment (id, agent_id, account_id, version, runtime_provider, artifact_id, config, capabilities,
    timeout_seconds, root_key_id, created_at, status, deployed_sha256, remote, error_code, error_message, deadline_at)
SELECT pg_temp.id_at(:now - interval '50 days', n, 2), pg_temp.id_at(:now - interval '50 days', n, 1),
       pg_temp.id_at(:now - interval '60 days', n, 0), 1,
       CASE WHEN n %% 10 IN (0, 3) THEN 'agentcore' ELSE 'cloudflare' END,
       md5('desk') || md5('seed'), '{}',
       CASE WHEN n %% 10 = 0 THEN ARRAY['memory', 'codeInterpreter', 'browser'] WHEN n %% 10 = 3 THEN ARRAY['memory']
            ELSE ARRAY[]::text[] END,
       60, 'seed', :now - interval '50 days', 'active', '', '{}', '', '', :now
  FROM generate_series(1, %(accounts)s) n
""",
    ),
    (
        "pointers",
        """
UPDATE runtimes_agent a SET active_deployment_id = d.id FROM runtimes_deployment d
 WHERE d.agent_id = a.id AND a.active_deployment_id IS NULL AND d.root_key_id = 'seed'
""",
    ),
    (
        "admissions",
        """
INSERT INTO entitlements_admission (id, account_id, agent_id, deployment_id, runtime, source, period, tier,
    tier_version, admitted_at, expires_at, settled_at, outcome, error_class, latency_ms, trace_id, limit_requests,
    limit_tokens, limit_compute_ms, limit_tool_calls, limit_code_ms, limit_browser_sessions, limit_in_flight,
    limit_minute, then_requests, then_tokens, then_compute_ms, then_tool_calls, then_code_ms, then_browser_sessions,
    then_in_flight, then_minute, charged_requests, charged_tokens, charged_compute_ms)
SELECT pg_temp.id_at(at, n, k), pg_temp.id_at(:now - interval '60 days', n, 0),
       pg_temp.id_at(:now - interval '50 days', n, 1), pg_temp.id_at(:now - interval '50 days', n, 2),
       CASE WHEN n %% 10 IN (0, 3) THEN 'agentcore' ELSE 'cloudflare' END, 'gateway', period, 'seed', 1,
       at, at + interval '90 s', at + interval '1 s', CASE WHEN k %% 50 = 0 THEN 'failed' ELSE 'succeeded' END,
       CASE WHEN k %% 50 = 0 THEN 'AgentError' END, 800, 'trc_' || md5(n || '-' || k), 10000000, NULL, NULL,
       NULL, NULL, NULL, 1000, 6000,
       j, (j - 1) * 400, (j - 1) * 900, 0, 0, 0, 1, 1, 1, 400, 900
  FROM (SELECT n, k, at, (date_trunc('month', at AT TIME ZONE 'UTC'))::date AS period,
               row_number() OVER (PARTITION BY n, date_trunc('month', at AT TIME ZONE 'UTC') ORDER BY k) AS j
          FROM (SELECT n, k, date_trunc('milliseconds', :now - interval '30 days' * (1 - (k - 0.5) / calls)) AS at
                  FROM (SELECT n, CASE WHEN n %% 100 = 0 THEN greatest(%(each)s * 50, 1)
                                       ELSE greatest(%(each)s / 2, 1) END AS calls
                          FROM generate_series(1, %(accounts)s) n) people
                 CROSS JOIN LATERAL generate_series(1, calls) k) calls) numbered
""",
    ),
    (
        "counters",
        """
INSERT INTO entitlements_periodcounter (account_id, period, used_requests, used_tokens, used_compute_ms)
SELECT account_id, period, count(*), sum(charged_tokens), sum(charged_compute_ms)
  FROM entitlements_admission WHERE tier = 'seed' GROUP BY 1, 2
""",
    ),
    (
        "denials",
        """
INSERT INTO entitlements_denial (account_id, limit_type, period, minute, count, agent_id, trace_id)
SELECT pg_temp.id_at(:now - interval '60 days', n, 0), (ARRAY['requests', 'tokens', 'runtimeGated'])[1 + n %% 3],
       (date_trunc('month', minute AT TIME ZONE 'UTC'))::date, minute, 1 + n %% 7,
       pg_temp.id_at(:now - interval '50 days', n, 1), 'trc_' || md5('d' || n || '-' || k)
  FROM (SELECT n, k, date_trunc('minute', :now - interval '1 day' * k) AS minute
          FROM generate_series(1, %(accounts)s, 5) n CROSS JOIN generate_series(1, 10) k) d
""",
    ),
)


def seed(accounts: int, admissions: int, say: Say) -> None:
    """Add accounts with about so many admissions of the last thirty days, and all that goes with them."""
    parameters = {"accounts": accounts, "each": admissions // accounts, "now": datetime.now(UTC)}
    with connection.cursor() as cursor:
        cursor.execute(_ID)
        for what, statement in _STEPS:
            began = time.monotonic()
            cursor.execute(statement.replace(":now", "%(now)s::timestamptz"), parameters)
            say(f"{cursor.rowcount:,} {what} in {time.monotonic() - began:.0f} s")
        cursor.execute("VACUUM ANALYZE")
