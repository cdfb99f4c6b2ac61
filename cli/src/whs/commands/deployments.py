"""From a folder to a version that serves, what it logged, and back to an older one."""

from __future__ import annotations

import itertools
import time
from pathlib import Path
from typing import Any, Final

import click

from whs import show
from whs.app import App, json_option, pass_app
from whs.building.bundle import build_bundle, read_bundle
from whs.client import part
from whs.errors import CliError, Exit, LocalError, UsageError

_POLL_SECONDS: Final = 0.5
_LONGEST_POLL_SECONDS: Final = 3.0
_PASSING: Final = frozenset({Exit.BUSY, Exit.UNREACHABLE})
_FOLLOW_SECONDS: Final = 2.0
_READY: Final = frozenset({"active", "rolled_back"})
_RUNTIMES: Final = click.Choice(["cloudflare", "agentcore"])


@click.command()
@click.argument("folder", type=click.Path(path_type=Path, exists=True, file_okay=False), default=Path())
@click.option("-o", "--output", type=click.Path(path_type=Path, dir_okay=False), help="Where to write [.whs/NAME.zip].")
@json_option
@pass_app
def build(app: App, folder: Path, output: Path | None) -> None:
    """Write the zip that `whs deploy` would send.

    With a package.json, npm packages are bundled in by the project's esbuild. With a requirements.txt,
    Python packages are put beside the agent.
    """
    project, content = build_bundle(folder, app.say)
    path = output or folder / ".whs" / f"{project.name}.zip"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}.") from None
    app.answer({"bundle": str(path), "bytes": len(content), "name": project.name})
    app.say(f"Wrote {path} ({len(content):,} bytes).")


@click.command()
@click.argument("source", metavar="[FOLDER|ZIP]", type=click.Path(path_type=Path, exists=True), default=Path())
@click.option("--agent", metavar="NAME", help="Which agent [the config's name]; created where there is none.")
@click.option("--runtime", type=_RUNTIMES, help="Where this and later versions run [where the agent is].")
@click.option("--wait/--no-wait", default=True, show_default=True, help="Until it serves, or has failed.")
@click.option("--timeout", type=click.IntRange(min=1), default=300, show_default=True, help="Seconds to wait.")
@json_option
@pass_app
def deploy(app: App, source: Path, agent: str | None, runtime: str | None, *, wait: bool, timeout: int) -> None:
    """Build the agent in FOLDER, send it, and follow it until it serves. A ZIP is sent as it is."""
    project, content = build_bundle(source, app.say) if source.is_dir() else read_bundle(source)
    owner = _owner(app, agent or project.name, runtime, project.runtimes)
    made = app.client.upload(f"/v1/agents/{part(owner['id'])}/deployments", content)
    app.say(f"Version {made['version']} of {owner['name']} goes to {made['runtimeProvider']} ({made['id']}).")
    if wait:
        try:
            made = _follow(app, made, timeout)
        except KeyboardInterrupt:
            app.warn(f"The deployment goes on; look again with `whs deployments {owner['name']}`.")
            raise
    app.answer(made)
    if wait:
        app.say(f'It serves: whs invoke {owner["name"]} "good morning"')


def _owner(app: App, name: str, runtime: str | None, choices: tuple[str, ...]) -> dict[str, Any]:
    """Return the agent to deploy to, made or moved to another runtime where that was asked for."""
    found = app.find_agent(name)
    if found is None:
        body = {"name": name, "runtimeProvider": runtime or next(iter(choices), "cloudflare")}
        made: dict[str, Any] = app.client.post("/v1/agents", body, keyed=True)
        app.say(f"Created {made['name']} on {made['runtimeProvider']}.")
        return made
    if runtime and runtime != found["runtimeProvider"]:
        found = app.client.patch(f"/v1/agents/{part(found['id'])}", {"runtimeProvider": runtime})
    return found


def _follow(app: App, deployment: dict[str, Any], timeout: int) -> dict[str, Any]:
    """Print the log of a deployment until it is over; return it, or raise with the provider's own message.

    The deployment goes on whether we can ask or not, so a service that is busy or away for a moment is asked again.
    """
    path = f"/v1/deployments/{part(deployment['id'])}"
    end = time.monotonic() + timeout
    pause, told = _POLL_SECONDS, 0
    while True:
        try:
            found: dict[str, Any] = app.client.get(path)
            told = _tell_log(app, path, told)
        except CliError as error:
            if error.exit_code not in _PASSING or time.monotonic() > end:
                raise
            pause, found = _LONGEST_POLL_SECONDS, deployment
        if found["status"] in _READY:
            return found
        if found["status"] == "failed":
            raise _failure(found)
        if time.monotonic() > end:
            raise LocalError(
                "TIMED_OUT", f"Version {found['version']} is still being deployed after {timeout} seconds.",
                todo=f"it goes on; look again with `whs deployments {found['agentId']}`.",
            )  # fmt: skip
        time.sleep(pause)
        pause = min(pause * 1.2, _LONGEST_POLL_SECONDS)


def _tell_log(app: App, path: str, told: int) -> int:
    """Print what the log has beyond the lines that were told; return how many are told now."""
    if app.is_json:
        return told
    lines = list(app.client.pages(f"{path}/logs", source="deploy"))[::-1]
    for line in lines[told:]:
        app.say(f"  {show.clean(line['text'])}")
    return len(lines)


def _failure(found: dict[str, Any]) -> CliError:
    """Return the end of a deployment that failed, in the envelope; `reason` is the provider's own code."""
    error = found["error"] or {"code": "", "message": "The service does not say why."}
    todo = f"see the whole log: whs logs --deploy {found['agentId']} {found['version']}"
    body = {
        "code": "DEPLOYMENT_FAILED",
        "message": f"Version {found['version']} failed: {error['message']}",
        "details": {"deploymentId": found["id"], "reason": error["code"], "todo": todo},
        "retryable": False,
    }
    return CliError({"error": body, "traceId": None}, Exit.FAILED)


@click.command()
@click.argument("agent")
@json_option
@pass_app
def deployments(app: App, agent: str) -> None:
    """List the versions of an agent, the newest first; * serves."""
    found = app.agent(agent)
    items = list(app.client.pages(f"/v1/agents/{part(found['id'])}/deployments"))
    app.answer({"items": items})
    if not items:
        app.say(f"{found['name']} has no version yet: whs deploy --agent {found['name']}")
        return
    rows = [
        [
            "*" if one["id"] == found["activeDeploymentId"] else "", str(one["version"]), one["status"],
            one["runtimeProvider"], show.moment(one["createdAt"]), one["id"],
            one["error"]["message"] if one["error"] else "",
        ]
        for one in items
    ]  # fmt: skip
    app.say(show.table(["", "version", "status", "runtime", "created (UTC)", "id", "error"], rows, right=[1]))


@click.command()
@click.argument("agent")
@click.argument("version", type=click.IntRange(min=1))
@click.option("--reason", default="With whs activate", show_default=True, help="Kept in the history.")
@json_option
@pass_app
def activate(app: App, agent: str, version: int, reason: str) -> None:
    """Let a version serve that was deployed before."""
    found = app.agent(agent)
    _activate(app, found, _version(app, found, version), reason)


@click.command()
@click.argument("agent")
@click.option("--reason", default="With whs rollback", show_default=True, help="Kept in the history.")
@json_option
@pass_app
def rollback(app: App, agent: str, reason: str) -> None:
    """Let the newest version before the present one serve again."""
    found = app.agent(agent)
    present = found["activeVersion"]
    if present is None:
        raise LocalError("CONFLICT", f"{found['name']} has no version that serves.")
    older = next((one for one in _versions(app, found) if one["version"] < present and one["status"] in _READY), None)
    if older is None:
        raise LocalError("CONFLICT", f"There is no version of {found['name']} before {present} that could serve.")
    _activate(app, found, older, reason)


def _versions(app: App, agent: dict[str, Any]) -> list[dict[str, Any]]:
    return list(app.client.pages(f"/v1/agents/{part(agent['id'])}/deployments"))


def _version(app: App, agent: dict[str, Any], version: int) -> dict[str, Any]:
    for one in _versions(app, agent):
        if one["version"] == version:
            return one
    raise LocalError(
        "NOT_FOUND", f"{agent['name']} has no version {version}.", todo=f"See `whs deployments {agent['name']}`."
    )


def _activate(app: App, agent: dict[str, Any], chosen: dict[str, Any], reason: str) -> None:
    path = f"/v1/agents/{part(agent['id'])}/deployments/{part(chosen['id'])}/activate"
    answer = app.client.post(path, {"reason": reason})
    app.answer(answer)
    app.say(f"Version {answer['version']} of {agent['name']} serves.")


@click.command()
@click.argument("agent")
@click.argument("version", type=click.IntRange(min=1), required=False)
@click.option("--deploy", "of_deploy", is_flag=True, help="How the deployment went, not what the agent printed.")
@click.option("-n", "--lines", type=click.IntRange(1, 10_000), default=100, show_default=True, help="How many at most.")
@click.option("-f", "--follow", is_flag=True, help="Go on with what comes, until Ctrl-C.")
@json_option
@pass_app
def logs(app: App, agent: str, version: int | None, *, of_deploy: bool, lines: int, follow: bool) -> None:
    """Print what an agent printed, or how its deployment went, the newest last [of the version that serves].

    With --json, every line is one of JSON.
    """
    source = "deploy" if of_deploy else "agent"
    found = app.agent(agent)
    if version is None and found["activeDeploymentId"] is None:
        chosen = next(iter(_versions(app, found)), None)
        if chosen is None:
            raise LocalError("NOT_FOUND", f"{found['name']} has no version yet.", todo="Deploy one with `whs deploy`.")
        deployment = chosen["id"]
    else:
        deployment = found["activeDeploymentId"] if version is None else _version(app, found, version)["id"]
    path = f"/v1/deployments/{part(deployment)}/logs"
    shown = list(itertools.islice(app.client.pages(path, source=source), lines))
    for line in reversed(shown):
        _print_line(app, line)
    while follow:
        time.sleep(_FOLLOW_SECONDS)
        shown = _print_new(app, path, source, shown)


def _print_new(app: App, path: str, source: str, shown: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Print the lines that came since, oldest first; return the newest ones that are known now."""
    last = shown[0] if shown else None
    new = list(itertools.takewhile(lambda line: line != last, app.client.pages(path, source=source)))
    for line in reversed(new):
        _print_line(app, line)
    return (new or shown)[:1]


def _print_line(app: App, line: dict[str, Any]) -> None:
    app.answer(line)
    call = f" {line['invocationId']}" if line["invocationId"] else ""
    app.say(f"{show.moment(line['at'], seconds=True)}{call}  {show.clean(line['text'])}")
