"""Delete what is past its account's retention, in small batches, and leave what proves the totals."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

from django.utils import timezone

from entitlements.rules import Key
from telemetry.actions.usage import RETENTION_ACTOR
from telemetry.rules import KNOWN_FOR, core_goes_before
from webhost import db
from webhost.period import period_of

_BATCH: Final = 1000
_ACCOUNTS: Final = 500
_DOWNGRADE: Final = timedelta(days=30)
# What no longer belongs to an account's month: repeats and refusals, and what was parked for an operator.
_PARKED_FOR: Final = timedelta(days=90)
_UNCONFIRMED_FOR: Final = timedelta(days=7)
_FIRST = UUID(int=0)

# The longest retention that was in force at any time in the last 30 days, from the history that triggers
# write: a row's state counts from its last event before those days on. An override that covered all of
# them speaks alone; a shorter one beside the tiers.
_DAYS = f"""
WITH clock AS (SELECT %(since)s::timestamptz AS since, %(at)s::timestamptz AS at
), tier AS (
    SELECT e.pgh_obj_id AS id, max(e.telemetry_retention_days) AS telemetry, max(e.logs_retention_days) AS logs
      FROM entitlements_tierevent e, clock
     WHERE e.pgh_created_at >= coalesce((SELECT max(b.pgh_created_at) FROM entitlements_tierevent b
                                          WHERE b.pgh_obj_id = e.pgh_obj_id AND b.pgh_created_at < since), '-infinity')
     GROUP BY 1
), account AS (
    SELECT id FROM entitlements_account WHERE id > %(after)s ORDER BY id LIMIT %(batch)s
), state AS (
    SELECT a.id, e.billing_tier_id, e.billing_tier_until, e.support_tier_id, e.support_tier_until
      FROM account a JOIN entitlements_accountevent e ON e.pgh_obj_id = a.id, clock
     WHERE e.pgh_created_at >= coalesce((SELECT max(b.pgh_created_at) FROM entitlements_accountevent b
                                          WHERE b.pgh_obj_id = a.id AND b.pgh_created_at < since), '-infinity')
    UNION
    SELECT x.id, x.billing_tier_id, x.billing_tier_until, x.support_tier_id, x.support_tier_until
      FROM account a JOIN entitlements_account x ON x.id = a.id
), held AS (
    SELECT id, support_tier_id AS tier_id FROM state, clock
     WHERE support_tier_id IS NOT NULL AND (support_tier_until IS NULL OR support_tier_until > since)
    UNION
    SELECT id, billing_tier_id FROM state, clock
     WHERE billing_tier_id IS NOT NULL AND (billing_tier_until IS NULL OR billing_tier_until > since)
    UNION
    SELECT s.id, t.id FROM state s JOIN entitlements_tier t ON t.is_default, clock
     WHERE (support_tier_id IS NULL OR support_tier_until <= at)
       AND (billing_tier_id IS NULL OR billing_tier_until <= at)
), tiers AS (
    SELECT h.id, max(greatest(t.telemetry, n.telemetry_retention_days)) AS telemetry,
           max(greatest(t.logs, n.logs_retention_days)) AS logs
      FROM held h JOIN entitlements_tier n ON n.id = h.tier_id LEFT JOIN tier t ON t.id = h.tier_id GROUP BY 1
), override AS (
    SELECT a.id, o.key, max(o.value) AS days, bool_or(o.covers) AS covers
      FROM account a CROSS JOIN clock CROSS JOIN LATERAL (
           SELECT key, value, created_at <= since AND (ends_at IS NULL OR ends_at > at) AS covers
             FROM entitlements_override
            WHERE account_id = a.id AND (ends_at IS NULL OR ends_at > since)
           UNION ALL
           SELECT key, value, false FROM entitlements_overrideevent e
            WHERE e.account_id = a.id AND e.pgh_created_at >= since AND (ends_at IS NULL OR ends_at > since)) o
     WHERE o.key IN ('{Key.TELEMETRY_DAYS}', '{Key.LOGS_DAYS}') GROUP BY 1, 2
)
SELECT a.id AS account_id,
       CASE WHEN ot.covers THEN ot.days ELSE greatest(t.telemetry, ot.days) END::int AS telemetry_days,
       CASE WHEN ol.covers THEN ol.days ELSE greatest(t.logs, ol.days) END::int AS logs_days
  FROM account a LEFT JOIN tiers t ON t.id = a.id
  LEFT JOIN override ot ON ot.id = a.id AND ot.key = '{Key.TELEMETRY_DAYS}'
  LEFT JOIN override ol ON ol.id = a.id AND ol.key = '{Key.LOGS_DAYS}'
 ORDER BY a.id
"""  # noqa: S608 - composed of constants

_AGENT_LOGS = """
DELETE FROM runtimes_agentlogline WHERE id IN (
    SELECT id FROM runtimes_agentlogline WHERE account_id = %(account)s AND at < %(logs)s LIMIT %(batch)s)
RETURNING id
"""
_DEPLOYMENT_LOGS = """
DELETE FROM runtimes_deploymentlogline WHERE id IN (
    SELECT l.id FROM runtimes_agent a JOIN runtimes_deployment d ON d.agent_id = a.id
      JOIN runtimes_deploymentlogline l ON l.deployment_id = d.id
     WHERE a.account_id = %(account)s AND l.at < %(logs)s LIMIT %(batch)s)
RETURNING id
"""
# What an account sees of one invocation; the core that adds up to its bill stays. Error classes are part of
# the hours, and name no content.
_DETAILS = """
UPDATE entitlements_admission SET trace_id = '', session_id = '' WHERE id IN (
    SELECT id FROM entitlements_admission
     WHERE account_id = %(account)s AND period <= %(detail_period)s AND admitted_at < %(details)s
       AND outcome <> 'open' AND (trace_id <> '' OR session_id <> '') LIMIT %(batch)s)
RETURNING id
"""
_DENIALS = """
DELETE FROM entitlements_denial WHERE id IN (
    SELECT id FROM entitlements_denial WHERE account_id = %(account)s AND minute < %(details)s LIMIT %(batch)s)
RETURNING id
"""
# On AgentCore none lives for longer than eight hours; on Cloudflare what one keeps goes by itself.
_SESSIONS = """
DELETE FROM runtimes_agentsession WHERE id IN (
    SELECT s.id FROM runtimes_agent a JOIN runtimes_agentsession s ON s.agent_id = a.id
     WHERE a.account_id = %(account)s AND s.last_used_at < %(details)s LIMIT %(batch)s)
RETURNING id
"""
# Never of a month that goes on: what has fired in it would fire again.
_ALERTS = """
WITH gone AS (
    DELETE FROM telemetry_alertevent WHERE id IN (
        SELECT id FROM telemetry_alertevent
         WHERE account_id = %(account)s AND fired_at < %(details)s AND period < %(this_period)s LIMIT %(batch)s)
    RETURNING id
), deliveries AS (
    DELETE FROM telemetry_alertdelivery WHERE event_id IN (SELECT id FROM gone)
)
SELECT id FROM gone
"""
# Addresses that did not agree while their link was valid; and what an account left that is gone.
_TARGETS = """
DELETE FROM telemetry_alerttarget t
 WHERE t.confirmed_at IS NULL AND t.enabled AND t.id <> t.account_id AND t.created_at < %(unconfirmed)s
    OR NOT EXISTS (SELECT FROM entitlements_account a WHERE a.id = t.account_id)
RETURNING id
"""
# The core of a month that a signed statement stands for. Its sums are carried by a line beside the ledger's
# adjustments, so that the counter still equals what is there (ledger.md, invariants); the counter is not moved.
_CORE = """
WITH gone AS (
    DELETE FROM entitlements_admission WHERE id IN (
        SELECT a.id FROM entitlements_admission a
         WHERE a.account_id = %(account)s AND a.period < %(core)s AND a.outcome <> 'open'
           AND EXISTS (SELECT FROM telemetry_usagestatement s
                        WHERE s.account_id = a.account_id AND s.period = a.period)
         ORDER BY a.period, a.id LIMIT %(batch)s)
    RETURNING *
), reports AS (
    DELETE FROM telemetry_report WHERE invocation_id IN (SELECT id FROM gone)
), tools AS (
    DELETE FROM runtimes_tooluse WHERE invocation_id IN (SELECT id FROM gone)
), carried AS (
    INSERT INTO entitlements_adjustment (account_id, period, requests, tokens, compute_ms, tool_calls, code_ms,
                                         browser_sessions, actor, reason, created_at)
    SELECT account_id, period, sum(charged_requests), sum(charged_tokens), sum(charged_compute_ms),
           sum(charged_tool_calls), sum(charged_code_ms), sum(charged_browser_sessions), %(actor)s,
           'Carried: ' || count(*) || ' admissions whose signed statement stands for them.', now()
      FROM gone GROUP BY 1, 2
)
SELECT id FROM gone
"""
_OTHER_REPORTS = """
WITH page AS (
    SELECT id, status, received_at FROM telemetry_report WHERE id > %(after)s AND received_at < %(old)s
     ORDER BY id LIMIT %(batch)s
), gone AS (
    DELETE FROM telemetry_report r USING page
     WHERE r.id = page.id AND (r.status IN ('duplicate', 'rejected')
                               OR r.status = 'parked' AND r.received_at < %(parked)s)
    RETURNING r.id
)
SELECT (SELECT max(id) FROM page) AS last, (SELECT count(*) FROM gone) AS gone
"""
_DELIVERIES = """
WITH page AS (
    SELECT id FROM telemetry_delivery WHERE id > %(after)s AND received_at < %(old)s ORDER BY id LIMIT %(batch)s
), gone AS (
    DELETE FROM telemetry_delivery d USING page
     WHERE d.id = page.id AND NOT EXISTS (SELECT FROM telemetry_report r WHERE r.delivery_id = d.id)
    RETURNING d.id
)
SELECT (SELECT max(id) FROM page) AS last, (SELECT count(*) FROM gone) AS gone
"""


def apply_retention(*, at: datetime | None = None) -> int:
    """Delete logs and details past each account's retention, and the core of months that are stated.

    Core goes when its month is stated, 35 days are over and the account's retention is too; counters, hours
    and statements stay. A downgrade shortens retention after 30 days. Returns how many rows were touched.
    """
    now = at or timezone.now()
    total = sum(_forget(row, now) for row in _retentions(now))
    swept = {"old": now - KNOWN_FOR, "parked": now - _PARKED_FOR}
    total += len(db.run_noted(_TARGETS, {"unconfirmed": now - _UNCONFIRMED_FOR}))
    return total + _sweep(_OTHER_REPORTS, swept) + _sweep(_DELIVERIES, swept)


def retention_days_of(account_id: UUID, *, at: datetime | None = None) -> tuple[int, int]:
    """Return an account's days for telemetry and for logs: the longest in force in the last 30 days."""
    now = at or timezone.now()
    before = UUID(int=account_id.int - 1)
    (row,) = db.run(_DAYS, {"at": now, "since": now - _DOWNGRADE, "after": before, "batch": 1})
    return row["telemetry_days"], row["logs_days"]


def _retentions(now: datetime) -> Iterator[Mapping[str, Any]]:
    after = _FIRST
    while rows := db.run(_DAYS, {"at": now, "since": now - _DOWNGRADE, "after": after, "batch": _ACCOUNTS}):
        yield from rows
        after = rows[-1]["account_id"]


def _forget(row: Mapping[str, Any], now: datetime) -> int:
    details = now - timedelta(days=row["telemetry_days"])
    parameters = {
        "account": row["account_id"], "logs": now - timedelta(days=row["logs_days"]), "details": details,
        "detail_period": period_of(details), "core": core_goes_before(row["telemetry_days"], now),
        "actor": RETENTION_ACTOR, "batch": _BATCH, "this_period": period_of(now),
    }  # fmt: skip
    statements = (_AGENT_LOGS, _DEPLOYMENT_LOGS, _DETAILS, _DENIALS, _SESSIONS, _ALERTS, _CORE)
    return sum(_repeat(statement, parameters) for statement in statements)


def _repeat(statement: str, parameters: Mapping[str, Any]) -> int:
    total = 0
    while touched := len(db.run_noted(statement, dict(parameters))):
        total += touched
        if touched < _BATCH:
            break
    return total


def _sweep(statement: str, parameters: Mapping[str, Any]) -> int:
    total, after = 0, 0
    while True:
        (row,) = db.run(statement, {**parameters, "after": after, "batch": _BATCH})
        total += int(row["gone"])
        if row["last"] is None:
            return total
        after = row["last"]
