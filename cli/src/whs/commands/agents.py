"""The agents of the account."""

from __future__ import annotations

import click

from whs import show
from whs.app import App, json_option, pass_app
from whs.client import part


@click.group()
def agents() -> None:
    """List, create and delete agents."""


@agents.command("list")
@json_option
@pass_app
def list_agents(app: App) -> None:
    """List the agents, the newest first."""
    found = list(app.client.pages("/v1/agents"))
    app.answer({"items": found})
    if not found:
        app.say("No agents yet. `whs init` makes a folder to start from, `whs deploy` brings it up.")
        return
    rows = [
        [
            agent["name"], agent["runtimeProvider"], agent["status"], show.number(agent["activeVersion"], none="-"),
            show.moment(agent["createdAt"]), agent["id"],
        ]
        for agent in found
    ]  # fmt: skip
    app.say(show.table(["name", "runtime", "status", "version", "created (UTC)", "id"], rows, right=[3]))


@agents.command("create")
@click.argument("name")
@click.option("--runtime", type=click.Choice(["cloudflare", "agentcore"]), default="cloudflare", show_default=True)
@click.option("--description", default="")
@json_option
@pass_app
def create_agent(app: App, name: str, runtime: str, description: str) -> None:
    """Create an agent; `whs deploy` does it too."""
    body = {"name": name, "runtimeProvider": runtime, "description": description}
    made = app.client.post("/v1/agents", body, keyed=True)
    app.answer(made)
    app.say(f"Created {made['name']} ({made['id']}) on {made['runtimeProvider']}.")


@agents.command("delete")
@click.argument("agent")
@click.option("--yes", is_flag=True, help="Do not ask.")
@json_option
@pass_app
def delete_agent(app: App, agent: str, *, yes: bool) -> None:
    """Delete an agent: no more calls from now on. Its receipts stay."""
    found = app.agent(agent)
    if not yes:
        click.confirm(f"Delete {found['name']} and all its versions?", abort=True, err=True)
    app.client.delete(f"/v1/agents/{part(found['id'])}")
    app.answer({"deleted": found["id"]})
    app.say(f"Deleted {found['name']}.")
