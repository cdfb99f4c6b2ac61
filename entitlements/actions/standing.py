"""Read, fresh and at once, what an account may do and how much of it is used."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any
from uuid import UUID

from entitlements import rules
from entitlements.enums import LimitType
from webhost import db
from webhost.errors import NotFoundError
from webhost.period import period_of

_READ = """
SELECT a.is_active, a.disabled_reason, m.at, t.tier_id,
       CASE WHEN t.tier_id = a.support_tier_id AND t.how = 'support' THEN a.support_tier_until
            WHEN t.how = 'billing' THEN a.billing_tier_until END AS tier_until,
       t.how AS tier_source, a.support_tier_reason,
       (SELECT jsonb_agg(to_jsonb(x) ORDER BY x.rank) FROM entitlements_tier x
         WHERE x.id = t.tier_id OR x.is_public AND x.retired_at IS NULL) AS tiers,
       (SELECT jsonb_agg(jsonb_build_object('id', o.id, 'key', o.key, 'value', o.value) ORDER BY o.id)
          FROM entitlements_override o
         WHERE o.account_id = a.id AND (o.ends_at IS NULL OR o.ends_at > m.at)) AS overrides,
       to_jsonb(c) AS counter,
       coalesce((SELECT p.in_flight FROM entitlements_periodcounter p
                  WHERE p.account_id = a.id
                    AND p.period = ((date_trunc('month', m.at AT TIME ZONE 'UTC')) - interval '1 month')::date), 0)
           AS carried,
       date_trunc('minute', m.at) AS minute
  FROM (SELECT coalesce(%(at)s::timestamptz, now()) AS at) m
  JOIN entitlements_account a ON a.id = %(account)s::uuid
 CROSS JOIN LATERAL (
    SELECT a.support_tier_id AS tier_id, 'support' AS how, 1 AS rank
     WHERE a.support_tier_id IS NOT NULL AND (a.support_tier_until IS NULL OR a.support_tier_until > m.at)
    UNION ALL
    SELECT a.billing_tier_id, 'billing', 2
     WHERE a.billing_tier_id IS NOT NULL AND (a.billing_tier_until IS NULL OR a.billing_tier_until > m.at)
    UNION ALL
    SELECT id, 'default', 3 FROM entitlements_tier WHERE is_default
    ORDER BY rank LIMIT 1) t
  LEFT JOIN entitlements_periodcounter c
    ON c.account_id = a.id AND c.period = coalesce(%(period)s::date, date_trunc('month', m.at AT TIME ZONE 'UTC')::date)
"""


@dataclass(frozen=True)
class AccountStanding:
    """One consistent look at an account: its entitlements now, and a period's counter."""

    account_id: UUID
    at: datetime
    period: date
    is_active: bool
    disabled_reason: str
    tier: rules.TierValues
    tier_source: str
    tier_until: datetime | None
    support_reason: str
    offered: Sequence[rules.TierValues]
    overrides: Sequence[rules.OverrideValue]
    entitlements: rules.Entitlements
    standing: rules.Standing


def tier_values(row: Mapping[str, Any]) -> rules.TierValues:
    """Read a tier's row, as the database writes it in JSON, into the value that the rules decide on."""
    limits: dict[rules.Key, int | None] = {}
    flags: dict[rules.Key, bool] = {}
    retention: dict[rules.Key, int] = {}
    for column, key in rules.KEY_OF_FIELD.items():
        if key in rules.FLAGS:
            flags[key] = row[column]
        elif key in rules.RETENTION:
            retention[key] = row[column]
        else:
            limits[key] = row[column]
    return rules.TierValues(row["slug"], row["name"], row["rank"], row["version"], limits, flags, retention)


def standing_of(counter: Mapping[str, Any] | None, carried: int = 0, this_minute: int = 0) -> rules.Standing:
    """Read a counter's row into what the rules compare; code execution in seconds, rounded up."""
    row = counter or {}
    columns = {
        LimitType.REQUESTS: "requests",
        LimitType.TOKENS: "tokens",
        LimitType.COMPUTE_MS: "compute_ms",
        LimitType.TOOL_CALLS: "tool_calls",
        LimitType.BROWSER_SESSIONS: "browser_sessions",
    }
    used = {measure: int(row.get(f"used_{name}") or 0) for measure, name in columns.items()}
    held = {measure: int(row.get(f"held_{name}") or 0) for measure, name in columns.items()}
    used_ms, held_ms = int(row.get("used_code_ms") or 0), int(row.get("held_code_ms") or 0)
    used[LimitType.CODE_EXECUTION_SECONDS] = -(-used_ms // 1000)
    # Held is what is left of the sum, so that used + held is rounded up once.
    held[LimitType.CODE_EXECUTION_SECONDS] = -(-(used_ms + held_ms) // 1000) - used[LimitType.CODE_EXECUTION_SECONDS]
    return rules.Standing(used, held, int(row.get("in_flight") or 0) + carried, this_minute, used_ms + held_ms)


def read_standing(account_id: UUID, *, at: datetime | None = None, period: date | None = None) -> AccountStanding:
    """Read an account's tier, overrides and counter in one statement. Raises NotFoundError."""
    rows = db.run(_READ, {"account": account_id, "at": at, "period": period})
    if not rows:
        raise NotFoundError
    row = rows[0]
    tiers = {t["id"]: tier_values(t) for t in row["tiers"]}
    tier = tiers[row["tier_id"]]
    offered = [tiers[t["id"]] for t in row["tiers"] if t["is_public"] and t["retired_at"] is None]
    overrides = [rules.OverrideValue(o["id"], rules.Key(o["key"]), o["value"]) for o in row["overrides"] or []]
    counter = row["counter"]
    minute = counter and counter["minute"] and datetime.fromisoformat(counter["minute"])
    this_minute = counter["minute_requests"] if minute and minute >= row["minute"] else 0
    return AccountStanding(
        account_id=account_id,
        at=row["at"],
        period=period or period_of(row["at"]),
        is_active=row["is_active"],
        disabled_reason=row["disabled_reason"],
        tier=tier,
        tier_source=row["tier_source"],
        tier_until=row["tier_until"],
        support_reason=row["support_tier_reason"],
        offered=offered,
        overrides=overrides,
        entitlements=rules.entitlements_of(tier, overrides, row["at"]),
        standing=standing_of(counter, row["carried"], this_minute),
    )
