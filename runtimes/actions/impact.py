"""What a draft of a tier would take from agents that run: counted in SQL, beside entitlements.impact."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from entitlements.enums import Capability, Runtime
from entitlements.impact import DRAFT, MOST_NAMED, NOW, Draft, Example, Loss, effective, rows_of
from runtimes.enums import DeploymentStatus

_WORDS: Final[Mapping[str, str]] = {
    "agentcore": "live deployments on AgentCore that would be refused",
    "memory": "live deployments that would go on without AgentCore Memory",
    "code": "live deployments that would go on without the code interpreter",
    "browser": "live deployments that would go on without the browser",
}
_CAPABILITIES: Final = {
    "memory": Capability.MEMORY, "code": Capability.CODE_INTERPRETER, "browser": Capability.BROWSER,
}  # fmt: skip


def look_at_agents(draft: Draft) -> Sequence[Loss]:
    """Return what would be lost of what serves now, and how many accounts would have more than a cap allows."""
    return [*_lost_by_deployments(draft), *_over_caps(draft)]


def _closed(p: str, switch: str) -> str:
    """Say in SQL that a serving deployment has what its account may not use. Without AgentCore only that is said."""
    if switch == "agentcore":
        return f"NOT e.{p}_agentcore"
    return f"e.{p}_agentcore AND NOT e.{p}_{switch} AND '{_CAPABILITIES[switch].value}' = ANY (d.capabilities)"


def _lost_by_deployments(draft: Draft) -> list[Loss]:
    accounts, parameters = effective(draft)
    lost = [f"{_closed(p, switch)} AS {p}_{switch}" for p in (DRAFT, NOW) for switch in _WORDS]
    counts = [
        f"count(*) FILTER (WHERE d_{s}) AS d_{s}, count(*) FILTER (WHERE n_{s}) AS n_{s},"
        f" count(DISTINCT account_id) FILTER (WHERE d_{s} AND NOT n_{s}) AS a_{s},"
        f" (array_agg(id ORDER BY id) FILTER (WHERE d_{s} AND NOT n_{s}))[:{MOST_NAMED}] AS ids_{s}"
        for s in _WORDS
    ]
    (row,) = rows_of(
        f"""
        SELECT {", ".join(counts)}
          FROM (SELECT d.id, a.account_id, {", ".join(lost)}
                  FROM ({accounts}) e
                  JOIN runtimes_agent a ON a.account_id = e.account_id AND a.deleted_at IS NULL
                  JOIN runtimes_deployment d ON d.id = a.active_deployment_id
                 WHERE d.runtime_provider = '{Runtime.AGENTCORE.value}') live
        """,  # noqa: S608 - of our own column names
        parameters,
    )
    return [
        Loss(words, row[f"d_{s}"], row[f"n_{s}"], row[f"a_{s}"], _examples(row[f"ids_{s}"] or []))
        for s, words in _WORDS.items()
        if row[f"d_{s}"] != row[f"n_{s}"]
    ]


def _examples(ids: Sequence[Any]) -> list[Example]:
    if not ids:
        return []
    rows = rows_of(
        "SELECT d.id, a.name, d.version, p.email FROM runtimes_deployment d JOIN runtimes_agent a ON a.id = d.agent_id"
        " JOIN entitlements_account p ON p.id = d.account_id WHERE d.id = ANY (%(ids)s) ORDER BY d.id",
        {"ids": list(ids)},
    )
    return [
        Example(f"{r['name']}, version {r['version']}", r["email"], "admin:runtimes_deployment_change", r["id"])
        for r in rows
    ]


_AGENTS: Final = """
SELECT account_id, count(*) AS most FROM runtimes_agent WHERE deleted_at IS NULL GROUP BY account_id
"""
_DEPLOYMENTS: Final = f"""
SELECT account_id, max(n) AS most
  FROM (SELECT d.account_id, count(*) AS n
          FROM runtimes_deployment d JOIN runtimes_agent a ON a.id = d.agent_id AND a.deleted_at IS NULL
         WHERE d.removal_requested_at IS NULL AND d.status <> '{DeploymentStatus.FAILED.value}'
         GROUP BY d.account_id, d.agent_id) k
 GROUP BY account_id
"""  # noqa: S608 - a constant of ours
# Each cap: its column, what is counted as it is where an agent or a deployment is made, and what is said of it.
_CAPS: Final = (
    ("max_agents", _AGENTS, "accounts with more agents than the cap: those stay, and no other is made"),
    (
        "max_deployments_per_agent",
        _DEPLOYMENTS,
        "accounts with an agent of more deployments than the cap: those stay, and no other is made",
    ),
)


def _over_caps(draft: Draft) -> list[Loss]:
    accounts, parameters = effective(draft)
    losses = []
    for column, counted, words in _CAPS:
        (row,) = rows_of(
            f"""
            SELECT count(*) FILTER (WHERE k.most > e.d_{column}) AS "then",
                   count(*) FILTER (WHERE k.most > e.n_{column}) AS "now",
                   count(*) FILTER (WHERE k.most > e.d_{column} AND (k.most > e.n_{column}) IS NOT TRUE) AS newly
              FROM ({accounts}) e JOIN ({counted}) k ON k.account_id = e.account_id
            """,  # noqa: S608 - of our own column names
            parameters,
        )
        if row["then"] != row["now"]:
            losses.append(Loss(words, row["then"], row["now"], row["newly"]))
    return losses
