"""What a change of tiers would do, before it is made: computed in SQL from the books, changing nothing.

Two questions, for the accounts that a draft would apply to. Whom would it refuse at once? What of the last thirty days
would it have refused? The second is a replay of receipts: each keeps what was used, held and running just after it was
admitted, so each is judged again as the ledger judged it, with the draft in place of the tier (docs/adr/0022). A limit
that counts what was used alone refuses from some call on and all later ones of the month or minute, so that this is
exactly what would have happened. Where calls hold estimates or run beside others, a refused one would have left room
for the next: there the replay is the most that it can have been.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

from django.db import OperationalError, connection, transaction
from django.db.models import QuerySet
from psycopg.errors import QueryCanceled

from entitlements import rules
from entitlements.enums import LimitType, Outcome, Runtime, Source
from entitlements.models.tiers import FLAG_FIELDS, LIMIT_FIELDS
from webhost.period import period_of, previous_period

REPLAYED: Final = timedelta(days=30)
MOST_NAMED: Final = 20
# The whole preview ends within this; what is missing then is said to be missing.
_MOST_SECONDS: Final = 10
_MANY: Final = 2_000  # accounts of which each is rather found while all receipts are read
DRAFT, NOW = "d", "n"

# Each limit of an invocation: the tier's column, factor to the ledger's unit, and the name in counters and receipts.
_LIMITS: Final[Mapping[LimitType, tuple[str, int, str]]] = {
    LimitType.REQUESTS: ("max_requests_per_period", 1, "requests"),
    LimitType.TOKENS: ("max_tokens_per_period", 1, "tokens"),
    LimitType.COMPUTE_MS: ("max_compute_ms_per_period", 1, "compute_ms"),
    LimitType.TOOL_CALLS: ("max_tool_calls_per_period", 1, "tool_calls"),
    LimitType.CODE_EXECUTION_SECONDS: ("max_code_execution_seconds_per_period", 1000, "code_ms"),
    LimitType.BROWSER_SESSIONS: ("max_browser_sessions_per_period", 1, "browser_sessions"),
    LimitType.CONCURRENCY: ("max_concurrent_invocations", 1, "in_flight"),
    LimitType.REQUESTS_PER_MINUTE: ("requests_per_minute", 1, "minute"),
}
INVOCATION_LIMITS: Final = tuple(_LIMITS)
# With nothing held of its own, one call still needs at least 1 of a measure (ledger.md, admit).
_HOLDING: Final = frozenset({
    LimitType.TOKENS, LimitType.COMPUTE_MS, LimitType.TOOL_CALLS, LimitType.CODE_EXECUTION_SECONDS,
    LimitType.BROWSER_SESSIONS,
})  # fmt: skip


@dataclass(frozen=True)
class LimitImpact:
    """One limit: accounts that it stops, and calls that it would have refused; under the draft, and as it is now."""

    limit_type: LimitType
    full_then: int
    full_now: int
    refused_then: int
    refused_now: int


@dataclass(frozen=True)
class Stopped:
    """An account that would be refused at once, and is not now."""

    account_id: UUID
    email: str
    limits: Sequence[LimitType]


@dataclass(frozen=True)
class Replay:
    """The calls of the last thirty days, judged again."""

    since: datetime
    calls: int
    refused_then: int
    refused_now: int
    accounts_hit: int
    without_tools: int


@dataclass(frozen=True)
class Impact:
    """What a draft would do. `replay` is None where it took too long to be worth waiting for."""

    at: datetime
    accounts: int
    set_by: Mapping[str, int]
    newly_stopped: int
    stopped: Sequence[Stopped]
    limits: Sequence[LimitImpact]
    replay: Replay | None


@dataclass(frozen=True)
class Draft:
    """Values of a tier that are not in force, and the accounts that they would be in force for.

    `accounts` are annotated as `with_tier_in_force` does, so that each is compared with what it has now. `before` are
    the values that all of them have now, where that is one tier's: what is the same in both is looked at once.
    """

    values: Mapping[str, Any]
    accounts: QuerySet[Any]
    at: datetime
    before: Mapping[str, Any] | None = None

    def changes(self, limit: LimitType) -> bool:
        """Say whether a limit of invocations, or whether it speaks at all, may be another than now."""
        fields = {_LIMITS[limit][0], *(FLAG_FIELDS if limit in _ALLOWED else ())}
        return self.before is None or any(self.before[field] != self.values[field] for field in fields)

    @property
    def changes_gate(self) -> bool:
        """Say whether AgentCore may be open now and closed then, or the other way round."""
        return self.before is None or self.before["agentcore_enabled"] != self.values["agentcore_enabled"]

    def limits(self, limit: LimitType, overridden: AbstractSet[str]) -> bool:
        """Say whether a limit is a number for anybody, under the draft or now."""
        field = _LIMITS[limit][0]
        known = self.before is not None and self.before[field] is None and self.values[field] is None
        return not known or rules.KEY_OF_FIELD[field].value in overridden


@dataclass(frozen=True)
class Example:
    """One of those that a loss is about: its name, whose it is, and the admin page that shows it."""

    name: str
    email: str
    page: str
    pk: UUID


@dataclass(frozen=True)
class Loss:
    """Something that accounts have and the draft does not cover, in words; how many of them there are now already."""

    what: str
    then: int
    now: int
    accounts: int
    examples: Sequence[Example] = ()


# What the apps above know of: agents, deployments. Each is called with the draft, within `one_look`.
LOOKS: Final[list[Callable[[Draft], Sequence[Loss]]]] = []


@contextmanager
def one_look() -> Iterator[None]:
    """Read from one snapshot, for no longer than somebody waits for a page."""
    outermost = not connection.in_atomic_block
    with transaction.atomic(), connection.cursor() as cursor:
        if outermost:
            cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        cursor.execute(f"SET LOCAL statement_timeout = '{_MOST_SECONDS}s'")
        cursor.execute("SET LOCAL jit = off")
        yield


def effective(draft: Draft) -> tuple[str, dict[str, Any]]:
    """Return a query, and its parameters, of what each account may do under a draft (`d_`) and now (`n_`).

    A row per account: account_id, set_by, every limit under its tier's column name, and the switches `agentcore`,
    `memory`, `code`, `browser`, each off where what it needs is missing (rules.entitlements_of says the same).
    """
    accounts, given = draft.accounts.order_by().values("pk", "tier_in_force_id", "tier_set_by").query.sql_with_params()
    # Composed by the driver, so that it can stand within a query of named parameters.
    chosen = connection.ops.compose_sql(accounts, given).replace("%", "%%")  # type: ignore[attr-defined]  # PostgreSQL's
    columns = [
        f"{_overridden(field, of)} AS {prefix}_{field}"
        for prefix, of in ((DRAFT, "%(draft_{})s"), (NOW, "t.{}"))
        for field in (*LIMIT_FIELDS, *FLAG_FIELDS)
    ]
    switches = [switch for prefix in (DRAFT, NOW) for switch in _switches(prefix)]
    query = f"""
        SELECT e.*, {", ".join(switches)}
          FROM (SELECT a.id AS account_id, a.tier_set_by AS set_by, {", ".join(columns)}
                  FROM ({chosen}) a (id, tier_in_force_id, tier_set_by)
                  JOIN entitlements_tier t ON t.id = a.tier_in_force_id
                  LEFT JOIN (SELECT account_id, jsonb_object_agg(key, value ORDER BY id) AS v
                               FROM entitlements_override WHERE ends_at IS NULL OR ends_at > %(at)s
                              GROUP BY account_id) o ON o.account_id = a.id) e
    """  # noqa: S608 - of our own column names; values are parameters
    parameters = {f"draft_{field}": draft.values[field] for field in (*LIMIT_FIELDS, *FLAG_FIELDS)}
    return query, parameters | {"at": draft.at}


def _overridden(field: str, of: str) -> str:
    """Return what an account has of a field: its newest live override, else its tier's."""
    key = rules.KEY_OF_FIELD[field]
    tier = of.format(field)
    if key in rules.FLAGS:
        return f"coalesce((o.v ->> '{key}')::int = 1, {tier}::boolean)"
    return f"CASE WHEN o.v ? '{key}' THEN (o.v ->> '{key}')::bigint ELSE {tier}::bigint END"


def _switches(p: str) -> list[str]:
    tools = f"e.{p}_agentcore_enabled AND coalesce(e.{p}_max_tool_calls_per_period, 0) > 0"
    seconds = f"coalesce(e.{p}_max_code_execution_seconds_per_period, 0)"
    return [
        f"e.{p}_agentcore_enabled AS {p}_agentcore",
        f"e.{p}_agentcore_enabled AND e.{p}_memory_enabled AS {p}_memory",
        f"e.{p}_code_interpreter_enabled AND {tools} AND {seconds} > 0 AS {p}_code",
        f"e.{p}_browser_enabled AND {tools} AND coalesce(e.{p}_max_browser_sessions_per_period, 0) > 0 AS {p}_browser",
    ]


def look_at(draft: Draft) -> Impact:
    """Return what a draft would do to the accounts that it would apply to; call it within `one_look`."""
    standing = _standing(draft)
    counts = _replay(draft, standing["accounts"])
    return Impact(
        at=draft.at,
        accounts=standing["accounts"],
        set_by=json.loads(standing["set_by"] or "{}"),
        newly_stopped=standing["newly"],
        stopped=_stopped(draft) if standing["newly"] else [],
        limits=[
            LimitImpact(
                limit, standing[f"d_{name}"], standing[f"n_{name}"], (counts or {}).get(f"d_{name}", 0),
                (counts or {}).get(f"n_{name}", 0),
            )
            for limit, (_, _, name) in _LIMITS.items()
        ],
        replay=None
        if counts is None
        else Replay(
            draft.at - REPLAYED, counts["calls"], counts["d_any"], counts["n_any"], counts["accounts_hit"],
            counts["without_tools"],
        ),
    )  # fmt: skip


def _limit(p: str, limit: LimitType) -> str:
    column, factor, _ = _LIMITS[limit]
    return f"e.{p}_{column}" if factor == 1 else f"e.{p}_{column} * {factor}"


# A tool's quota speaks only where that tool may be used (rules.refusals_of).
_ALLOWED: Final[Mapping[LimitType, str]] = {
    LimitType.TOOL_CALLS: "(e.{p}_code OR e.{p}_browser)",
    LimitType.CODE_EXECUTION_SECONDS: "e.{p}_code",
    LimitType.BROWSER_SESSIONS: "e.{p}_browser",
}


def _full(p: str, limit: LimitType) -> str:
    """Say in SQL that the next call of an account, holding nothing, would be refused by a limit."""
    name = _LIMITS[limit][2]
    taken = {
        LimitType.REQUESTS: "coalesce(c.used_requests, 0)",
        LimitType.CONCURRENCY: "coalesce(c.in_flight, 0) + coalesce(b.in_flight, 0)",
        LimitType.REQUESTS_PER_MINUTE: "CASE WHEN c.minute >= date_trunc('minute', %(at)s::timestamptz)"
        " THEN c.minute_requests ELSE 0 END",
    }.get(limit, f"coalesce(c.used_{name} + c.held_{name}, 0)")
    allowed = _ALLOWED.get(limit, "true").format(p=p)
    return f"coalesce({allowed} AND {taken} + 1 > {_limit(p, limit)}, false)"


def _standing_query(draft: Draft) -> tuple[str, dict[str, Any]]:
    """Return a query of each account and which limits are full for it, under the draft and now."""
    accounts, parameters = effective(draft)
    full = [f"{_full(p, limit)} AS {p}_{name}" for p in (DRAFT, NOW) for limit, (_, _, name) in _LIMITS.items()]
    period = period_of(draft.at)
    query = f"""
        SELECT e.account_id, e.set_by, coalesce(c.used_requests, 0) AS used_requests, {", ".join(full)}
          FROM ({accounts}) e
          LEFT JOIN entitlements_periodcounter c ON c.account_id = e.account_id AND c.period = %(period)s
          LEFT JOIN entitlements_periodcounter b ON b.account_id = e.account_id AND b.period = %(before)s
    """  # noqa: S608 - of our own column names
    return query, parameters | {"period": period, "before": previous_period(period)}


def _any(p: str) -> str:
    return " OR ".join(f"{p}_{name}" for _, _, name in _LIMITS.values())


def _standing(draft: Draft) -> dict[str, Any]:
    accounts, parameters = _standing_query(draft)
    counts = [f"sum({p}_{name})::bigint AS {p}_{name}" for p in (DRAFT, NOW) for _, _, name in _LIMITS.values()]
    flags = [
        f"count(*) FILTER (WHERE {p}_{name}) AS {p}_{name}" for p in (DRAFT, NOW) for _, _, name in _LIMITS.values()
    ]
    none = [f"coalesce({c.partition(' AS ')[0]}, 0) AS {c.partition(' AS ')[2]}" for c in counts]
    return _row(
        f"""
        SELECT coalesce(sum(people), 0)::bigint AS accounts, jsonb_object_agg(set_by, people) AS set_by,
               coalesce(sum(newly), 0)::bigint AS newly, {", ".join(none)}
          FROM (SELECT set_by, count(*) AS people, {", ".join(flags)},
                       count(*) FILTER (WHERE ({_any(DRAFT)}) AND NOT ({_any(NOW)})) AS newly
                  FROM ({accounts}) s GROUP BY set_by) x
        """,  # noqa: S608 - of our own column names
        parameters,
    )


def _stopped(draft: Draft) -> list[Stopped]:
    accounts, parameters = _standing_query(draft)
    names = ", ".join(f"CASE WHEN d_{name} THEN '{limit.value}' END" for limit, (_, _, name) in _LIMITS.items())
    rows = rows_of(
        f"""
        SELECT s.account_id, a.email, array_remove(ARRAY[{names}], NULL) AS limits
          FROM (SELECT * FROM ({accounts}) f WHERE ({_any(DRAFT)}) AND NOT ({_any(NOW)})
                 ORDER BY used_requests DESC, account_id LIMIT {MOST_NAMED}) s
          JOIN entitlements_account a ON a.id = s.account_id
         ORDER BY s.used_requests DESC, s.account_id
        """,  # noqa: S608 - of our own column names
        parameters,
    )
    return [Stopped(row["account_id"], row["email"], [LimitType(name) for name in row["limits"]]) for row in rows]


# Which quotas a call was judged by says which tools it might use: its receipt has limits for no others.
_MAY_USE: Final[Mapping[LimitType, str]] = {
    LimitType.TOOL_CALLS: "x.limit_tool_calls IS NOT NULL AND (e.{p}_code AND x.limit_code_ms IS NOT NULL"
    " OR e.{p}_browser AND x.limit_browser_sessions IS NOT NULL)",
    LimitType.CODE_EXECUTION_SECONDS: "x.limit_code_ms IS NOT NULL AND e.{p}_code",
    LimitType.BROWSER_SESSIONS: "x.limit_browser_sessions IS NOT NULL AND e.{p}_browser",
}


def _refused(p: str, limit: LimitType) -> str:
    """Say in SQL that a limit would have refused the call of a receipt."""
    name = _LIMITS[limit][2]
    taken = f"x.then_{name}"
    if limit in _HOLDING:
        taken += f" + CASE WHEN x.held_{name} = 0 THEN 1 ELSE 0 END"
    passed = f"{taken} > {_limit(p, limit)}"
    return f"{_MAY_USE[limit].format(p=p)} AND {passed}" if limit in _MAY_USE else passed


_OVERRIDDEN: Final = """
SELECT DISTINCT key FROM entitlements_override WHERE value IS NOT NULL AND (ends_at IS NULL OR ends_at > %(at)s)
"""
_GATED: Final = 1  # the bit of AgentCore's gate; those of the limits follow


def _gated(p: str) -> str:
    return f"x.runtime = '{Runtime.AGENTCORE.value}' AND NOT e.{p}_agentcore"


def _replay(draft: Draft, accounts_on_it: int) -> dict[str, Any] | None:
    accounts, parameters = effective(draft)
    bits = {limit: 2 << n for n, limit in enumerate(_LIMITS)}
    overridden = {row["key"] for row in rows_of(_OVERRIDDEN, {"at": draft.at})}
    spoken = [limit for limit in _LIMITS if draft.limits(limit, overridden)]
    changed = [limit for limit in spoken if draft.changes(limit)]
    gates = {p: [(_GATED, _gated(p))] if draft.changes_gate else [] for p in (DRAFT, NOW)}
    same = [] if draft.changes_gate else [(_GATED, _gated(DRAFT))]
    said = {
        "b": [*same, *((bits[limit], _refused(DRAFT, limit)) for limit in spoken if limit not in changed)],
        **{p: [*gates[p], *((bits[limit], _refused(p, limit)) for limit in changed)] for p in (DRAFT, NOW)},
    }
    masks = {
        name: " + ".join(f"CASE WHEN {refused} THEN {bit} ELSE 0 END" for bit, refused in conditions) or "0"
        for name, conditions in said.items()
    }
    totals = [
        f"coalesce(sum(calls) FILTER (WHERE (b | {p}) & {bit} <> 0), 0)::bigint AS {p}_{name}"
        for p in (DRAFT, NOW)
        for name, bit in (*((_LIMITS[limit][2], bit) for limit, bit in bits.items()), ("any", -1))
    ]
    # What refuses a call is worked out once, as numbers that calls are grouped by: `b` under both. DISTINCT keeps the
    # planner from working an account's limits out again for each of its calls, and lets several workers read.
    query = f"""
        SELECT coalesce(sum(calls), 0)::bigint AS calls, {", ".join(totals)},
               count(DISTINCT account_id) FILTER (WHERE b | d <> 0 AND b | n = 0) AS accounts_hit,
               coalesce(sum(calls) FILTER (WHERE without_tool), 0)::bigint AS without_tools
          FROM (SELECT x.account_id, {masks["b"]} AS b, {masks[DRAFT]} AS d, {masks[NOW]} AS n,
                       e.d_agentcore AND (x.limit_code_ms IS NOT NULL AND e.n_code AND NOT e.d_code
                                          OR x.limit_browser_sessions IS NOT NULL AND e.n_browser AND NOT e.d_browser)
                           AS without_tool,
                       count(*) AS calls
                  FROM (SELECT DISTINCT ON (account_id) * FROM ({accounts}) k) e
                  JOIN entitlements_admission x ON x.account_id = e.account_id
                 WHERE x.period >= %(first)s AND x.admitted_at >= %(since)s AND x.admitted_at <= %(at)s
                   AND x.source = '{Source.GATEWAY.value}' AND x.outcome <> '{Outcome.VOIDED.value}'
                 GROUP BY 1, 2, 3, 4, 5) j
    """  # noqa: S608 - of our own column names
    since = draft.at - REPLAYED
    try:
        with transaction.atomic(), connection.cursor() as cursor:
            if accounts_on_it > _MANY:
                # The planner takes a tier for a handful of accounts, and would look each of very many up by itself.
                cursor.execute("SET LOCAL enable_nestloop = off; SET LOCAL work_mem = '64MB'")
            row = _row(query, parameters | {"since": since, "first": period_of(since)})
    except OperationalError as error:
        if isinstance(error.__cause__, QueryCanceled):
            return None
        raise
    return row


def rows_of(query: str, parameters: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Run a query of named parameters and return its rows."""
    with connection.cursor() as cursor:
        cursor.execute(query, dict(parameters))
        names = [column.name for column in cursor.description or ()]
        return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


def _row(query: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
    (row,) = rows_of(query, parameters)
    return row
