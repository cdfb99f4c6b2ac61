"""Would the calls of an account's agents pass now, and has it room for one more? Nothing is consumed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final
from uuid import UUID

from django.conf import settings
from django.contrib.postgres.expressions import ArraySubquery
from django.db.models import Count, IntegerField, OuterRef, Subquery
from django.db.models.functions import Coalesce, JSONObject

from entitlements import ledger
from entitlements.actions.admit import ask_of
from entitlements.actions.standing import AccountStanding
from entitlements.blocked import Call, Obstacle, Verdict, Weight, verdict_on, verdict_on_cap
from entitlements.display import LABELS, RUNTIME_NAMES
from entitlements.enums import Capability, LimitType, Runtime
from entitlements.rules import FLAG_OF_CAPABILITY, GATE_OF_FLAG
from runtimes.actions.deployments import KEPT
from runtimes.actions.invoke import need_of, subject_of
from runtimes.actions.targets import target_of
from runtimes.models import Agent, AgentQuerySet, Deployment, Grant, RuntimeSwitch
from runtimes.rules import InvokeRequest, only_waits_for_withdrawal, quotas_of

_MOST_AGENTS: Final = 1000
_MOST_NAMES: Final = 3


def _switch_of(runtime: str) -> Subquery:
    said = JSONObject(deploys="deploys", invocations="invocations", message="message")
    return Subquery(RuntimeSwitch.objects.filter(runtime=OuterRef(runtime)).values(said=said)[:1])


def agents_now(account_id: UUID) -> Sequence[Any]:
    """Return an account's agents with what serves, what it has at its provider, its switches, and what is kept."""
    granted = Grant.objects.filter(deployment_id=OuterRef("active_deployment_id"), withdrawn_at__isnull=True)
    kept = Deployment.objects.filter(KEPT, agent_id=OuterRef("pk")).order_by().values("agent_id")
    return list(
        AgentQuerySet(Agent)
        .kept()
        .filter(account_id=account_id)
        .select_related("active_deployment")
        .annotate(
            granted=ArraySubquery(granted.order_by("capability").values("capability")),
            serving_switch=_switch_of("active_deployment__runtime_provider"),
            own_switch=_switch_of("runtime_provider"),
            kept=Coalesce(Subquery(kept.values(n=Count("pk")), output_field=IntegerField()), 0),
        )[:_MOST_AGENTS]
    )


def verdicts_now(look: AccountStanding) -> list[Verdict]:
    """Ask for every kind of call that the account's live deployments make, then for what is capped."""
    agents = agents_now(look.account_id)
    live = [a for a in agents if a.disabled_at is None and a.active_deployment is not None]
    most = max(agents, key=lambda a: a.kept, default=None)
    found = [*_calls(look, live), *_out_of_use(agents)]
    found.append(verdict_on_cap(look, "One more agent", LimitType.AGENTS, len(agents)))
    if most is not None:
        what = f"One more deployment of {most.name}"
        found.append(verdict_on_cap(look, what, LimitType.DEPLOYMENTS, most.kept))
    return found + _deploys_switched_off(agents)


def _calls(look: AccountStanding, live: Sequence[Any]) -> list[Verdict]:
    groups: dict[tuple[str, tuple[str, ...]], list[Any]] = defaultdict(list)
    for agent in live:
        runtime = agent.active_deployment.runtime_provider
        groups[runtime, tuple(agent.granted) if runtime == Runtime.AGENTCORE else ()].append(agent)
    # Of agents that are alike, the newest deployment speaks for all: what it is estimated to need may differ a little.
    speaking = {key: max((a.active_deployment for a in alike), key=lambda d: d.id) for key, alike in groups.items()}
    reserving = [d.id for d in speaking.values() if d.runtime_provider in settings.RESERVING_RUNTIMES]
    recent = ledger.recent_uses(reserving)
    found = []
    for (runtime, capabilities), alike in groups.items():
        deployment = speaking[runtime, capabilities]
        verdict = _call(look, deployment, capabilities, recent.get(deployment.id))
        note = f"{len(alike)} agent{'s' if len(alike) > 1 else ''}: {_named([a.name for a in alike])}"
        if only_waits_for_withdrawal([o.limit for o in verdict.obstacles if o.limit]):
            note += ". It is being withdrawn from what runs, which then goes on without it."
        # Before any limit is looked at, as `resolve` does.
        switch = alike[0].serving_switch
        is_off = switch is not None and not switch["invocations"]
        off = (_switched_off(switch, "This runtime is switched off at the moment."),) if is_off else ()
        found.append(replace(verdict, obstacles=(*off, *verdict.obstacles), note=note))
    return found


def _call(
    look: AccountStanding, deployment: Deployment, capabilities: Sequence[str], recent: ledger.Recent | None
) -> Verdict:
    target = replace(target_of(deployment), capabilities=frozenset(capabilities))
    tools = quotas_of(capabilities)
    need = need_of(target, InvokeRequest(()), tools, recent)
    labels = [LABELS[GATE_OF_FLAG[FLAG_OF_CAPABILITY[Capability(c)]]] for c in capabilities]
    what = f"A call on {RUNTIME_NAMES[Runtime(target.runtime)]}" + (f" with {', '.join(labels)}" if labels else "")
    return verdict_on(look, Call(what, ask_of(subject_of(target, tools=tools), need)))


def _named(names: Sequence[str]) -> str:
    more = len(names) - _MOST_NAMES
    return ", ".join(names[:_MOST_NAMES]) + (f" and {more} more" if more > 0 else "")


def _switched_off(switch: Mapping[str, Any], usual: str) -> Obstacle:
    return Obstacle(
        "Runtime switched off", switch["message"] or usual, "When an operator switches it on",
        "It is off for everybody, and no tier or override helps.",
    )  # fmt: skip


def _deploys_switched_off(agents: Sequence[Any]) -> list[Verdict]:
    off = {a.runtime_provider: a.own_switch for a in agents if a.own_switch and not a.own_switch["deploys"]}
    return [
        Verdict(
            f"A deployment to {RUNTIME_NAMES[Runtime(runtime)]}",
            (_switched_off(switch, "This runtime takes no deployments at the moment."),),
            Weight.REFUSES,
        )
        for runtime, switch in off.items()
    ]


def _out_of_use(agents: Sequence[Any]) -> list[Verdict]:
    found = []
    if disabled := [a.name for a in agents if a.disabled_at is not None]:
        obstacle = Obstacle("Disabled agent", "This agent is disabled.", "When its owner enables it")
        found.append(Verdict(f"A call of {_named(disabled)}", (obstacle,), Weight.REFUSES))
    if bare := [a for a in agents if a.disabled_at is None and a.active_deployment is None]:
        error = next((a.last_error for a in bare if a.last_error), "")
        obstacle = Obstacle(
            "Nothing deployed", "This agent has no active deployment yet.", "When a deployment succeeds",
            f"The last one failed: {error}" if error else "",
        )  # fmt: skip
        found.append(Verdict(f"A call of {_named([a.name for a in bare])}", (obstacle,), Weight.REFUSES))
    return found


def agent_names(agent_ids: set[UUID]) -> dict[UUID, str]:
    """Return what agents are called, those that were deleted too."""
    return dict(Agent.objects.filter(pk__in=agent_ids).values_list("pk", "name"))
