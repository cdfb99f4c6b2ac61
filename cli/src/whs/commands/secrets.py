"""Secrets: write only, and never on the command line, which other users and the shell's history can read."""

from __future__ import annotations

import click

from whs import show
from whs.app import App, json_option, pass_app
from whs.client import part
from whs.errors import UsageError
from whs.terminal import is_interactive, read_input


@click.group()
def secrets() -> None:
    """Set, list and remove an agent's secrets. Values are never shown."""


@secrets.command("set")
@click.argument("agent")
@click.argument("name")
@json_option
@pass_app
def set_secret(app: App, agent: str, name: str) -> None:
    """Set or rotate a secret. Its value is asked for, or read from standard input.

    \b
    whs secrets set hello API_KEY
    whs secrets set hello API_KEY < key.txt
    """  # noqa: D301 - click wants the character itself
    found = app.agent(agent)
    if is_interactive():
        value = str(click.prompt(f"Value of {name} (not shown)", hide_input=True, err=True))
    else:
        # One line's end is an editor's, not the secret's.
        value = read_input().removesuffix("\n").removesuffix("\r")
    if not value:
        raise UsageError("The value is empty.")
    answer = app.client.put(f"/v1/agents/{part(found['id'])}/secrets", {"secrets": {name: value}})
    app.answer(answer)
    app.say(f"Set {name} of {found['name']}. The agent sees it with its next call; running sessions keep the old one.")


@secrets.command("list")
@click.argument("agent")
@json_option
@pass_app
def list_secrets(app: App, agent: str) -> None:
    """List the names that are set, and those that the agent asks for."""
    answer = app.client.get(f"/v1/agents/{part(app.agent(agent)['id'])}/secrets")
    app.answer(answer)
    if not answer["items"]:
        app.say("No secrets.")
        return
    rows = [
        [
            one["name"],
            "yes" if one["isSet"] else "NO",
            "yes" if one["isRequired"] else "",
            show.moment(one["rotatedAt"] or one["setAt"]),
        ]
        for one in answer["items"]
    ]
    app.say(show.table(["name", "set", "required", "since (UTC)"], rows))


@secrets.command("remove")
@click.argument("agent")
@click.argument("name")
@json_option
@pass_app
def remove_secret(app: App, agent: str, name: str) -> None:
    """Remove a secret; later deployments and rollbacks do not bring it back."""
    found = app.agent(agent)
    app.client.delete(f"/v1/agents/{part(found['id'])}/secrets/{part(name)}")
    app.answer({"removed": name})
    app.say(f"Removed {name} of {found['name']}.")
