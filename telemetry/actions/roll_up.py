"""Take the ledger's journal into hours. Each line exactly once; the work grows with new lines only."""

from __future__ import annotations

from typing import Final

from telemetry.rules import LATENCY_BOUNDS
from webhost import db

_BATCH: Final = 5000
_ONE_AT_A_TIME: Final = 0x77_68_73_02  # advisory lock: "whs", 2
# Error classes are named by user code, without end; an hour keeps this many and sums the rest.
MOST_CLASSES: Final = 32
OTHER: Final = "other"

_MEASURES = ("requests", "tokens", "compute_ms", "tool_calls", "code_ms", "browser_sessions")
_SUMMED = (*_MEASURES, "errors")
BUCKETS: Final = ", ".join(
    f"count(*) FILTER (WHERE latency_ms > {low} AND latency_ms <= {high})"
    if high is not None
    else f"count(*) FILTER (WHERE latency_ms > {low})"
    for low, high in zip((-1, *LATENCY_BOUNDS), (*LATENCY_BOUNDS, None), strict=True)
)
"""SQL: a column for each latency bucket, from rows with a `latency_ms`."""


def _merged_classes(*sources: str) -> str:
    """Return SQL that adds up objects of counts by name, and keeps the most frequent."""
    each = " UNION ALL ".join(f"SELECT key, value::bigint FROM jsonb_each_text({s})" for s in sources)  # noqa: S608
    return f"""(
        SELECT coalesce(jsonb_object_agg(key, n), '{{}}') FROM (
            SELECT CASE WHEN place <= {MOST_CLASSES} THEN key ELSE '{OTHER}' END AS key, sum(n) AS n FROM (
                SELECT key, sum(value) AS n, row_number() OVER (ORDER BY key = '{OTHER}' DESC, sum(value) DESC, key)
                       AS place
                  FROM ({each}) e GROUP BY key) ranked
             GROUP BY 1) kept)"""  # noqa: S608 - composed of constants


# One statement: lines and hours change together or not at all. Hours in the order of their key, so that
# two of these could not deadlock either. Whose use moved is noted for watch_budgets.
_ROLL_UP = f"""
WITH taken AS (
    DELETE FROM entitlements_movement
     WHERE id IN (SELECT id FROM entitlements_movement ORDER BY id LIMIT %(batch)s FOR UPDATE SKIP LOCKED)
    RETURNING *
), classes AS (
    SELECT account_id, hour, deployment_id, jsonb_object_agg(error_class, n) AS errors_by_class FROM (
        SELECT account_id, hour, deployment_id, error_class, sum(errors) AS n FROM taken
         WHERE errors > 0 GROUP BY 1, 2, 3, 4) c
     GROUP BY 1, 2, 3
), sums AS (
    SELECT account_id, hour, deployment_id, min(agent_id::text)::uuid AS agent_id, min(runtime) AS runtime,
           {", ".join(f"sum({m})::bigint AS {m}" for m in _SUMMED)}, ARRAY[{BUCKETS}]::bigint[] AS latency_buckets
      FROM taken GROUP BY 1, 2, 3
), written AS (
    INSERT INTO telemetry_usagehour AS h (account_id, hour, deployment_id, agent_id, runtime, {", ".join(_SUMMED)},
                                          latency_buckets, errors_by_class)
    SELECT account_id, hour, deployment_id, agent_id, runtime, {", ".join(_SUMMED)}, latency_buckets,
           {_merged_classes("coalesce(c.errors_by_class, '{}')")}
      FROM sums s LEFT JOIN classes c USING (account_id, hour, deployment_id)
     ORDER BY account_id, hour, deployment_id
    ON CONFLICT (account_id, hour, deployment_id) DO UPDATE SET
        {", ".join(f"{m} = h.{m} + excluded.{m}" for m in _SUMMED)},
        errors_by_class = {_merged_classes("h.errors_by_class", "excluded.errors_by_class")},
        latency_buckets = (SELECT array_agg(coalesce(a, 0) + coalesce(b, 0) ORDER BY place)
                             FROM unnest(h.latency_buckets, excluded.latency_buckets) WITH ORDINALITY AS u(a, b, place))
), due AS (
    INSERT INTO telemetry_alertdue (account_id) SELECT DISTINCT account_id FROM taken ORDER BY 1
    ON CONFLICT DO NOTHING
)
SELECT count(*) AS taken FROM taken
"""  # noqa: S608 - composed of constants


def roll_up() -> int:
    """Take everything that is journalled into the hours; return how many lines were taken.

    A repeat finds nothing left to take. One process at a time does; another one returns at once.
    """
    total = 0
    while True:
        with db.hot_connection() as connection, connection.transaction():
            row = connection.execute("SELECT pg_try_advisory_xact_lock(%s) AS mine", [_ONE_AT_A_TIME]).fetchone()
            if not (row and row["mine"]):
                return total
            taken = connection.execute(_ROLL_UP, {"batch": _BATCH}).fetchone()
        count = taken["taken"] if taken else 0
        total += count
        if count < _BATCH:
            return total
