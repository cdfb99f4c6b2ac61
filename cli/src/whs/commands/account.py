"""Signing in, and what the account may use and has used."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from typing import Any, Final

import click

from whs import show
from whs.app import App, json_option, pass_app
from whs.client import Client, part
from whs.config import Config, config_path, save_config
from whs.errors import RefusedError, UsageError
from whs.terminal import is_interactive, read_input

# Where a token is made.
TOKEN_PAGE: Final = "/settings/tokens/"  # noqa: S105 - an address, not a token
_MEASURES: Final = ("requests", "tokens", "computeMs", "toolCalls", "codeExecutionMs", "browserSessions")
_OTHER: Final = "deleted agents"
_TITLES: Final = ("requests", "tokens", "compute ms", "tool calls", "code ms", "browsers")
_CAPS: Final = {"agents": "maxAgents", "deployments": "maxDeploymentsPerAgent"}
_RATES: Final = {"concurrency": "maxConcurrentInvocations", "requestsPerMinute": "requestsPerMinute"}
_ACCESS: Final = {
    "agentcoreEnabled": "agentcore", "memoryEnabled": "memory", "codeInterpreterEnabled": "code interpreter",
    "browserEnabled": "browser",
}  # fmt: skip


@click.command()
@click.option("--no-browser", is_flag=True, help="Do not open the page, only say where it is.")
@json_option
@pass_app
def login(app: App, *, no_browser: bool) -> None:
    """Sign in: opens the page of tokens, and takes the one you paste, or one from standard input."""
    page = app.url + TOKEN_PAGE
    if is_interactive():
        click.echo(f"Make a token at {page} and paste it here. It is not shown.", err=True)
        if not no_browser:
            click.launch(page)
        token = str(click.prompt("Token", hide_input=True, err=True)).strip()
    else:
        token = read_input().strip()
    if not token.startswith("whs_") or not token.isascii() or not token.isprintable():
        raise UsageError("That is no token: one starts with whs_.")
    who = _checked(Client(app.url, token))
    kept = app.config
    save_config(config_path(), Config(app.url, {**kept.tokens, app.url: token}))
    app.answer({"url": app.url, "config": str(config_path())})
    app.say(f"Signed in to {app.url}{who}. Kept in {config_path()}, readable by you only.")


def _checked(client: Client) -> str:
    """Return as whom a token signs in; a token that may not read is a token all the same."""
    try:
        me = client.get("/v1/me")
    except RefusedError as error:
        if error.envelope["error"]["code"] != "UNAUTHORIZED":
            raise
        return " with a token that may not read the account"
    return f" as {show.clean(me['email'])}"


@click.command()
@json_option
@pass_app
def logout(app: App) -> None:
    """Forget the token of the address. It stays valid until you revoke it."""
    tokens = {url: token for url, token in app.config.tokens.items() if url != app.url}
    app.answer({"url": app.url, "wasSignedIn": app.url in app.config.tokens})
    if app.url not in app.config.tokens:
        app.say(f"Nobody is signed in to {app.url}.")
        return
    save_config(config_path(), Config(None if app.config.url == app.url else app.config.url, tokens))
    app.say(f"Signed out of {app.url}. The token is forgotten here; it stays valid until it is revoked.")


@click.command()
@json_option
@pass_app
def whoami(app: App) -> None:
    """Show the account, its tier, and the address."""
    me = app.client.get("/v1/me")
    app.answer(me)
    until = f" until {show.moment(me['tier']['until'])} UTC" if me["tier"]["until"] else ""
    app.say(f"{show.clean(me['email'])} ({me['id']}), tier {show.clean(me['tier']['name'])}{until}, at {app.url}")


@click.command()
@json_option
@pass_app
def limits(app: App) -> None:
    """Show every limit: used, held, how much there is, and when it resets."""
    usage, me = app.client.get("/v1/billing/usage"), app.client.get("/v1/me")
    app.answer({"usage": usage, "me": me})
    if app.is_json:
        return
    allowed = me["entitlements"]["limits"]
    rows = [_limit_row(row) for row in usage["limits"]]
    used = {"agents": str(sum(1 for _ in app.client.pages("/v1/agents"))), "concurrency": str(usage["inFlight"])}
    rows += [[name, used.get(name, ""), "", show.number(allowed[key]), ""] for name, key in {**_CAPS, **_RATES}.items()]
    app.say(show.table(["limit", "used", "held", "of", "percent"], rows, right=[1, 2, 3, 4]))
    app.say()
    app.say(f"Budgets reset on {show.resets(usage['resetsAt'], datetime.now(UTC))}.")
    access = [words for key, words in _ACCESS.items() if me["entitlements"]["runtimeAccess"][key]]
    app.say(f"Tier {me['tier']['name']} includes cloudflare{''.join(f', {words}' for words in access)}.")


def _limit_row(row: dict[str, Any]) -> list[str]:
    percent = "" if row["percent"] is None or not row["limit"] else f"{row['percent']} %"
    return [row["limitType"], show.number(row["used"]), show.number(row["held"]), show.number(row["limit"]), percent]


@click.command()
@click.option("--period", metavar="YYYY-MM", help="A month in UTC [the present one].")
@click.option("--by", type=click.Choice(["runtime", "day", "agent"]), default="runtime", show_default=True)
@json_option
@pass_app
def usage(app: App, period: str | None, by: str) -> None:
    """Show what was used in a month. Costs are estimates."""
    found = app.client.get("/v1/billing/usage", **({"period": period} if period else {}))
    if by == "runtime":
        app.answer(found)
        rows = [(row["runtimeProvider"], row) for row in found["byRuntime"]]
        _show_usage(app, found, by, rows)
        return
    lines = _added_up(app, found, by)
    rest = _rest(found, lines)
    app.answer({"periodKey": found["periodKey"], "by": by, "isComplete": not rest, "items": [
        {by: key, **{name: sums[name] for name in _MEASURES}} for key, sums in lines
    ]})  # fmt: skip
    _show_usage(app, found, by, [*lines, *([(_OTHER, rest)] if rest else [])])


def _added_up(app: App, found: dict[str, Any], by: str) -> list[tuple[str, Counter[str]]]:
    """Return what each agent used, or each day of the month, from the metrics of every agent there is."""
    sums: dict[str, Counter[str]] = {}
    span = {"from": found["startsAt"], "to": found["resetsAt"], "bucket": "day"}
    for agent_id, name in _names(app).items():
        metrics = app.client.get(f"/v1/agents/{part(agent_id)}/metrics", **span)
        parts = metrics["buckets"] if by == "day" else [metrics["totals"]]
        for line in parts:
            used = Counter({measure: line[measure] for measure in _MEASURES})
            if any(used.values()):
                sums.setdefault(line["at"][:10] if by == "day" else name, Counter()).update(used)
    return sorted(sums.items())


def _rest(found: dict[str, Any], lines: list[tuple[str, Counter[str]]]) -> Counter[str]:
    """Return what agents used that are deleted since, corrections by staff left out; empty where there is nothing."""
    known = sum((sums for _, sums in lines), Counter())
    rest = {name: found["totals"][name] - found["adjusted"].get(name, 0) - known[name] for name in _MEASURES}
    return Counter({name: n for name, n in rest.items() if n > 0})


def _names(app: App) -> dict[str, str]:
    return {agent["id"]: agent["name"] for agent in app.client.pages("/v1/agents")}


def _show_usage(app: App, found: dict[str, Any], by: str, rows: list[tuple[str, Any]]) -> None:
    every = [*rows, ("total", found["totals"])]
    cells = [[key, *(show.number(row[name]) for name in _MEASURES)] for key, row in every]
    app.say(show.table([by, *_TITLES], cells, right=range(1, 7)))
    app.say()
    app.say(
        f"{found['periodKey']}, tier {found['tier']}: about {found['estimatedCost']} {found['currency']} (estimated). "
        f"Resets on {show.resets(found['resetsAt'], datetime.now(UTC))}."
    )
